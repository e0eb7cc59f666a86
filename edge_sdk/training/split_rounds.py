"""Run the device side of a split-learning round; perishable tasks are answered and not saved.

The round ends in one update, which ``TrainingTransaction`` charges and saves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from edge_sdk.app.cli import fields
from edge_sdk.errors import StoreFull
from edge_sdk.privacy.ledger import BudgetSpent
from edge_sdk.runtime import GraphError
from edge_sdk.session.agenda import Agenda
from edge_sdk.session.session import Session
from edge_sdk.training.active_run import ActiveRun, GivenUp
from edge_sdk.training.training_transaction import TrainingTransaction
from edge_sdk.wire.contract.method import SERVE, SHARE, Due, Effects, Signal, Task
from edge_sdk.wire.errors import Refused, SignerUnavailable

logger = logging.getLogger(__name__)

_ASK_AGAIN = 30.0  # seconds until help with a forecast is requested again


class SplitRounds:
    """Answers the perishable tasks of split rounds.

    The open round is the agenda's current task: no other task runs meanwhile.

    Args:
        device: Id of the device.
        session: Its session.
        agenda: Its pending work.
        active: The active run.
        transaction: Saves the update that ends a round.
        serve: Serves the network, and records what arrives.
    """

    def __init__(
        self,
        device: str,
        *,
        session: Session,
        agenda: Agenda,
        active: ActiveRun,
        transaction: TrainingTransaction,
        serve: Callable[[float], None],
    ) -> None:
        self._device, self._session, self._agenda = device, session, agenda
        self._active, self._transaction, self._serve = active, transaction, serve
        self._requested, self._half, self._not_served = (-1, 0.0), 0.0, ""

    @property
    def has_perishable_steps(self) -> bool:
        """Return whether the rounds of this run have perishable steps."""
        return any(ask.perishable for ask in self._active.contract.values())

    def open(self, task: Task) -> None:
        """Start a split round; its task is answered when its steps are complete."""
        self._agenda.start(task)
        self._send(*self._active.learner.apply_perishable(self._active.state, task), task)

    def answer(self) -> None:
        """Answer perishable tasks in order of arrival; then request new graph output."""
        signals = self._agenda.signals
        while signals:
            task = signals.popleft()
            if task.arrays and task.ask != "encode":  # a forecast uses the same encoding
                self._half = task.values.get("half", 0.0)
            try:
                if task.ask == SHARE:
                    self._finish(task)
                else:
                    self._send(
                        *self._active.learner.apply_perishable(self._active.state, task), task
                    )
            except GraphError as error:
                self._session.count("questions not answered")
                logger.warning("task not answered %s", fields(ask=task.ask, why=error))
            self._serve(0.0)
        if SERVE in self._active.contract and self._session.may_request:
            self._ask_for_the_graph()

    def _ask_for_the_graph(self) -> None:
        """Request the graph output for the newest window, at intervals until it arrives."""
        learner, now = self._active.learner, self._session.now
        newest, (number, at) = learner.newest, self._requested
        if newest is None or (newest == number and now - at < _ASK_AGAIN):
            return
        if learner.helped_at(self._active.state) == newest:
            return
        self._requested = newest, now
        why = self._why_not_served()
        state, effects = self._active.state, Effects()
        if not why:  # draws and charges the noise of readings that have none yet
            state, effects = learner.apply_perishable(self._active.state, Due(0, SERVE, newest))
            why = "" if effects else "window not learnable"
        self._note_not_served(why)
        if effects:
            self._session.count("graph asked")
            self._send(state, effects, Task(self._device, 0, SERVE, values={"half": self._half}))

    def _why_not_served(self) -> str:
        """Return why the newest window may not be sent now; empty if it may."""
        participation = self._session.participation
        if participation.why_stopped == "stop" or participation.is_between_rounds:
            return participation.why_silent  # forecasts are helped without an open round, too
        return participation.why_stopped

    def _note_not_served(self, why: str) -> None:
        """Count a window that is not sent, and log the reason when it changes."""
        if why:
            self._session.count("graph not asked")
        if why and why != self._not_served:
            logger.warning("graph model unavailable %s", fields(why=why))
        self._not_served = why

    def _send(self, state: Any, effects: Effects, task: Task) -> None:  # noqa: ANN401 - the half's own type
        """Adopt an unsaved state, and send the signals that came with it."""
        self._active.advance(state)
        sends_metrics = self._active.accountant.mechanism.plan.sends_metrics
        enc = "f2" if task.values.get("half", 0.0) == 1.0 else "f4"
        for effect in effects:
            if not isinstance(effect, Signal):
                continue
            stopped = self._session.participation.why_stopped
            if self._why_not_served() if effect.ask == SERVE else stopped:
                continue
            report = self._active.contract[effect.ask].report
            shown = {n.name for n in report if sends_metrics or not n.measured}
            values = {name: v for name, v in effect.values.items() if name in shown}
            try:
                self._session.send_signal(replace(effect, values=values), enc)
            except Refused:
                self._session.count("signals not finite")

    def _finish(self, call: Task) -> None:
        """Answer the task of the open round with the result of its steps."""
        session, asked = self._session, self._agenda.current
        if asked is None or call.round != asked.round:
            return
        try:
            self._transaction.process(call, asked)
        except (
            GivenUp,
            BudgetSpent,
            StoreFull,
            SignerUnavailable,
        ) as error:  # the server asks again
            if isinstance(error, BudgetSpent):
                self._active.accountant.stop(error)
            if isinstance(error, SignerUnavailable):
                session.note_signer(str(error))
            session.count("rounds not released")
            return
        if session.seen.round == asked.round:
            self._agenda.finish()
            session.count("rounds")
            logger.info("split round completed %s", fields(run=session.seen.run, round=asked.round))
