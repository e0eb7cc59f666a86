"""Every server half keeps what the shells build on: its course, its leaves, and quiet."""

from __future__ import annotations

import numpy as np
import pytest

from aggregator.extensions.papers.graph import Diffusion
from aggregator.methods import ABANDON, METHODS, OPEN, Rounds, Setup
from aggregator.methods.base.round_machine import DEFECT
from aggregator.methods.base.types import BoundGraph
from aggregator.rules import bind
from aggregator.store import state_codec
from edge_sdk.extensions.analytic.bundle_section import AnalyticSection
from edge_sdk.protocol.codec import pack_leaves, unpack_leaves
from edge_sdk.protocol.contract.method import CONTRACTS, Closed, Due, Member, Task, Update, answered
from edge_sdk.protocol.contract.parameter_layout import ParamSpec

SPEC = ParamSpec.of([("gru.lstm", (3,)), ("head", (1,))], ("gru.lstm",))
START = np.array([1.0, -2.0, 0.5], np.float32)
NEEDED = {"nbafl": {"min_samples": 100, "epsilon": 50.0}, "fesem": {"centres": 2}}
NEEDED["bigfl"] = {"solver": "first_order"}  # one question a round
ALONE = {"fedasync"}  # every answer fires
HOSTED = {"dfl_sgd", "dfl_gt"}  # devices learn from each other; nothing is answered
TURNS = {name for name, asks in CONTRACTS.items() if "encode" in asks}  # each round has its play
SHAPE = (2, 4)
CLOSED_FORM = AnalyticSection(("last",), 0, 0, 2.0, 1000, (0.0, 0.0), standardised=True)
CLOSED_SPEC = ParamSpec.of(CLOSED_FORM.layers(1))
CLOSED_START = np.array([0.0, 1.0, 0.5, -0.5], np.float32)
SUMS = np.array([4.0, 1.0, 10.0, 2.0, 3.0, 5.0, 0.0, 10.0])  # of a statistic of ten windows


def start_of(name):
    return CLOSED_START if name == "analytic" else START


def half_of(name, limit=9):
    if name == "analytic":
        settings = METHODS[name].settings(passes=limit)
        setup = Setup(bind("mean"), settings, Rounds(quorum=2), CLOSED_SPEC, analytic=CLOSED_FORM)
        return METHODS[name].half(setup)
    settings = METHODS[name].settings(**NEEDED.get(name, {}))
    rounds = Rounds(quorum=1 if name in ALONE else 2, limit=limit)
    near = np.array([[0.0, 1.0], [1.0, 0.0]])
    graph = (
        BoundGraph(Diffusion(near, SHAPE[0]), SHAPE, {"m-1": 0, "m-2": 1})
        if name in TURNS
        else None
    )
    return METHODS[name].half(Setup(bind("mean"), settings, rounds, SPEC, graph=graph))


def fed(half, state, *events):
    effects = ()
    for event in events:
        state, more = half.apply(state, event)
        effects += more
    return state, effects


def answer(name, device, task):
    _, ask = answered(CONTRACTS[name])
    signs = np.array([1.0, -1.0, 1.0])
    vector = SUMS if ask.has_statistic else signs if ask.enc != "f4" else 0.5 * signs
    values = {number.name: 0.5 for number in ask.report} | {"n": 10.0}
    return Update(device, task.round, task.base, vector, values)


def asked_of(name, devices=("m-1", "m-2"), limit=9):
    """A half that is open and has asked some devices; their tasks by device."""
    half = half_of(name, limit)
    state, effects = fed(half, half.init(start_of(name)), OPEN, *(Member(d, True) for d in devices))
    tasks = [e for e in effects if isinstance(e, Task)]
    return half, state, {d: next(t for t in tasks if t.to in (d, "_all")) for d in devices}


def fired(name, limit=9):
    half, state, tasks = asked_of(name, limit=limit)
    return half, *fed(half, state, *(answer(name, d, task) for d, task in tasks.items()))


def restored(name, half, state):
    kept = unpack_leaves(pack_leaves(dict(state_codec.flatten(state))))
    return state_codec.rebuild(half.init(start_of(name)), kept)


every = pytest.mark.parametrize("name", sorted(METHODS))
asking = pytest.mark.parametrize("name", sorted(set(METHODS) - HOSTED - TURNS))


@every
def test_a_course_begins_at_nothing_and_opens_its_first_round(name):
    half = half_of(name)
    state = half.init(start_of(name))
    assert (state.round, state.version, state.is_open, state.waiting) == (0, 0, False, 0)
    np.testing.assert_array_equal(half.model(state)["p"], start_of(name))
    state, _ = fed(half, state, OPEN)
    assert (state.round, state.version, state.is_open) == (1, 0, True)


@every
def test_what_changes_nothing_returns_the_very_state(name):
    half, state, _ = asked_of(name)
    for event in (OPEN, Due(99, "train"), Member("stranger", False), Member("m-1", True)):
        after, _ = half.apply(state, event)
        assert after is state, event


@asking
def test_personal_methods_ask_who_comes_and_common_ones_ask_all(name):
    _, ask = answered(CONTRACTS[name])
    _, _, tasks = asked_of(name)
    assert {task.to for task in tasks.values()} == ({"m-1", "m-2"} if ask.personal else {"_all"})


@asking
def test_tasks_keep_to_the_contract(name):
    ask_name, ask = answered(CONTRACTS[name])
    _, _, tasks = asked_of(name)
    known = {number.name: number for number in ask.numbers}
    for task in tasks.values():
        assert task.ask == ask_name
        assert task.arrays.keys() <= set(ask.down)
        assert ask.down[0] in task.arrays
        assert all(vector.shape[-1:] == start_of(name).shape for vector in task.arrays.values())
        assert all(vector.dtype == np.float32 for vector in task.arrays.values())
        assert all(known[key].admits(value) for key, value in task.values.items())


@asking
def test_a_firing_closes_a_round_and_rises_by_one(name):
    _, state, effects = fired(name)
    closed = [e for e in effects if isinstance(e, Closed)]
    moved = 2 if name in ALONE else 1
    assert [(c.round, c.version, c.moved) for c in closed] == [
        (n, n, True) for n in range(1, moved + 1)
    ]
    assert (state.round, state.version, state.is_open) == (moved + 1, moved, True)
    assert state.waiting == 0
    assert closed[0].report["cohort"]
    assert closed[0].report["stop"] is False


@asking
def test_the_last_firing_asks_nobody(name):
    _, state, effects = fired(name, limit=2 if name in ALONE else 1)
    assert not state.is_open
    assert [e for e in effects if isinstance(e, Closed)][-1].report["stop"] is True
    if name in ALONE:
        effects = effects[[isinstance(e, Closed) for e in effects].index(True) + 2 :]
    assert not any(isinstance(e, Task) for e in effects)


@asking
def test_any_state_comes_back_to_the_bit(name):
    half, state, tasks = asked_of(name)
    first = next(iter(tasks))
    waiting, _ = fed(half, state, answer(name, first, tasks[first]))
    for one in (half.init(start_of(name)), state, waiting, fired(name)[1]):
        again = restored(name, half, one)
        assert state_codec.digest(again) == state_codec.digest(one)
        assert (again.round, again.version, again.waiting) == (one.round, one.version, one.waiting)


@asking
def test_a_restored_state_goes_on_as_the_one_that_was_never_saved(name):
    half, state, tasks = asked_of(name)
    events = [answer(name, device, task) for device, task in tasks.items()]
    straight, effects = fed(half, state, *events)
    broken, others = state, ()
    for event in events:
        broken, more = fed(half, restored(name, half, broken), event)
        others += more
    assert state_codec.digest(broken) == state_codec.digest(straight)
    assert [type(e) for e in others] == [type(e) for e in effects]


@pytest.mark.parametrize("name", sorted(set(METHODS) - HOSTED))
def test_a_round_that_is_given_up_moves_nothing_and_the_next_one_can_close(name):
    half, state, tasks = asked_of(name)
    if name in ALONE:
        given = ()
    else:
        state, given = fed(half, state, answer(name, "m-1", tasks["m-1"]))
    after, effects = fed(half, state, Due(state.round, ABANDON))
    assert not any(isinstance(e, Closed) for e in given)
    (closed,) = (e for e in effects if isinstance(e, Closed))
    assert (closed.round, closed.moved, closed.report["why"]) == (state.round, False, DEFECT)
    assert (after.round, after.version, after.waiting) == (state.round + 1, state.version, 0)
    assert (
        state_codec.rebuild(half.init(start_of(name)), state_codec.flatten(after)).round
        == after.round
    )
    same, nothing = fed(half, after, Due(state.round, ABANDON))  # of a round that is over
    assert same is after
    assert nothing == ()
    if name in TURNS:
        return
    again = [e for e in effects if isinstance(e, Task)]
    tasks |= {task.to: task for task in again if task.to in tasks}
    tasks = dict.fromkeys(tasks, again[0]) if again and again[0].to == "_all" else tasks
    _, effects = fed(half, after, *(answer(name, d, task) for d, task in tasks.items()))
    assert any(isinstance(e, Closed) and e.moved for e in effects)
