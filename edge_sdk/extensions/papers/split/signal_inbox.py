"""Assemble perishable tasks from their rows, and return them in the order they were sent.

Nothing here is saved or requested again. A broker may reorder or lose messages: a task that comes
too early waits for its predecessors, at most ``GRACE`` seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.papers.split.array_rows import Sheet, cut
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.contract.method import Ask, Signal, Task
from edge_sdk.protocol.messages import SignalMessage
from edge_sdk.session.manifest_checks import (
    ORDER,
    ManifestExpectation,
    NewestAnnouncements,
    judge_numbers,
)

MOST = 256
"""Most perishable tasks that wait; beyond it the oldest are dropped."""

GRACE = 2.0
"""Seconds that a task waits for an earlier one."""


class SignalInbox:
    """The perishable tasks of one device."""

    def __init__(self, to: str) -> None:
        self._to = to
        self._sheets: dict[str, tuple[tuple[object, ...], Sheet]] = {}
        self._play: tuple[int, int] | None = None
        self._next = self._run = 0
        self._early: dict[int, tuple[float, Task]] = {}

    def receive(
        self,
        message: m.TaskMessage,
        seen: NewestAnnouncements,
        wanted: ManifestExpectation,
        now: float,
    ) -> list[Task]:
        """Process one message; return the tasks that are complete, and next in order, now.

        Raises:
            Refused: As ``judge``; BAD_TENSOR for a scalar that is not finite.
        """
        if message.ask not in wanted.contract:
            return []
        ask = judge(message, seen, wanted)
        if message.run != self._run:
            self.clear()
            self._run = message.run
        if not message.shape:
            return self._in_order(self._task(message, {}), now)
        about = (message.turn, message.enc, message.shape)
        known, sheet = self._sheets.get(message.ask, (None, None))
        if sheet is None or known != about:
            sheet = Sheet(message.enc, message.shape)
            self._sheets[message.ask] = (about, sheet)
        sheet.add(message.off, message.num, message.blob)
        if not sheet.is_complete:
            return []
        del self._sheets[message.ask]
        return self._in_order(self._task(message, {ask.down[0]: sheet.array()}), now)

    def tick(self, now: float) -> list[Task]:
        """Return the tasks that waited for overdue predecessors."""
        if self._early and min(at for at, _ in self._early.values()) <= now:
            self._next = min(self._early)
            return self._release()
        return []

    @property
    def next_due(self) -> float | None:
        return min((at for at, _ in self._early.values()), default=None)

    def _in_order(self, task: Task, now: float) -> list[Task]:
        """Return a complete task when its predecessors are here; drop a repeat of an earlier one."""
        order, play = int(task.values.get(ORDER, 0.0)), (task.round, task.attempt)
        if not order:  # belongs to no round
            return [task]
        if self._play is None:  # earlier messages are not for this device
            self._play, self._next = play, order
        elif play > self._play:
            self._play, self._next = play, 1
            self._early.clear()
        if play == self._play and order >= self._next and len(self._early) < MOST:
            self._early.setdefault(order, (now + GRACE, task))
            return self._release()
        return []

    def _release(self) -> list[Task]:
        ready = []
        while self._next in self._early:
            ready.append(self._early.pop(self._next)[1])
            self._next += 1
        return ready

    def clear(self) -> None:
        """Discard everything: another run is in force, or a round met a defect."""
        self._sheets.clear()
        self._early.clear()
        self._play = None

    def _task(self, message: m.TaskMessage, arrays: dict[str, object]) -> Task:
        return Task(
            to=self._to,
            round=message.round,
            ask=message.ask,
            step=message.step,
            base=message.base,
            attempt=message.attempt,
            values=message.vals,
            arrays=arrays,  # type: ignore[arg-type]  # every value is an array
        )


def judge(message: m.TaskMessage, seen: NewestAnnouncements, wanted: ManifestExpectation) -> Ask:
    """Refuse a perishable task that does not fit; return its contract.

    Raises:
        Refused: WRONG_RUN; WRONG_SPEC; MALFORMED for an array where the contract has none;
            BAD_SCALAR.
    """
    if message.run != seen.run:
        raise Refused(Reason.WRONG_RUN, f"run {message.run}, expected {seen.run}")
    if message.spec != wanted.spec:
        why = f"layout {message.spec.hex()}, expected {wanted.spec.hex()}"
        raise Refused(Reason.WRONG_SPEC, why)
    ask = wanted.contract[message.ask]
    if message.shape and not ask.down:
        raise Refused(Reason.MALFORMED, f"ask {message.ask!r} has no array in its contract")
    judge_numbers(message.vals, ask, wanted.limits)
    return ask


def signal_messages(signal: Signal, enc: str, *, run: int) -> Iterator[SignalMessage]:
    """Yield the messages of a signal.

    Args:
        signal: Signal of a device half.
        run: Run of the task that it answers.

    Raises:
        Refused: BAD_TENSOR: a scalar is not finite; no message was made.
    """
    common: dict[str, Any] = {
        "run": run,
        "round": signal.round,
        "ask": signal.ask,
        "attempt": signal.attempt,
        "step": signal.step,
        "vals": dict(signal.values),
    }
    if not signal.array.size:
        yield SignalMessage(**common)
        return
    shape = tuple(map(int, signal.array.shape))
    for piece in list(cut(signal.array, enc)):
        yield SignalMessage(**common, enc=enc, shape=shape, **piece._asdict())
