"""A device among neighbours that dies before, between and after everything it writes and says."""

import pytest

from tests.fleet.street import Street, ring
from tests.fleet.test_neighbours import HOURS, NAMES, SOUND, Block, everybody

LAST = 4


class PowerCut(BaseException):
    """The power is gone: nothing below catches this."""


def fragile(client, at):
    """Let a client die at its ``at``-th step on disk or wire; return how many it has taken."""
    taken = [0]

    def dying(call, *, after):
        def wrapped(*args, **kwargs):
            taken[0] += 1
            if taken[0] == at and not after:
                raise PowerCut
            result = call(*args, **kwargs)
            if taken[0] == at and after:
                raise PowerCut
            return result

        return wrapped

    store = client._store
    store.save = dying(store.save, after=at % 2 == 0)
    store.file_paper = dying(store.file_paper, after=at % 2 == 0)
    letters = client.extension("peers").letters
    letters.send = dying(letters.send, after=at % 2 == 0)
    return taken


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    """What every method comes to undisturbed, and how many steps on disk or wire that takes."""
    found = {}
    for method in ("dfl_sgd", "dfl_gt"):
        folder = tmp_path_factory.mktemp(method)
        street = Street(folder, ring(NAMES), method, say={"total_steps": LAST, "deadline": "60s"})
        found[method] = street.by_hand(everybody(street, LAST), Block.observe)
    return found


@pytest.mark.parametrize("method", ["dfl_sgd", "dfl_gt"])
@pytest.mark.parametrize("name", ["home-0", "home-2", "home-4"])
@pytest.mark.parametrize("first", [1, 5])
def test_a_crash_at_any_point_changes_no_bit(tmp_path, wanted, method, name, first):
    """Each process of this device lives a little longer than the one before it, until one ends."""
    assert HOURS > 48
    street = Street(tmp_path, ring(NAMES), method, say={"total_steps": LAST, "deadline": "60s"})
    block = Block(street, SOUND)
    fragile(block.clients[name], first)
    deaths = 0
    for _ in range(6000):
        if all(block.step(one) >= LAST for one in block.clients):
            break
        try:
            block.turn()
        except PowerCut:
            deaths += 1
            block.die(name)
            block.start(name)
            fragile(block.clients[name], first + 2 * deaths + deaths % 3)
    assert deaths >= 3
    for one in NAMES:
        assert (block.clients[one].state.p == wanted[method][one]).all(), one
    assert {c.status()["neighbours"]["epoch"] for c in block.clients.values()} == {1}
    block.close()
