"""Rates that fall from stage to stage: both halves of a method against a loop in plain numpy."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.methods import METHODS as SERVERS
from aggregator.methods import OPEN, Rounds, Setup
from aggregator.methods.base.wrappers import in_stages, rate_at, takes_stages
from aggregator.rules import bind
from edge_sdk.methods import METHODS as DEVICES
from edge_sdk.methods.local_sgd import LocalSgd
from edge_sdk.methods.training_context import Batch, TrainingContext, keyed
from edge_sdk.protocol.contract.method import CONTRACTS, Due, Task, Update
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.shared_math.optim import adam, sgd

SPEC = ParamSpec.of([("w", (3,))])
TARGETS = {"a": np.float32([1.0, -2.0, 0.5]), "b": np.float32([3.0, 0.0, -1.0])}
STAGES = [(2, 0.3), (3, 0.05), (1, 0.01)]
STEPS = 4


class Target:
    """A device whose loss is half the squared distance to its own target."""

    def __init__(self, target):
        self.target = target

    def __len__(self):
        return 1

    def draw(self, _rng, _size):
        return Batch(np.zeros((1, 1, 1), np.float32), self.target[None])

    @staticmethod
    def gradient(p, x, y):
        return np.float32(0.5 * ((p - y[0]) ** 2).sum()), (p - y[0]).astype(np.float32)


def run(method, optimiser, stages, rounds, **settings):
    """Drive both halves, and return the rates of the tasks and the common model after each round."""
    chosen = SERVERS[method].settings(steps=STEPS, **settings)
    setup = Setup(bind("mean"), chosen, Rounds(quorum=len(TARGETS), limit=rounds), SPEC)
    server = in_stages(SERVERS[method].half(setup), stages)
    devices, states = {}, {}
    for name, target in TARGETS.items():
        windows = Target(target)
        lent = TrainingContext(
            name,
            SPEC,
            {"gradient": windows.gradient},
            lambda w=windows: w,
            1,
            partial(keyed, 0, name),
        )
        devices[name] = DEVICES[method](lent, LocalSgd(optimiser, minibatch="fresh"))
        states[name] = devices[name].init(np.zeros(3, np.float32))
    state, effects = server.apply(server.init(np.zeros(3, np.float32)), OPEN)
    rates, models = [], []
    while task := next((x for x in effects if isinstance(x, Task)), None):
        rates.append(task.values["rate"])
        effects = ()
        for name, half in devices.items():
            states[name], answers = half.apply(states[name], task)
            for update in (x for x in answers if isinstance(x, Update)):
                state, more = server.apply(state, update)
                effects = effects + more
        models.append(np.asarray(server.model(state)["p"]))
    return rates, models


def test_falling_rates_are_those_of_an_independent_computation():
    rates, models = run("fedavg", sgd, STAGES, 8)
    assert rates == [0.3, 0.3, 0.05, 0.05, 0.05, 0.01, 0.01, 0.01]
    w = np.zeros(3)
    for rate, model in zip(rates, models, strict=True):
        # STEPS steps of p <- p - rate (p - t) leave (1 - rate)^STEPS of the distance
        left = (1.0 - rate) ** STEPS
        w = np.mean([t + left * (w - t) for t in TARGETS.values()], axis=0)
        np.testing.assert_allclose(model, w, atol=1e-6)


def test_adam_begins_anew_in_every_round_at_the_rate_of_its_stage():
    _, models = run("fedavg", adam, STAGES, 4)
    w = np.zeros(3)
    for number, model in enumerate(models):
        rate, ends = (0.3 if number < 2 else 0.05), []
        for target in TARGETS.values():
            p, m, v = w.copy(), np.zeros(3), np.zeros(3)
            for t in range(1, STEPS + 1):
                g = p - target
                m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
                p = p - rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
            ends.append(p)
        w = np.mean(ends, axis=0)
        np.testing.assert_allclose(model, w, atol=1e-5)


def test_one_stage_is_a_constant_rate_and_no_stage_changes_nothing():
    constant = run("fedavg", sgd, [], 3, rate=0.2)
    assert constant[0] == [0.2] * 3
    for one, other in zip(constant[1], run("fedavg", sgd, [(1, 0.2)], 3)[1], strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_abandoned_round_does_not_use_up_its_stage():
    setup = Setup(bind("mean"), SERVERS["fedavg"].settings(), Rounds(quorum=2), SPEC)
    server = in_stages(SERVERS["fedavg"].half(setup), [(1, 0.3), (1, 0.05)])
    state, _ = server.apply(server.init(np.zeros(3, np.float32)), OPEN)
    for _ in range(3):
        state, effects = server.apply(state, Due(state.round, "abandon"))
        (task,) = (x for x in effects if isinstance(x, Task))
        assert (task.base, task.values["rate"]) == (0, 0.3)


@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    completed=st.integers(0, 40),
)
def test_the_rate_is_that_of_the_stage_that_holds_the_round(lengths, completed):
    stages = [(rounds, 1.0 / (i + 1)) for i, rounds in enumerate(lengths)]
    every = [rate for rounds, rate in stages for _ in range(rounds)]
    expected = every[completed] if completed < len(every) else stages[-1][1]
    assert rate_at(stages, completed) == expected


@pytest.mark.parametrize("method", sorted(SERVERS))
def test_stages_are_taken_where_only_devices_compute_with_the_rate(method):
    taken = {
        "afl", "apfl", "cached", "ditto", "fedadam", "fedasync", "fedatt", "fedavg", "fedavgm", "fedbabu", "fedbuff",
        "fedda", "fedgru", "fedntp", "fedprox", "fedrep", "fesem", "ifca", "nbafl", "pfl", "udp", "worker_momentum",
    }  # fmt: skip
    assert takes_stages(CONTRACTS[method]) == (method in taken)
    if method in taken:
        assert hasattr(SERVERS[method].settings(), "rate")
