"""Train without an aggregator's task, at a fixed interval."""

from __future__ import annotations

from collections.abc import Callable

from edge_sdk.app.settings import seconds
from edge_sdk.config import Config
from edge_sdk.methods.local_sgd import TRAIN
from edge_sdk.protocol.contract.method import Task
from edge_sdk.session.session import Session
from edge_sdk.store.store import DeviceStore
from edge_sdk.training.active_run import OWN, ActiveRun, GivenUp
from edge_sdk.training.flush_scheduler import FlushScheduler


class LocalRounds:
    """Trains on its own between the rounds of the fleet, at a fixed interval.

    Args:
        attempt: Trains one task for good, with what it costs.
    """

    def __init__(
        self,
        config: Config,
        *,
        store: DeviceStore,
        session: Session,
        active: ActiveRun,
        attempt: Callable[[Task], None],
        scheduler: FlushScheduler,
    ) -> None:
        self._config, self._store, self._session = config, store, session
        self._active, self._attempt, self._scheduler = active, attempt, scheduler
        self._last = -float("inf") if config.is_alone else session.now

    def is_due(self, *, is_training: bool) -> bool:
        """Return whether a local round is due; never while an extension trains and may still release."""
        is_wanted = self.is_wanted(is_training=is_training)
        return is_wanted and not self._scheduler.blocking_limit()

    def is_wanted(self, *, is_training: bool = False) -> bool:
        """Return whether a local round is due by its interval, regardless of the resource limits."""
        session, active, now = self._session, self._active, self._session.now
        is_free = not session.participation.is_budget_exhausted
        if is_training and is_free:
            return False
        patience = seconds(self._config.local_rounds.after)
        if active.shares and is_free and now - session.arrivals.heard_at < patience:
            return False
        every = seconds(self._config.local_rounds.interval)
        return now - self._last >= every and len(active.learner.windows()) > 0

    def train(self) -> None:
        """Train a copy used until the fleet is back; permanently if nothing is shared."""
        active, self._last = self._active, self._session.now
        self._scheduler.count_time(awake=False)
        number = self._store.fact("alone")
        task = self._task(number)
        if not active.shares:
            self._attempt(task)
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
        learner, local = self._active.learner, self._config.local_rounds
        training = learner.manifest.training
        values = {
            "steps": float(local.steps or training.steps),
            "rate": local.rate or training.rate,
        }
        w = learner.spec.shared(learner.vector(self._active.latest))
        return Task(self._config.id, OWN + number, TRAIN, values=values, arrays={"w": w})
