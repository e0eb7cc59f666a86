"""FedNova from the example package: no bias towards devices with more windows."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from aggregator.methods import METHODS as SERVERS
from aggregator.methods import OPEN, Rounds, Setup
from aggregator.rules import bind
from edge_sdk.methods import METHODS as DEVICES
from edge_sdk.methods.local_sgd import LocalSgd
from edge_sdk.methods.training_context import TrainingContext, keyed
from edge_sdk.protocol.contract.method import Task, Update
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.shared_math.optim import sgd
from tests.plugins.test_scaffold import Windows

SPEC = ParamSpec.of([("w", (1,))], ("w",))
TARGETS = {"small": 0.0, "large": 6.0}
WINDOWS = {"small": 4, "large": 20}
BATCH = 4


def device(name):
    windows = Windows(WINDOWS[name])

    def gradient(p, x, y):
        return np.float32(0.0), (p - TARGETS[name]).astype(np.float32)

    local = TrainingContext(
        name, SPEC, {"gradient": gradient}, lambda: windows, BATCH, partial(keyed, 0, name)
    )
    return DEVICES["fednova"](local, LocalSgd(optimiser=sgd))


def answer(name, w=0.0, **values):
    half = device(name)
    task = Task(
        "_all",
        1,
        "train",
        values={"steps": 64.0, "rate": 0.01, "epochs": 1.0, **values},
        arrays={"w": np.full(1, w, np.float32)},
    )
    (update,) = half.apply(half.init(np.zeros(1, np.float32)), task)[1]
    return update


def test_a_device_takes_the_steps_of_an_epoch_and_reports_them(examples):
    assert answer("small").values["taken"] == 1.0
    assert answer("large").values["taken"] == 5.0
    assert answer("large", epochs=2.0).values["taken"] == 10.0
    assert answer("large", epochs=100.0).values["taken"] == 64.0


def test_a_devices_answer_is_its_change_per_step(examples):
    moved = 6.0 * (1 - 0.99**5)
    assert answer("large").vector[0] == pytest.approx(-moved / 5, rel=1e-6)


def test_the_server_steps_by_the_mean_number_of_steps(examples):
    half = SERVERS["fednova"].half(
        Setup(bind("mean"), SERVERS["fednova"].settings(), Rounds(quorum=2))
    )
    state, _ = half.apply(half.init(np.zeros(1, np.float32)), OPEN)
    for name, vector, taken in (("a", 1.0, 1.0), ("b", -3.0, 5.0)):
        update = Update(name, 1, 0, np.array([vector]), {"taken": taken})
        state, _ = half.apply(state, update)
    assert state.w[0] == pytest.approx(-3.0 * (1.0 - 3.0) / 2)  # averaging d * taken gives 7


def test_the_fixed_point_weighs_devices_equally_whatever_their_number_of_windows(examples):
    settings = SERVERS["fednova"].settings(rate=0.001, server_rate=50.0)
    half = SERVERS["fednova"].half(Setup(bind("mean"), settings, Rounds(quorum=2, limit=300)))
    devices = {name: device(name) for name in TARGETS}
    states = {name: one.init(np.zeros(1, np.float32)) for name, one in devices.items()}
    state, queue = half.init(np.zeros(1, np.float32)), [OPEN]
    while queue:
        state, effects = half.apply(state, queue.pop(0))
        for task in (effect for effect in effects if isinstance(effect, Task)):
            for name, one in devices.items():
                states[name], answers = one.apply(states[name], task)
                queue += [update for update in answers if isinstance(update, Update)]
    assert state.w[0] == pytest.approx(3.0, abs=0.02)  # with FedAvg's weights it is near 5
    assert state.version == 300


def test_a_device_without_windows_answers_nothing(examples, monkeypatch):
    monkeypatch.setitem(WINDOWS, "small", 0)
    half = device("small")
    task = Task("_all", 1, "train", arrays={"w": np.ones(1, np.float32)})
    state, effects = half.apply(half.init(np.zeros(1, np.float32)), task)
    assert effects == ()
    assert state.p[0] == 1.0
