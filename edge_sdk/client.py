"""Run one device: observe readings, train on request, forecast, and send updates.

``Client`` owns the clock, the store and the keys, and holds no method-specific code. It composes
``ActiveRun`` (the active bundle and its state), ``TrainingTransaction`` (one task from training to the
saved update, with the crash guarantee), ``SplitRounds`` (split-learning rounds), ``PeerMembership``
(peer exchange), ``LocalRounds`` (rounds without an aggregator), ``ForecastSelection`` (fine-tuning, and
the choice of what is forecast with), ``RolloutMember`` (the version of a staged rollout) and
``FlushScheduler`` (periodic writes), and fixes their order.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Container, Mapping
from typing import Any

from edge_sdk.app.cli import fields
from edge_sdk.app.clock import Clock, SystemClock
from edge_sdk.config import Config
from edge_sdk.errors import StoreFull
from edge_sdk.forecasting.forecast import Forecast
from edge_sdk.forecasting.forecast_choice import ForecastChoice
from edge_sdk.forecasting.issued_forecast import IssuedForecast
from edge_sdk.forecasting.series import WEATHER, Reading
from edge_sdk.methods import METHODS, Factory
from edge_sdk.peers.membership import PeerMembership
from edge_sdk.session.agenda import Agenda
from edge_sdk.session.events import FoundBundle
from edge_sdk.session.identity import load_signer
from edge_sdk.session.identity_keys import IdentityKeys
from edge_sdk.session.server_clock import ServerClock
from edge_sdk.session.session import Connect, Session
from edge_sdk.store.erasure import refuse_state
from edge_sdk.store.store import DeviceStore
from edge_sdk.training.active_run import RETURNS, ActiveRun, GivenUp
from edge_sdk.training.bootstrap import connect, load_ring
from edge_sdk.training.defect_guard import DefectGuard
from edge_sdk.training.flush_scheduler import FlushScheduler
from edge_sdk.training.forecast_selection import ForecastSelection
from edge_sdk.training.installed_bundle import BundleOpener, open_bundle
from edge_sdk.training.issue import issued_forecast
from edge_sdk.training.local_rounds import LocalRounds
from edge_sdk.training.model_runtime import ModelRuntime
from edge_sdk.training.outbox_entry import SignedSealer, UpdateSealer
from edge_sdk.training.rollout_member import RolloutMember
from edge_sdk.training.score_reporter import ScoreReporter
from edge_sdk.training.shared_budgets import ParticipationBudgets
from edge_sdk.training.split_rounds import SplitRounds
from edge_sdk.training.training_transaction import TRAINED_UNTIL, TrainingTransaction
from edge_sdk.wire.contract.manifest import Manifest
from edge_sdk.wire.contract.method import END, Task
from edge_sdk.wire.keys import kid_of
from edge_sdk.wire.link.transport import Transport
from edge_sdk.wire.protocol.messages import ForecastMessage, WeatherMessage

logger = logging.getLogger(__name__)

_TOLERANCE = 300.0  # seconds by which a reading's timestamp may exceed the clock
_NO_CLOCK_BEFORE = 1_577_836_800_000  # a wall clock before 2020 counts as unset


class Client:
    """One device that records readings, trains on request, forecasts, and sends updates.

    Single-threaded; all work happens inside ``tick``. Closing a client loses nothing: the next one
    continues from the store.

    Args:
        config: Configuration of the device.
        transport: A link, or a factory that makes one from the last-will function; None connects as
            configured.
        clock: Source of the time.
        methods: Device half of each method, by name; a custom method is one more entry.
        stopping: Called between two minibatches; true abandons the current training.
        sealer: Makes the outbox entry of every update; None signs with the device's key.
        may_answer: Decides whether a task that can be answered now is to be answered now.
        streams: Returns the streams of a bundle that have a source; a run whose bundle needs
            another one is left for a run that does not. None: the sources are not known.
        bundles: Opens the bundle to start with, instead of ``open_bundle``; a simulator shares one
            between its devices.
        store: The open store in ``config.state``, which the client closes; None opens it.

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
        sealer: UpdateSealer | None = None,
        may_answer: Callable[[Task], bool] = lambda _task: True,
        streams: Callable[[Manifest], Container[str]] | None = None,
        bundles: BundleOpener | None = None,
        store: DeviceStore | None = None,
    ) -> None:
        self.config = config
        self._clock, self._stopping = clock or SystemClock(), stopping
        self._may_answer, self._streams, self._bundles = may_answer, streams, bundles
        key, ring = load_signer(config), load_ring(config)
        self._store = store or DeviceStore.open(config.state)
        try:
            refuse_state(self._store, config.fleet)
            self.identity = IdentityKeys(config, self._store, key)
            self._sealer = sealer or SignedSealer(config, self.identity)
            self._report_store()
            self._agenda = Agenda()
            self._session = Session(
                config,
                self._store,
                clock=self._clock,
                signer=self.identity,
                ring=ring,
                agenda=self._agenda,
            )
            self._guard = DefectGuard(self._session, self._agenda)
            self._compose(methods)
            self._store.set_facts(starts=self._store.fact("starts") + 1)
            self._session.connect(_maker(config, transport, self._session))
        except BaseException:
            self._store.close()
            raise

    def _report_store(self) -> None:
        """Log records of the store that cannot be used; restart numbering under a new key."""
        for what, value in self._store.found.items():
            record = {"what": what, "value": value}
            logger.error(
                "stored value rejected %s", fields(**record, do="gridfed-edge check CONFIG")
            )
        if self._store.own(kid_of(self.identity.public), self.config.fleet):
            logger.warning("signing key changed")

    def _compose(self, methods: Mapping[str, Factory]) -> None:
        """Create the parts of the client in order of dependency."""
        config, store = self.config, self._store
        session, agenda = self._session, self._agenda
        scheduler = self._scheduler = FlushScheduler(config.limits, store, session, self._clock)
        bundle = (self._bundles or open_bundle)(config, session.announced)
        active = self._active = ActiveRun(
            bundle,
            config,
            methods,
            store=store,
            session=session,
            agenda=agenda,
            clock=self._clock,
            between_batches=self._between_batches,
            streams=self._streams,
        )
        transaction = self._transaction = TrainingTransaction(
            store=store,
            session=session,
            agenda=agenda,
            active=active,
            scheduler=scheduler,
            sealer=self._sealer,
        )
        self._split_rounds = SplitRounds(
            config.id,
            session=session,
            agenda=agenda,
            active=active,
            transaction=transaction,
            serve=self._serve,
        )
        self._membership = PeerMembership(
            config,
            store=store,
            session=session,
            agenda=agenda,
            active=active,
            transaction=transaction,
        )
        self._local_rounds = LocalRounds(
            config,
            store=store,
            session=session,
            active=active,
            transaction=transaction,
            scheduler=scheduler,
        )
        self._selection = ForecastSelection(
            config,
            store=store,
            session=session,
            active=active,
            scheduler=scheduler,
            clock=self._clock,
        )
        self._rollout = RolloutMember(
            config, store=store, session=session, active=active, scheduler=scheduler
        )
        self._scores = ScoreReporter(
            config,
            store=store,
            session=session,
            accountant=lambda: active.accountant,
            monitor=lambda: self._selection.candidates.selection.monitor,
        )
        session.count_new_rows(self._new_rows)
        active.accountant.charge_start(config.privacy.budget.releases_per_start)

    # --- public operations ------------------------------------------------------------------------

    def observe(self, reading: Reading) -> None:
        """Record one measurement. A bad reading is counted and never raises."""
        seen = self.learner.observe(reading, self._latest(reading.stream))
        self._session.count("readings " + seen)
        self._scheduler.flush_in_time(self.learner)

    def _latest(self, stream: str) -> float:
        """Return the time after which a reading is of the future, in Unix seconds.

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
        """Forecast the values after the newest reading; ``source`` names what predicted them."""
        self._selection.follow()
        found = self._rollout.forecast(self._selection.candidates.selection.choice.name)
        return self.learner.forecast(self._active.latest) if found is None else found

    def issue(self) -> IssuedForecast:
        """Forecast as ``forecast`` does, with issue time, model version and quality."""
        self._selection.follow()
        choice, now = self._selection.candidates.selection.choice, self._clock.wall() / 1000
        seen, version = self._session.seen, self._rollout.serving(choice.name)
        found = None if version is None else self._rollout.forecast(choice.name)
        if version is not None and found is not None:
            return issued_forecast(
                version.runtime, found, ForecastChoice(), now=now, run=seen.run, version=-1
            )
        found = self.learner.forecast(self._active.latest)
        return issued_forecast(
            self.learner, found, choice, now=now, run=seen.run, version=seen.version
        )

    def weather(self, region: str = "") -> WeatherMessage | None:
        """Return the newest verified weather of a region that the configuration names, or None.

        Without a region: that of the region that the operator has assigned to this device.
        """
        return self._session.weather(region)

    @property
    def streams_ahead(self) -> frozenset[str]:
        """Streams whose announced values the model reads."""
        return self.learner.announced.streams

    def send_forecast(self, forecast: ForecastMessage) -> bool:
        """Send a forecast to the fleet; return False if nothing may be sent now."""
        return self._session.send_forecast(forecast)

    def forecast_marks(self) -> tuple[object, ...]:
        """Return what the forecast depends on: another one is due when any of it changes."""
        learner, seen = self.learner, self._session.seen
        selection = self._selection.candidates.selection
        newest = learner.series.newest if len(learner.series) else None
        return (
            newest,
            learner.manifest.digest,
            seen.run,
            seen.version,
            selection.judged,
            selection.choice.name,
            id(self._active.latest),
            self.learner.announced.changes,
            self._rollout.marks,
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
        """Close the client."""
        self.close()

    # --- state ------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Return whether there are enough readings for the model to forecast."""
        return self.learner.is_ready

    @property
    def now(self) -> float:
        """Seconds of the monotonic clock of this client."""
        return self._session.now

    @property
    def link(self) -> Transport:
        """The link in use."""
        return self._session.link

    @property
    def server_clock(self) -> ServerClock:
        """Estimate of server time."""
        return self._session.time

    @property
    def is_linked(self) -> bool:
        """Return whether the broker has accepted the connection."""
        return self._session.is_linked

    @property
    def why_stopped(self) -> str:
        """Reason why no updates are sent now, such as ``command`` or ``budget``; empty if none."""
        return self._session.participation.why_stopped

    @property
    def is_wipe_ordered(self) -> bool:
        """Return whether an operator ordered the erasure of this device's state."""
        return self._session.participation.is_wipe_ordered

    @property
    def is_done(self) -> bool:
        """Return whether the run has ended, its final model is in use, and the outbox is empty."""
        among = self._membership.driver
        return self._session.is_done if among is None else among.is_done

    @property
    def is_settled(self) -> bool:
        """Return whether the run has ended, and its final model was tuned and compared."""
        return self.is_done and not self._selection.is_due

    @property
    def learner(self) -> ModelRuntime:
        """The active model with its readings, for evaluating forecasts over a longer span."""
        return self._active.learner

    @property
    def budgets(self) -> ParticipationBudgets:
        """The privacy account and the limits, to be shared with the device's other runs."""
        governor = self._scheduler.governor
        accountant, quota = self._active.accountant, self._session.quota
        return ParticipationBudgets(self.config.id, accountant, quota, governor)

    @property
    def state(self) -> Any:  # noqa: ANN401 - the half's own type
        """Learned state of the device half."""
        return self._active.state

    @property
    def step(self) -> int:
        """Seconds between two slots of the reading grid."""
        return self.learner.series.step

    def status(self) -> dict[str, Any]:
        """Return the client's state as plain words and numbers, without any measured value."""
        session, learner = self._session, self.learner
        among, plan = self._membership.driver, learner.mechanism.plan
        return {
            "id": self.config.id,
            "fleet": self.config.fleet,
            "linked": session.is_linked,
            "ready": session.outbox.is_ready,
            "stopped": session.participation.why_stopped,
            **({"declined": dict(session.declined)} if session.declined else {}),
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
            "alone": self._active.local_state is not None,
            "models returned": self._active.returns[RETURNS],
            "forecast": self._selection.status(),
            "privacy": learner.mechanism.guarantee_text,
            "budget": self._active.accountant.account.summary(plan.release()),
            **({"rollout": rollout} if (rollout := self._rollout.status()) else {}),
            **({} if among is None else {"neighbours": among.status()}),
            **({"scores": found} if (found := self._scores.status()) else {}),
            "held": self._scheduler.why_held,
            "counts": {**session.counts, **session.traffic()},
        }

    # --- one tick ---------------------------------------------------------------------------------

    def _turn(self, timeout: float) -> None:
        """Serve the network, then do the next pending work; train at most one round."""
        session, agenda = self._session, self._agenda
        self._scheduler.flush_in_time(self.learner)
        self._serve(0.0 if self._has_work else self._membership.limit_wait(timeout))
        if agenda.pop_store_loss():
            self._active.restart()
        self._active.accountant.watch()
        self._active.test_present()
        if agenda.bundle is not None:
            found = agenda.bundle
            self._guard.run("bundle", lambda: self._follow(found), found.body)
            self._active.accountant.watch()  # under the mechanism now in force
        archive = agenda.pop_archive()
        self._guard.run("rollout", lambda: self._rollout.turn(archive))
        self._scores.report()
        self._guard.run("turns", self._split_rounds.answer)
        self._guard.run("neighbours", self._membership.exchange)
        task = agenda.waiting
        if task is not None:
            self._transaction.report_waiting(task)
        if task is not None and self._is_answerable(task):
            agenda.pop_waiting()
            number = (session.seen.run, task.round, task.attempt, task.step, task.ask)
            self._guard.run("task", lambda: self._learn(task), *number)
        elif self._local_rounds.is_due(among_neighbours=self._membership.driver is not None):
            self._local_rounds.train()
        elif self._selection.is_due:
            self._guard.run("selection", self._selection.run)

    def _new_rows(self) -> int:
        """Return the number of rows recorded since the last update."""
        series = self.learner.series
        behind = self.learner.recorded_until - self._store.fact(TRAINED_UNTIL)
        return max(0, min(behind // series.step, len(series)))

    def _serve(self, timeout: float) -> None:
        """Serve the network, and record what arrives."""
        for event in self._session.serve(timeout):
            self._agenda.add(event)

    @property
    def _has_work(self) -> bool:
        """Return whether work is pending besides serving the network."""
        agenda = self._agenda
        ready = agenda.waiting is not None and self._is_answerable(agenda.waiting)
        return ready or agenda.bundle is not None or bool(agenda.signals)

    def _is_answerable(self, task: Task) -> bool:
        """Return whether to train a task now."""
        return self._transaction.is_ready(task) and self._may_answer(task)

    def _learn(self, task: Task) -> None:
        """Train one round; a split round is only opened."""
        if self._split_rounds.has_perishable_steps and task.ask != END:
            self._split_rounds.open(task)
        else:
            self._transaction.attempt(task)

    def _follow(self, found: FoundBundle) -> None:
        """Activate an announced run and its peers, then judge its manifest and task again."""
        self.flush()
        if self._active.follow(found):
            self._membership.set_up_exchange()
            for event in self._session.reconsider():
                self._agenda.add(event)

    def _between_batches(self) -> None:
        """Serve the network during training; abandon it if a newer round or a stop made it useless.

        Raises:
            GivenUp: The round has left no trace.
        """
        self._serve(0.0)
        task, is_exhausted = self._agenda.waiting, self._session.participation.is_budget_exhausted
        is_newer = task is not None and (task.ask == END or not is_exhausted)
        if self._stopping() or is_newer or self._agenda.bundle is not None:
            raise GivenUp


def _maker(config: Config, transport: Transport | Connect | None, session: Session) -> Connect:
    if transport is None:
        time = session.time
        return lambda will: connect(
            config,
            will,
            time.certificate_time,
            time.earlier_certificate_time,
            time.earliest_certificate_time,
        )
    return transport if callable(transport) else lambda _will: transport
