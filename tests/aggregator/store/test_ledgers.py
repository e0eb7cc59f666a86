"""What comes back of a device: its keys, its numbers, how they were settled, its commands."""

from aggregator.store.opener import open_store
from aggregator.store.sequence_ledger import Ledger
from aggregator.store.types import EnrolledDevice
from tests.aggregator.store.rig import settle


def test_everything_of_a_device_comes_back(store, path):
    ledger = Ledger(2, b"h" * 32, 3, ((2, 1), (2, 9)), ((1, 4),), 17, 0)
    store.save_ledger("m-1", ledger)
    store.put_client(EnrolledDevice("m-1", (bytes(32), b"k" * 32), 2, "quarantined", "fork"))
    store.close()
    with open_store(path) as again:
        assert again.ledger("m-1") == ledger
        assert again.ledger("m-2") == Ledger()
        assert again.clients() == [
            EnrolledDevice("m-1", (bytes(32), b"k" * 32), 2, "quarantined", "fork")
        ]


def test_a_new_life_prunes_what_is_not_open(store):
    for seq in (1, 2, 3):
        settle(store, key=(1, seq), round_number=seq)
    store.save_ledger("m-1", Ledger(cur=2, open=((1, 2),)))
    assert [store.row("m-1", (1, seq)) is not None for seq in (1, 2, 3)] == [False, True, False]
    assert store.held("m-1") == 1
    assert [entry.event.round for entry in store.journal(1)] == [1, 2, 3]


def test_commands_are_numbered_and_stay_until_done(store):
    assert [store.issue("m-1", op).num for op in ("stop", "resume")] == [1, 2]
    assert store.ledger("m-1").cmd == 2
    assert store.command_done("m-1", 1, 0)
    assert not store.command_done("m-1", 1, 0)
    assert [c.op for c in store.issued("m-1")] == ["resume"]
