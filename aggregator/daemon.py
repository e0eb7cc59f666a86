"""Run the aggregator: admit, journal, apply and answer every message in one loop.

A crash is safe at any point: either the broker and the devices send again and the ledger refuses
the duplicate, or the state is already committed and start-up publishes it again.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self

from aggregator.config import AggregatorConfig, BoundRun, bind, broker_of
from aggregator.ingress.admission_context import WelcomeTerms
from aggregator.ingress.dead_letters import DeadLetters, Letter, LetterError, forget, site_of
from aggregator.ingress.defect_policy import ATTEMPTS
from aggregator.ingress.flood_control import FloodControl, Subscriptions
from aggregator.ingress.message_ingress import AtHand, MessageIngress
from aggregator.ingress.rate_limits import RateLimits
from aggregator.ingress.registry import Registry
from aggregator.ingress.replies import Reply, Taken
from aggregator.ingress.signal_assembler import SignalAssembler
from aggregator.ingress.uploads import UploadCapacity
from aggregator.methods import OPEN, Linked
from aggregator.metrics import Metrics
from aggregator.operations import config_reload, run_setup
from aggregator.operations.config_reload import HangUps, hang_ups
from aggregator.operations.control_queue import ControlOrder, OrderError, apply, carry_out
from aggregator.operations.http_status import Page, Snapshot
from aggregator.operations.operator_alerts import OperatorAlerts
from aggregator.operations.status_snapshot import StatusView
from aggregator.rounds import announcements as announce
from aggregator.rounds.announcements import Ends, Publication
from aggregator.rounds.message_isolation import Isolation
from aggregator.rounds.publisher import Publisher
from aggregator.rounds.round_engine import Folded, RoundEngine
from aggregator.rounds.split_driver import SplitDriver, Words
from aggregator.rounds.task_dispatch import Asking, Peers
from aggregator.store.errors import DatabaseFullError
from aggregator.store.opener import open_store
from aggregator.store.types import JournalEntry, Store, Version
from edge_sdk.app.cli import fields, notify, stop_signals
from edge_sdk.app.clock import Clock, SystemClock
from edge_sdk.wire.contract.method import CONTRACTS, Event, Member
from edge_sdk.wire.errors import Reason
from edge_sdk.wire.link.transport import Happening, LinkDown, LinkUp, Message, Transport
from edge_sdk.wire.protocol import codec, envelope, topics
from edge_sdk.wire.protocol.messages import (
    BODY_LIMIT,
    CHUNK_LIMIT,
    CommandMessage,
    TaskMessage,
    UpdateMessage,
)
from edge_sdk.wire.protocol.transfer import chunk_size

logger = logging.getLogger(__name__)

TURN = 1.0  # s, longest wait for the link: period of snapshot, control queue and broker checks
TIME_EVERY = 60.0  # s
LINGER = 2.0  # s after the last round for receipts and the final announcement
GOODBYE = 10.0  # s to publish queued messages when the daemon is stopped
MQTT_PORT = 1883  # of a broker started by this process: fixed, so that devices find it


class StopRequest(Protocol):
    """Flag that requests a stop."""

    def is_set(self) -> bool:
        """Return whether a stop was requested."""


class Daemon:
    """Aggregator of one fleet. Open it, then ``run`` it, or call ``turn`` as a simulator does.

    Args:
        config: Configuration of the operator.
        transport: The link; by default to the configured broker, or to one that is started.
        store: The opened database, which the daemon closes; by default the configured one.
        clock: Wall and monotonic time.
        rng: Random jitter of waits; no result depends on it.

    Raises:
        Failure: Configuration, keys, bundle or store are inconsistent.
    """

    def __init__(
        self,
        config: AggregatorConfig,
        *,
        transport: Transport | None = None,
        store: Store | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._closing = ExitStack()
        try:
            self._build(config, transport, store, clock or SystemClock(), rng)
        except BaseException:
            self._closing.close()
            raise

    def _build(
        self,
        config: AggregatorConfig,
        transport: Transport | None,
        store: Store | None,
        clock: Clock,
        rng: random.Random | None,
    ) -> None:
        run, signer = bind(config), run_setup.signer(config)
        self.config, self._clock = config, clock
        self._store = self._closing.enter_context(store or open_store(config.database))
        begun = run_setup.check(run, self._store, signer)
        state, saved = run_setup.resumed(run, self._store, begun.run)
        self._registry = Registry(self._store)
        self._ends = Ends(config.fleet, signer)
        self._intake = MessageIngress(
            self._store,
            self._registry,
            fleet=config.fleet,
            signer=signer,
            clock=clock,
            terms=terms_of(config),
            rng=rng,
        )
        self._fold = RoundEngine(
            run,
            begun.run,
            state,
            saved.timers,
            store=self._store,
            ends=self._ends,
            clock=clock,
            devices=lambda: len(self._registry),
        )
        contract = CONTRACTS[config.run.method]
        self._stage = SplitDriver(run.half.play, contract, begun.run, run.spec.digest, clock)
        self._intake.signals = SignalAssembler(contract, self._stage.wants)
        now, spec = clock.monotonic(), run.spec.digest
        self._asking = Asking(self._store, begun.run, spec, now, self._neighbours_of)
        self._upto = saved.upto
        self._broker = None if transport else self._closing.enter_context(_found_broker(config))
        self._transport = transport or _link(config, self._broker)
        self._floods = FloodControl()
        excluded = config.state / "excluded.json"
        self._subscriptions = Subscriptions(self._transport, config.fleet, excluded)
        self._floods.exclude(self._subscriptions.remembered(), now)
        self._backlog: deque[JournalEntry] = deque()
        self._upkeep = OperatorAlerts(clock)
        self._upkeep.follow(config)
        self._view = StatusView(
            self._fold,
            self._intake,
            self._registry,
            self._store,
            self._transport,
            self._backlog,
            self._upkeep,
            DeadLetters(config.state / "dead-letters"),
            floods=self._floods,
        )
        self._view.remember()
        self._outgoing = Publisher(self._transport, self.metrics)
        self._letters = self._view.letters
        self._intake.is_set_aside = self._letters.holds
        self._isolation = Isolation(
            self._store,
            self._fold,
            self._stage,
            self._outgoing,
            self._backlog,
            self._registry,
            self._intake,
            self._letters,
            self.metrics,
            clock,
        )
        self._closed: list[Version] = []
        self._is_begun = False
        self._spoilt_rounds = 0
        self._relink: int | None = None
        self._snapshot = Snapshot()
        self._time_at = self._look_at = clock.monotonic()
        self._done_since: float | None = None
        self._shut_out: set[str] = set()
        self._was_linked = False

    # --- life cycle

    def open(self) -> None:
        """Replay the journal, start the status page, and connect."""
        if self.config.http.listen != "off":
            page = Page(self.config.http.listen, lambda: self._snapshot, self.metrics.text)
            self._closing.callback(page.close)
            logger.info("http server started %s", fields(address=page.address))
        self._fold.halted = self._letters.halted
        self._begin()
        self._transport.open()
        self._closing.callback(self._transport.close)
        self._look()
        for device, names in self._store.unusable().items():
            what = {"device": device, "numbers": ",".join(names)}
            logger.error("stored number rejected %s", fields(**what, do="enrol it with a new key"))
        told = {"fleet": self.config.fleet, "run": self._fold.number, "round": self.state.round}
        logger.info("started %s", fields(**told, version=self.state.version))

    def _begin(self) -> None:
        """Apply the journal entries after the saved state; a defect there halts the run."""

        def begin() -> None:
            for folded in self._fold.begin(self._upto):
                self._tell(folded)
            self._intake.open(self._fold.turn)
            self._utter(self._stage.follow(self.state))

        error = self._isolation.attempt(begin)
        self._show_closed()
        self._is_begun = error is None
        if error is not None:
            self._isolation.report("start", error)
            self._halt("start", error)

    def run(
        self,
        stopping: StopRequest,
        *,
        exit_when_done: bool = False,
        hung_up: HangUps | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Serve until a stop request or the last round; reload the configuration on request."""
        while not stopping.is_set() and not (exit_when_done and self.is_done):
            self.turn(self._patience())
            if hung_up is not None and hung_up.take():
                self.reload(environ)
        self._finish()

    def reload(self, environ: Mapping[str, str] = os.environ) -> bool:
        """Read the configuration again and apply it, or log why the old one stays in force.

        Returns:
            True if the new configuration is in force.
        """
        if self._was_linked:  # before that, READY below would be wrong
            notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            run = config_reload.again(self._fold.run, self._store, environ)
        except Exception as error:  # no configuration file may end a running daemon
            self._upkeep.refused = config_reload.sentence(error)
            told = {"why": self._upkeep.refused, "hint": getattr(error, "hint", "")}
            is_ours = not config_reload.is_foreseen(error)
            if is_ours:
                self.metrics.errors.labels("reload").inc()
            logger.warning("configuration refused %s", fields(**told), exc_info=is_ours)
        else:
            keys = config_reload.changed(self.config, run.config)
            self._follow(run)
            logger.info("configuration reloaded %s", fields(changed=",".join(keys) or "nothing"))
        self._look()
        if self._was_linked:
            notify("READY=1")
        return not self._upkeep.refused

    def _follow(self, run: BoundRun) -> None:
        """Apply a checked configuration; no step of it can fail part-way."""
        if run.config.log != self.config.log:
            logging.getLogger().setLevel(run.config.log.level.upper())
        self.config, self._fold.run = run.config, run
        self._intake.keep_to(terms_of(run.config))
        self._intake.open(self._fold.turn)
        self._upkeep.follow(run.config)

    def turn(self, timeout: float = 0.0) -> None:
        """Serve the link for at most ``timeout`` seconds, then run everything that is due."""
        happened = self._transport.poll(timeout)
        began = time.perf_counter()
        for happening in happened:
            self._meet(happening)
        self._exclude()
        self._wake()
        self._isolation.step("transfers", lambda: self._say(self._intake.tick()))
        self._show_closed()
        if self._clock.monotonic() >= self._look_at:
            self._look()
        self._outgoing.flush()
        self.metrics.lag.observe(time.perf_counter() - began)

    def close(self) -> None:
        """Close link, page, broker and store. Anything not yet saved was never receipted."""
        self._closing.close()

    def __enter__(self) -> Self:
        """Open and return the daemon."""
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the daemon."""
        self.close()

    @property
    def state(self) -> Any:  # noqa: ANN401 - the half's own state
        """Return the state of the run's server half."""
        return self._fold.state

    @property
    def metrics(self) -> Metrics:
        """Return the metrics."""
        return self._view.metrics

    @property
    def snapshot(self) -> Snapshot:
        """Return the current status for the page and the ``status`` command."""
        return self._snapshot

    @property
    def is_done(self) -> bool:
        """Return whether all rounds are done and the final announcements had time to leave."""
        since = self._done_since
        return since is not None and self._clock.monotonic() - since >= LINGER

    # --- events

    def _meet(self, happening: Happening) -> None:
        match happening:
            case Message():
                self._take(happening)
            case LinkUp(max_payload=largest):
                self._relink = largest
                self._follow_link()
            case LinkDown(why=why):
                self._outgoing.clear()
                logger.info("link down %s", fields(why=why))

    def _take(self, message: Message) -> None:
        """Admit, journal, apply, save and answer a message; then acknowledge it to the broker."""
        address = topics.parse(message.topic)
        is_up = address is not None and address.direction in ("up", "status")
        if address is not None and is_up:
            size = len(message.payload)
            self._view.heard(address.kind, size)
            if not self._floods.admits(address.id, size, self._clock.monotonic()):
                self._transport.acknowledge(message)
                return
        self._handle(message, lambda: self._say(self._intake.take(message)))
        self._transport.acknowledge(message)

    def _handle(self, message: Message, handle: Callable[[], None]) -> None:
        """Handle a message in one transaction; after a defect, set it aside and refuse it."""
        if self._letters.holds(message.topic, message.payload):
            self._isolation.attempt(lambda: self._say(self._intake.refuse_unseen(message.topic)))
            return
        self._intake.at_hand = AtHand()
        try:
            error = self._isolation.attempt(handle)
        except DatabaseFullError as full:
            self._isolation.note_full(full)
            self._isolation.attempt(lambda: self._say(self._intake.fail(Reason.NO_SPACE)))
            return
        self._show_closed()
        if error is None:
            return
        self._isolation.set_aside(message, error)
        failed = self._isolation.attempt(lambda: self._say(self._intake.fail(Reason.INTERNAL)))
        if failed is not None:  # its number cannot be settled either
            self._intake.at_hand = self._intake.at_hand._replace(said=None)
            self._isolation.attempt(lambda: self._say(self._intake.fail(Reason.INTERNAL)))

    def _say(self, taken: Taken) -> None:
        """Apply the journalled entries, then queue the replies."""
        self._backlog.extend(taken.entries)
        self._catch_up()
        self._outgoing.reply(taken.answers)
        if taken.signal is not None:
            self._utter(self._stage.hear(taken.signal))
        if taken.member is not None:
            self._meet_member(taken.member, is_greeting=taken.greeted is not None)

    def _meet_member(self, member: Member, *, is_greeting: bool) -> None:
        """Pass a membership change to the half; repeat the open task once after a hello."""
        device, now = member.client, self._clock.monotonic()
        if member.present and device in self._registry.shut_out():
            return
        before = self._asking.said.get(device, 0)
        self._journal(self._fold.meet, member)
        self._utter(self._stage.hear(member))
        if is_greeting and self._asking.said.get(device, 0) == before:
            self._ask(device)
        elif member.present:
            self._asking.returned(device, now)

    def _ask(self, device: str) -> None:
        words = self._asking.tell(device, self._clock.monotonic())
        if words is not None:
            self._outgoing.reply([self._sealed(device, words)])

    def _neighbours_of(self, device: str) -> Peers:
        """Return the peers a device exchanges models with, and their public keys."""
        state = self.state
        links = state.links.get(device, {}) if isinstance(state, Linked) else {}
        keys = {name: self._registry.signs_with(name) for name in sorted(links)}
        known = {name: key for name, key in keys.items() if key is not None}
        told = tuple(links[name] for name in known) if links and state.weighs else ()
        return Peers(tuple(known), tuple(known.values()), told)

    def _wake(self) -> None:
        """Apply every timer that is due; a halted run applies none."""
        if self._fold.halted:
            return
        if self._backlog and (met := self._isolation.step("backlog", self._catch_up)):
            self._halt("backlog", met[0])
        for due in self._fold.due():
            met = self._isolation.step("deadline", partial(self._journal, self._fold.wake, due))
            if met is not None:
                self._isolation.faults.worked("deadline")  # abandoned, not postponed
                self._abandon(met[0])
                break
        if self._fold.phase != "pause":
            met = self._isolation.step("turns", lambda: self._utter(self._stage.wake()))
            if met is not None and met[1] >= ATTEMPTS:
                self._halt("turns", met[0])
        self._show_closed()

    def _abandon(self, error: Exception) -> None:
        """Abandon the round whose closing met a defect; after ``ATTEMPTS`` of them halt the run."""
        before = self.state.round
        failed = self._isolation.attempt(
            lambda: self._journal(lambda _: self._fold.abandon(), OPEN)
        )
        self._show_closed()
        self._spoilt_rounds += 1
        if failed is not None or self.state.round == before or self._spoilt_rounds >= ATTEMPTS:
            self._halt("deadline", error)

    def _halt(self, where: str, error: Exception) -> None:
        """Halt the run until an operator resumes it; everything else continues."""
        self._fold.halted = f"{where}: {type(error).__name__} in {site_of(error).partition(' ')[2]}"
        self._letters.halted = self._fold.halted
        self._intake.open(self._fold.turn)
        told = {"run": self._fold.number, "round": self.state.round, "why": self._fold.halted}
        hint = f"see gridfed-aggregator dead-letters list {self.config.file}"
        logger.error("run halted %s", fields(**told, hint=hint))
        self._isolation.step(
            "pause", lambda: self._outgoing.announce(self._fold.pause(is_paused=True))
        )

    def _show_closed(self) -> None:
        """Add closed rounds to the status, before any device receives their announcement."""
        closed, self._closed = self._closed, []
        for version in closed:
            self._view.count(version)
            if version.moved:
                self._spoilt_rounds = 0
            notify(f"STATUS=round {version.round}, version {version.version}")
        if closed:
            self._isolation.step("page", self._show, in_transaction=False)

    def _show(self) -> None:
        self._snapshot = self._view.snapshot()

    def _utter(self, words: Words) -> None:
        """Send transient messages; journal the result of a split round first."""
        self._outgoing.reply(self._sealed(device, task) for device, task in words)
        if self._stage.owed is not None:
            self._journal(self._played, self._stage.owed)

    def _played(self, event: Event) -> JournalEntry:
        entry = self._fold.record(event)
        self._stage.owed = None
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
                folded = self._fold.take(self._backlog[0])
            except DatabaseFullError as error:
                self._isolation.note_full(error)
                return
            self._backlog.popleft()
            self._tell(folded)

    def _tell(self, folded: Folded) -> None:
        if folded.closed is not None:
            self._closed.append(folded.closed)
        self._intake.open(self._fold.turn)
        self._outgoing.announce(folded.publications)
        for asked in folded.asked:
            self._ask(asked.device)
        self._utter(self._stage.follow(self.state))

    # --- the link

    def _follow_link(self) -> None:
        """Run the steps after a new connection; a step that meets a defect is retried."""
        if (largest := self._relink) is None or not self._transport.is_up:
            return
        is_due = self._isolation.faults.may("link", self._clock.monotonic())
        if is_due and self._isolation.step("link", lambda: self._linked(largest)) is None:
            self._relink = None

    def _linked(self, largest: int) -> None:
        """Subscribe and publish all retained messages again, whatever the broker has kept."""
        self._subscriptions.renew(self._registry.enrolled())
        self._outgoing.clear()
        if (chunk := chunk_size(largest)) != self._fold.chunk:
            self._fold.chunk = chunk
            self._fold.announced()
        kept = self._store.announcements()
        last = topics.common(self.config.fleet, "model")
        order = sorted(kept, key=lambda topic: (topic == last, topic))
        self._outgoing.announce(Publication(topic, kept[topic]) for topic in order)
        self._announce_time()
        self._asking.hurry(self._clock.monotonic() + TURN)
        logger.info("link up %s", fields(announcements=len(kept)))
        self._was_linked = True
        notify("READY=1")

    def _exclude(self) -> None:
        """Unsubscribe from devices that flood, and from those revoked since."""
        flooding = self._floods.excluded(self._clock.monotonic())
        if not self._transport.is_up or not (flooding or self._subscriptions.is_partial):
            return
        enrolled = self._registry.enrolled()
        revoked = self._subscriptions.excluded - enrolled
        self._subscriptions.follow(enrolled, flooding | revoked)

    def _announce_time(self) -> None:
        serial, now = self._store.next_serial(), self._clock.wall()
        self._outgoing.announce([announce.time(self._ends, serial=serial, now=now)])
        self._time_at = self._clock.monotonic() + TIME_EVERY

    # --- every second

    def _look(self) -> None:
        """Run the periodic tasks: control queue, broker, time, page and watchdog."""
        now = self._clock.monotonic()
        self._look_at = now + TURN
        if self._broker is not None and not self._transport.is_up and self._broker.ensure():
            logger.warning("broker restarted")
        step = self._isolation.step
        if self.config.inbox.is_dir():
            step("orders", self._obey, in_transaction=False)
        self._follow_link()
        if now >= self._time_at and self._transport.is_up:
            step("time", self._announce_time)
        if self._transport.is_up and not self._fold.halted:
            step("reminders", lambda: self._remind(now))
        step("unwritten", lambda: self._utter(()))  # left over from a full disk
        if self._fold.is_behind and not self._fold.halted:
            step("announcement", lambda: self._outgoing.announce(self._fold.announced()))
        self._show_closed()
        if self._fold.is_done and self._done_since is None and not len(self._outgoing):
            self._done_since = now
        self._upkeep.warn()
        step("page", self._measure, in_transaction=False)
        self._floods.measure(now)
        notify("WATCHDOG=1")

    def _measure(self) -> None:
        self._view.measure()
        self._show()

    def _remind(self, now: float) -> None:
        """Repeat unanswered tasks, and send a task to present devices that have none.

        Those devices were refused before the model changed, or arrived while nothing could be
        saved. A device that was shut out counts as absent, whatever its own status is.
        """
        if self._fold.phase != "train" or not self._fold.run.ask.personal:
            return
        there, shut_out = self._registry.there(), self._registry.shut_out()
        for device, words in self._asking.again(now, there):
            self._outgoing.reply([self._sealed(device, words)])
        refused = self._store.tasks(self._fold.number, "refused")
        free = {one.device for one in refused if one.round < self.state.round} - shut_out
        for device in sorted(free | (there - self._store.ever_asked(self._fold.number))):
            self._journal(self._fold.meet, Member(device, present=True))
        for device in sorted(shut_out - self._shut_out):
            self._journal(self._fold.meet, Member(device, present=False))
        self._shut_out = shut_out

    def _obey(self) -> None:
        """Carry out queued control orders; a present device receives its command at once."""
        if not carry_out(self.config.inbox, self._carry_out, _told):
            return
        self._registry.reload()
        for client in self._registry.clients():
            self._outgoing.reply(
                self._sealed(client.id, command) for command in self._store.issued(client.id)
            )

    def _carry_out(self, order: ControlOrder) -> str:
        if order.do in ("retry", "clear"):
            return self._reconsider(order)
        if order.do not in ("pause", "resume"):
            return apply(order, self._store)
        if order.do == "resume" and self._fold.halted:
            self._resume()
        self._outgoing.announce(self._fold.pause(is_paused=order.do == "pause"))
        self._intake.open(self._fold.turn)
        return f"the fleet's phase is {self._fold.phase}"

    def _resume(self) -> None:
        """Resume a halted run from its present state."""
        self._fold.halted = self._letters.halted = ""
        self._spoilt_rounds = 0
        if not self._is_begun:
            self._begin()

    def _reconsider(self, order: ControlOrder) -> str:
        """Process a dead letter again, or delete it."""
        try:
            if order.do == "clear":
                return f"{forget(self._letters, order.device)} dead letters forgotten"
            letter = self._letters.letter(order.device)
            self._letters.remove(letter.name)
        except LetterError as error:
            raise OrderError(str(error)) from error
        if letter.number is not None:
            self._store.unsettle(letter.device, letter.number)
        message = Message(letter.topic, letter.payload)
        if letter.topic:
            self._handle(message, lambda: self._say(self._intake.take(message)))
        elif letter.payload:
            self._handle(message, lambda: self._say(self._intake.take_whole(_whole(letter))))
        return f"dead letter {letter.name} of {letter.device or letter.where} handled again"

    def _sealed(self, device: str, message: CommandMessage | TaskMessage) -> Reply:
        payload = envelope.seal(
            codec.encode(message),
            kind=message.kind,
            sender=envelope.AGGREGATOR,
            recipient=device,
            fleet=self.config.fleet,
            signer=self._ends.signer,
        )
        return Reply(topics.down(self.config.fleet, device, message.kind), payload)

    def _patience(self) -> float:
        """Return how long the link may be served before the next timer, in seconds."""
        now = self._clock.monotonic()
        if self._intake.is_full or self._isolation.faults.is_waiting(now):
            return TURN
        stage = self._stage.next_due if self._fold.phase != "pause" else None
        due = [self._look_at, self._fold.next_due, self._intake.next_due, stage]
        return max(0.0, min(at for at in due if at is not None) - now)

    def _finish(self) -> None:
        """Publish queued messages for at most ``GOODBYE`` seconds; all state is already saved."""
        notify("STOPPING=1")
        until = self._clock.monotonic() + GOODBYE
        while len(self._outgoing) and self._transport.is_up and self._clock.monotonic() < until:
            self._outgoing.flush()
            for happening in self._transport.poll(0.05):
                if isinstance(happening, LinkDown):
                    self._outgoing.clear()
        self._view.measure()
        logger.info("stopped %s", fields(round=self.state.round, version=self.state.version))


def serve(
    config: AggregatorConfig,
    *,
    exit_when_done: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, Any]:
    """Run a daemon until a signal; return its final status."""
    with stop_signals() as stopping, hang_ups(stopping) as hung_up, Daemon(config) as daemon:
        daemon.run(stopping, exit_when_done=exit_when_done, hung_up=hung_up, environ=environ)
        return {"round": daemon.state.round, "version": daemon.state.version}


def _whole(letter: Letter) -> envelope.Sealed:
    """Return the complete body of a dead letter that was sent in chunks."""
    digest = envelope.digest(letter.payload)
    return envelope.Sealed(UpdateMessage.kind, letter.device, letter.payload, digest, letter.proof)


def terms_of(config: AggregatorConfig) -> WelcomeTerms:
    """Return the limits per device: hourly an eighth of the daily quota, at least one chunk.

    A single download may be larger: the largest bundle and the largest model, after data loss.
    """
    said = config.admission
    return WelcomeTerms(
        inline=said.max_inline_bytes,
        quota=said.daily_bytes,
        hold=said.max_pending_updates,
        caps=("b1", "b2"),
        quotas=RateLimits(
            control=said.messages_per_minute,
            volume=max(said.daily_bytes // 8, 2 * CHUNK_LIMIT),
            download=max(said.daily_bytes // 8, 2 * BODY_LIMIT),
            refill=said.daily_bytes / 8 / 3600,
            downlink=config.pacing.broadcast_bytes_per_second,
        ),
        room=UploadCapacity(in_flight=said.max_in_flight_bytes),
    )


def _found_broker(config: AggregatorConfig) -> Any:  # noqa: ANN401 - ``aggregator.brokers.broker_process.BrokerProcess``
    from aggregator.brokers import broker_process  # noqa: PLC0415 - only where no link was given

    port = MQTT_PORT if config.broker.url == "auto" else 0
    found = broker_process.find(config.broker.url, folder=config.state / "broker", port=port)
    logger.info("broker selected %s", fields(kind=found.kind, url=found.url))
    return found


def _link(config: AggregatorConfig, found: Any) -> Transport:  # noqa: ANN401 - as above
    from edge_sdk.wire.link.mqtt import MqttLink  # noqa: PLC0415 - only where no link was given

    url = found.url_v4 if config.broker.protocol == 4 else found.url
    link: Transport = MqttLink(broker_of(config, url))
    return link


def _told(text: str) -> None:
    """Log the result of a control order in one line."""
    result = "; ".join(line.strip() for line in text.splitlines())
    logger.info("order executed %s", fields(result=result))
