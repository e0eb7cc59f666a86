"""A run's states: what is written of them, what comes back, and what is forgotten."""

import numpy as np
import pytest

from aggregator.store.errors import DatabaseError
from aggregator.store.types import Retention, Timer, Version
from edge_sdk.protocol.contract.method import Due
from tests.aggregator.store.rig import RUN, begin, settle


def written(store, leaf):
    found = store._db.execute("SELECT count(*) FROM leaves WHERE path = ?", (leaf,))
    return found.fetchone()[0]


def close(store, number, keep=None):
    _, entry = settle(store, key=(1, number), round_number=number)
    closed = Version(1, number, number, True, bytes(32), {"cohort": ["m-1"]}, 99)
    leaves = {"w": np.full(2, float(number)), "round": number}
    store.commit(1, leaves, entry.position, closed=closed, keep=keep and Retention(rounds=keep))
    return entry.position


def test_only_changed_leaves_are_written_and_all_come_back(store):
    begin(store)
    entry = store.journal.append(1, Due(1, "train", after=60.0))
    timers = (Timer(Due(2, "train", after=60.0), 123_456),)
    store.commit(1, {"round": 1, "pending.a": None}, entry.position, timers=timers)
    saved = store.states.load(1)
    assert saved.leaves.keys() == {"w", "round"}
    assert saved.leaves["round"] == 1
    assert (saved.upto, saved.timers) == (entry.position, timers)
    assert written(store, "w") == 1
    assert store.runs.latest() == RUN
    assert store.states.first(1).leaves["pending.a"] == 1.0
    with pytest.raises(DatabaseError, match="no run 7"):
        store.states.load(7)


def test_old_rounds_lose_their_vectors_and_their_states(store):
    begin(store)
    positions = [close(store, number, keep=2) for number in range(1, 6)]
    assert store.states.first(1).upto == positions[2]
    assert store.states.first(1).leaves["round"] == 3
    assert store.states.load(1).leaves["round"] == 5
    assert [e.event is None for e in store.journal.entries(1)] == [True] * 3 + [False] * 2
    assert written(store, "round") == 3
    (closed,) = store.runs.versions(1, last=1)
    assert (closed.round, closed.report, closed.position) == (
        5,
        {"cohort": ["m-1"]},
        positions[4],
    )
