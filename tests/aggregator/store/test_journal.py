"""What happened is written once, in order, and comes back bit for bit."""

import numpy as np

from aggregator.store.ledgers import Ledger, LedgerRow
from edge_sdk.errors import Reason
from edge_sdk.protocol.contract.method import Due, Member, Update
from tests.aggregator.store.rig import begin, settle


def test_an_update_is_row_ledger_and_journal_in_one(store):
    row, entry = settle(store)
    assert store.ledgers.row("m-1", (1, 1)) == row
    assert store.ledgers.get("m-1").cur == 1
    (kept,) = store.journal.entries(1)
    assert kept.position == entry.position
    assert kept.event.vector.dtype == np.float32
    assert (kept.event.vector.tolist(), kept.event.values) == (
        [1.0, 2.0],
        {"n": 3.0, "loss": 0.125},
    )


def test_wide_vectors_keep_every_bit(store):
    vector = np.array([1 / 3, 1e300])
    event = Update("m-1", 1, 0, vector)
    store.append("m-1", Ledger(), (1, 1), LedgerRow(b"", 0, 1, 1), event)
    (kept,) = store.journal.entries(1)
    assert kept.event.vector.tobytes() == vector.tobytes()


def test_a_second_update_in_a_round_is_settled_and_not_journalled(store):
    settle(store)
    row, entry = settle(store, key=(1, 2), digest=b"e" * 32)
    assert (row.code, entry) == (Reason.TWICE_IN_ROUND, None)
    assert store.ledgers.row("m-1", (1, 2)) == row
    assert store.journal.waiting(1, 1) == 1


def test_other_events_are_journalled_in_order(store):
    begin(store)
    events = [Due(0, "open"), Member("m-1", present=True), Due(3, "train", 1, 2.5)]
    for event in events:
        store.journal.append(1, event)
    settle(store)
    kept = [entry.event for entry in store.journal.entries(1)]
    assert kept[:3] == events
    assert [e.event for e in store.journal.entries(1, after=2)][:1] == events[2:]
    assert list(store.journal.entries(2)) == []
