"""One run's state and its journal: an event in, the next state saved, what to announce out.

The event is in the journal before it comes here. What it changes is saved with everything that
will be said because of it, in one transaction; so a process that is killed at any line and started
again applies the rest of the journal and stands where it would have stood.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from aggregator import announce
from aggregator.announce import Body, Ends, Opening, Phase, Publication
from aggregator.config import Run
from aggregator.intake import Turn
from aggregator.leaves import changed, digest, flatten
from aggregator.methods import OPEN, Course
from aggregator.records import Content, Entry, Timer, Version
from aggregator.store import SqliteStore
from edge_sdk.clock import Clock
from edge_sdk.program import fields
from edge_sdk.settings import seconds
from edge_sdk.wire import topics
from edge_sdk.wire.admit import Opened
from edge_sdk.wire.codec import decode
from edge_sdk.wire.envelope import AGGREGATOR, unseal
from edge_sdk.wire.errors import Refused
from edge_sdk.wire.messages import CHUNK_LIMIT, Model
from edge_sdk.wire.method import ALL, Closed, Due, Effects, Event, Task

logger = logging.getLogger(__name__)

KEEP_ROUNDS = 1000  # closed rounds whose vectors are kept, for an audit


@dataclass(frozen=True, slots=True)
class Folded:
    """What an event brought about; already saved.

    Attributes:
        publications: To be announced, in this order.
        closed: The round it closed, if any.
    """

    publications: tuple[Publication, ...] = ()
    closed: Version | None = None


@dataclass(slots=True)
class _Alarm:
    """A wake-up: when it is due on the monotonic clock of this process, and how it is saved."""

    at: float
    timer: Timer


class Fold:
    """The run that is going on. One state; it moves only in ``take``.

    Args:
        run: The bound configuration.
        number: Of the run.
        state: As last saved.
        timers: Wake-ups that were pending.
        store: Where it is saved.
        ends: Our voice.
        clock: Wall and monotonic time.
        devices: Returns how many devices are enrolled, to pace a herd.
    """

    def __init__(
        self,
        run: Run,
        number: int,
        state: Course,
        timers: tuple[Timer, ...],
        *,
        store: SqliteStore,
        ends: Ends,
        clock: Clock,
        devices: Callable[[], int],
    ) -> None:
        self.run = run
        self.number = number
        self.state = state
        self.chunk = CHUNK_LIMIT
        self._store = store
        self._ends = ends
        self._clock = clock
        self._devices = devices
        self._saved = flatten(state)
        self._opened_at: float | None = None
        self._alarms = [self._alarm(timer) for timer in timers]
        said = self._spoken()
        self._is_paused = said is not None and said.phase == "pause"

    @property
    def is_done(self) -> bool:
        """Whether the run has moved as often as it should."""
        limit = self.run.rounds.limit
        return limit is not None and self.state.version >= limit

    @property
    def phase(self) -> Phase:
        """What devices are told: to train, to wait, or that the run is over."""
        if self.is_done:
            return "stop"
        return "pause" if self._is_paused else "train"

    @property
    def turn(self) -> Turn:
        """What the intake judges updates against."""
        said, state = self.run.config.run, self.state
        salt = announce.salt(said.seed, self.number, state.round) if said.share < 1.0 else None
        opened = Opened(self.number, state.round, state.version, is_open=state.is_open)
        return Turn(
            opened,
            self.run.limits,
            is_paused=self.phase == "pause",
            share=said.share,
            cohort=salt,
        )

    @property
    def next_due(self) -> float | None:
        """When the next wake-up is due, on the monotonic clock."""
        if self.phase == "pause":
            return None
        return min((alarm.at for alarm in self._alarms), default=None)

    def begin(self, upto: int) -> list[Folded]:
        """Apply what the journal has beyond the saved state, or open the first round.

        Where the signing key was replaced since, everything we sign is said anew.
        """
        done = [self.take(entry) for entry in self._store.journal(self.number, after=upto)]
        if self.state.round == 0:
            done.append(self.take(self._store.record(self.number, OPEN)))
        if self._spoken() is None:
            self.announced()
        return done

    def due(self) -> list[Event]:
        """Return the wake-ups that are due; each stays until it is journalled."""
        if self.phase == "pause":
            return []
        now = self._clock.monotonic()
        return [alarm.timer.due for alarm in self._alarms if alarm.at <= now]

    def wake(self, due: Event) -> Entry:
        """Journal a wake-up; ``take`` it next."""
        entry = self._store.record(self.number, due)
        self._alarms = [alarm for alarm in self._alarms if alarm.timer.due != due]
        return entry

    def meet(self, event: Event) -> Entry | None:
        """Journal an event if it changes something; ``take`` it next."""
        state, effects = self.run.half.apply(self.state, event)
        if state is self.state and not effects:
            return None
        return self._store.record(self.number, event)

    def take(self, entry: Entry) -> Folded:
        """Apply a journalled event; save and return what it brought about.

        Raises:
            StoreError: It could not be saved. Then nothing has happened, and it may be tried again.
        """
        if entry.event is None:
            return Folded()
        state, effects = self.run.half.apply(self.state, entry.event)
        folded = self._commit(state, effects, entry.position) if effects else Folded()
        self.state = state
        return folded

    def announced(self) -> tuple[Publication, ...]:
        """Announce the present state again, signed and cut anew; saved."""
        task = replace(self._task(self.state), values=self.run.values)
        said, contents = self._said(task, self.phase, self._remaining(), anew=True)
        self._store.announce({one.topic: one.payload for one in said}, contents)
        return said

    def pause(self, *, is_paused: bool) -> tuple[Publication, ...]:
        """Make the fleet wait, or go on; the open round's time begins anew when it goes on.

        The announcement is what remembers it over a restart.
        """
        if self._is_paused and not is_paused:
            self._alarms = [self._asked(alarm.timer.due) for alarm in self._alarms]
        self._is_paused = is_paused
        return self.announced()

    def _spoken(self) -> Model | None:
        """Return the last manifest of this run, if it was signed by the key we have now."""
        ends, kind = self._ends, Model.kind
        payload = self._store.announcements().get(topics.common(ends.fleet, kind), b"")
        try:
            sealed = unseal(
                payload,
                kind=kind,
                sender=AGGREGATOR,
                recipient=ALL,
                fleet=ends.fleet,
                key_of=lambda _sender, _kid: ends.signer.public,
            )
            said = decode(Model, sealed.body)
        except Refused:  # none yet, or by a key that was replaced since
            return None
        return said if said.run == self.number else None

    def _commit(self, state: Course, effects: Effects, position: int) -> Folded:
        closed = next((e for e in effects if isinstance(e, Closed)), None)
        task = next((e for e in effects if isinstance(e, Task)), None)
        wanted = [e for e in effects if isinstance(e, Due)]
        version = self._version(closed, state) if closed else None
        said: tuple[Publication, ...] = ()
        contents: tuple[Content, ...] = ()
        if task is not None:
            after = wanted[0].after if wanted else self.run.rounds.deadline
            said, contents = self._said(task, "train", after)
        elif closed is not None:
            said, contents = self._said(self._task(state), "stop", 0.0)
        alarms = self._kept(closed) + [self._asked(due) for due in wanted]
        leaves = flatten(state)
        self._store.commit(
            self.number,
            changed(self._saved, leaves),
            position,
            closed=version,
            timers=[alarm.timer for alarm in alarms],
            published={one.topic: one.payload for one in said},
            contents=contents,
            keep_rounds=KEEP_ROUNDS,
        )
        self._saved, self._alarms = leaves, alarms
        self._opened_at = self._clock.monotonic() if task else self._opened_at
        _log(version)
        return Folded(said, version)

    def _said(
        self, task: Task, phase: Phase, after: float, *, anew: bool = False
    ) -> tuple[tuple[Publication, ...], tuple[Content, ...]]:
        """Return slots, then the manifest; slots only where the model is another one."""
        body = announce.body(self.run, task, number=self.number)
        opening = Opening(
            serial=self._store.next_serial(),
            until=self._clock.wall() + int(after * 1000),
            spread=self._spread(body),
            inline=self.run.config.admission.inline,
            chunk=self.chunk,
        )
        message = announce.manifest(self.run, task, body, opening, number=self.number, phase=phase)
        manifest = announce.model(self._ends, message)
        before = self._store.content(body.id)
        if before is not None and not anew:
            return (manifest,), ()
        parts = announce.slots(self._ends, body, chunk=self.chunk)
        prefix = topics.part(self.run.config.fleet, 0)[:-1]
        used = [t for t, payload in self._store.announcements().items() if payload and prefix in t]
        gone = announce.cleared(self.run.config.fleet, len(parts), len(used))
        content = Content("model", body.id, body.data, self.chunk)
        return (*parts, *gone, manifest), (content,)

    def _spread(self, body: Body) -> int:
        pace = self.run.config.pace
        if pace.spread != "auto":
            return int(1000 * seconds(pace.spread))
        return announce.spread(
            self._devices(), len(body.data), down_rate=pace.down_rate, up_rate=pace.up_rate
        )

    def _task(self, state: Course) -> Task:
        arrays = {"w": self.run.half.model(state)["p"]}
        return Task(ALL, state.round, "train", base=state.version, arrays=arrays)

    def _version(self, closed: Closed, state: Course) -> Version:
        began, report = self._opened_at, dict(closed.report)
        if began is not None:
            report["seconds"] = round(self._clock.monotonic() - began, 3)
        return Version(
            run=self.number,
            round=closed.round,
            version=closed.version,
            moved=closed.moved,
            digest=digest(state),
            report=report,
            time=self._clock.wall(),
        )

    def _kept(self, closed: Closed | None) -> list[_Alarm]:
        """A closed round needs no waking."""
        return [a for a in self._alarms if closed is None or a.timer.due.round > closed.round]

    def _asked(self, due: Due) -> _Alarm:
        at = self._clock.wall() + int(due.after * 1000)
        return _Alarm(self._clock.monotonic() + due.after, Timer(due, at))

    def _alarm(self, timer: Timer) -> _Alarm:
        """A saved wake-up on this process's clock; a wall clock that jumped changes little."""
        left = (timer.at - self._clock.wall()) / 1000
        left = min(max(left, 0.0), timer.due.after)
        return _Alarm(self._clock.monotonic() + left, timer)

    def _remaining(self) -> float:
        due = self.next_due
        return 0.0 if due is None else max(0.0, due - self._clock.monotonic())


def restored(version: Version) -> Version:
    """Return a version without its vectors' report, small enough to keep many in memory."""
    kept = ("cohort", "why", "loss", "seconds")
    return replace(version, report={k: v for k, v in version.report.items() if k in kept})


def _log(version: Version | None) -> None:
    if version is None:
        return
    report = version.report
    told = {"run": version.run, "round": version.round, "version": version.version}
    told |= {"cohort": len(report.get("cohort", ())), "seconds": report.get("seconds", "")}
    if version.moved:
        logger.info("round closed %s", fields(**told, loss=report.get("loss", "")))
    else:
        logger.warning("round abandoned %s", fields(**told, why=report.get("why", "")))
