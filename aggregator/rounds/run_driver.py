"""Drive one run: journal its events, apply them in order, and send the effects."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from aggregator.audit_log import DAEMON
from aggregator.ingress.cohort import Cohort
from aggregator.ingress.dead_letters import site_of
from aggregator.ingress.replies import Reply
from aggregator.methods import OPEN, Linked
from aggregator.rounds.message_isolation import ATTEMPTS, Isolation, RunParts
from aggregator.rounds.round_engine import AppliedEvent, RoundEngine
from aggregator.rounds.round_steps import TaskMessages
from aggregator.rounds.task_dispatch import OpenTasks, Peers
from aggregator.store.errors import DatabaseFullError
from aggregator.store.types import JournalEntry, Version
from edge_sdk.app.cli import fields
from edge_sdk.protocol.contract.method import Event, Member, ParentModel, Played, Signal, Unlearned
from edge_sdk.protocol.messages import ProtocolMessage

logger = logging.getLogger(__name__)


class RunDriver:
    """Driver of one run, over the parts that the isolation rolls back together.

    Args:
        isolation: Transaction over store and memory, with its parts.
        on_closed: Called with the rounds that were closed, before any device receives their
            announcement.

    Attributes:
        tasks: Open tasks of single devices.
        number: Number of the run.
        cohort: Devices of the run.
    """

    def __init__(
        self,
        isolation: Isolation,
        parts: RunParts,
        cohort: Cohort,
        on_closed: Callable[[Sequence[Version]], None],
    ) -> None:
        self._isolation, self._on_closed = isolation, on_closed
        self._store, self._engine, self._steps = isolation.store, parts.engine, parts.steps
        self._publisher, self._backlog = isolation.publisher, parts.backlog
        self.number, self.cohort = parts.engine.number, cohort
        self._registry, self._ingress = isolation.registry, isolation.ingress
        self._letters, self._clock = isolation.letters, isolation.clock
        run = self._engine
        self.name = run.run.config.run.name  # empty for the run announced to all
        now, spec = self._clock.monotonic(), run.run.spec.digest
        self.tasks = OpenTasks(self._store, run.number, spec, now, self._neighbours_of)
        self._closed: list[Version] = []
        self._is_begun = False
        self._upto = 0
        self._failed_rounds = 0
        self._shut_out: set[str] = set()
        self._postponed = 0

    # --- life cycle

    def begin(self, upto: int) -> None:
        """Apply the journal entries after the saved state; a defect there halts the run."""
        self._upto = upto

        def begin() -> None:
            for applied in self._engine.begin(upto):
                self._follow(applied)
            self._ingress.open(self._engine.context)
            self.send(self._steps.follow(self._engine.steps_state))

        error = self._isolation.attempt(begin)
        self.report_closed()
        self._is_begun = error is None
        if error is not None:
            self._isolation.report(self._step("start"), error, run=self.number)
            self.halt("start", error)

    @property
    def engine(self) -> RoundEngine:
        return self._engine

    @property
    def _about(self) -> dict[str, object]:
        """Return number, name and round for the log; the name is left out where there is none."""
        name = {"name": self.name} if self.name else {}
        return {"run": self.number, **name, "round": self._engine.state.round}

    def _step(self, step: str) -> str:
        return f"{step} {self.name}" if self.name else step

    def halt(self, where: str, error: Exception) -> None:
        """Halt the run until an operator resumes it; everything else continues."""
        engine = self._engine
        engine.halted = f"{where}: {type(error).__name__} in {site_of(error).partition(' ')[2]}"
        self._letters.halt(self.name, engine.halted)
        self._ingress.open(engine.context)
        known = {**self._about, "why": engine.halted}
        hint = f"see gridfed-aggregator dead-letters list {engine.run.config.file}"
        logger.error("run halted %s", fields(**known, hint=hint))
        self._isolation.step(self._step("pause"), self._pause_halted, run=self.number)

    def _pause_halted(self) -> None:
        subject = f"run {self.name or self.number}"
        self._isolation.audit_log.record(DAEMON, "halt", subject, reason=self._engine.halted)
        self._publisher.announce(self._engine.pause(is_paused=True))

    def pause(self, *, is_paused: bool) -> None:
        """Pause or resume the fleet; a halted run is resumed from its present state."""
        if not is_paused and self._engine.halted:
            self._engine.halted = ""
            self._letters.halt(self.name, "")
            self._failed_rounds = 0
            if not self._is_begun:
                self.begin(self._upto)
        self._publisher.announce(self._engine.pause(is_paused=is_paused))
        self._ingress.open(self._engine.context)

    def report_closed(self) -> None:
        """Pass on the rounds that were closed since."""
        closed, self._closed = self._closed, []
        if any(version.moved for version in closed):
            self._failed_rounds = 0
        if closed:
            self._on_closed(closed)

    def forget_closed(self) -> None:
        """Forget the rounds that were closed since: their transaction was rolled back."""
        self._closed.clear()

    # --- events

    def append(self, entries: Iterable[JournalEntry]) -> None:
        """Apply journalled entries after those that wait."""
        self._backlog.extend(entries)
        self._catch_up()

    def receive_signal(self, signal: Signal) -> None:
        self.send(self._steps.receive(signal))

    def wake(self) -> None:
        """Apply every timer that is due; a halted run applies none."""
        if self._engine.halted:
            return
        step = partial(self._isolation.step, run=self.number)
        if self._backlog and (met := step(self._step("backlog"), self._catch_up)):
            self.halt("backlog", met[0])
        for due in self._engine.due():
            met = step(self._step("deadline"), partial(self._journal, self._engine.wake, due))
            if met is not None:
                self._isolation.faults.worked(self._step("deadline"))  # abandoned, not postponed
                self._abandon(met[0])
                break
        if not self._engine.is_paused:
            met = step(self._step("turns"), lambda: self.send(self._steps.wake()))
            if met is not None and met[1] >= ATTEMPTS:
                self.halt("turns", met[0])
        self.report_closed()

    def open_if_due(self) -> None:
        """Open the next round if its start has come and enough devices have new data."""
        engine, now = self._engine, self._clock.wall()
        start = engine.next_round_at
        if start is None or start > now or engine.is_paused or engine.is_held:
            return
        ready, needed = len(self.ready()), engine.run.rounds.enough
        if ready >= needed:
            self.open_round()
        elif self._postponed != engine.state.round:
            self._postponed = engine.state.round
            logger.info("round postponed %s", fields(**self._about, ready=ready, needed=needed))

    def open_round(self) -> bool:
        """Open the round that waits for its start; return False if none does."""
        engine = self._engine
        if not engine.is_waiting or engine.is_done:
            return False
        self._publisher.announce(engine.open_round())
        self._ingress.open(engine.context)
        self.send(self._steps.follow(engine.steps_state))
        logger.info("round opened %s", fields(**self._about))
        return True

    def ready(self) -> set[str]:
        """Return the enrolled devices without a report of too few new readings."""
        least = self._engine.run.schedule.min_new
        reports = self._registry.metrics
        enrolled = self._registry.enrolled() - self.cohort.shut_out()
        return {
            name
            for name in enrolled
            if (report := reports.get(name)) is None or report.new is None or report.new >= least
        }

    def send(self, messages: TaskMessages) -> None:
        """Send transient messages; journal the result of a split round first."""
        self._publisher.reply(self.sealed(device, task) for device, task in messages)
        if self._steps.result is not None:
            self._journal(self._record_result, self._steps.result)

    def unlearn(self, device: str) -> bool:
        """Remove a device's contribution, False if it has none; raise DatabaseFullError if nothing was changed."""
        entry = self._engine.meet(Unlearned(device))
        if entry is None:
            return False
        self._backlog.append(entry)
        self._catch_up()
        return True

    def adopt(self, made: ParentModel | Played) -> None:
        """Journal a model of the parent's aggregator, or what a sum of devices gave, and apply it."""
        self._journal(self._engine.record, made)

    def remind(self, now: float) -> None:
        """Repeat unanswered tasks, and send a task to present devices that have none.

        Those devices were refused before the model changed, or arrived while nothing could be
        saved. A device that was shut out counts as absent, whatever its own status is.
        """
        engine = self._engine
        if engine.phase != "train" or not engine.run.ask.personal:
            return
        present, shut_out = self.cohort.present(), self.cohort.shut_out()
        self._publisher.reply(
            self.sealed(device, task) for device, task in self.tasks.due(now, present)
        )
        refused = self._store.tasks.of_run(engine.number, "refused")
        free = {one.device for one in refused if one.round < engine.state.round} - shut_out
        for device in sorted(free | (present - self._store.tasks.devices(engine.number))):
            self._journal(engine.meet, Member(device, present=True))
        for device in sorted(shut_out - self._shut_out):
            self._journal(engine.meet, Member(device, present=False))
        self._shut_out = shut_out

    def run_periodic(self, now: float, *, is_up: bool) -> None:
        """Run the periodic steps: reminders, retries of failed writes, a due announcement."""
        step, engine = partial(self._isolation.step, run=self.number), self._engine
        if engine.is_waiting:
            step(self._step("schedule"), self.open_if_due)
        if is_up and not engine.halted:
            step(self._step("reminders"), lambda: self.remind(now))
        step(self._step("unwritten"), lambda: self.send(()))  # left over from a full disk
        if engine.is_behind and not engine.halted:
            step(self._step("announcement"), lambda: self._publisher.announce(engine.announced()))
        elif engine.is_expiring:
            step(self._step("renewal"), self._renew_manifest)
        self.report_closed()

    def _renew_manifest(self) -> None:
        self._publisher.announce(self._engine.announced(anew=False))

    def sealed(self, device: str, message: ProtocolMessage) -> Reply:
        return self._ingress.sealer.seal(device, message)

    def accept_member(self, member: Member, *, is_greeting: bool) -> None:
        """Pass a membership change to the half; repeat the open task once after a hello."""
        device = member.client
        if member.present and self.cohort.is_shut_out(device):
            return
        before = self.tasks.sent.get(device, 0)
        self._journal(self._engine.meet, member)
        self.send(self._steps.receive(member))
        if is_greeting and self.tasks.sent.get(device, 0) == before:
            self._send_task(device)
        elif member.present:
            self.tasks.returned(device, self._clock.monotonic())

    def _abandon(self, error: Exception) -> None:
        """Abandon the round whose closing met a defect; after ``ATTEMPTS`` of them halt the run."""
        before = self._engine.state.round
        failed = self._isolation.attempt(
            lambda: self._journal(lambda _: self._engine.abandon(), OPEN)
        )
        self.report_closed()
        self._failed_rounds += 1
        is_stuck = failed is not None or self._engine.state.round == before
        if is_stuck or self._failed_rounds >= ATTEMPTS:
            self.halt("deadline", error)

    def _record_result(self, event: Event) -> JournalEntry:
        entry = self._engine.record(event)
        self._steps.result = None
        return entry

    def _journal(self, write: Callable[[Event], JournalEntry | None], event: Event) -> None:
        try:
            entry = write(event)
        except DatabaseFullError as error:
            self._isolation.note_full(error)
            return
        if entry is not None:
            self._backlog.append(entry)
            self._catch_up()

    def _catch_up(self) -> None:
        """Apply journalled events in order; an event that cannot be saved is retried later."""
        while self._backlog:
            try:
                applied = self._engine.apply(self._backlog[0])
            except DatabaseFullError as error:
                self._isolation.note_full(error)
                return
            self._backlog.popleft()
            self._follow(applied)

    def _follow(self, applied: AppliedEvent) -> None:
        if applied.closed is not None:
            self._closed.append(applied.closed)
        self._ingress.open(self._engine.context)
        self._publisher.announce(applied.publications)
        for task in applied.tasks:
            self._send_task(task.device)
        self.send(self._steps.follow(self._engine.steps_state))

    def _send_task(self, device: str) -> None:
        message = self.tasks.message_to(device, self._clock.monotonic())
        if message is not None:
            self._publisher.reply([self.sealed(device, message)])

    def _neighbours_of(self, device: str) -> Peers:
        state = self._engine.state
        links = state.links.get(device, {}) if isinstance(state, Linked) else {}
        is_weighted = isinstance(state, Linked) and state.weighs
        keys = {name: self._registry.signs_with(name) for name in sorted(links)}
        known = {name: key for name, key in keys.items() if key is not None}
        weights = tuple(links[name] for name in known) if is_weighted else ()
        found = tuple(self._ingress.sealer.bodies.key_of(name) for name in known)
        if not any(found):
            return Peers(tuple(known), tuple(known.values()), weights)
        serial = self._store.announcements.next_serial()
        return Peers(tuple(known), tuple(known.values()), weights, found, serial)

    def announce_key(self, device: str) -> None:
        """Send the neighbours of a device their lists again: it announced another encryption key."""
        state = self._engine.state
        for name in sorted(state.links.get(device, {})) if isinstance(state, Linked) else ():
            self._send_task(name)
