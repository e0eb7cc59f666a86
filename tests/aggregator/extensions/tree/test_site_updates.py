"""What a site sends its parent, and what of it survives in journal and state."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.extensions.tree.parent_binding import following_parent
from aggregator.extensions.tree.parent_session import ParentRecord, site_update
from aggregator.methods.averaging import FedAvg, fedavg
from aggregator.methods.base.round_machine import OPEN, Rounds
from aggregator.methods.base.types import Setup
from aggregator.rules import bind
from aggregator.store import state_codec
from aggregator.store.journal import pack_event, unpack_event
from edge_sdk.protocol.codec import unpack_tensor
from edge_sdk.protocol.contract.method import Closed, Due, ParentModel, Task, Up, Update
from edge_sdk.protocol.outbox_state import UplinkCounters

NONE = np.zeros(0)


def site(**rounds):
    half = fedavg(Setup(bind("mean"), FedAvg(), Rounds(**{"quorum": 2, **rounds})))
    return following_parent(half)


def received(w, version=7, number=3, *, carry=NONE, is_last=False):
    return ParentModel(1, number, 0, 0, version, np.asarray(w, np.float32), carry, is_last)


def opened(half, w=(0.0, 0.0)):
    return half.apply(half.init(np.asarray(w, np.float32)), OPEN)[0]


def answered(half, state, *vectors):
    effects = ()
    for number, vector in enumerate(vectors):
        update = Update(f"m{number}", state.round, state.version, np.asarray(vector))
        state, effects = half.apply(state, update)
    return state, effects


def test_a_model_of_the_parent_takes_the_place_of_a_round():
    half = site()
    state, effects = half.apply(opened(half), received([1.0, 2.0]))
    closed, task, due = effects
    assert isinstance(closed, Closed)
    assert (closed.round, closed.version, closed.moved) == (1, 1, True)
    assert closed.report["cohort"] == []
    assert (closed.report["parent_round"], closed.report["parent_version"]) == (3, 7)
    assert isinstance(task, Task)
    assert (task.round, task.base, task.arrays["w"].tolist()) == (2, 1, [1.0, 2.0])
    assert isinstance(due, Due)
    record = ParentRecord.of(state)
    assert (record.turn, record.version, record.rounds, record.count) == ((1, 3, 0, 0), 7, 0, 0)


def test_rounds_after_it_are_counted_with_the_largest_number_of_updates():
    half = site(quorum=3, least=2)
    state, _ = half.apply(opened(half), received([1.0, 1.0]))
    state, _ = answered(half, state, [1.0, 0.0], [1.0, 0.0], [1.0, 0.0])
    state, _ = answered(half, state, [1.0, 0.0], [1.0, 0.0])
    state, _ = half.apply(state, Due(state.round, "train"))
    record = ParentRecord.of(state)
    assert (record.rounds, record.count) == (2, 3)
    assert state.w.tolist() == [-1.0, 1.0]


def test_an_abandoned_round_does_not_count():
    half = site()
    state, _ = half.apply(opened(half), received([1.0, 1.0]))
    state, (closed, *_) = half.apply(state, Due(state.round, "train"))
    assert not closed.moved
    assert ParentRecord.of(state).rounds == 0


def test_a_round_with_an_update_is_not_replaced():
    half = site()
    state, _ = answered(half, opened(half), [1.0, 0.0])
    same, effects = half.apply(state, received([5.0, 5.0]))
    assert same is state
    assert effects == ()


def test_kept_progress_is_added_and_is_part_of_the_next_difference():
    half = site()
    state, _ = half.apply(opened(half), received([1.0, 2.0], carry=np.array([0.25, -0.5])))
    assert state.w.tolist() == [1.25, 1.5]
    assert ParentRecord.of(state).w.tolist() == [1.0, 2.0]


def test_the_last_model_ends_the_run():
    half = site()
    state, (closed,) = half.apply(opened(half), received([1.0, 2.0], is_last=True))
    assert not state.is_open
    assert closed.report["stop"]
    assert half.model(state)["p"].tolist() == [1.0, 2.0]


def test_a_model_that_is_not_finite_is_not_adopted():
    half = site()
    state, (closed, *_) = half.apply(opened(half), received([np.inf, 0.0]))
    assert not closed.moved
    assert ParentRecord.of(state) is None


def test_a_state_without_a_parent_has_the_leaves_it_had_before():
    half = site()
    assert not any("parent" in path for path in state_codec.flatten(opened(half)))


def test_a_state_with_a_parent_is_saved_and_read_again():
    half = site()
    state, _ = half.apply(opened(half), received([1.0, 2.0]))
    again = state_codec.rebuild(half.init(np.zeros(2, np.float32)), state_codec.flatten(state))
    assert state_codec.digest(again) == state_codec.digest(state)
    assert ParentRecord.of(again).turn == (1, 3, 0, 0)


vectors = st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=2)


@given(vectors, st.one_of(st.none(), vectors), st.booleans(), st.integers(0, 2**31))
def test_the_event_survives_the_journal_bit_for_bit(w, carry, is_last, version):
    event = received(w, version, carry=NONE if carry is None else np.array(carry), is_last=is_last)
    facts, vector = pack_event(event)
    again = unpack_event("parent", None, facts, vector)
    assert again.vector.tobytes() == event.vector.tobytes()
    assert again.carry.tobytes() == event.carry.tobytes()
    names = ("run", "number", "attempt", "step", "version", "is_last")
    assert [getattr(again, name) for name in names] == [getattr(event, name) for name in names]
    assert unpack_event("parent", None, facts, None) is None  # pruned


RECORD = ParentRecord((4, 9, 1, 2), 8, np.array([1.0, 2.0], np.float32), 3, 24)
NUMBERS = UplinkCounters(life=5, seq=6, spent=7, lost=False)


@pytest.mark.parametrize(("up", "vector"), [(Up.DELTA, [0.5, -1.0]), (Up.WEIGHTS, [0.5, 3.0])])
def test_an_update_is_received_minus_present_or_the_present_model(up, vector):
    update = site_update(
        RECORD, np.array([0.5, 3.0]), NUMBERS, up=up, spec=b"s" * 16, max_count=100
    )
    assert unpack_tensor(update.blob, "f4", 2).tolist() == vector
    assert (update.run, update.round, update.base) == (4, 9, 8)
    assert (update.life, update.seq, update.spent) == (5, 7, 8)
    assert (update.part, update.n, update.vals) == (up.value, 24, {})


@given(st.integers(1, 1000))
def test_the_parent_is_told_no_larger_count_than_the_cap(cap):
    update = site_update(RECORD, np.zeros(2), NUMBERS, up=Up.DELTA, spec=b"s" * 16, max_count=cap)
    assert update.n == min(24, cap)
