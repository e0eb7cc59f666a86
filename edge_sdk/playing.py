"""The client's side of a round that has turns: what perishes is answered, and nothing of it kept.

``Client`` adds the disk: what leaves as an update is paid for and saved there.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

from edge_sdk.config import Config
from edge_sdk.errors import StoreFull
from edge_sdk.learner import Learner
from edge_sdk.methods.station import SERVE, SHARE
from edge_sdk.privacy.ledger import BudgetSpent
from edge_sdk.program import fields
from edge_sdk.runtime import GraphError
from edge_sdk.session import Session
from edge_sdk.wire.errors import Refused
from edge_sdk.wire.method import CONTRACTS, Due, Effects, Signal, Task

logger = logging.getLogger(__name__)

_ASK_AGAIN = 30.0  # s until a forecast's help is asked for again


class GivenUp(Exception):  # noqa: N818 - raised between two batches: nothing has happened
    """The training at hand is of no use any more."""


class Playing(ABC):
    """What a client does with questions that perish."""

    config: Config
    _session: Session
    _learner: Learner
    _state: Any
    _opened: Task | None
    _asked_for: tuple[int, float]
    _half: float

    def play_nothing(self) -> None:
        """Begin with no round open and no forecast asked for."""
        self._opened, self._asked_for, self._half = None, (-1, 0.0), 0.0

    @abstractmethod
    def handle(self, event: Task, asked: Task | None = None) -> None:
        """Think, protect, charge, save, send: how an update leaves."""

    @abstractmethod
    def _stop_telling(self, why: object) -> None:
        """Let nothing leave any more, and say so once."""

    @property
    def _plays(self) -> bool:
        """Whether a round of this run has turns that perish."""
        return any(ask.perishable for ask in CONTRACTS[self._learner.role.method].values())

    def _open(self, task: Task) -> None:
        """Take a round's question over; it is answered when its turns are over."""
        self._opened = self._session.at_work = task
        self._tell(*self._learner.play(self._state, task), task)

    def _play(self) -> None:
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
                    self._tell(*self._learner.play(self._state, task), task)
            except GraphError as error:
                self._session.counts["questions not answered"] += 1
                logger.warning("not answered %s", fields(ask=task.ask, why=error))
            self._session.serve(0.0)
        if SERVE in CONTRACTS[self._learner.role.method] and self._session.may_ask:
            self._ask_for_the_graph()

    def _ask_for_the_graph(self) -> None:
        """Ask what the graph says of the newest window, now and then until it has said it."""
        newest, now = self._learner.newest(), self._session.now
        number, at = self._asked_for
        if newest is None or (newest[0] == number and now - at < _ASK_AGAIN):
            return
        if self._learner.helped_at(self._state) == newest[0]:
            return
        self._asked_for = newest[0], now
        due, values = Due(0, SERVE, newest[0]), {"half": self._half}
        self._session.counts["graph asked"] += 1
        asked = Task(self.config.id, 0, SERVE, values=values)
        self._tell(*self._learner.play(self._state, due), asked)

    def _tell(self, state: Any, effects: Effects, task: Task) -> None:  # noqa: ANN401 - the half's own type
        """Take a state over that is not saved, and send the signals that came with it."""
        self._state = state
        told = self._learner.mechanism.plan.tells
        enc = "f2" if task.values.get("half", 0.0) == 1.0 else "f4"
        asks = CONTRACTS[self._learner.role.method]
        for effect in effects:
            if not isinstance(effect, Signal):
                continue
            stopped = self._session.why_stopped
            if stopped and not (effect.ask == SERVE and stopped == "stop"):
                continue  # a forecast is helped when the run is over, too
            hidden = {n.name for n in asks[effect.ask].report if n.measured and not told}
            values = {name: v for name, v in effect.values.items() if name not in hidden}
            try:
                self._session.signal(replace(effect, values=values), enc)
            except Refused:
                self._session.counts["signals not finite"] += 1

    def _share(self, call: Task) -> None:
        """Answer the open round with what its turns led to."""
        session, asked = self._session, self._opened
        if asked is None or call.round != asked.round:
            return
        try:
            self.handle(call, asked)
        except (GivenUp, BudgetSpent, StoreFull) as error:  # the server asks again
            if isinstance(error, BudgetSpent):
                self._stop_telling(error)
            session.counts["rounds not released"] += 1
            return
        if session.seen.round == asked.round:
            self._opened = session.at_work = None
            session.counts["rounds"] += 1
            logger.info("round played %s", fields(run=session.seen.run, round=asked.round))
