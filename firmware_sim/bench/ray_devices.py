"""Train the devices of one direct simulation on a Ray cluster, in actors that keep their state.

Each actor has a block of the devices; the server half stays in the process that runs the simulation. The
actors make their devices themselves, of the scenario: every machine needs the readings and the bundle at
the same paths, and gridfed and its packages in the same versions. Both are compared first.
"""

from __future__ import annotations

import os
import pickle
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from edge_sdk.errors import Failure
from edge_sdk.protocol.messages import UpdateMessage
from firmware_sim.bench.ray_runs import RayRunError
from firmware_sim.bench.run_record import definition, digest_of, versions
from firmware_sim.direct.device import DeviceProgress, DirectDevice
from firmware_sim.direct.fleet import DirectFleet
from firmware_sim.direct.trainers import (
    Assignment,
    RemoteAnswers,
    RepeatableDevices,
    WorkerCost,
    private_bytes,
)
from firmware_sim.samples import SampleSet
from firmware_sim.scenario import Scenario

BATCH = 32
"""Largest number of tasks in one call of an actor; a call costs about a millisecond."""

_AHEAD = 2  # calls of one actor that may wait, so that it trains while its answers are processed
_HINT = "run it again: equal seeds give equal bits"


@dataclass(frozen=True, slots=True)
class RayDevices:
    """A cluster, and the number of its processors that train the devices of direct simulations."""

    ray: Any  # the module ``ray``, connected (``firmware_sim.bench.ray_runs.ray_cluster``)
    # number of actors, each on one processor; None is one a processor of the cluster
    actors: int | None = None

    def trainer(
        self,
        chosen: Scenario,
        samples: SampleSet,
        ids: Sequence[str],
        *,
        seed: int = 0,
        devices: Mapping[str, DirectDevice] | None = None,
    ) -> RayTrainer:
        """Return the trainer of a simulation without an attack.

        Args:
            devices: Devices that ``collect`` brings to their final states; None is none of them.

        Raises:
            RayRunError: The cluster has fewer processors than actors were asked for.
        """
        processors = int(self.ray.cluster_resources().get("CPU", 0))
        count = min(self.actors or processors, len(ids))
        if not 0 < count <= processors:
            raise RayRunError(
                f"{count} actors need a processor each, and the cluster has {processors}",
                hint="a lower --workers",
            )
        mark = _mark(chosen, samples, seed)
        block = _Block(chosen, samples, seed, str(Path.cwd()), versions(), mark)
        return RayTrainer(self.ray, block, ids, count, devices or {})


@dataclass(frozen=True, slots=True)
class _Block:
    """Definition of an actor's devices, and the requirements on its machine."""

    scenario: Scenario
    samples: SampleSet
    seed: int
    folder: str
    versions: dict[str, str]
    mark: str


def _mark(chosen: Scenario, samples: SampleSet, seed: int) -> str:
    return digest_of(definition(chosen, samples, [seed]))


class RayTrainer:
    """Trains disjoint parts of a fleet in actors of a cluster, ahead of the virtual time.

    The bits are those of one process where the processors are of one kind. An actor whose process dies
    takes the state of its devices with it, which ends the run.

    Args:
        ray: The module ``ray``, connected.
        devices: Devices that ``collect`` brings to their final states.

    Raises:
        RayRunError: An actor ended, could not make its devices, or their training failed.
    """

    def __init__(
        self,
        ray: Any,  # noqa: ANN401 - the module
        block: _Block,
        ids: Sequence[str],
        count: int,
        devices: Mapping[str, DirectDevice],
    ) -> None:
        self._ray, self._block, self._devices = ray, block, devices
        self._parts = [list(ids[number::count]) for number in range(count)]
        part_of = {name: number for number, part in enumerate(self._parts) for name in part}
        self._answers = RemoteAnswers(part_of, count)
        self._actors: list[Any] = []
        self._waiting: list[deque[list[Assignment]]] = [deque() for _ in range(count)]
        self._calls: dict[Any, int] = {}  # unanswered calls: the actor of each

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the actors; unfinished work is lost."""
        self._end()

    def begin(self, assigned: Sequence[Assignment]) -> None:
        """Send the tasks to the actors of their devices, the first to arrive first."""
        for number, part in enumerate(self._answers.divide(assigned)):
            some = (part[at : at + BATCH] for at in range(0, len(part), BATCH))
            self._waiting[number].extend(some)
            self._call(number)

    def answer(self, assignment: Assignment) -> UpdateMessage | None:
        """Wait for the answer to a task.

        Raises:
            RayRunError: An actor has ended, or the training of a device failed.
        """
        while assignment.number not in self._answers:
            self._receive()
        return self._answers.pop(assignment.number)

    def collect(self) -> list[WorkerCost]:
        """Bring the given devices to their final states; return the actors' costs."""
        while self._calls:
            self._receive()  # answers to replaced tasks
        wanted = [[name for name in part if name in self._devices] for part in self._parts]
        calls = [one.final.remote(names) for one, names in zip(self._actors, wanted, strict=True)]
        costs = []
        for cost, packed in self._got(calls):
            found: dict[str, DeviceProgress] = pickle.loads(packed)  # noqa: S301 - of our own actor
            for name, progress in found.items():
                self._devices[name].restore(progress)
            costs.append(cost)
        return costs

    def _start(self) -> None:
        actor = self._ray.remote(num_cpus=1, max_restarts=0)(_Actor)
        common = self._ray.put(self._block)
        self._actors = [actor.remote(common, part) for part in self._parts]
        for failure in self._got([one.set_up.remote() for one in self._actors]):
            if failure:
                raise RayRunError(failure)

    def _call(self, number: int) -> None:
        waiting = self._waiting[number]
        while waiting and list(self._calls.values()).count(number) < _AHEAD:
            call = self._actors[number].answers.remote(pickle.dumps(waiting.popleft()))
            self._calls[call] = number

    def _receive(self) -> None:
        (ended, *_), _ = self._ray.wait(list(self._calls), num_returns=1)
        number = self._calls.pop(ended)
        (packed,) = self._got([ended])
        self._call(number)
        for task, message in pickle.loads(packed):  # noqa: S301 - of our own actor
            self._answers.add(task, message)

    def _got(self, calls: list[Any]) -> list[Any]:
        try:
            found: list[Any] = self._ray.get(calls)
        except self._ray.exceptions.RayActorError as error:
            raise RayRunError(
                "an actor of the simulation ended before its work did", hint=_HINT
            ) from error
        except self._ray.exceptions.RayError as error:
            raise RayRunError(f"an actor: {str(error).splitlines()[-1]}") from error
        return found

    def _end(self) -> None:
        for one in self._actors:
            self._ray.kill(one)
        self._actors = []
        self._calls.clear()


class _Actor:
    """A block of devices in a process of the cluster.

    Tasks and states are pickled here: an array that Ray passes may not be changed, and holds its memory.
    """

    def __init__(self, block: _Block, ids: list[str]) -> None:
        self._block, self._ids = block, ids

    def set_up(self) -> str:
        """Make the devices; return why they cannot be made, empty if they are."""
        block, found = self._block, versions()
        if found != block.versions:
            names = sorted({name for name, _ in found.items() ^ block.versions.items()})
            return f"other versions on a machine of the cluster: {', '.join(names)}"
        try:
            os.chdir(block.folder)
            if _mark(block.scenario, block.samples, block.seed) != block.mark:
                return "other readings or another bundle on a machine of the cluster"
            made = DirectFleet.of(block.scenario, block.samples, seed=block.seed)
        except (Failure, OSError) as error:
            return str(error)
        self._devices = RepeatableDevices(made.devices(self._ids))
        self._begun = time.process_time()
        return ""

    def answers(self, packed: bytes) -> bytes:
        """Train the tasks of a batch, in order; return their numbers with the messages."""
        batch: list[Assignment] = pickle.loads(packed)  # noqa: S301 - of our own simulation
        return pickle.dumps([(one.number, self._devices.answer(one)) for one in batch])

    def final(self, ids: list[str]) -> tuple[WorkerCost, bytes]:
        """Return the cost of the trainings, and the final states of some devices."""
        cost = WorkerCost(time.process_time() - self._begun, private_bytes())
        devices = self._devices.devices
        return cost, pickle.dumps({name: devices[name].progress() for name in ids})
