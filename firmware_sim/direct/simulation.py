"""Run a whole fleet in one loop over virtual time: tasks, arrivals of updates, and deadlines."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from edge_sdk.wire.contract.method import Due, Task
from firmware_sim.direct.arrivals import ArrivalTimes, VirtualClock
from firmware_sim.direct.device import DirectDevice
from firmware_sim.direct.server import DirectServer
from firmware_sim.fleet.federation import TooSlow

POLL = 0.05
"""Virtual seconds after which a Byzantine device looks again whether it can answer."""

MayAnswer = Callable[[Task], bool]
"""Decides whether a device answers a task now or later."""


@dataclass
class DirectSimulation:
    """One run of a fleet without broker, signatures and disk.

    Attributes:
        server: The server half.
        devices: The devices by id.
        arrivals: Virtual seconds from tasks to updates.
        may_answer: What a device waits for before it answers, by id; a device without an entry
            waits for nothing.
        clock: Virtual time.
        updates: Number of updates that the devices sent.
        order: Ids of their senders, in order of arrival.
    """

    server: DirectServer
    devices: Mapping[str, DirectDevice]
    arrivals: ArrivalTimes
    may_answer: Mapping[str, MayAnswer] = field(default_factory=dict)
    clock: VirtualClock = field(default_factory=VirtualClock)
    updates: int = 0
    order: list[str] = field(default_factory=list)
    _queue: list[tuple[float, int, str, Task | Due]] = field(default_factory=list)
    _open: dict[str, Task] = field(default_factory=dict)
    _count: int = 0

    def run(self, closed: Callable[[], object] = lambda: None) -> None:
        """Run until the configured number of rounds is complete, and adopt the final model.

        Args:
            closed: Called after every round that ended; it may raise to stop.

        Raises:
            TooSlow: No further update or deadline can close the open round.
        """
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
        for task in self.server.final_tasks():
            self.devices[task.to].answer(task)

    def _step(self) -> None:
        """Process the next event in virtual time."""
        at, _, device, event = heapq.heappop(self._queue)
        self.clock.advance(at)
        if isinstance(event, Due):
            self._follow(*self.server.expire(event))
            return
        if self._open.get(device) is not event:
            return  # a newer task replaced it
        if device in self.may_answer and not self.may_answer[device](event):
            self._push(POLL, device, event)
            return
        del self._open[device]
        message = self.devices[device].answer(event)
        if message is not None:
            self.updates += 1
            self.order.append(device)
            self._follow(*self.server.receive(device, message))

    def _follow(self, tasks: Iterable[Task], timers: Iterable[Due]) -> None:
        for due in timers:
            self._push(due.after, "", due)
        for task in tasks:
            self._open[task.to] = task
            self._push(self.arrivals.next(task.to), task.to, task)

    def _push(self, after: float, device: str, event: Task | Due) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.clock.now + after, self._count, device, event))
