"""What comes back of a device: its keys, its numbers, how they were settled, its commands."""

from aggregator.store.ledgers import Ledger
from aggregator.store.opener import open_store
from aggregator.store.types import EnrolledDevice
from tests.aggregator.store.rig import settle


def test_everything_of_a_device_comes_back(store, path):
    ledger = Ledger(2, b"h" * 32, 3, ((2, 1), (2, 9)), ((1, 4),), 17, 0)
    store.ledgers.save("m-1", ledger)
    store.devices.save(EnrolledDevice("m-1", (bytes(32), b"k" * 32), 2, "quarantined", "fork"))
    store.close()
    with open_store(path) as again:
        assert again.ledgers.get("m-1") == ledger
        assert again.ledgers.get("m-2") == Ledger()
        assert again.devices.all() == [
            EnrolledDevice("m-1", (bytes(32), b"k" * 32), 2, "quarantined", "fork")
        ]


def test_a_new_life_prunes_what_is_not_open(store):
    for seq in (1, 2, 3):
        settle(store, key=(1, seq), round_number=seq)
    store.ledgers.save("m-1", Ledger(cur=2, open=((1, 2),)))
    assert [store.ledgers.row("m-1", (1, seq)) is not None for seq in (1, 2, 3)] == [
        False,
        True,
        False,
    ]
    assert store.ledgers.held("m-1") == 1
    assert [entry.event.round for entry in store.journal.entries(1)] == [1, 2, 3]


def test_commands_are_numbered_and_stay_until_done(store):
    assert [store.commands.issue("m-1", op).num for op in ("stop", "resume")] == [1, 2]
    assert store.ledgers.get("m-1").cmd == 2
    assert store.commands.finish("m-1", 1, 0)
    assert not store.commands.finish("m-1", 1, 0)
    assert [c.op for c in store.commands.open("m-1")] == ["resume"]
