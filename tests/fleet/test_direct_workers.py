"""Worker processes train the devices of a direct simulation, and change no bit."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from firmware_sim.direct.device import DirectDevice
from firmware_sim.direct.fleet import DirectFleet
from firmware_sim.direct.trainers import WorkerTrainer, has_workers
from firmware_sim.fleet.processes import ProgramDied
from firmware_sim.samples import sample_set
from tests.fleet.test_direct import CASES, scenario_of, simulated

pytestmark = pytest.mark.skipif(not has_workers(), reason="this system cannot copy a process")
SLOW_IGNORED = ("fedavg", {"quorum": 2, "rounds": 6})
"""Half of the devices close a round, so the tasks of the others are replaced."""


def prepared(chosen, seed=5):
    return DirectFleet.of(chosen, sample_set("homes"), seed=seed).simulation()


def run_in(workers, chosen):
    made = prepared(chosen)
    with WorkerTrainer(made.devices, workers) as trainer:
        made.run(trainer=trainer)
        costs = trainer.collect()
    assert len(costs) == workers
    assert all(one.processor > 0.0 for one in costs)
    return made


def check_same(one, other):
    assert one.server.digest == other.server.digest
    assert one.order == other.order
    assert [made.moved for made in one.server.rounds] == [
        made.moved for made in other.server.rounds
    ]
    for name, device in one.devices.items():
        found = other.devices[name]
        assert device.sent == found.sent
        assert device.learner.scale == found.learner.scale
        theirs = found.state.arrays()
        for key, array in device.state.arrays().items():
            assert np.asarray(array).tobytes() == np.asarray(theirs[key]).tobytes(), key


@pytest.mark.parametrize(
    ("method", "more"),
    [*CASES, SLOW_IGNORED],
    ids=lambda x: x if isinstance(x, str) else "-".join(x),
)
def test_workers_give_the_same_bits(method, more):
    chosen = scenario_of(method, **more)
    check_same(simulated(chosen), run_in(3, chosen))


def test_a_device_forgets_the_training_of_a_task_that_was_replaced():
    method, more = SLOW_IGNORED
    chosen = scenario_of(method, **more)
    replaced = []

    class Recording(WorkerTrainer):
        def begin(self, assigned):
            replaced.extend(one.number for one in assigned if one.replaces)
            super().begin(assigned)

    made = prepared(chosen)
    with Recording(made.devices, 2) as trainer:
        made.run(trainer=trainer)
        trainer.collect()
    assert replaced
    check_same(simulated(chosen), made)


def test_a_killed_worker_ends_the_run_with_a_message():
    made = prepared(scenario_of("fedavg", rounds=50))
    with WorkerTrainer(made.devices, 2) as trainer:
        victim = trainer._processes[1].pid

        def kill():
            if victim is not None:
                os.kill(victim, signal.SIGKILL)

        with pytest.raises(ProgramDied, match="a worker process of the simulation ended"):
            made.run(kill, trainer)


def test_what_a_device_raises_is_raised_where_its_answer_is_awaited(monkeypatch):
    def fails(self, _task):
        raise ArithmeticError(self.id)

    made = prepared(scenario_of("fedavg"))
    monkeypatch.setattr(DirectDevice, "answer", fails)
    with (
        WorkerTrainer(made.devices, 2) as trainer,
        pytest.raises(ArithmeticError) as caught,
    ):
        made.run(trainer=trainer)
    assert any("test_direct_workers" in note for note in caught.value.__notes__)


def test_no_worker_outlives_a_run_that_was_stopped():
    made = prepared(scenario_of("fedavg", rounds=50))

    def stop():
        raise KeyboardInterrupt

    with WorkerTrainer(made.devices, 2) as trainer:
        pids = [process.pid for process in trainer._processes]
        with pytest.raises(KeyboardInterrupt):
            made.run(stop, trainer)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
