"""Apply journalled events to a run's state, save it, and return the announcements.

An event is journalled before it is applied. Its changes are saved with the announcements that
follow from it, in one transaction. A process that is killed at any line and restarted therefore
applies the rest of the journal and reaches the same state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from aggregator.config import BoundRun
from aggregator.ingress.admission_context import AdmissionContext
from aggregator.ingress.admission_policy import OpenRound
from aggregator.ingress.cohort import Cohort
from aggregator.methods import ABANDON, AGAIN, OPEN, Course
from aggregator.methods.base.wrappers import replaced
from aggregator.rounds import announcements as announce
from aggregator.rounds import run_timers, task_dispatch
from aggregator.rounds.announcements import BETWEEN, VALIDITY, Ends, Phase, Publication
from aggregator.rounds.run_announcer import Announced, RunAnnouncer
from aggregator.rounds.run_timers import RoundStarts
from aggregator.store.errors import DatabaseFullError
from aggregator.store.state_codec import changed, digest, flatten
from aggregator.store.store import Store
from aggregator.store.types import DownloadBody, JournalEntry, PendingTask, SavedState, Version
from edge_sdk.app.cli import fields
from edge_sdk.app.clock import DAY, Clock
from edge_sdk.protocol.contract.method import (
    ALL,
    CONTRACTS,
    Closed,
    Due,
    Effects,
    Event,
    Member,
    Task,
)
from edge_sdk.protocol.messages import CHUNK_LIMIT

logger = logging.getLogger(__name__)

SHOW_EVERY = 10.0  # s between two informative manifests


@dataclass(frozen=True, slots=True)
class AppliedEvent:
    """Saved result of an event."""

    publications: tuple[Publication, ...] = ()  # announcements to publish, in this order
    closed: Version | None = None
    tasks: tuple[PendingTask, ...] = ()  # tasks to send to single devices


@dataclass(frozen=True, slots=True)
class EngineParts:
    """Parts of the daemon that an engine uses."""

    store: Store  # database of state and journal
    ends: Ends  # signer and fleet of announcements
    clock: Clock  # wall and monotonic time
    cohort: Cohort  # devices of the run, whose number sets their pacing
    is_held: Callable[[Course], bool]  # returns whether the round after a state waits
    # returns the daemon's payload bytes since its start, by ``up`` and ``down``
    traffic: Callable[[], Mapping[str, int]]


class RoundEngine:
    """Engine of the open run. Its state changes only in ``apply``.

    Args:
        state: The last saved state.
        saved: Its record, with the pending timers.

    Attributes:
        halted: Reason for which the run is halted until an operator resumes it; else empty.
        announced_bundle: Reference of the run's bundle announcement; empty for none.
        is_waiting: True between two rounds of a schedule: the next round is ready and not opened.
    """

    def __init__(
        self, run: BoundRun, number: int, state: Course, saved: SavedState, parts: EngineParts
    ) -> None:
        self._cohort, self._is_held, self._traffic = parts.cohort, parts.is_held, parts.traffic
        self._store, self._ends, self._clock = parts.store, parts.ends, parts.clock
        self.run = run
        self.number = number
        self.state = state
        self.chunk = CHUNK_LIMIT
        self._saved = flatten(state)
        self._opened_at: float | None = None
        self._opened_wall = 0
        self._opened_traffic: Mapping[str, int] = {}
        self._timers = [run_timers.resumed(timer, self._clock) for timer in saved.timers]
        manifest = self._announcer.last_manifest()
        self._upto = saved.upto
        self.is_waiting = state.is_open and self._starts.waited(manifest)
        is_pause = manifest is not None and manifest.phase == "pause"
        self._is_paused = is_pause and manifest is not None and manifest.until != BETWEEN
        self.halted = ""
        self.announced_bundle = self._announcer.bundle_ref()
        self._values = self._announcer.last_values()
        self._announced_at = -SHOW_EVERY if manifest is None else self._clock.monotonic()
        self._announced_version = manifest.version if manifest is not None else -1
        self._expires = None if manifest is None else manifest.expires

    @property
    def _announcer(self) -> RunAnnouncer:
        return RunAnnouncer(
            self.run, self.number, self._store, self._ends, self._clock, self._cohort
        )

    @property
    def _starts(self) -> RoundStarts:
        return RoundStarts(self.run, self.number, self._store, self._clock, self._cohort)

    @property
    def is_done(self) -> bool:
        return self.state.round > 0 and not self.state.is_open

    @property
    def phase(self) -> Phase:
        if self.is_done:
            return "stop"
        return "pause" if self.is_paused or self.is_waiting else "train"

    @property
    def is_paused(self) -> bool:
        return self._is_paused or bool(self.halted)

    @property
    def is_held(self) -> bool:
        return self._is_held(self.state)

    @property
    def next_round_at(self) -> int | None:
        """Return when the next round begins, Unix milliseconds; None while one is open."""
        if not self.is_waiting or self.is_done:
            return None
        return self._starts.next()

    def mark(self) -> Mapping[str, Any]:
        """Return a mark for ``rewind``; every value in it is replaced, never changed in place."""
        return dict(vars(self))

    def rewind(self, mark: Mapping[str, Any]) -> None:
        """Restore the state at the mark; the caller rolls back the store."""
        vars(self).update(mark)

    @property
    def context(self) -> AdmissionContext:
        section, state = self.run.config.run, self.state
        salt = (
            announce.salt(section.seed, self.number, state.round)
            if section.client_fraction < 1.0
            else None
        )
        is_open = state.is_open and (not self.is_waiting or self.run.ask.patient)
        opened = OpenRound(self.number, state.round, state.version, is_open=is_open)
        return AdmissionContext(
            opened,
            self.run.limits,
            is_paused=self.is_paused and not self.is_done,
            share=section.client_fraction,
            cohort=salt,
            releases=self.run.config.admission.max_updates,
            is_personal=self.run.ask.personal,
            oldest=self._store.journal.oldest_round(self.number) if self.run.ask.patient else 0,
            fault=self.run.fault,
            name=section.name,
            holds=self._cohort.holds,
            announced=self.announced_bundle,
        )

    @property
    def next_due(self) -> float | None:
        """Return the due time of the next timer, on the monotonic clock."""
        if self.phase == "pause":
            return None
        return min((one.at for one in self._timers), default=None)

    def begin(self, upto: int) -> list[AppliedEvent]:
        """Apply the journal entries after the saved state, or open the first round.

        After a replacement of the signing key, all announcements are signed again.
        """
        done = [self.apply(entry) for entry in self._store.journal.entries(self.number, after=upto)]
        if self.state.round == 0:
            done.append(self.apply(self._store.journal.append(self.number, OPEN)))
        elif self.run.half.play is not None and self.state.is_open:
            again = Due(self.state.round, AGAIN)  # transient state of the last process
            done.append(self.apply(self._store.journal.append(self.number, again)))
        if self._announcer.last_manifest() is None:
            self.announced()
        return done

    @property
    def is_behind(self) -> bool:
        moved = self.state.version != self._announced_version
        return moved and self._clock.monotonic() - self._announced_at >= SHOW_EVERY

    @property
    def is_expiring(self) -> bool:
        """Return whether the manifest has to be signed again, so that devices do not refuse it.

        Half of its validity is over, or it ends a day later than one signed now would: it was
        signed by a clock that was ahead.
        """
        if self._expires is None:
            return self.state.round > 0
        left = self._expires - self._clock.wall()
        return not VALIDITY / 2 < left <= VALIDITY + DAY

    def due(self) -> list[Event]:
        """Return the timers that are due; each stays pending until it is journalled."""
        if self.phase == "pause":
            return []
        now = self._clock.monotonic()
        return [one.timer.due for one in self._timers if one.at <= now]

    def wake(self, due: Event) -> JournalEntry:
        """Journal a due timer; ``apply`` it next."""
        entry = self._store.journal.append(self.number, due)
        self._timers = [one for one in self._timers if one.timer.due != due]
        return entry

    def abandon(self) -> JournalEntry:
        """Journal that the open round is abandoned; ``apply`` it next."""
        return self._store.journal.append(self.number, Due(self.state.round, ABANDON))

    def meet(self, event: Event) -> JournalEntry | None:
        """Journal an event if it changes the state; ``apply`` it next."""
        state, effects = self.run.half.apply(self.state, event)
        if state is self.state and not self._needed(event, effects):
            return None
        return self._store.journal.append(self.number, event)

    def record(self, event: Event) -> JournalEntry:
        """Journal an event that this process produced; ``apply`` it next."""
        return self._store.journal.append(self.number, event)

    def apply(self, entry: JournalEntry) -> AppliedEvent:
        """Apply a journalled event, save and return its result; raise DatabaseError if nothing changed: retry."""
        if entry.event is None:
            return AppliedEvent()
        state, effects = self.run.half.apply(self.state, entry.event)
        effects = self._needed(entry.event, effects)
        applied = self._commit(state, effects, entry) if effects else AppliedEvent()
        self.state = state
        return applied

    def announced(self, *, anew: bool = True) -> tuple[Publication, ...]:
        """Sign, save and return the announcements of the present state again.

        Args:
            anew: False leaves out the slots of a model that is announced already.
        """
        found = self._present_announcements(anew=anew)
        published = {one.topic: one.payload for one in found.publications}
        self._store.announce(published, found.contents, also=found.also)
        self._note_announced(self.state, found.publications)
        return found.publications

    def open_round(self) -> tuple[Publication, ...]:
        """Open the round that waits for its start; save and return its announcements.

        Its deadline begins now, in the same transaction.
        """
        is_waiting, before = self.is_waiting, self._timers
        self.is_waiting = False
        self._restart_timers()
        found = self._present_announcements()
        publications = found.publications
        try:
            self._store.commit(
                self.number,
                {},
                self._upto,
                timers=[one.timer for one in self._timers],
                published={one.topic: one.payload for one in publications},
                contents=found.contents,
                also=found.also,
            )
        except DatabaseFullError:
            self.is_waiting, self._timers = is_waiting, before
            raise
        self._opened_at, self._opened_wall = self._clock.monotonic(), self._clock.wall()
        self._opened_traffic = dict(self._traffic())
        self._note_announced(self.state, publications)
        return publications

    @property
    def steps_state(self) -> Any:  # noqa: ANN401 - the half's own
        """Return the state for the steps of a round, in which a waiting round is not open."""
        state: Any = self.state
        return replaced(state, is_open=False) if self.is_waiting and state.is_open else state

    def _present_announcements(self, *, anew: bool = True) -> Announced:
        task = self._announcer.task(self.state)
        task = replace(task, values={**self._values, **task.values})
        is_between = self.is_waiting and not self.is_paused and not self.is_done
        after = None if is_between else self._remaining()
        return self._announcer.announcements(task, self.phase, after, chunk=self.chunk, anew=anew)

    def _restart_timers(self) -> None:
        self._timers = [run_timers.started(one.timer.due, self._clock) for one in self._timers]

    def pause(self, *, is_paused: bool) -> tuple[Publication, ...]:
        """Pause or resume the fleet; the open round's deadline starts again on resuming.

        The saved announcement preserves the pause over a restart.
        """
        if self._is_paused and not is_paused:
            self._restart_timers()
        self._is_paused = is_paused
        return self.announced()

    def _commit(self, state: Course, effects: Effects, entry: JournalEntry) -> AppliedEvent:
        closed = next((e for e in effects if isinstance(e, Closed)), None)
        wanted = [e for e in effects if isinstance(e, Due)]
        version = self._version(closed, state) if closed else None
        is_waiting = self._waits_after(entry, state, version)
        found = self._announcements_after(state, effects, closed, is_waiting=is_waiting)
        asked, bodies = self._device_tasks(effects)
        alarms = run_timers.pending(self._timers, closed) + [
            run_timers.started(due, self._clock) for due in wanted
        ]
        leaves = flatten(state)
        self._store.commit(
            self.number,
            changed(self._saved, leaves),
            entry.position,
            closed=version,
            timers=[one.timer for one in alarms],
            published={one.topic: one.payload for one in found.publications},
            contents=(*found.contents, *bodies),
            asked=asked,
            keep=self.run.config.retention.bounds,
            also=found.also,
        )
        self._saved, self._timers, self._upto = leaves, alarms, entry.position
        self.is_waiting = is_waiting
        if any(isinstance(e, Task) for e in effects) and (closed or self._opened_at is None):
            self._opened_at = self._clock.monotonic()
            self._opened_traffic = dict(self._traffic())
        self._note_announced(state, found.publications)
        _log(version, self.run.config.run.name)
        return AppliedEvent(found.publications, version, asked)

    def _needed(self, event: Event, effects: Effects) -> Effects:
        """Omit the new task of a returning device that still has an open one.

        The open task is sent again; a newer one would make the device discard its training so far.
        """
        if not isinstance(event, Member):
            return effects
        open_ = self._store.tasks.get(event.client, self.number)
        oldest = self.state.version - (self.run.limits.max_staleness or 0)
        if open_ is None or not open_.is_open or open_.base < oldest:
            return effects
        return tuple(e for e in effects if not (isinstance(e, Task) and e.to == event.client))

    def _announcements_after(
        self, state: Course, effects: Effects, closed: Closed | None, *, is_waiting: bool
    ) -> Announced:
        task = next((e for e in effects if isinstance(e, Task) and e.to == ALL), None)
        if task is not None:
            dues = [e.after for e in effects if isinstance(e, Due)]
            self._values = task.values
            after = dues[0] if dues else self.run.rounds.deadline
            return self._announcer.announcements(
                task,
                "pause" if is_waiting else "train",
                None if is_waiting else after,
                chunk=self.chunk,
            )
        if closed is None:
            return Announced()
        if is_waiting and not self.is_waiting:
            return self._announcer.announcements(
                self._announcer.task(state), "pause", None, chunk=self.chunk
            )
        if self.run.ask.personal and state.is_open:  # informative only: rate-limited
            is_due = self._clock.monotonic() - self._announced_at >= SHOW_EVERY
            return (
                self._announcer.announcements(
                    self._announcer.task(state), "train", 0.0, chunk=self.chunk
                )
                if is_due and not is_waiting
                else Announced()
            )
        return self._announcer.announcements(
            self._announcer.task(state), "stop", 0.0, chunk=self.chunk
        )

    def _device_tasks(
        self, effects: Effects
    ) -> tuple[tuple[PendingTask, ...], tuple[DownloadBody, ...]]:
        tasks = [e for e in effects if isinstance(e, Task) and e.to != ALL]
        contract, spec = CONTRACTS[self.run.config.run.method], self.run.spec
        return task_dispatch.recorded(tasks, contract, spec, run=self.number, chunk=self.chunk)

    def _note_announced(self, state: Course, publications: tuple[Publication, ...]) -> None:
        if publications:
            self._announced_version, self._announced_at = state.version, self._clock.monotonic()
            self._expires = self._clock.wall() + VALIDITY

    def _version(self, closed: Closed, state: Course) -> Version:
        began, report = self._opened_at, dict(closed.report)
        if began is not None:
            report["seconds"] = round(self._clock.monotonic() - began, 3)
            if spent := self.round_traffic():
                report |= {"received": spent["up"], "sent": spent["down"]}
        return Version(
            run=self.number,
            round=closed.round,
            version=closed.version,
            moved=closed.moved,
            digest=digest(state),
            report=report,
            time=max(self._clock.wall(), self._opened_wall),  # a clock set back repeats no start
        )

    def round_traffic(self) -> Mapping[str, int]:
        """Return the daemon's payload bytes since the round was opened; empty if unknown.

        They are those of all runs, ``up`` from devices and ``down`` to them.
        """
        if self._opened_at is None or not self._opened_traffic:
            return {}
        now = self._traffic()
        return {way: now[way] - before for way, before in self._opened_traffic.items()}

    def _remaining(self) -> float:
        due = self.next_due
        return 0.0 if due is None else max(0.0, due - self._clock.monotonic())

    def _waits_after(self, entry: JournalEntry, state: Course, closed: Version | None) -> bool:
        if not state.is_open:
            return False
        is_ready = closed is not None or entry.event == OPEN
        if not is_ready:
            return self.is_waiting
        return self._starts.waits(closed) or self._is_held(state)


def restored(version: Version) -> Version:
    """Return a version without its report, which is small enough to keep many in memory."""
    kept = ("cohort", "why", "loss", "seconds")
    return replace(version, report={k: v for k, v in version.report.items() if k in kept})


def _log(version: Version | None, name: str) -> None:
    if version is None:
        return
    report = version.report
    about = {"run": version.run} | ({"name": name} if name else {})
    about |= {"round": version.round, "version": version.version}
    about |= {"cohort": len(report.get("cohort", ())), "seconds": report.get("seconds", "")}
    if version.moved:
        logger.info("round closed %s", fields(**about, loss=report.get("loss", "")))
    else:
        logger.warning("round abandoned %s", fields(**about, why=report.get("why", "")))
