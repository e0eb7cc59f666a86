"""Run a site between its devices and its parent: adopt models, hold rounds, offer differences.

Two stores are involved, and each transition is one transaction in one of them, so that a kill at
any line repeats or omits nothing:

1. The parent's model is adopted by a journalled event in the aggregator's database. A model that the
   state records already is not adopted again.
2. After ``rounds`` rounds the update is saved with its number in the session's store, and sent until
   the parent's receipt. The store records the model whose rounds were offered; it is not offered
   again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Gauge

from aggregator.config import AggregatorConfig
from aggregator.extensions.tree.parent_session import ParentRecord, ParentSession, Turn
from aggregator.operations.server_extensions import ServerExtension, ServerParts
from edge_sdk.app.cli import fields
from edge_sdk.app.settings import seconds
from edge_sdk.errors import StoreFull
from edge_sdk.protocol.contract.method import END, ParentModel, Task

logger = logging.getLogger(__name__)


_GAUGES = {
    "connected": "1 while this site is connected to its parent's broker.",
    "pending": "Updates of this site without a receipt of its parent.",
    "alone": "1 while this site runs rounds without waiting for its parent.",
}


def gauges(own: CollectorRegistry) -> dict[str, Gauge]:
    """Register and return the gauges of the session with the parent."""
    return {what: Gauge(f"gridfed_parent_{what}", x, registry=own) for what, x in _GAUGES.items()}


class TreeSite(ServerExtension):
    """A site: the run of this aggregator, as one device of its parent's fleet.

    Raises:
        Failure: As ``ParentSession``.
    """

    def __init__(self, parts: ServerParts, config: AggregatorConfig) -> None:
        super().__init__(parts, config)
        self._clock, self._parent = parts.isolation.clock, config.section("parent")
        self._patience = seconds(self._parent.patience)
        (self._driver,) = parts.drivers
        run = self._driver.engine.run
        self._session = ParentSession(
            config, self._parent, run, clock=parts.isolation.clock, poller=parts.poller
        )
        self._waited: Turn | None = None  # the model after whose rounds the site waits
        self._waits_since = self._clock.monotonic()
        self._is_alone = False
        self._is_begun = False
        self._gauges = gauges(parts.isolation.metrics.registry)

    # --- what the round engine asks

    def holds(self, state: Any) -> bool:  # noqa: ANN401 - the half's own
        """Return whether the round after a state waits for a model of the parent.

        A site waits before the parent's first model, and after ``rounds`` rounds on each; after
        ``patience`` it continues by itself.
        """
        if self._session.task is not None:
            return True
        received = ParentRecord.of(state)
        turn = None if received is None else received.turn
        if received is not None and received.rounds < self._parent.rounds:
            return False
        now = self._clock.monotonic()
        if turn != self._waited:
            self._waited, self._waits_since = turn, now
        return now - self._waits_since < self._patience

    # --- one turn of the daemon

    def on_turn(self) -> None:
        """Serve the parent's link; then offer an update, adopt a model or open a round."""
        session, driver = self._session, self._driver
        engine = driver.engine
        if not self._is_begun:
            session.begin(ParentRecord.of(engine.state))
            self._is_begun = True
        session.serve()
        if engine.is_done:
            return
        received = ParentRecord.of(engine.state)
        if received is not None and self._is_offer_due(received):
            self._offer(received, engine.state)
        task = session.task
        if engine.is_waiting and not engine.is_paused:
            if task is not None and self._may_adopt(task, received):
                self._adopt(task, received)
            if engine.is_waiting and not engine.is_held:
                self._note_alone(ParentRecord.of(engine.state))
                self.parts.isolation.step("site round", driver.open_if_due, run=driver.number)

    def measure(self) -> None:
        """Show the session with the parent."""
        found = self._status()
        self._gauges["connected"].set(found["linked"])
        self._gauges["pending"].set(found["pending"])
        self._gauges["alone"].set(found["state"] == "alone")

    def status(self) -> Mapping[str, Any]:
        """Return the status in the parent's fleet."""
        return {"parent": self._status()}

    def close(self) -> None:
        """Close the link and the store of the session."""
        self._session.close()

    # --- internals

    def _status(self) -> dict[str, Any]:
        engine = self._driver.engine
        received, found = ParentRecord.of(engine.state), self._session.status()
        if received is not None:
            found |= {"round": received.turn[1], "version": received.version}
            found |= {"rounds": f"{received.rounds} of {self._parent.rounds}"}
        is_held = engine.is_waiting and engine.is_held
        found["state"] = "waiting" if is_held else "alone" if self._is_alone else "following"
        return found

    def _is_offer_due(self, received: ParentRecord) -> bool:
        """Return whether to offer the site's rounds on a model now.

        They are after ``rounds`` rounds, and earlier if a newer model of the same run has come.
        """
        session, task = self._session, self._session.task
        if received.rounds == 0 or session.is_offered(received) or not session.may_offer:
            return False
        if session.run != received.turn[0] or (task is not None and task.ask == END):
            return False
        return received.rounds >= self._parent.rounds or task is not None

    def _offer(self, received: ParentRecord, state: Any) -> None:  # noqa: ANN401 - the half's own
        try:
            n = self._session.offer(received, np.array(state.w, np.float64))
        except StoreFull as error:
            logger.warning("parent disk full %s", fields(why=error))
            return
        run, number, _, _ = received.turn
        about = {"run": run, "round": number, "base": received.version}
        logger.info("site update offered %s", fields(**about, rounds=received.rounds, n=n))

    def _may_adopt(self, task: Task, received: ParentRecord | None) -> bool:
        session = self._session
        if received is None or received.rounds == 0 or task.ask == END:
            return True
        is_former_run = session.run != received.turn[0]
        return is_former_run or session.is_offered(received) or bool(session.why_silent)

    def _adopt(self, task: Task, received: ParentRecord | None) -> None:
        session, driver = self._session, self._driver
        engine = driver.engine
        run, number, attempt, step = turn = session.turn_of(task)
        is_last, before = task.ask == END, engine.state.round
        if received is not None and received.turn == turn and not is_last:
            session.adopted(received)  # recorded before a restart
            return
        carry = np.zeros(0)
        if received is not None and received.turn[0] == run and not is_last:
            carry = session.progress_since_offer(received, engine.state.w)
        vector = next(iter(task.arrays.values()))
        model = ParentModel(run, number, attempt, step, task.base, vector, carry, is_last)
        self.parts.isolation.step("parent model", lambda: driver.adopt(model), run=driver.number)
        driver.report_closed()
        after = ParentRecord.of(engine.state)
        if after is None or after.turn != turn or after.version != task.base:
            if engine.state.round != before:  # it was applied, and the model is not finite
                session.refuse_task()
            return
        session.adopted(after)
        self._is_alone = False
        about = {"run": run, "round": number, "version": task.base, "carried": bool(carry.size)}
        logger.info("parent model adopted %s", fields(**about, last=is_last))

    def _note_alone(self, received: ParentRecord | None) -> None:
        is_alone = received is None or received.rounds >= self._parent.rounds
        if is_alone and not self._is_alone:
            about = {"linked": self._session.is_linked, "pending": self._session.pending}
            logger.warning("site alone %s", fields(**about, patience=self._parent.patience))
        self._is_alone = is_alone
