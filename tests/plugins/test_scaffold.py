"""SCAFFOLD from the example package: its fixed point, and its control variates."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from aggregator.methods import METHODS as SERVERS
from aggregator.methods import OPEN, Rounds, Setup
from aggregator.rules import bind
from aggregator.store.state_codec import flatten, rebuild
from edge_sdk.methods import METHODS as DEVICES
from edge_sdk.methods.local_sgd import LocalSgd
from edge_sdk.methods.training_context import Batch, TrainingContext, keyed
from edge_sdk.protocol.contract.method import Member, Task, Update
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.shared_math.optim import sgd

SPEC = ParamSpec.of([("w", (1,))], ("w",))
CURVES = {"flat": (1.0, 0.0), "steep": (4.0, 5.0)}  # (w - b)^2 a / 2: the sum is least at 4
BEST = 4.0


class Windows:
    def __init__(self, count=1):
        self.count = count

    def __len__(self):
        return self.count

    def draw(self, _rng, size):
        n = min(size, self.count)
        return Batch(np.ones((n, 1, 1), np.float32), np.zeros((n, 1), np.float32))


def device(method, name):
    a, b = CURVES[name]

    def gradient(p, x, y):
        return np.float32(a / 2 * (p[0] - b) ** 2), (a * (p - b)).astype(np.float32)

    windows = Windows()
    local = TrainingContext(
        name, SPEC, {"gradient": gradient}, lambda: windows, 64, partial(keyed, 0, name)
    )
    return DEVICES[method](local, LocalSgd(optimiser=sgd))


def run(method, rounds, settings):
    """Let both halves run in one process; every state passes through its saved form."""
    made = SERVERS[method]
    setup = Setup(bind("mean"), made.settings(**settings), Rounds(quorum=2, limit=rounds))
    half = made.half(setup)
    first = half.init(np.zeros(1, np.float32))
    devices = {name: device(method, name) for name in CURVES}
    states = {name: one.init(np.zeros(1, np.float32)) for name, one in devices.items()}
    state, queue = first, [Member(name, present=True) for name in CURVES] + [OPEN]
    while queue:
        event = queue.pop(0)
        state, effects = half.apply(state, event)
        state = rebuild(first, flatten(state))
        for task in (effect for effect in effects if isinstance(effect, Task)):
            for name in devices if task.to == "_all" else (task.to,):
                after, answers = devices[name].apply(states[name], task)
                states[name] = type(after).from_arrays(after.arrays())
                queue += [one for one in answers if isinstance(one, Update)]
    return state, states


@pytest.fixture
def settled(examples):
    return run("scaffold", 200, {"steps": 10, "rate": 0.05})


def test_scaffold_reaches_the_minimum_of_the_sum_where_averaging_does_not(examples, settled):
    state, _ = settled
    assert state.w[0] == pytest.approx(BEST, abs=1e-4)
    averaged, _ = run("fedavg", 200, {"steps": 10, "rate": 0.05})
    assert abs(averaged.w[0] - BEST) > 0.3  # its fixed point is drawn to the flat device's


def test_the_servers_control_variate_is_the_mean_of_the_devices(settled):
    state, states = settled
    mean = np.mean([one.next_control[0] for one in states.values()])
    assert state.c[0] == pytest.approx(mean, abs=1e-5)
    for name, (a, b) in CURVES.items():  # the gradient of each device at the solution
        assert states[name].next_control[0] == pytest.approx(a * (BEST - b), abs=1e-3)


def test_a_control_variate_is_adopted_only_if_the_answer_was_used(examples):
    half = device("scaffold", "steep")
    task = Task(
        "steep",
        1,
        "train",
        values={"steps": 2.0, "rate": 0.1, "counted": 0.0},
        arrays={"w": np.zeros(1, np.float32), "c": np.zeros(1, np.float32)},
    )
    state, _ = half.apply(half.init(np.zeros(1, np.float32)), task)
    unused, _ = half.apply(
        state, Task("steep", 2, "train", base=1, values=task.values, arrays=task.arrays)
    )
    assert unused.control[0] == 0.0
    used = {**task.values, "counted": 1.0}
    adopted, _ = half.apply(
        state, Task("steep", 2, "train", base=1, values=used, arrays=task.arrays)
    )
    assert adopted.control[0] == state.next_control[0] != 0.0


def test_settings_without_steps_are_refused(examples):
    with pytest.raises(ValueError, match="steps: expected more than 0, got 0"):
        SERVERS["scaffold"].settings(steps=0)
