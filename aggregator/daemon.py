"""Run the aggregator: the loop over link, timers, orders and status.

A crash is safe at any point: either the broker and the devices send again and the ledger refuses
the duplicate, or the state is already committed and start-up publishes it again.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, Self

from aggregator.audit_log import DAEMON, AuditLog
from aggregator.config import AggregatorConfig, BoundRun, bind
from aggregator.ingress.cohort import Cohort
from aggregator.ingress.dead_letters import DeadLetters
from aggregator.ingress.flood_control import FloodControl, Subscriptions
from aggregator.ingress.message_ingress import MessageIngress
from aggregator.ingress.registry import Registry
from aggregator.ingress.replies import IngressParts, ReplySealer
from aggregator.metrics import Metrics
from aggregator.operations import config_reload, run_setup, signing_keys
from aggregator.operations.config_reload import HangUps, hang_ups
from aggregator.operations.operator_alerts import OperatorAlerts
from aggregator.operations.order_executor import OrderExecutor
from aggregator.operations.server_extensions import ServerExtensions, ServerParts
from aggregator.operations.signing_keys import RootSignatureMonitor
from aggregator.operations.startup import bodies_of, link_to, started_broker, terms_of
from aggregator.operations.status_document import Snapshot
from aggregator.operations.status_snapshot import StatusView
from aggregator.rounds.announcements import Ends
from aggregator.rounds.link_session import LinkSession
from aggregator.rounds.message_isolation import Isolation, RunParts
from aggregator.rounds.message_processor import MessageProcessor, RunDrivers
from aggregator.rounds.publisher import Publisher
from aggregator.rounds.round_engine import EngineParts, RoundEngine
from aggregator.rounds.round_steps import steps_of
from aggregator.rounds.run_driver import RunDriver
from aggregator.store.errors import is_lost
from aggregator.store.opener import COMMAND_SECONDS, open_store, wait_for_store
from aggregator.store.store import Store
from aggregator.store.types import Version
from edge_sdk.app.cli import fields, notify, stop_signals
from edge_sdk.app.clock import Clock
from edge_sdk.app.settings import SettingsError
from edge_sdk.link.event_loop import Poller
from edge_sdk.link.transport import Happening, LinkDown, LinkUp, Message, Transport
from edge_sdk.protocol import topics
from edge_sdk.protocol.keys import Signer, SigningKey

logger = logging.getLogger(__name__)

TURN = 1.0  # s, longest wait for the link: period of snapshot, control queue and broker checks
LINGER = 2.0  # s after the last round for receipts and the final announcement
CONTACTS = 60.0  # s between two writes of the devices' last messages
GOODBYE = 10.0  # s to publish queued messages when the daemon is stopped


class StopRequest(Protocol):
    """Flag that requests a stop."""

    def is_set(self) -> bool:
        """Return whether a stop was requested."""


class Daemon:
    """Aggregator of one fleet. Open it, then ``run`` it, or call ``turn`` as a simulator does.

    Args:
        transport: The link; by default to the configured broker, or to one that is started.
        store: The opened database, which the daemon closes; by default the configured one.
        clock: Wall and monotonic time; by default that of the store.
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
            self._poller: Poller | None = None
            if any(one.row.get("links") for one in config.index.configured(config.tables)):
                self._poller = Poller()
                self._closing.callback(self._poller.close)
            self._build(config, transport, store, clock, rng)
        except BaseException:
            self._closing.close()
            raise

    def _build(
        self,
        config: AggregatorConfig,
        transport: Transport | None,
        store: Store | None,
        clock: Clock | None,
        rng: random.Random | None,
    ) -> None:
        bound, signer = [bind(view) for view in config.views()], signing_keys.signer(config)
        model = signing_keys.model_signer(config)
        opened = store or open_store(config.database, patience=COMMAND_SECONDS)
        self._store = self._closing.enter_context(opened)
        clock = clock or self._store.clock()
        self.config, self._clock = config, clock
        self._audit_log = AuditLog(self._store, config.fleet, signer, clock.wall)
        self._registry = Registry(self._store, self._audit_log)
        cohorts: list[Cohort] = []
        for section in config.runs:
            before = tuple(cohorts)
            cohorts.append(Cohort(self._registry, section.cohort, section.name, before))
        saved = [
            self._continued(run, cohort, signer, model)
            for run, cohort in zip(bound, cohorts, strict=True)
        ]
        for name in run_setup.retire(config, self._store):
            logger.info("run retired %s", fields(name=name))
        self._upto = [upto for _, upto in saved]
        self._runs = tuple(parts for parts, _ in saved)
        self._letters = DeadLetters(config.state / "dead-letters")
        sealer = ReplySealer(bodies_of(config, self._store, self._registry.is_signed_by), signer)
        ingress = IngressParts(self._store, self._registry, sealer, clock, self._letters.holds)
        self._ingress = MessageIngress(
            ingress,
            terms_of(config),
            rng=rng,
            receivers=lambda kind: self._extensions.receiver(kind),  # noqa: PLW0108 - made before the extensions
            welcomed=lambda *said: self._extensions.welcomed(*said),  # noqa: PLW0108 - as above
        )
        for parts in self._runs:
            self._ingress.assemble(parts.engine.number, parts.steps.signals)
        self._broker = None if transport else started_broker(config)
        if self._broker is not None:
            self._closing.enter_context(self._broker)
        self._transport = transport or link_to(config, self._broker, self._poller)
        self._floods = FloodControl()
        subscriptions = Subscriptions(self._transport, config.fleet, config.state / "excluded.json")
        self._floods.exclude(subscriptions.remembered(), clock.monotonic())
        self._upkeep = OperatorAlerts(clock)
        self._upkeep.follow(config)
        self._root_signatures = RootSignatureMonitor(self._store, clock, signer.public)
        self.metrics = Metrics()
        self._publisher = Publisher(self._transport, self.metrics)
        self._isolation = Isolation(
            self._store,
            self._runs,
            self._publisher,
            self._registry,
            self._ingress,
            self._letters,
            self.metrics,
            clock,
            self._audit_log,
        )
        drivers = tuple(
            RunDriver(self._isolation, parts, cohort, self._show_closed)
            for parts, cohort in zip(self._runs, cohorts, strict=True)
        )
        self._driver = RunDrivers(drivers, self._publisher)
        self._processor = MessageProcessor(self._isolation, self._driver)
        ends = Ends(config.fleet, signer)
        parts_of_all = ServerParts(
            self._isolation,
            self._driver,
            subscriptions,
            ends,
            model,
            lambda: self._snapshot,
            self._poller,
        )
        self._extensions = ServerExtensions(parts_of_all, config)
        self._closing.callback(self._extensions.close)
        self._view = StatusView(
            self._isolation,
            self._transport,
            self._upkeep,
            self._floods,
            tuple(cohorts),
            self._extensions,
        )
        self._view.remember()
        self._orders = OrderExecutor(
            self._isolation, self._driver, self._processor, self._extensions
        )
        self._link = LinkSession(
            self._transport, subscriptions, self._isolation, self._driver, ends
        )
        self._snapshot = Snapshot()
        self._periodic_at = clock.monotonic()
        self._save_contacts_at = self._periodic_at + CONTACTS
        self._done_since: float | None = None

    def _continued(
        self, run: BoundRun, cohort: Cohort, signer: SigningKey, model: Signer
    ) -> tuple[RunParts, int]:
        begun = run_setup.verified_run(run, self._store, signer)
        state, saved = run_setup.resumed(run, self._store, begun.run)
        ends = run_setup.ends_of(run.config, model)
        parts = EngineParts(self._store, ends, self._clock, cohort, self._is_held, self._traffic)
        engine = RoundEngine(run, begun.run, state, saved, parts)
        return RunParts(engine, steps_of(run, begun.run, self._clock)), saved.upto

    def _is_held(self, state: Any) -> bool:  # noqa: ANN401 - the half's own
        return self._extensions.holds(state)  # engines are made before the extensions

    def _traffic(self) -> Mapping[str, int]:
        """Return the payload bytes since the start; engines are made before the metrics."""
        return self.metrics.payload_bytes()

    @property
    def _engine(self) -> RoundEngine:
        return self._runs[0].engine

    @property
    def _engines(self) -> tuple[RoundEngine, ...]:
        return tuple(parts.engine for parts in self._runs)

    # --- life cycle

    def open(self) -> None:
        """Let the extensions begin, replay the journal, and connect."""
        for one in self._extensions:
            one.open()
        for driver, upto in zip(self._driver, self._upto, strict=True):
            driver.engine.halted = self._letters.why_halted(driver.name)
            driver.begin(upto)
        self._transport.open()
        self._closing.callback(self._transport.close)
        self._run_periodic()
        for device, names in self._store.unusable().items():
            what = {"device": device, "numbers": ",".join(names)}
            logger.error("stored number rejected %s", fields(**what, do="enrol it with a new key"))
        announced = {e.run.config.run.name: e.announced_bundle for e in self._engines}
        self._orders.request_hellos(self._registry.outdated(announced))
        for engine in self._engines:
            about = {"fleet": self.config.fleet, "run": engine.number, "round": engine.state.round}
            about |= {"version": engine.state.version, "name": engine.run.config.run.name or "-"}
            logger.info("started %s", fields(**about))

    def run(
        self,
        stopping: StopRequest,
        *,
        exit_when_done: bool = False,
        reloads: HangUps | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Serve until a stop request or the last round; reload the configuration on request."""
        while not stopping.is_set() and not (exit_when_done and self.is_done):
            self.turn(self._longest_wait())
            if reloads is not None and reloads.consume():
                self.reload(environ)
        self._finish()

    def reload(self, environ: Mapping[str, str] = os.environ) -> bool:
        """Read the configuration again and apply it; return False if the old one stays in force, and log why."""
        if self._link.was_up:  # before that, READY below would be wrong
            notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            present = tuple(engine.run for engine in self._engines)
            wanted, runs = config_reload.again(self.config, present, self._store, environ)
            self._extensions.load(wanted)
        except Exception as error:  # no configuration file may end a running daemon
            self._upkeep.refused = config_reload.sentence(error)
            about = {"why": self._upkeep.refused, "hint": getattr(error, "hint", "")}
            is_ours = not config_reload.is_foreseen(error)
            if is_ours:
                self.metrics.errors.labels("reload").inc()
            logger.warning("configuration refused %s", fields(**about), exc_info=is_ours)
        else:
            keys = config_reload.changed(self.config, wanted)
            if keys:
                detail = ", ".join(keys)
                self._audit_log.record(DAEMON, "reload", wanted.file.name, detail=detail)
            self._follow(wanted, runs)
            logger.info("configuration reloaded %s", fields(changed=",".join(keys) or "nothing"))
        self._run_periodic()
        if self._link.was_up:
            notify("READY=1")
        return not self._upkeep.refused

    def _follow(self, wanted: AggregatorConfig, runs: Sequence[BoundRun]) -> None:
        """Apply a checked configuration; no step of it can fail part-way."""
        if wanted.log != self.config.log:
            logging.getLogger().setLevel(wanted.log.level.upper())
        self.config = wanted
        for engine, run in zip(self._engines, runs, strict=True):
            engine.run = run
            self._ingress.open(engine.context)
        self._ingress.apply_terms(terms_of(wanted))
        self._extensions.follow(wanted)
        bodies = self._ingress.sealer.bodies
        bodies_of(wanted, self._store, self._registry.is_signed_by, bodies)
        self._upkeep.follow(wanted)

    def turn(self, timeout: float = 0.0) -> None:
        """Serve the link for at most ``timeout`` seconds, then run pending work."""
        self._store.check_lease()
        events = self._transport.poll(timeout)
        began = time.perf_counter()
        for kind, group in itertools.groupby(events, type):
            if kind is Message:
                self._receive([event for event in group if isinstance(event, Message)])
            else:
                for event in group:
                    self._serve(event)
        for one in self._extensions:
            one.receive(self._process)
        self._link.exclude(self._floods)
        self._driver.wake()
        self._isolation.step("transfers", lambda: self._driver.accept(self._ingress.tick()))
        self._driver.report_closed()
        self._extensions.serve()
        if self._clock.monotonic() >= self._periodic_at:
            self._run_periodic()
        self._publisher.publish()
        self.metrics.lag.observe(time.perf_counter() - began)

    def close(self) -> None:
        """Close link, page, broker and store. Anything not yet saved was never receipted."""
        self._closing.close()

    def __enter__(self) -> Self:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def state(self) -> Any:  # noqa: ANN401 - the half's own state
        """Return the state of the first run's server half."""
        return self._engine.state

    @property
    def snapshot(self) -> Snapshot:
        """Return the current status for the page and the ``status`` command."""
        return self._snapshot

    @property
    def is_done(self) -> bool:
        since = self._done_since
        return since is not None and self._clock.monotonic() - since >= LINGER

    # --- events

    def _serve(self, event: Happening) -> None:
        match event:
            case Message():
                self._receive((event,))
            case LinkUp(max_payload=largest, retains=retains):
                if not retains:
                    raise SettingsError(
                        "broker.url: this broker keeps no retained messages (Retain Available 0), and "
                        "every announcement is one: no device would learn of a run",
                        hint="allow them, in mosquitto.conf: retain_available true",
                    )
                for one in self._extensions:
                    one.check_link(event)
                self._link.connected(largest)
            case LinkDown(why=why):
                self._publisher.clear()
                logger.info("link down %s", fields(why=why))

    def _receive(self, messages: Sequence[Message]) -> None:
        """Admit, journal, apply and save messages in one commit; then acknowledge them.

        Their replies leave at the end of the turn, after the commit.
        """
        self._process(messages)
        for message in messages:
            self._transport.acknowledge(message)

    def _process(self, messages: Sequence[Message]) -> None:
        self._processor.process_together([one for one in messages if self._admits(one)])

    def _admits(self, message: Message) -> bool:
        address = topics.parse(message.topic)
        is_up = address is not None and address.direction in ("up", "status")
        if address is not None and is_up:
            size = len(message.payload)
            self._view.count_message(address.kind, size)
            return self._floods.admits(address.id, size, self._clock.monotonic())
        return True

    def _show_closed(self, closed: Sequence[Version]) -> None:
        for version in closed:
            self._view.count(version)
            notify(f"STATUS=round {version.round}, version {version.version}")
        self._isolation.step("page", self._show, in_transaction=False)

    def _show(self) -> None:
        self._snapshot = self._view.snapshot()

    # --- every second

    def _run_periodic(self) -> None:
        now = self._clock.monotonic()
        self._periodic_at = now + TURN
        if self._broker is not None and not self._transport.is_up and self._broker.ensure():
            logger.warning("broker restarted")
        step = self._isolation.step
        if self.config.inbox.is_dir():
            step("orders", lambda: self._orders.apply(self.config.inbox), in_transaction=False)
        self._link.retry()
        self._link.announce_time()
        for driver in self._driver:
            driver.run_periodic(now, is_up=self._transport.is_up)
        if (
            all(engine.is_done for engine in self._engines)
            and self._done_since is None
            and not len(self._publisher)
        ):
            self._done_since = now
        self._upkeep.warn()
        step("root signatures", self._root_signatures.warn)
        if now >= self._save_contacts_at:
            self._save_contacts_at = now + CONTACTS
            step("contacts", self._registry.save_contacts)
        self._extensions.run_periodic(now)
        step("page", self._measure, in_transaction=False)
        self._floods.measure(now)
        notify("WATCHDOG=1")

    def _measure(self) -> None:
        self._view.measure()
        self._show()

    def _longest_wait(self) -> float:
        """Return the seconds until the next timer."""
        now = self._clock.monotonic()
        if self._ingress.is_full or self._isolation.faults.is_waiting(now):
            return TURN
        due = [self._periodic_at, self._ingress.next_due]
        due += [one.next_due for one in self._extensions]
        for parts in self._runs:
            stage = parts.steps.next_due if not parts.engine.is_paused else None
            due += [parts.engine.next_due, stage]
        return max(0.0, min(at for at in due if at is not None) - now)

    def _finish(self) -> None:
        """Publish queued messages for at most ``GOODBYE`` seconds; all state is already saved."""
        notify("STOPPING=1")
        until = self._clock.monotonic() + GOODBYE
        while len(self._publisher) and self._transport.is_up and self._clock.monotonic() < until:
            self._publisher.publish()
            for event in self._transport.poll(0.05):
                if isinstance(event, LinkDown):
                    self._publisher.clear()
        self._isolation.step("contacts", self._registry.save_contacts)
        self._view.measure()
        for engine in self._engines:
            name = engine.run.config.run.name
            about = {"run": engine.number, **({"name": name} if name else {})}
            about |= {"round": engine.state.round, "version": engine.state.version}
            logger.info("stopped %s", fields(**about))


def serve(
    config: AggregatorConfig,
    *,
    exit_when_done: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, Any]:
    """Run a daemon until a signal; return its final status, which is empty for a standby.

    With PostgreSQL it waits while another process writes, and waits again when it loses the database.
    """
    with stop_signals() as stopping, hang_ups(stopping) as reloads:
        if isinstance(config.database, Path):
            return _served(config, None, stopping, reloads, environ, is_last=exit_when_done)
        for view in config.views():
            bind(view)  # a wrong configuration is refused now, and not when it takes over
        is_again = False
        while not stopping.is_set():
            store = wait_for_store(
                config.database,
                lambda: _is_stopping(stopping),
                lambda why: _note_standby(config, why),
                is_patient=is_again,
            )
            if store is None:
                break
            try:
                return _served(config, store, stopping, reloads, environ, is_last=exit_when_done)
            except Exception as error:
                if not is_lost(error):
                    raise
                logger.error("database lost %s", fields(why=error))  # noqa: TRY400 - no defect
            is_again = True
        return {}


def _served(
    config: AggregatorConfig,
    store: Store | None,
    stopping: StopRequest,
    reloads: HangUps,
    environ: Mapping[str, str],
    *,
    is_last: bool,
) -> dict[str, Any]:
    with Daemon(config, store=store) as daemon:
        daemon.run(stopping, exit_when_done=is_last, reloads=reloads, environ=environ)
        return {"round": daemon.state.round, "version": daemon.state.version}


def _note_standby(config: AggregatorConfig, why: str) -> None:
    logger.info("standby started %s", fields(fleet=config.fleet, why=why))
    notify("READY=1", "STATUS=standby: waits for the database")


def _is_stopping(stopping: StopRequest) -> bool:
    notify("WATCHDOG=1")
    return stopping.is_set()
