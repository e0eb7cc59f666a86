"""Decide when the next round of a run begins: by its schedule and by the rounds in the store."""

from __future__ import annotations

from dataclasses import dataclass

from aggregator.config import BoundRun
from aggregator.rounds.announcements import BETWEEN
from aggregator.store.types import Store, Version
from edge_sdk.app.clock import Clock
from edge_sdk.wire.protocol.messages import ModelMessage


@dataclass(frozen=True, slots=True)
class RoundStarts:
    """Starts of one run's rounds.

    Attributes:
        run: The bound configuration, with the schedule.
        number: Number of the run.
        store: Database of the closed rounds.
        clock: Wall time.
        devices: Number of enrolled devices.
    """

    run: BoundRun
    number: int
    store: Store
    clock: Clock
    devices: int

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
        """Return whether the last process waited, by its last manifest.

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
        count = -(-self.devices // self.run.rounds.quorum) if self.run.ask.patient else 1
        count = max(count, 1)
        times = [one.time for one in self.store.versions(self.number, count)]
        times += [closed.time] if closed is not None else []
        return times[-count] if len(times) >= count else None
