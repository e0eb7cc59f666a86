"""Run local rounds without an aggregator, when nothing is shared or none was reached for long."""

from __future__ import annotations

from edge_sdk.app.settings import seconds
from edge_sdk.config import Config
from edge_sdk.methods.local_sgd import TRAIN
from edge_sdk.session.session import Session
from edge_sdk.store.store import DeviceStore
from edge_sdk.training.active_run import ActiveRun, GivenUp
from edge_sdk.training.flush_scheduler import FlushScheduler
from edge_sdk.training.outbox_entry import OWN
from edge_sdk.training.training_transaction import TrainingTransaction
from edge_sdk.wire.contract.method import Task


class LocalRounds:
    """Trains on its own between the rounds of the fleet, at a fixed interval."""

    def __init__(
        self,
        config: Config,
        *,
        store: DeviceStore,
        session: Session,
        active: ActiveRun,
        transaction: TrainingTransaction,
        scheduler: FlushScheduler,
    ) -> None:
        """Start the interval timer."""
        self._config, self._store, self._session = config, store, session
        self._active, self._transaction, self._scheduler = active, transaction, scheduler
        self._last = session.now

    def is_due(self, *, among_neighbours: bool) -> bool:
        """Return whether a local round is due; never while peers may still receive a release."""
        session, active, now = self._session, self._active, self._session.now
        is_free = not session.participation.is_budget_exhausted
        if among_neighbours and is_free:
            return False
        patience = seconds(self._config.local_rounds.after)
        if active.shares and is_free and now - session.heard_at < patience:
            return False
        every = seconds(self._config.local_rounds.interval)
        due = now - self._last >= every and len(active.learner.windows()) > 0
        return due and not self._scheduler.blocking_limit()

    def train(self) -> None:
        """Train a copy used until the fleet is back; permanently if nothing is shared."""
        active, self._last = self._active, self._session.now
        self._scheduler.count_time(awake=False)
        number = self._store.fact("alone")
        task = self._task(number)
        if not active.shares:
            self._transaction.attempt(task)
        else:
            try:
                candidate = active.learner.learn_alone(active.latest, task)
            except GivenUp:
                return
            if not active.fault_of(candidate, active.latest):
                active.adopt_local(candidate)
        self._scheduler.count_time(awake=True)
        self._session.count("rounds alone")
        self._store.set_facts(alone=number + 1)

    def _task(self, number: int) -> Task:
        """Return the local task with this number: plain SGD steps, unused in closed form."""
        learner, local = self._active.learner, self._config.local_rounds
        training = learner.manifest.training
        values = {
            "steps": float(local.steps or training.steps),
            "rate": local.rate or training.rate,
        }
        w = learner.spec.shared(learner.vector(self._active.latest))
        return Task(self._config.id, OWN + number, TRAIN, values=values, arrays={"w": w})
