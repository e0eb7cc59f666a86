"""Ditto, APFL, FedRep and FedBABU: worked numbers, limits, and both halves with restarts."""

from __future__ import annotations

import numpy as np
import pytest

from aggregator.methods import METHODS as SERVERS
from aggregator.methods import OPEN, Rounds, Setup
from aggregator.rules import bind
from edge_sdk.app.schema import SchemaError
from edge_sdk.extensions.papers.personal_copy import PersonalCopy
from edge_sdk.protocol.contract.method import CONTRACTS, END, Task, answered
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from tests.pairs.line import SPEC, device

METHODS = ("ditto", "apfl", "fedrep", "fedbabu")
START = np.zeros(2, np.float32)


def server(method, quorum=1, **settings):
    row = SERVERS[method]
    return row.half(Setup(bind("mean"), row.settings(**settings), Rounds(quorum=quorum), SPEC))


def asked(method, w=0.0, **settings):
    one = server(method, **settings)
    _, (task, *_) = one.apply(one.init(np.array([w], np.float32)), OPEN)
    return task


def end(w):
    return Task("a", 9, END, base=9, values={}, arrays={"w": np.array([w], np.float32)})


def test_ditto_by_hand():
    """Loss (phi + psi - 4)^2, rate 0.1: one step of each model, the own one pulled to 0."""
    half = device("ditto", "a", 4.0)
    task = asked("ditto", steps=1, own_steps=2, rate=0.1, pull=1.0)
    state, (update,) = half.apply(half.init(START), task)
    assert update.vector.tolist() == pytest.approx([-0.8])
    assert state.p.tolist() == pytest.approx([0.8, 0.8])
    # first step 0.8 from the received model; its slope then is 2 (1.6 - 4) + 0.8 on phi
    assert state.own.tolist() == pytest.approx([0.8 + 0.1 * (4.8 - 0.8), 0.8 + 0.1 * 4.8])
    assert half.model(state)["p"] is state.own
    assert half.model(state)["fleet"] is state.p


def test_ditto_goes_on_from_its_own_model_and_keeps_it_at_the_end():
    half = device("ditto", "a", 4.0)
    task = asked("ditto", steps=1, own_steps=1, rate=0.1, pull=0.0)
    state, _ = half.apply(half.init(START), task)
    again, _ = half.apply(state, task)
    assert again.own.sum() > state.own.sum()
    over, effects = half.apply(again, end(7.0))
    assert effects == ()
    assert over.p[0] == 7.0
    assert over.own.tobytes() == again.own.tobytes()


def test_a_strong_pull_keeps_the_own_model_at_the_fleets():
    half = device("ditto", "a", 4.0)
    state, _ = half.apply(
        half.init(START), asked("ditto", w=1.0, steps=1, own_steps=50, rate=0.009, pull=100.0)
    )
    assert state.own[0] == pytest.approx(1.0, abs=0.1)


def test_apfl_by_hand():
    """At first both models are equal, so the share stays; own steps are shorter by the share."""
    half = device("apfl", "a", 4.0)
    task = asked("apfl", steps=1, rate=0.1, share=0.5, share_rate=0.01)
    state, (update,) = half.apply(half.init(START), task)
    assert update.vector.tolist() == pytest.approx([-0.8])
    assert state.own.tolist() == pytest.approx([0.4, 0.4])
    assert state.share == 0.5
    assert half.model(state)["p"].tolist() == pytest.approx([0.6, 0.6])
    # the received model is 0 again: own - fleet is (0.4, -0.4), the slope -2 (4 - 1.0) on both
    after, _ = half.apply(state, asked("apfl", steps=1, rate=0.1, share=0.5, share_rate=0.01))
    assert after.share == pytest.approx(0.5 - 0.01 * (0.4 - 0.4) * -6.0)


def test_the_share_grows_where_the_own_model_is_better_and_stays_within_one():
    half = device("apfl", "a", 4.0)
    state = PersonalCopy(START, np.array([2.0, 2.0], np.float32), 0.2)
    task = asked("apfl", steps=0, rate=0.1, share=0.5, share_rate=0.01)
    after, _ = half.apply(state, task)
    assert after.share == pytest.approx(0.2 + 0.01 * 4.0 * 6.4)
    far, _ = half.apply(state, asked("apfl", steps=0, rate=0.1, share=0.5, share_rate=100.0))
    assert far.share == 1.0


def test_fedrep_by_hand():
    """The head moves first, alone; then the body, from the loss that the head leaves."""
    half = device("fedrep", "a", 4.0)
    state, (update,) = half.apply(
        half.init(START), asked("fedrep", steps=1, head_steps=1, rate=0.1)
    )
    assert state.p.tolist() == pytest.approx([0.1 * 2 * (4 - 0.8), 0.8])
    assert update.vector.tolist() == pytest.approx([-0.64])


def test_fedbabu_by_hand():
    """The body moves by 0.8 under a head that stays; a copy of both takes a further step of 0.64."""
    half = device("fedbabu", "a", 4.0)
    state, (update,) = half.apply(
        half.init(START), asked("fedbabu", steps=1, tune_steps=1, rate=0.1)
    )
    assert update.vector.tolist() == pytest.approx([-0.8])
    assert state.p.tolist() == pytest.approx([0.8, 0.0])
    assert half.model(state)["p"].tolist() == pytest.approx([1.44, 0.64])
    again, _ = half.apply(state, asked("fedbabu", steps=1, tune_steps=0, rate=0.1))
    assert half.model(again)["p"].tolist() == half.model(again)["fleet"].tolist()
    over, effects = half.apply(state, end(7.0))
    assert (effects, over.p.tolist()) == ((), [7.0, 0.0])
    assert over.own.tobytes() == state.own.tobytes()


def test_fedrep_needs_layers_of_the_device():
    row = SERVERS["fedrep"]
    with pytest.raises(SchemaError, match=r"^run\.shared"):
        row.half(Setup(bind("mean"), row.settings(), Rounds(quorum=1), ParamSpec.of([("w", (2,))])))


@pytest.mark.parametrize("method", METHODS)
def test_tasks_carry_exactly_the_numbers_of_the_contract(method):
    task = asked(method)
    name, ask = answered(CONTRACTS[method])
    numbers = {number.name: number for number in ask.numbers}
    assert task.ask == name
    assert task.values.keys() == numbers.keys()
    assert all(numbers[key].admits(value) for key, value in task.values.items())


@pytest.mark.parametrize("method", METHODS)
def test_a_saved_state_goes_on_to_the_same_bits(method):
    half, task = device(method, "a", 4.0), asked(method, rate=0.1)
    state, _ = half.apply(half.init(START), task)
    arrays = {name: np.asarray(one).copy() for name, one in state.arrays().items()}
    other = type(state).from_arrays(arrays)
    (one, (first,)), (two, (second,)) = half.apply(state, task), half.apply(other, task)
    assert first.vector.tobytes() == second.vector.tobytes()
    assert half.model(one)["p"].tobytes() == half.model(two)["p"].tobytes()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("method", METHODS)
def test_a_step_to_infinity_changes_no_own_model_and_sends_nothing(method):
    half = device(method, "a", 4.0)
    good, _ = half.apply(half.init(START), asked(method, rate=0.1))
    after, effects = half.apply(good, asked(method, rate=1e3, steps=40))
    assert all(np.isfinite(one.vector).all() for one in effects)
    assert np.isfinite(half.model(after)["p"]).all()


@pytest.mark.parametrize("method", METHODS)
def test_devices_with_different_targets_each_reach_their_own(method):
    """Targets 1 and 5: a fleet's model alone is wrong by 2 on both."""
    targets = {"a": 1.0, "b": 5.0}
    more = {"ditto": {"pull": 0.05}, "apfl": {"share": 0.7}, "fedbabu": {"tune_steps": 20}}.get(
        method, {}
    )
    one = server(method, quorum=2, rate=0.05, **more)
    devices = {name: device(method, name, target) for name, target in targets.items()}
    states = {name: half.init(START) for name, half in devices.items()}
    state, effects = one.apply(one.init(np.zeros(1, np.float32)), OPEN)
    for _ in range(60):
        (task,) = [one for one in effects if isinstance(one, Task)]
        effects = ()
        for name, half in devices.items():
            states[name], (update,) = half.apply(states[name], task)
            state, more = one.apply(state, update)
            effects = (*effects, *more)
    for name, half in devices.items():
        assert half.model(states[name])["p"].sum() == pytest.approx(targets[name], abs=0.2)
