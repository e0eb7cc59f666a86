"""Train the devices of a direct simulation: in this process, or in worker processes."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol, Self

from edge_sdk.protocol.contract.method import Task
from edge_sdk.protocol.messages import UpdateMessage
from firmware_sim.direct.device import DeviceProgress, DirectDevice
from firmware_sim.fleet.processes import ProgramDied

# devices from which on workers are used by default; the start of a process costs some 20 ms
FEWEST = 100
_STOP_TIMEOUT = 5.0  # seconds that a worker has to end before it is terminated


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """A task on its way to a device."""

    number: int  # number of the assignment; later ones have larger numbers
    at: float  # virtual second at which the update arrives
    task: Task  # the task, addressed to one device
    replaces: bool = False  # true if the device has an earlier task whose answer was not asked for


class Trainer(Protocol):
    """Trains the devices; the results do not depend on the time of training."""

    def begin(self, assigned: Sequence[Assignment]) -> None:
        """Accept tasks; their training may begin."""

    def answer(self, assignment: Assignment) -> UpdateMessage | None:
        """Return the message that answers a task, None without one; each task at most once."""


@dataclass(frozen=True, slots=True)
class LocalTrainer:
    """Trains each device when its answer is asked for, in this thread."""

    devices: Mapping[str, DirectDevice]

    def begin(self, assigned: Sequence[Assignment]) -> None:
        """Do nothing: a task that is replaced is never trained."""

    def answer(self, assignment: Assignment) -> UpdateMessage | None:
        return self.devices[assignment.task.to].answer(assignment.task)


def default_workers(devices: int) -> int:
    """Return the number of worker processes for a fleet: one a core, 0 where they do not pay."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return cores if devices >= FEWEST and cores > 1 and has_workers() else 0


def has_workers() -> bool:
    """Return True if this system can copy a process that is set up (``fork``)."""
    return "fork" in multiprocessing.get_all_start_methods()


@dataclass(frozen=True, slots=True)
class WorkerCost:
    """Cost of a worker."""

    processor: float  # processor seconds
    memory: int  # bytes that it shares with no other process; 0 on a system without such a number


@dataclass(slots=True)
class RemoteAnswers:
    """Answers that worker processes have trained ahead; answers to replaced tasks are dropped."""

    part_of: Mapping[str, int]  # number of the process of each device, by id
    count: int
    _messages: dict[int, UpdateMessage | None] = field(default_factory=dict)
    _open: dict[str, int] = field(default_factory=dict)
    _replaced: set[int] = field(default_factory=set)

    def divide(self, assigned: Iterable[Assignment]) -> list[list[Assignment]]:
        """Return the tasks of each process, the first to arrive first; forget those that they replace."""
        parts: list[list[Assignment]] = [[] for _ in range(self.count)]
        for one in sorted(assigned, key=lambda one: (one.at, one.number)):
            device = one.task.to
            parts[self.part_of[device]].append(one)
            if one.replaces:
                self._forget(self._open[device])
            self._open[device] = one.number
        return parts

    def __contains__(self, number: int) -> bool:
        return number in self._messages

    def add(self, number: int, message: UpdateMessage | None) -> None:
        """Keep the answer to a task, unless the task was replaced meanwhile."""
        if number in self._replaced:
            self._replaced.remove(number)
        else:
            self._messages[number] = message

    def pop(self, number: int) -> UpdateMessage | None:
        return self._messages.pop(number)

    def _forget(self, number: int) -> None:
        if number in self._messages:
            del self._messages[number]
        else:
            self._replaced.add(number)


class WorkerTrainer:
    """Trains disjoint parts of a fleet in worker processes, ahead of the virtual time.

    A worker trains every task that it is given. If the task is replaced before its answer is
    asked for, the device goes back to what it was before: the training has no effect, as if
    it had not been. Results are therefore those of ``LocalTrainer`` to the bit.

    Args:
        devices: The devices by id; the workers begin with copies, and ``collect`` brings
            the final states back.
    """

    def __init__(self, devices: Mapping[str, DirectDevice], workers: int) -> None:
        self._devices = devices
        part_of = {name: number % workers for number, name in enumerate(devices)}
        self._answers = RemoteAnswers(part_of, workers)
        self._processes: list[BaseProcess] = []
        self._connections: list[Connection] = []

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("fork")
        for part in range(self._answers.count):
            part_of = self._answers.part_of
            own = {x: self._devices[x] for x, number in part_of.items() if number == part}
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there, here, own), daemon=True)
            process.start()
            there.close()
            self._connections.append(here)
            self._processes.append(process)
        return self

    def __exit__(self, kind: object, error: object, at: object) -> None:
        """Stop the workers; unfinished work is lost."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            if error is None:
                process.join(_STOP_TIMEOUT)
            process.terminate()
            process.join()
            process.close()

    def begin(self, assigned: Sequence[Assignment]) -> None:
        """Send the tasks to the workers of their devices, the first to arrive first."""
        parts = self._answers.divide(assigned)
        for connection, part in zip(self._connections, parts, strict=True):
            if part:
                _send(connection, part)

    def answer(self, assignment: Assignment) -> UpdateMessage | None:
        """Wait for the answer to a task.

        Raises:
            ProgramDied: A worker has ended.
            Exception: What the training of a device raised.
        """
        while assignment.number not in self._answers:
            self._receive()
        return self._answers.pop(assignment.number)

    def collect(self) -> list[WorkerCost]:
        """Bring the devices' states back when every task is answered; return the workers' costs."""
        costs = []
        for connection in self._connections:
            _send(connection, None)
        for connection in self._connections:
            while not isinstance(found := _received(connection), _Final):
                pass  # answers to replaced tasks
            costs.append(found.cost)
            for name, progress in found.devices.items():
                self._devices[name].restore(progress)
        return costs

    def _receive(self) -> None:
        """Wait for a message of any worker, so that none waits while another one trains."""
        for connection in wait(self._connections):
            assert isinstance(connection, Connection)
            found = _received(connection)
            assert not isinstance(found, _Final)  # it follows every answer
            self._answers.add(*found)


@dataclass(frozen=True, slots=True)
class _Final:
    """The last message of a worker."""

    devices: dict[str, DeviceProgress]
    cost: WorkerCost


def _send(connection: Connection, message: object) -> None:
    try:
        connection.send(message)
    except OSError as error:
        raise ProgramDied("a worker process of the simulation ended before its work did") from error


def _received(connection: Connection) -> _Final | tuple[int, UpdateMessage | None]:
    try:
        found = connection.recv()
    except (EOFError, OSError) as error:
        raise ProgramDied("a worker process of the simulation ended before its work did") from error
    if isinstance(found, BaseException):
        raise found
    assert isinstance(found, _Final | tuple)
    return found


@dataclass(slots=True)
class RepeatableDevices:
    """Devices that are trained ahead of the virtual time, with each one's state before its open task."""

    devices: Mapping[str, DirectDevice]  # the devices by id
    # state of each before the task that it answered last
    before: dict[str, DeviceProgress] = field(default_factory=dict)

    def answer(self, assigned: Assignment) -> UpdateMessage | None:
        """Train a device; if the task replaces a trained one, undo that one first."""
        device = self.devices[assigned.task.to]
        if assigned.replaces:
            device.restore(self.before[device.id])
        self.before[device.id] = device.progress()
        return device.answer(assigned.task)


def _work(own: Connection, other: Connection, devices: Mapping[str, DirectDevice]) -> None:
    """Answer tasks in order until the simulation ends, or the process that started this one."""
    other.close()  # this copy would hide that the other process has ended
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    begun, worker = time.process_time(), RepeatableDevices(devices)
    tasks: queue.SimpleQueue[list[Assignment] | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(own, tasks), daemon=True).start()
    try:
        for assigned in _all(tasks):
            own.send((assigned.number, worker.answer(assigned)))
        states = {name: device.progress() for name, device in devices.items()}
        own.send(_Final(states, WorkerCost(time.process_time() - begun, private_bytes())))
    except OSError:
        return  # the other process has ended, or stopped the run
    except Exception as error:  # noqa: BLE001 - raised again where the answer is awaited
        error.add_note(traceback.format_exc())
        own.send(error)


def _all(tasks: queue.SimpleQueue[list[Assignment] | None]) -> Iterable[Assignment]:
    while (some := tasks.get()) is not None:
        yield from some


def _read(own: Connection, tasks: queue.SimpleQueue[list[Assignment] | None]) -> None:
    """Take tasks off the pipe while devices train, so that neither side waits for the other."""
    try:
        while (some := own.recv()) is not None:
            tasks.put(some)
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)  # the other process has ended
    tasks.put(None)


def private_bytes() -> int:
    """Return the memory that no other process shares; 0 on a system without ``/proc``."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
