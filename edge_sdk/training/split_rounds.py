"""The client's side of a round that has turns: what perishes is answered, and nothing of it kept.

What the turns come to leaves as one update, which ``TrainingTransaction`` pays for and saves.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from edge_sdk.app.cli import fields
from edge_sdk.errors import StoreFull
from edge_sdk.methods.split import SERVE, SHARE
from edge_sdk.privacy.ledger import BudgetSpent
from edge_sdk.runtime import GraphError
from edge_sdk.session.session import Session
from edge_sdk.training.active_run import GivenUp, Work
from edge_sdk.training.training_transaction import TrainingTransaction
from edge_sdk.wire.contract.method import Due, Effects, Signal, Task
from edge_sdk.wire.errors import Refused

logger = logging.getLogger(__name__)

_ASK_AGAIN = 30.0  # s until a forecast's help is asked for again


class SplitRounds:
    """What a client does with questions that perish.

    The round whose turns are open is the session's ``at_work``: it is at work on nothing else.
    """

    def __init__(
        self, device: str, session: Session, work: Work, answering: TrainingTransaction
    ) -> None:
        """Begin with no forecast asked for."""
        self._device, self._session, self._work = device, session, work
        self._answering = answering
        self._asked_for, self._half, self._not_served = (-1, 0.0), 0.0, ""

    @property
    def has_turns(self) -> bool:
        """Whether a round of this run has turns that perish."""
        return any(ask.perishable for ask in self._work.contract.values())

    def open(self, task: Task) -> None:
        """Take a round's question over; it is answered when its turns are over."""
        self._session.at_work = task
        self._tell(*self._work.learner.play(self._work.state, task), task)

    def play(self) -> None:
        """Take what perishes, in the order it came; then ask for the graph's word, if it is new."""
        calls = self._session.calls.waiting
        while calls:
            task = calls.popleft()
            if task.arrays and task.ask != "encode":  # as these come, a forecast's shall go
                self._half = task.values.get("half", 0.0)
            try:
                if task.ask == SHARE:
                    self._share(task)
                else:
                    self._tell(*self._work.learner.play(self._work.state, task), task)
            except GraphError as error:
                self._session.counts["questions not answered"] += 1
                logger.warning("not answered %s", fields(ask=task.ask, why=error))
            self._session.serve(0.0)
        if SERVE in self._work.contract and self._session.may_ask:
            self._ask_for_the_graph()

    def _ask_for_the_graph(self) -> None:
        """Ask what the graph says of the newest window, now and then until it has said it."""
        learner, now = self._work.learner, self._session.now
        newest, (number, at) = learner.newest, self._asked_for
        if newest is None or (newest == number and now - at < _ASK_AGAIN):
            return
        if learner.helped_at(self._work.state) == newest:
            return
        self._asked_for = newest, now
        why = self._why_not_served()
        state, effects = self._work.state, Effects()
        if not why:  # this draws and charges the noise of readings that have none yet
            state, effects = learner.play(self._work.state, Due(0, SERVE, newest))
            why = "" if effects else "window not learnable"
        self._note_not_served(why)
        if effects:
            self._session.counts["graph asked"] += 1
            self._tell(state, effects, Task(self._device, 0, SERVE, values={"half": self._half}))

    def _why_not_served(self) -> str:
        """Return why the newest window may not leave now; empty if it may."""
        stopped = self._session.why_stopped
        if stopped == "stop":  # a forecast is helped when the run is over, too
            return self._session.why_silent
        return stopped

    def _note_not_served(self, why: str) -> None:
        """Count a window that stays here, and log the reason when it changes."""
        if why:
            self._session.counts["graph not asked"] += 1
        if why and why != self._not_served:
            logger.warning("forecasts without the graph model %s", fields(why=why))
        self._not_served = why

    def _tell(self, state: Any, effects: Effects, task: Task) -> None:  # noqa: ANN401 - the half's own type
        """Take a state over that is not saved, and send the signals that came with it."""
        self._work.state = state
        told = self._work.spending.mechanism.plan.tells
        enc = "f2" if task.values.get("half", 0.0) == 1.0 else "f4"
        for effect in effects:
            if not isinstance(effect, Signal):
                continue
            if self._why_not_served() if effect.ask == SERVE else self._session.why_stopped:
                continue
            report = self._work.contract[effect.ask].report
            shown = {n.name for n in report if told or not n.measured}
            values = {name: v for name, v in effect.values.items() if name in shown}
            try:
                self._session.signal(replace(effect, values=values), enc)
            except Refused:
                self._session.counts["signals not finite"] += 1

    def _share(self, call: Task) -> None:
        """Answer the open round with what its turns led to."""
        session, asked = self._session, self._session.at_work
        if asked is None or call.round != asked.round:
            return
        try:
            self._answering.handle(call, asked)
        except (GivenUp, BudgetSpent, StoreFull) as error:  # the server asks again
            if isinstance(error, BudgetSpent):
                self._work.spending.stop(error)
            session.counts["rounds not released"] += 1
            return
        if session.seen.round == asked.round:
            session.at_work = None
            session.counts["rounds"] += 1
            logger.info("round played %s", fields(run=session.seen.run, round=asked.round))
