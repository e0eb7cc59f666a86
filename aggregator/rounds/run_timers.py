"""Timers of a run: due on the monotonic clock of this process, saved by the wall clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aggregator.store.types import Timer
from edge_sdk.app.clock import Clock
from edge_sdk.wire.contract.method import Closed, Due


@dataclass(frozen=True, slots=True)
class RunTimer:
    """One timer.

    Attributes:
        at: Due time on the monotonic clock, in seconds.
        timer: Saved form.
    """

    at: float
    timer: Timer


def started(due: Due, clock: Clock) -> RunTimer:
    """Return a timer that starts now."""
    at = clock.wall() + int(due.after * 1000)
    return RunTimer(clock.monotonic() + due.after, Timer(due, at))


def resumed(timer: Timer, clock: Clock) -> RunTimer:
    """Convert a saved timer to the monotonic clock; at most its whole duration remains."""
    left = (timer.at - clock.wall()) / 1000
    left = min(max(left, 0.0), timer.due.after)
    return RunTimer(clock.monotonic() + left, timer)


def pending(timers: Sequence[RunTimer], closed: Closed | None) -> list[RunTimer]:
    """Return the pending timers without those of a closed round."""
    return [one for one in timers if closed is None or one.timer.due.round > closed.round]
