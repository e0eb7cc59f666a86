"""Run a whole fleet in one loop over virtual time: tasks, seeded arrivals of updates, and deadlines."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from edge_sdk.app.schema import Between
from edge_sdk.protocol.contract.method import Due, Task
from firmware_sim.direct.device import DirectDevice
from firmware_sim.direct.server import DirectServer
from firmware_sim.direct.trainers import Assignment, LocalTrainer, Trainer
from firmware_sim.fleet.federation import TooSlow

SPREAD = 0.5  # standard deviation of the logarithm of a device's speed, and of each of its answers


@dataclass(slots=True)
class VirtualClock:
    """Seconds of simulated time since the first round was opened."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def advance(self, at: float) -> None:
        """Advance to a time; an earlier one changes nothing."""
        self.now = max(self.now, at)


@dataclass(frozen=True, slots=True)
class ArrivalPlan:
    """Speeds, sleeps and losses that are drawn for a fleet; times are in medians of an answer."""

    spread: Annotated[float, Between(0.0, 5.0)] = SPREAD  # deviation of the logarithm of speeds
    sleep: Annotated[float, Between(0.0, 1.0)] = (
        0.0  # share of answers before which a device sleeps
    )
    nap: Annotated[float, Between(0.0, 1e6)] = 100.0  # mean time asleep, exponential
    loss: Annotated[float, Between(0.0, 0.99)] = (
        0.0  # share of uploads that are lost and sent again
    )
    again: Annotated[float, Between(0.0, 1e6)] = 10.0  # time until then


USUAL = ArrivalPlan()


@dataclass(slots=True)
class ArrivalTimes:
    """Virtual seconds from a task to its update: log-normal, with a median of one second.

    A device is slower or faster than others during the whole run, and every answer varies around
    that. A device's draws depend on the seed and its id only, so that another device in the fleet
    changes none of them.
    """

    seed: int
    plan: ArrivalPlan = USUAL
    _draws: dict[str, random.Random] = field(default_factory=dict)
    _speed: dict[str, float] = field(default_factory=dict)

    def next(self, device: str) -> float:
        """Draw the seconds of a device's next answer.

        >>> one, other = ArrivalTimes(3), ArrivalTimes(3)
        >>> _ = other.next("b")
        >>> [one.next("a") for _ in range(3)] == [other.next("a") for _ in range(3)]
        True
        """
        plan = self.plan
        if device not in self._draws:
            draws = random.Random(f"arrivals {self.seed} {device}")  # noqa: S311 - reproducible
            self._draws[device], self._speed[device] = draws, draws.gauss(0.0, plan.spread)
        draws = self._draws[device]
        seconds = math.exp(self._speed[device] + draws.gauss(0.0, SPREAD))
        if plan.sleep and draws.random() < plan.sleep:
            seconds += draws.expovariate(1.0) * plan.nap
        while plan.loss and draws.random() < plan.loss:
            seconds += plan.again
        return seconds


POLL = 0.05  # virtual seconds after which a Byzantine device looks again whether it can answer
MayAnswer = Callable[[Task], bool]  # decides whether a device answers a task now or later


@dataclass
class DirectSimulation:
    """One run of a fleet without broker, signatures and disk."""

    server: DirectServer
    devices: Mapping[str, DirectDevice]  # the devices by id
    arrivals: ArrivalTimes  # virtual seconds from tasks to updates
    # what a device waits for before it answers, by id; a device without an entry waits for nothing
    may_answer: Mapping[str, MayAnswer] = field(default_factory=dict)
    clock: VirtualClock = field(default_factory=VirtualClock)
    updates: int = 0  # number of updates that the devices sent
    order: list[str] = field(default_factory=list)  # ids of their senders, in order of arrival
    _queue: list[tuple[float, int, str, Assignment | Due]] = field(default_factory=list)
    _open: dict[str, Assignment] = field(default_factory=dict)
    _count: int = 0
    _trainer: Trainer = field(init=False)

    def __post_init__(self) -> None:
        """Train the devices in this thread unless ``run`` is given a trainer."""
        self._trainer = LocalTrainer(self.devices)

    def run(
        self, closed: Callable[[], object] = lambda: None, trainer: Trainer | None = None
    ) -> None:
        """Run until the configured number of rounds is complete, and adopt the final model.

        Args:
            closed: Called after every round that ended; it may raise to stop.
            trainer: Trains the devices; None trains them in this thread.

        Raises:
            TooSlow: No further update or deadline can close the open round.
        """
        self._trainer = trainer or self._trainer
        self._follow(*self.server.open())
        seen = 0
        while not self.server.is_done:
            if not self._queue:
                number = self.server.state.round
                raise TooSlow(
                    f"round {number} never ends: {self.server.state.waiting} updates, no deadline",
                    hint="a lower --quorum, or devices with more history",
                )
            self._step()
            if len(self.server.rounds) > seen:
                seen = len(self.server.rounds)
                closed()
        for assignment in self._assigned(self.server.final_tasks()):
            self._trainer.answer(assignment)

    def _step(self) -> None:
        at, _, device, event = heapq.heappop(self._queue)
        self.clock.advance(at)
        if isinstance(event, Due):
            self._follow(*self.server.expire(event))
            return
        if self._open.get(device) is not event:
            return  # a newer task replaced it
        if device in self.may_answer and not self.may_answer[device](event.task):
            self._push(POLL, device, event)
            return
        del self._open[device]
        message = self._trainer.answer(event)
        if message is not None:
            self.updates += 1
            self.order.append(device)
            self._follow(*self.server.receive(device, message))

    def _follow(self, tasks: Iterable[Task], timers: Iterable[Due]) -> None:
        for due in timers:
            self._push(due.after, "", due)
        for assignment in self._assigned(tasks):
            heapq.heappush(
                self._queue, (assignment.at, assignment.number, assignment.task.to, assignment)
            )

    def _assigned(self, tasks: Iterable[Task]) -> list[Assignment]:
        assigned = []
        for task in tasks:
            self._count += 1
            at = self.clock.now + self.arrivals.next(task.to)
            made = Assignment(self._count, at, task, replaces=task.to in self._open)
            self._open[task.to] = made
            assigned.append(made)
        self._trainer.begin(assigned)
        return assigned

    def _push(self, after: float, device: str, event: Assignment | Due) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.clock.now + after, self._count, device, event))
