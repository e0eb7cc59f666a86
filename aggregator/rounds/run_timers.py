"""Timers of a run, due on the monotonic clock and saved by the wall clock, and the starts of its rounds."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass

from aggregator.config import BoundRun
from aggregator.rounds.announcements import BETWEEN
from aggregator.store.store import Store
from aggregator.store.types import Timer, Version
from edge_sdk.app.clock import Clock
from edge_sdk.protocol.contract.method import Closed, Due
from edge_sdk.protocol.messages import ModelMessage


@dataclass(frozen=True, slots=True)
class RunTimer:
    """One timer."""

    at: float  # due time on the monotonic clock, in seconds
    timer: Timer  # saved form


def started(due: Due, clock: Clock) -> RunTimer:
    at = clock.wall() + int(due.after * 1000)
    return RunTimer(clock.monotonic() + due.after, Timer(due, at))


def resumed(timer: Timer, clock: Clock) -> RunTimer:
    """Convert a saved timer to the monotonic clock; at most its whole duration remains."""
    left = (timer.at - clock.wall()) / 1000
    left = min(max(left, 0.0), timer.due.after)
    return RunTimer(clock.monotonic() + left, timer)


def pending(timers: Sequence[RunTimer], closed: Closed | None) -> list[RunTimer]:
    return [one for one in timers if closed is None or one.timer.due.round > closed.round]


@dataclass(frozen=True, slots=True)
class RoundStarts:
    """Starts of one run's rounds."""

    run: BoundRun  # the bound configuration, with the schedule
    number: int
    store: Store  # database of the closed rounds
    clock: Clock  # wall time
    devices: Sized

    def next(self, closed: Version | None = None) -> int:
        """Return when the next round begins, Unix milliseconds; at most now if it may begin now.

        Args:
            closed: A round that is being closed, and is not in the store yet.
        """
        return self.run.schedule.due(self._last(closed), self.clock.wall())

    def waits(self, closed: Version | None = None) -> bool:
        """Return whether the next round waits for its start, right after a round has closed."""
        return self.next(closed) > self.clock.wall()

    def waited(self, manifest: ModelMessage | None) -> bool:
        """Return whether the last process waited for the start of a round, by its last manifest.

        An operator's pause hides whether it did: then the closed rounds decide.
        """
        if manifest is None or manifest.phase != "pause":
            return False
        last, schedule = self._last(), self.run.schedule
        if manifest.until == BETWEEN or last is None or schedule.is_continuous:
            return manifest.until == BETWEEN
        return schedule.next_after(last) > self.clock.wall()

    def _last(self, closed: Version | None = None) -> int | None:
        """Return the time from which the next start is counted; None before the first round.

        It is that of the last closed round. Where one round does not ask every device, as in
        asynchronous methods, a start stands for as many rounds as there are devices for.
        """
        count = -(-len(self.devices) // self.run.rounds.quorum) if self.run.ask.patient else 1
        count = max(count, 1)
        times = [one.time for one in self.store.runs.versions(self.number, count)]
        times += [closed.time] if closed is not None else []
        return times[-count] if len(times) >= count else None
