"""The uplink's promises, checked in every state of a model, and every planted fault found.

No receipted update is lost, none is applied twice, no chunk set is mixed up, no number ever names
two bodies, no live entry is dropped, the ledger never under-counts, and once faults stop the outbox
empties.
"""

import importlib.util
import random
import sys
from collections import deque
from pathlib import Path

import pytest

_found = importlib.util.spec_from_file_location(
    "uplink_model", Path(__file__).with_name("uplink_model.py")
)
model = importlib.util.module_from_spec(_found)
sys.modules[_found.name] = model
_found.loader.exec_module(model)
Uplink = model.Uplink


def start(budget):
    return model.World(budget=tuple(sorted(budget.items())))


def explore(uplink, budget, *, live=True):
    """Visit every reachable state; return (what broke, states seen)."""
    first = start(budget)
    seen, todo = {first}, deque([first])
    while todo:
        w = todo.popleft()
        if broken := model.wrong(w) or (live and uplink.calm(w)):
            return broken, len(seen)
        for _, after in uplink.moves(w):
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return None, len(seen)


def wander(uplink, budget, walks, *, seed=0, budget_too=True, only=None):
    """Walk at random; return (what broke, steps). ``only`` looks for one broken promise."""
    rng, steps = random.Random(seed), 0
    for _ in range(walks):
        w = start(budget)
        for _ in range(120):
            options = uplink.moves(w)
            if not options:
                break
            kind = rng.choice(sorted({name.split()[0] for name, _ in options}))
            _, w = rng.choice([o for o in options if o[0].split()[0] == kind])
            steps += 1
            if broken := model.wrong(w, budget_too=budget_too, only=only):
                return broken, steps
        if only is None and (broken := uplink.calm(w)):
            return broken, steps
    return None, steps


HOSTILE = {"release": 8, "tick": 12, "crash": 4, "drop": 6, "dup": 6, "replay": 6, "rehello": 2}
LOSSES = {**HOSTILE, "lose": 2}
RESTORES = {**HOSTILE, "lose": 1, "backup": 1, "restore": 1}
MANY_LOSSES = {**HOSTILE, "lose": 3, "rehello": 3, "crash": 6}

SMALL = {
    "crashes": ({"tick": 2, "release": 1, "crash": 2, "dup": 1}, 3_658),
    "drops": ({"tick": 3, "release": 1, "drop": 2, "dup": 1, "crash": 1}, 18_824),
    "two-releases": ({"tick": 2, "release": 2, "crash": 1}, 8_609),
    "replay": ({"tick": 3, "release": 1, "replay": 1, "crash": 1}, 8_384),
    "loss-and-replay": ({"tick": 2, "release": 1, "lose": 1, "replay": 1}, 1_215),
}
LARGE = {
    "rehello": ({"tick": 3, "release": 1, "rehello": 1, "drop": 1, "dup": 1}, 25_762),
    "two-releases": ({"tick": 2, "release": 2, "drop": 1, "dup": 1}, 39_935),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if states > 5_000 else name
        for name, (_, states) in SMALL.items()
    ],
)
def test_every_state_keeps_every_promise(name):
    """The number of states is pinned: a model that sees fewer may have lost a move."""
    budget, states = SMALL[name]
    assert explore(Uplink(), budget) == (None, states)


@pytest.mark.soak
@pytest.mark.parametrize("name", LARGE)
def test_every_state_of_the_larger_sets_keeps_every_promise(name):
    budget, states = LARGE[name]
    assert explore(Uplink(), budget) == (None, states)


@pytest.mark.parametrize(
    ("budget", "budget_too"), [(LOSSES, True), (RESTORES, False)], ids=["losses", "restores"]
)
def test_random_walks_keep_every_promise(budget, budget_too):
    broken, steps = wander(Uplink(), budget, 40, budget_too=budget_too)
    assert broken is None
    assert steps > 2_000


@pytest.mark.soak
@pytest.mark.parametrize(
    ("budget", "budget_too"),
    [(LOSSES, True), (RESTORES, False), (MANY_LOSSES, True)],
    ids=["losses", "restores", "many-losses"],
)
def test_long_random_walks_keep_every_promise(budget, budget_too):
    assert wander(Uplink(), budget, 1_500, seed=1, budget_too=budget_too)[0] is None


SMALL_FAULTS = {
    "puback_is_receipt": {"tick": 2, "release": 1, "drop": 1},
    "early_receipt": {"tick": 2, "release": 1, "crash": 1},
    "no_ledger": {"tick": 2, "release": 1, "dup": 1},
    "redraw": {"tick": 3, "release": 1},
    "no_margin": {"tick": 3, "release": 2, "lose": 1, "drop": 1},
}
BY_WALKS = {
    "no_lives": LOSSES,
    "repeat_hello": LOSSES,
    "repeat_welcome": {"tick": 3, "release": 3, "dup": 3},
}
SCRIPTED = {"unsaved_margin", "eager_promotion", "free_reopening", "set_by_number"}


@pytest.mark.parametrize("fault", SMALL_FAULTS)
def test_a_planted_fault_is_found_by_exploring(fault):
    assert explore(Uplink(fault), SMALL_FAULTS[fault])[0] is not None


@pytest.mark.parametrize("fault", BY_WALKS)
def test_a_planted_fault_is_found_by_walking(fault):
    assert wander(Uplink(fault), BY_WALKS[fault], 1_500, seed=1)[0] is not None


def test_a_receipt_by_number_alone_loses_an_update_when_numbers_come_again():
    """With lives no number comes twice, so this fault shows only beside that one."""
    promise = "receipted update lost"
    uplink = Uplink("receipt_by_number", "no_lives")
    assert wander(uplink, LOSSES, 1_500, seed=1, only=promise)[0] == promise


def test_each_fault_is_tried():
    assert {*SMALL_FAULTS, *BY_WALKS, "receipt_by_number", *SCRIPTED} == model.FAULTS.keys()


def test_an_early_receipt_loses_what_was_receipted():
    """The window is one crash wide; a set without the liveness check shows the loss itself."""
    budget = {"tick": 2, "release": 1, "crash": 1}
    assert explore(Uplink("early_receipt"), budget, live=False)[0] == "receipted update lost"


class Script:
    """A hand-written run: the tester is link, broker and fate."""

    def __init__(self, *faults):
        self.outbox, self.w = Uplink(*faults), model.World()

    def device(self, handler, *args):
        after, out = handler(self.w, *args)
        self.w = model.post(after, "device", out)

    def deliver(self, kind, **fields):
        """Deliver the only waiting message like this; lose what else is waiting that way."""
        box = "up" if any(m.kind == kind for m in self.w.up) else "down"
        waiting = {m for m in getattr(self.w, box) if m.kind == kind}
        (m,) = [m for m in waiting if all(getattr(m, k) == v for k, v in fields.items())]
        side, hears = (
            ("aggregator", self.outbox.aggregator_hears)
            if box == "up"
            else ("device", self.outbox.device_hears)
        )
        after, out = hears(self.w._replace(**{box: ()}), m)
        self.w = model.post(after, side, out)

    def session(self):
        self.device(self.outbox.time_out)
        self.deliver("hello")
        self.deliver("welcome")

    def lose_in_flight(self):
        self.w = self.w._replace(up=(), down=())

    def lose_store(self):
        """Lose the store; the new process finds its first number used."""
        self.lose_in_flight()
        self.w = self.w._replace(device=model.Device())
        self.device(self.outbox.time_out)
        self.deliver("hello")
        self.deliver("floor")
        self.deliver("hello")
        self.deliver("welcome")


def reopened(*faults):
    """Release (1,1); backup; its receipt; a new life; restore the backup; offer (1,1) again."""
    run = Script(*faults)
    run.session()
    run.device(run.outbox.release)
    run.w = run.w._replace(backup=run.w.device)
    run.deliver("update")
    run.deliver("receipt")
    run.device(run.outbox.say_hello)
    run.deliver("hello")
    run.deliver("welcome")
    run.device(run.outbox.release)
    run.deliver("update")
    run.deliver("receipt")
    run.w = model.power_cut(run.w._replace(device=run.w.backup), "device")
    run.device(run.outbox.time_out)  # hello 2, already used
    run.deliver("hello")
    run.deliver("floor")
    run.deliver("hello")  # hello 3 lists (1, 1) as open
    run.deliver("welcome")
    run.device(run.outbox.release)
    run.deliver("update")  # (3, 1) promotes life 3
    run.lose_in_flight()
    offers = run.outbox.time_out(run.w)[1]
    (offer,) = [m for m in offers if m.key == (1, 1)]
    after, out = run.outbox.aggregator_hears(run.w, offer)
    run.w = model.post(after, "aggregator", out)
    return run


def test_a_restored_image_cannot_reopen_what_was_settled():
    run = reopened()
    assert [m.code for m in run.w.down] == [model.CLOSED]
    assert model.wrong(run.w, budget_too=False) is None


def test_free_reopening_applies_an_update_twice():
    run = reopened("free_reopening")
    run.deliver("grant")
    run.deliver("chunk")
    assert model.wrong(run.w, budget_too=False) == "applied twice"


def mixed(*faults):
    """Half of a two-chunk body arrives, the store is lost, and the number comes again."""
    run = Script("no_lives", *faults)
    for index in (0, 1):
        run.w = run.w._replace(device=model.Device())
        run.session()
        run.device(run.outbox.release)
        run.device(run.outbox.release)
        run.deliver("offer", key=(1, 2))
        run.deliver("grant")
        run.deliver("chunk", index=index)
    return model.broken(run.w)


def test_a_chunk_set_kept_by_number_mixes_two_bodies():
    assert "mixed-up chunk set" in mixed("set_by_number")
    assert "mixed-up chunk set" not in mixed()


def lost_twice(*faults):
    """Two releases that nobody hears of, the store lost; and all of it once more."""
    run = Script(*faults)
    run.session()
    for _ in range(2):
        run.device(run.outbox.release)
        run.device(run.outbox.release)
        run.lose_store()
    return run


def test_repeated_losses_stay_covered_by_the_margin():
    assert model.wrong(lost_twice().w) is None


def test_a_margin_that_is_sent_but_not_saved_undercounts():
    assert model.wrong(lost_twice("unsaved_margin").w) == "privacy ledger under-counts"


def overtaken(*faults):
    """A hello of a lost store is delayed, and arrives while its successor has a live entry."""
    run = Script(*faults)
    run.session()
    run.device(run.outbox.say_hello)
    run.device(run.outbox.say_hello)  # life 3: the broker keeps this one back
    late = next(m for m in run.w.up if m.kind == "hello" and m.ref[0] == 3)
    run.lose_store()  # life 2 runs
    run.device(run.outbox.release)
    run.lose_in_flight()
    run.w = run.w._replace(up=(late,))
    run.deliver("hello")
    run.lose_in_flight()
    run.device(run.outbox.time_out)
    run.deliver("offer" if run.w.up[0].kind == "offer" else "update")
    for kind in ("grant", "chunk", "receipt"):
        if any(m.kind == kind for m in run.w.up + run.w.down):
            run.deliver(kind)
    return run


def test_a_delayed_hello_of_a_lost_store_closes_nothing():
    run = overtaken()
    assert model.wrong(run.w) is None
    assert [key for key, _ in run.w.receipted] == [(2, 1)]


def test_eager_promotion_lets_a_delayed_hello_close_live_entries():
    assert model.wrong(overtaken("eager_promotion").w) == "live entry dropped or refused"


def test_a_rolled_back_image_can_undercount_the_budget():
    """The one loss no message can mend, which is why PROTOCOL.md does not promise it."""
    run = Script()
    run.session()
    run.w = run.w._replace(backup=run.w.device)
    run.device(run.outbox.release)
    run.lose_in_flight()  # the aggregator never hears of it
    run.w = model.power_cut(run.w._replace(device=run.w.backup), "device")
    run.session()
    assert model.wrong(run.w) == "privacy ledger under-counts"
    assert model.wrong(run.w, budget_too=False) is None
