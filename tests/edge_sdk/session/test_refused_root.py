"""The device's record of a root that it refuses: once in the log, and at most one hello a minute."""

from edge_sdk.protocol.keys import from_seed
from edge_sdk.protocol.root_keys import RootKeys
from edge_sdk.session.key_ring import PAPER, RefusedKeys, RefusedRoot

OWN = from_seed(bytes(32))
ROOT = RootKeys((OWN.public,))


class Papers(dict):
    paper = dict.get
    file_paper = dict.__setitem__


def refusals(foreign=b"", *, has_followed=False):
    found = RefusedKeys()
    if has_followed:
        found.note_followed_root()
    found.foreign_root = foreign
    return found


def test_many_forged_lists_cost_one_line_and_one_hello_a_minute(caplog):
    root = RefusedRoot(Papers(), ROOT)
    found = [
        root.follow(refusals(number.to_bytes(8, "big")), ROOT, now=number / 10)
        for number in range(1, 700)
    ]
    assert sum(found) == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert f"own={OWN.kid.hex()} announced=0000000000000001" in caplog.messages[0]


def test_a_restart_states_it_in_the_first_hello_and_logs_it_once_more(caplog):
    store = Papers()
    assert RefusedRoot(store, ROOT).follow(refusals(b"foreign!"), ROOT, 0.0)
    caplog.clear()
    again = RefusedRoot(store, ROOT)
    assert again.pair == OWN.kid + b"foreign!"
    assert not again.follow(refusals(), ROOT, 0.0)
    assert not any(again.follow(refusals(b"foreign!"), ROOT, now) for now in range(200))
    assert len(caplog.records) == 1
    assert again.follow(refusals(has_followed=True), ROOT, 200.0)
    assert (again.pair, store[PAPER]) == (b"", b"")


def test_another_pinned_root_forgets_what_the_former_refused():
    store = Papers()
    RefusedRoot(store, ROOT).follow(refusals(b"foreign!"), ROOT, 0.0)
    assert RefusedRoot(store, RootKeys((from_seed(bytes(range(32))).public,))).pair == b""
    assert store[PAPER] == b""
