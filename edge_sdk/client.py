"""Run one device: observe readings, train on request, forecast, and send updates.

``Client`` owns the clock, the store and the keys, and holds no method-specific code. It composes
``ActiveRun`` (the active bundle and its state), ``TrainingTransaction`` (one task from training to the
saved update, with the crash guarantee), ``LocalRounds`` (rounds without an aggregator),
``DeviceExtensions`` (the options that are configured) and ``FlushScheduler`` (periodic writes), and
fixes their order.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Container, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from edge_sdk.app.cli import fields
from edge_sdk.app.clock import Clock, SystemClock
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.config import Config
from edge_sdk.errors import StoreFull
from edge_sdk.forecasting.forecast import FLEET, Forecast, ForecastQuality, IssuedForecast
from edge_sdk.forecasting.series import WEATHER, Reading
from edge_sdk.link.transport import NoLink, Transport
from edge_sdk.methods import METHODS, Factory
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.protocol.contract.method import END, Task
from edge_sdk.protocol.keys import kid_of
from edge_sdk.protocol.messages import ProtocolMessage
from edge_sdk.session.agenda import Agenda, FoundBundle
from edge_sdk.session.identity import IdentityKeys, place_of_count, signer_of
from edge_sdk.session.parts import SessionParts
from edge_sdk.session.server_clock import ServerClock
from edge_sdk.session.session import Connect, Session
from edge_sdk.store import refuse_state
from edge_sdk.store.second_count import recover_count
from edge_sdk.store.store import DeviceStore
from edge_sdk.training.active_run import RETURNS, TRAINED_UNTIL, ActiveRun, GivenUp
from edge_sdk.training.bootstrap import BundleOpener, connect, load_ring, open_bundle
from edge_sdk.training.extension import (
    DefectGuard,
    DeviceExtension,
    DeviceExtensions,
    DeviceParts,
    ServedVersion,
)
from edge_sdk.training.flush_scheduler import FlushScheduler
from edge_sdk.training.local_rounds import LocalRounds
from edge_sdk.training.model_runtime import ModelRuntime
from edge_sdk.training.privacy_accountant import ParticipationBudgets
from edge_sdk.training.run_role import RunShell

if TYPE_CHECKING:
    from edge_sdk.training.training_transaction import TrainingTransaction, UpdateSealer

logger = logging.getLogger(__name__)

_TOLERANCE = 300.0  # seconds by which a reading's timestamp may exceed the clock
_NO_CLOCK_BEFORE = 1_577_836_800_000  # a wall clock before 2020 counts as unset


@dataclass(frozen=True, slots=True)
class ClientParts:
    """Parts of a client that an agent, a simulator or a test gives it instead of its own."""

    # makes the outbox entry of every update; None signs with the device's key
    sealer: UpdateSealer | None = None
    # decides whether a task that can be answered now is to be answered now
    may_answer: Callable[[Task], bool] = lambda _task: True
    # streams of a bundle that have a source: a run whose bundle needs another one is left for a run
    # that does not; None: the sources are not known
    streams: Callable[[Manifest], Container[str]] | None = None
    # opens the bundle to start with; a simulator shares one between its devices
    bundles: BundleOpener | None = None
    store: DeviceStore | None = None  # the open store in ``config.state``, which the client closes


class Client:
    """One device that records readings, trains on request, forecasts, and sends updates.

    Single-threaded; all work happens inside ``tick``. Closing a client loses nothing: the next one
    continues from the store.

    Args:
        transport: A link, or a factory that makes one from the last-will function; None connects as
            configured.
        clock: Source of the time.
        methods: Device half of each method, by name; a custom method is one more entry.
        stopping: Called between two minibatches; true abandons the current training.
        parts: Parts that replace the client's own.

    Raises:
        EdgeError: A key, bundle or store cannot be used.
    """

    def __init__(
        self,
        config: Config,
        *,
        transport: Transport | Connect | None = None,
        clock: Clock | None = None,
        methods: Mapping[str, Factory] = METHODS,
        stopping: Callable[[], bool] = lambda: False,
        parts: ClientParts | None = None,
    ) -> None:
        self.config = config
        self._clock, self._stopping = clock or SystemClock(), stopping
        self._given = parts = parts or ClientParts()
        key, ring = signer_of(config), load_ring(config)
        self._store = parts.store or DeviceStore.open(config.state)
        try:
            refuse_state(self._store, _owner(config))
            self.identity = IdentityKeys(config, self._store, key)
            self._report_store()
            recover_count(self._store, place_of_count(config), self.identity)
            self._agenda = Agenda()
            parts_of_session = SessionParts(
                config,
                self._store,
                clock=self._clock,
                signer=self.identity,
                ring=ring,
                agenda=self._agenda,
            )
            self._session = Session(parts_of_session)
            self._guard = DefectGuard(self._session)
            self._compose(methods)
            self._store.set_facts(starts=self._store.fact("starts") + 1)
            self._session.connect(_maker(config, transport, self._session))
        except BaseException:
            self._store.close()
            raise

    def _report_store(self) -> None:
        """Log records of the store that cannot be used; restart numbering under a new key."""
        for what, value in self._store.found.items():
            hint = "gridfed-edge check CONFIG"
            logger.error("stored value rejected %s", fields(what=what, value=value, do=hint))
        if self._store.own(kid_of(self.identity.public), _owner(self.config)):
            logger.warning("signing key changed")

    def _compose(self, methods: Mapping[str, Factory]) -> None:
        """Create the parts of the client in order of dependency."""
        config, store = self.config, self._store
        session, agenda = self._session, self._agenda
        scheduler = self._scheduler = FlushScheduler(config, store, session, self._clock)
        bundle = (self._given.bundles or open_bundle)(config, session.announced)
        shell = RunShell(methods, self._clock.wall, self._between_batches, self._given.streams)
        active = self._active = ActiveRun(
            bundle, config, shell, store=store, session=session, agenda=agenda
        )
        self._local_rounds = LocalRounds(
            config,
            store=store,
            session=session,
            active=active,
            attempt=self._attempt,
            scheduler=scheduler,
        )
        device = DeviceParts(
            config=config,
            store=store,
            session=session,
            agenda=agenda,
            identity=self.identity,
            active=active,
            transaction=lambda: self._transaction,
            scheduler=scheduler,
            serve=self._serve,
        )
        self._extensions = DeviceExtensions(device, self._guard)
        session.parts.reporter.include(lambda: {"new": self._new_rows()})

    @cached_property
    def _transaction(self) -> TrainingTransaction:
        from edge_sdk.training import training_transaction as training  # noqa: PLC0415 - for a task

        return training.TrainingTransaction(
            store=self._store,
            session=self._session,
            agenda=self._agenda,
            active=self._active,
            scheduler=self._scheduler,
            sealer=self._given.sealer or training.UpdateSealer(self.config, self.identity),
        )

    # --- public operations ------------------------------------------------------------------------

    def observe(self, reading: Reading) -> None:
        """Record one measurement. A bad reading is counted and never raises."""
        seen = self.learner.observe(reading, self._latest(reading.stream))
        self._session.count("readings " + seen)
        self._scheduler.flush_in_time(self.learner)

    def observe_all(self, readings: Sequence[Reading]) -> None:
        """Record measurements, oldest first; faster than ``observe`` for some thousands."""
        for seen, number in self.learner.observe_all(readings, self._latest).items():
            self._session.count("readings " + seen, number)
        self._scheduler.flush_in_time(self.learner)

    def _latest(self, stream: str) -> float:
        """Return the limit of plausible reading times, Unix seconds.

        A clock may be some minutes ahead. Weather of a slot that has not begun is a forecast all the
        same: as a reading it would open the slot before the energy of the present one is known.
        """
        wall = self._clock.wall()
        if wall <= _NO_CLOCK_BEFORE:
            return math.inf
        latest, begun = wall / 1000 + _TOLERANCE, wall // (1000 * self.step) * self.step
        return min(latest, begun + self.step - 0.001) if stream in WEATHER else latest

    def tick(self, timeout: float = 0.0) -> None:
        """Serve the network for at most ``timeout`` seconds, and train if there is a task.

        Training has no time limit; the network is served between two minibatches. On a full disk no
        new work is accepted or released; the outbox is kept.
        """
        session = self._session
        try:
            self._turn(timeout)
        except StoreFull as error:  # nothing was changed, sent or acknowledged
            if not session.counts["disk full"]:
                logger.warning("disk full %s", fields(why=error))
            session.count("disk full")
        is_busy = bool(session.outbox.entries) or self._agenda.current is not None
        self._scheduler.count_time(awake=session.is_linked and is_busy)

    def serve(self) -> None:
        """Serve the network without waiting, and train nothing: another run is in training."""
        try:
            self._serve(0.0)
        except StoreFull:
            self._session.count("disk full")

    def forecast(self) -> Forecast:
        """Forecast the values after the newest reading; ``source`` names the predictor."""
        self._session.count("forecasts")
        self._extensions.on_forecast()
        version = self._extensions.serving()
        return self._forecast_by(version) or self.learner.forecast(self._active.latest)

    def _forecast_by(self, version: ServedVersion | None) -> Forecast | None:
        if version is None:
            return None
        return version.forecast(self.learner.vector(self._active.latest))

    def issue(self) -> IssuedForecast:
        """Forecast as ``forecast`` does, with issue time, model version and quality.

        Readings are written before, so that other programs that read the store forecast alike.
        """
        self._session.count("forecasts")
        self._scheduler.flush_for_forecast(self.learner)
        self._extensions.on_forecast()
        quality, version = self._extensions.quality, self._extensions.serving()
        now, seen = self._clock.wall() / 1000, self._session.seen
        found = self._forecast_by(version)
        if version is not None and found is not None:
            of_fleet = ForecastQuality()
            return version.runtime.issued(found, of_fleet, now=now, run=seen.run, version=-1)
        found = self.learner.forecast(self._active.latest)
        return self.learner.issued(found, quality, now=now, run=seen.run, version=seen.version)

    def extension(self, name: str) -> DeviceExtension | None:
        """Return a configured extension, or None."""
        return self._extensions.named(name)

    @property
    def streams_ahead(self) -> frozenset[str]:
        return self.learner.announced.streams

    def send_forecast(self, forecast: ProtocolMessage) -> bool:
        """Send a forecast to the fleet; return False if nothing may be sent now."""
        return self._session.send(forecast)

    def forecast_marks(self) -> tuple[object, ...]:
        """Return the inputs of the forecast; a new one is due when any of them changes."""
        learner, seen = self.learner, self._session.seen
        newest = learner.series.newest if len(learner.series) else None
        return (
            newest,
            learner.manifest.digest,
            seen.run,
            seen.version,
            id(self._active.latest),
            self.learner.announced.changes,
            self._extensions.marks,
        )

    def flush(self) -> None:
        """Write buffered readings, and the interval calibration derived from them, to the store."""
        self._scheduler.flush(self.learner)

    def remembered(self, name: str) -> bytes | None:
        """Return the note that a source saved before a restart, or None."""
        return self._scheduler.remembered(name)

    def remember(self, notes: Mapping[str, bytes]) -> None:
        """Write readings, then the notes that sources need after a restart, by name.

        This order ensures that a note never refers to readings that were lost.
        """
        self.flush()
        self._scheduler.remember(notes)

    def close(self) -> None:
        """Write readings, publish the offline status, and close the link and the store."""
        if not self.is_wipe_ordered:
            self.flush()
            self._scheduler.save_usage()
        self._session.close()
        self._store.close()

    def __enter__(self) -> Client:  # noqa: PYI034 - nobody derives from it
        """Return the client itself, for a ``with`` block."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- state ------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Return whether the model's window is full, so that ``forecast`` has values."""
        return self.learner.is_ready

    @property
    def newest_reading(self) -> int | None:
        """Start of the newest reading, Unix seconds; None before the first."""
        series = self.learner.series
        return series.newest * series.step if len(series) else None

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of events since the start, and of bytes."""
        return {**self._session.counts, **self._session.traffic()}

    @property
    def forecast_source(self) -> str:
        """Name of the predictor of the next forecast; ``none`` if there is none."""
        self._extensions.on_forecast()
        return self.learner.forecast(self._active.latest).source

    @property
    def now(self) -> float:
        """Seconds of the monotonic clock of this client."""
        return self._session.now

    @property
    def link(self) -> Transport:
        """The link to the fleet's broker."""
        return self._session.parts.link.link

    @property
    def server_clock(self) -> ServerClock:
        return self._session.time

    @property
    def is_linked(self) -> bool:
        """Return whether the link is up and the aggregator has welcomed this device."""
        return self._session.is_linked

    @property
    def why_stopped(self) -> str:
        """Reason why no updates are sent now, such as ``command`` or ``budget``; empty if none."""
        return self._session.participation.why_stopped

    @property
    def is_wipe_ordered(self) -> bool:
        """Return whether the operator has ordered that the device's state is deleted."""
        return self._session.participation.is_wipe_ordered

    @property
    def is_done(self) -> bool:
        """Return whether the run has ended, its final model is in use, and the outbox is empty.

        A device alone is done once it has learned from its readings.
        """
        if self.config.is_alone:
            return not self._local_rounds.is_wanted()
        is_done = self._extensions.is_done
        return self._session.is_done if is_done is None else is_done

    @property
    def is_settled(self) -> bool:
        """Return whether the run has ended, and the extensions have processed its final model."""
        return self.is_done and not self._extensions.is_due

    @property
    def learner(self) -> ModelRuntime:
        """The active model with its readings, for evaluating forecasts over a longer span."""
        return self._active.learner

    @property
    def budgets(self) -> ParticipationBudgets:
        """The privacy account and the limits, to be shared with the device's other runs."""
        governor = self._scheduler.governor
        accountant, quota = self._active.accountant, self._session.parts.quota
        return ParticipationBudgets(accountant, quota, governor)

    @property
    def state(self) -> Any:  # noqa: ANN401 - the half's own type
        """State of the method's device half in the active run."""
        return self._active.state

    @property
    def step(self) -> int:
        """Seconds between two slots of the reading grid."""
        return self.learner.series.step

    def status(self) -> dict[str, Any]:
        """Return the client's state as plain words and numbers, without any measured value."""
        session, learner = self._session, self.learner
        plan, declined = learner.mechanism.plan, dict(session.parts.choice.declined)
        return {
            "id": self.config.id,
            "fleet": None if self.config.is_alone else self.config.fleet,
            "linked": session.is_linked,
            "ready": session.outbox.is_ready,
            "stopped": session.participation.why_stopped,
            **({"declined": declined} if declined else {}),
            "bundle": learner.manifest.name,
            "method": learner.role.method,
            "run": session.seen.run,
            "round": session.seen.round,
            "version": session.seen.version,
            "life": session.outbox.numbers.life,
            "spent": session.outbox.numbers.spent,
            "outbox": len(session.outbox.entries),
            "windows": len(learner.windows()),
            "can_forecast": self.is_ready,
            "missing": learner.missing,
            "alone": self.config.is_alone or self._active.local_state is not None,
            "models returned": self._active.returns[RETURNS],
            "forecast": {"served": FLEET},
            "privacy": learner.mechanism.plan.guarantee,
            "budget": self._active.accountant.known.summary(plan.release()),
            **self._extensions.status(),
            "held": self._scheduler.why_held,
            "counts": self.counts,
        }

    # --- one tick ---------------------------------------------------------------------------------

    def _turn(self, timeout: float) -> None:
        """Serve the network, then do the next pending work; train at most one round."""
        session, agenda = self._session, self._agenda
        self._scheduler.flush_in_time(self.learner)
        self._serve(0.0 if self._has_work else self._extensions.limit_wait(timeout))
        if agenda.pop_store_loss():
            self._active.restart()
        self._active.accountant.watch()
        self._active.test_present()
        if agenda.bundle is not None:
            found = agenda.bundle
            follow, drop = partial(self._follow, found), agenda.drop_bundle
            self._guard.run("bundle", follow, found.body, drop=drop)
            self._active.accountant.watch()  # under the mechanism now in force
        self._extensions.on_tick()
        task = agenda.waiting
        if task is not None:
            self._transaction.report_waiting(task)
        if task is not None and self._is_answerable(task):
            agenda.pop_waiting()
            number = (session.seen.run, task.round, task.attempt, task.step, task.ask)
            self._guard.run("task", partial(self._learn, task), *number, drop=self._drop_round)
        elif self._local_rounds.is_due(is_training=self._extensions.is_training):
            self._local_rounds.train()
        else:
            self._extensions.on_idle()

    def _new_rows(self) -> int:
        """Return the number of rows recorded since the last update."""
        series = self.learner.series
        behind = self.learner.recorded_until - self._store.fact(TRAINED_UNTIL)
        return max(0, min(behind // series.step, len(series)))

    def _serve(self, timeout: float) -> None:
        for event in self._session.serve(timeout):
            self._agenda.add(event)

    @property
    def _has_work(self) -> bool:
        agenda = self._agenda
        ready = agenda.waiting is not None and self._is_answerable(agenda.waiting)
        return ready or agenda.bundle is not None

    def _is_answerable(self, task: Task) -> bool:
        return self._transaction.is_ready(task) and self._given.may_answer(task)

    def _learn(self, task: Task) -> None:
        if not self._extensions.on_task(task):
            self._attempt(task)

    def _attempt(self, task: Task) -> None:
        self._transaction.attempt(task)

    def _drop_round(self) -> None:
        self._agenda.finish()
        self._extensions.on_defect()

    def _follow(self, found: FoundBundle) -> None:
        self.flush()
        if self._active.follow(found):
            self._extensions.on_run()
            for event in self._session.arrivals.reconsider():
                self._agenda.add(event)

    def _between_batches(self) -> None:
        self._serve(0.0)
        task, is_exhausted = self._agenda.waiting, self._session.participation.is_budget_exhausted
        is_newer = task is not None and (task.ask == END or not is_exhausted)
        if self._stopping() or is_newer or self._agenda.bundle is not None:
            raise GivenUp


def _owner(config: Config) -> str:
    return "" if config.is_alone else config.fleet


def _maker(config: Config, transport: Transport | Connect | None, session: Session) -> Connect:
    if transport is None and config.is_alone:
        return lambda _will: NoLink()
    if transport is None:
        return lambda will: connect(config, will, session.time)
    return transport if callable(transport) else lambda _will: transport
