"""One machine opens, tracks, accepts and closes; an engine of ten lines is enough to run it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from aggregator.methods.base.round_machine import (
    ABANDON,
    ASK,
    DEFECT,
    OPEN,
    RoundHooks,
    RoundOutcome,
    Rounds,
    RoundState,
    apply,
)
from edge_sdk.protocol.contract.method import Closed, Due, Member, Task, Update


@dataclass(frozen=True, slots=True, eq=False)
class Summed(RoundState):
    pending: Mapping[str, float] = field(default_factory=dict)
    present: tuple[str, ...] = ()

    @property
    def senders(self):
        return self.pending.keys()


def ended(state, why=""):
    total = 0.0 if why else sum(state.pending.values())
    after = replace(state, w=state.w + total, pending={})
    return RoundOutcome(after, {"cohort": sorted(state.pending)}, sorted(state.pending), why)


def without(state, name):
    return replace(state, present=tuple(one for one in state.present if one != name))


def hooks(**changes):
    one = RoundHooks(
        Rounds(quorum=2, least=1, limit=2, deadline=5.0),
        counts=lambda state, update: update.round == state.round,
        accept=lambda state, update: replace(
            state, pending={**state.pending, update.sender: float(update.vector[0])}
        ),
        combine=ended,
        discard=ended,
        tasks=lambda state, names: tuple(Task(name, state.round, ASK) for name in names),
        clients=lambda state: state.present,
        join=lambda state, name: replace(state, present=(*state.present, name)),
    )
    return replace(one, **changes)


def fed(one, *events, state=None):
    state = Summed(0, 0, False, np.zeros(1)) if state is None else state
    effects = ()
    for event in events:
        state, effects = apply(one, state, event)
    return state, effects


def update(name, value=1.0, number=1):
    return Update(name, number, 0, np.array([value]))


def kinds(effects):
    return [
        (e.to if isinstance(e, Task) else "due" if isinstance(e, Due) else e.moved) for e in effects
    ]


def test_a_run_opens_once_with_tasks_and_a_deadline():
    state, effects = fed(hooks(), Member("a", True), OPEN)
    assert (state.round, state.is_open, kinds(effects)) == (1, True, ["a", "due"])
    assert effects[-1].after == 5.0
    assert fed(hooks(), OPEN, state=state) == (state, ())


def test_the_quorum_closes_a_round_and_its_senders_receive_the_next_task():
    state, effects = fed(hooks(), OPEN, update("b", 2.0), update("a", 3.0))
    assert (state.round, state.version, float(state.w[0])) == (2, 1, 5.0)
    assert kinds(effects) == [True, "a", "b", "due"]
    assert (effects[0].round, effects[0].report) == (1, {"cohort": ["a", "b"], "stop": False})


def test_the_last_round_closes_the_run():
    state, _ = fed(hooks(), OPEN, update("a"), update("b"))
    state, effects = fed(hooks(), update("a", number=2), update("b", number=2), state=state)
    assert (state.is_open, kinds(effects)) == (False, [True])
    assert effects[0].report["stop"] is True
    assert fed(hooks(), update("c", number=2), state=state)[0] is state


def test_a_deadline_closes_with_what_suffices_and_else_discards_the_round():
    due = Due(1, ASK)
    state, effects = fed(hooks(), OPEN, update("a"), due)
    assert (state.version, effects[0].moved) == (1, True)
    state, effects = fed(hooks(), OPEN, due)
    assert (state.round, state.version) == (2, 0)
    assert effects[0].report["why"] == "0 of 1 answers"
    assert fed(hooks(), due, state=state) == (state, ())


def test_an_engine_may_extend_the_deadline_instead():
    state, effects = fed(
        hooks(extend=lambda due: replace(due, step=due.step + 1)), OPEN, Due(1, ASK)
    )
    assert (state.round, effects) == (1, (Due(1, ASK, 1),))


def test_a_round_is_abandoned_without_its_updates():
    state, effects = fed(hooks(), OPEN, update("a"), Due(1, ABANDON))
    assert (state.round, state.version, state.waiting) == (2, 0, 0)
    assert isinstance(effects[0], Closed)
    assert effects[0].report["why"] == DEFECT


def test_a_member_whose_update_waits_receives_no_second_task():
    state, effects = fed(hooks(), OPEN, update("a"), Member("a", True))
    assert (state.waiting, effects) == (1, ())
    assert kinds(fed(hooks(), Member("b", True), state=state)[1]) == ["b"]


@pytest.mark.parametrize(("awaits", "moved"), [(True, 1), (False, 0)])
def test_a_member_that_leaves_closes_a_round_only_where_rounds_await_members(awaits, moved):
    one = hooks(
        leave=without,
        awaits_members=awaits,
        is_ready=lambda state, _late: set(state.present) <= set(state.pending),
        rounds=Rounds(quorum=9),
    )
    state, _ = fed(one, Member("a", True), Member("b", True), OPEN, update("a"), Member("b", False))
    assert state.version == moved
    assert fed(one, Member("c", False), state=state)[1] == ()


def test_events_that_change_nothing_return_the_very_state():
    state, _ = fed(hooks(), OPEN)
    for event in (OPEN, Due(7, ASK), Due(1, "other"), Member("a", False), update("a", number=3)):
        assert fed(hooks(), event, state=state)[0] is state
