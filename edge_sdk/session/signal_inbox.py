"""Assemble perishable tasks from their rows, and queue them in the order they were sent.

Nothing here is saved or requested again. A broker may reorder or lose messages: a task that comes
too early waits for its predecessors, at most ``GRACE`` seconds.
"""

from __future__ import annotations

from collections import deque

from edge_sdk.session.announcements import ManifestExpectation, NewestAnnouncements, judge_numbers
from edge_sdk.wire.contract.method import Ask, Task
from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.protocol import messages as m
from edge_sdk.wire.protocol.array_fragments import Sheet

MOST = 256
"""Maximum number of waiting tasks; beyond it the oldest are dropped."""

ORDER = "order"
"""Name of the number that orders perishable tasks."""

GRACE = 2.0
"""Seconds that a task waits for an earlier one."""


class SignalInbox:
    """The perishable tasks of one device.

    Args:
        to: Id of the device.

    Attributes:
        waiting: Complete tasks in order, oldest first.
    """

    def __init__(self, to: str) -> None:
        """Begin with an empty queue."""
        self._to = to
        self._sheets: dict[str, tuple[tuple[object, ...], Sheet]] = {}
        self._play: tuple[int, int] | None = None
        self._next = 0
        self._early: dict[int, tuple[float, Task]] = {}
        self.waiting: deque[Task] = deque(maxlen=MOST)

    def hear(
        self,
        said: m.TaskMessage,
        seen: NewestAnnouncements,
        wanted: ManifestExpectation,
        now: float,
    ) -> None:
        """Process one message; its task is ready when the last row has arrived.

        Raises:
            Refused: As ``judge``; BAD_TENSOR for a scalar that is not finite.
        """
        if said.ask not in wanted.contract:
            return
        ask = judge(said, seen, wanted)
        if not said.shape:
            self._whole(self._task(said, {}), now)
            return
        about = (said.turn, said.enc, said.shape)
        known, sheet = self._sheets.get(said.ask, (None, None))
        if sheet is None or known != about:
            sheet = Sheet(said.enc, said.shape)
            self._sheets[said.ask] = (about, sheet)
        sheet.add(said.off, said.num, said.blob)
        if sheet.is_complete:
            del self._sheets[said.ask]
            self._whole(self._task(said, {ask.down[0]: sheet.array()}), now)

    def tick(self, now: float) -> None:
        """Stop waiting for predecessors that are overdue."""
        if self._early and min(at for at, _ in self._early.values()) <= now:
            self._next = min(self._early)
            self._release()

    @property
    def next_due(self) -> float | None:
        """Time at which the longest wait ends."""
        return min((at for at, _ in self._early.values()), default=None)

    def _whole(self, task: Task, now: float) -> None:
        """Queue a complete task when its predecessors are here; drop a repeat of an earlier one."""
        order, play = int(task.values.get(ORDER, 0.0)), (task.round, task.attempt)
        if not order:  # belongs to no round
            self.waiting.append(task)
            return
        if self._play is None:  # earlier messages are not for this device
            self._play, self._next = play, order
        elif play > self._play:
            self._play, self._next = play, 1
            self._early.clear()
        if play == self._play and order >= self._next and len(self._early) < MOST:
            self._early.setdefault(order, (now + GRACE, task))
            self._release()

    def _release(self) -> None:
        while self._next in self._early:
            self.waiting.append(self._early.pop(self._next)[1])
            self._next += 1

    def forget(self) -> None:
        """Discard everything: another run is in force."""
        self._sheets.clear()
        self._early.clear()
        self.waiting.clear()
        self._play = None

    def _task(self, said: m.TaskMessage, arrays: dict[str, object]) -> Task:
        return Task(
            to=self._to,
            round=said.round,
            ask=said.ask,
            step=said.step,
            base=said.base,
            attempt=said.attempt,
            values=said.vals,
            arrays=arrays,  # type: ignore[arg-type]  # every value is an array
        )


def is_perishable(said: m.TaskMessage, wanted: ManifestExpectation | None) -> bool:
    """Return whether a task is perishable by the contract in force on this device.

    Before its run is in force here, a task is perishable if it carries an order number.
    """
    ask = wanted.contract.get(said.ask) if wanted is not None else None
    return ORDER in said.vals if ask is None else ask.perishable


def judge(said: m.TaskMessage, seen: NewestAnnouncements, wanted: ManifestExpectation) -> Ask:
    """Refuse a perishable task that does not fit; return its contract.

    Raises:
        Refused: WRONG_RUN; WRONG_SPEC; MALFORMED for an array where the contract has none;
            BAD_SCALAR.
    """
    if said.run != seen.run:
        raise Refused(Reason.WRONG_RUN, f"run {said.run}, expected {seen.run}")
    if said.spec != wanted.spec:
        raise Refused(Reason.WRONG_SPEC, said.spec.hex())
    ask = wanted.contract[said.ask]
    if said.shape and not ask.down:
        raise Refused(Reason.MALFORMED, f"ask {said.ask!r} brings no array")
    judge_numbers(said.vals, ask, wanted.limits)
    return ask
