"""Run the device side of a split-learning round; perishable tasks are answered and not saved.

The round ends in one update, which ``TrainingTransaction`` charges and saves.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import replace
from typing import Any

from edge_sdk.app.cli import fields
from edge_sdk.errors import Refused, SignerUnavailable, StoreFull
from edge_sdk.extensions.papers.contracts import SHARE
from edge_sdk.extensions.papers.split.signal_inbox import MOST, SignalInbox, signal_messages
from edge_sdk.privacy.ledger import BudgetSpent
from edge_sdk.protocol.contract.method import END, SERVE, Due, Effects, Signal, Task
from edge_sdk.protocol.messages import TaskMessage
from edge_sdk.runtime import GraphError
from edge_sdk.session.manifest_checks import is_perishable
from edge_sdk.session.signed_link import VerifiedMessage
from edge_sdk.training.active_run import GivenUp
from edge_sdk.training.extension import DeviceExtension, DeviceParts

logger = logging.getLogger(__name__)

BETWEEN_ROUNDS = 0  # end of the round in a manifest while the next one waits for its start
_ASK_AGAIN = 30.0  # seconds until help with a forecast is requested again


class SplitRounds(DeviceExtension):
    """Answers the perishable tasks of split rounds.

    The open round is the agenda's current task: no other task runs meanwhile.
    """

    kinds = (TaskMessage.kind,)

    def __init__(self, device: DeviceParts) -> None:
        super().__init__(device)
        self._session, self._agenda, self._active = device.session, device.agenda, device.active
        self._requested, self._half, self._not_served = (-1, 0.0), 0.0, ""
        self._inbox = SignalInbox(device.config.id)
        self._signals: deque[Task] = deque(maxlen=MOST)
        self._run = device.session.seen.run

    def on_message(self, message: VerifiedMessage) -> None:
        """Keep the perishable tasks that are complete.

        Raises:
            Refused: As ``signal_inbox.judge``.
        """
        session, task = self._session, message.message
        inbox = session.parts.inbox
        is_held = session.participation.is_held or inbox.wanted is None
        if is_held or not isinstance(task, TaskMessage) or not is_perishable(task, inbox.wanted):
            return
        assert inbox.wanted is not None
        self._signals += self._inbox.receive(task, inbox.seen, inbox.wanted, session.now)

    def on_run(self) -> None:
        """Discard the tasks of another run."""
        if self._session.seen.run != self._run:
            self._run = self._session.seen.run
            self._clear()

    def limit_wait(self, timeout: float) -> float:
        due = self._session.now if self._signals else self._inbox.next_due
        return timeout if due is None else max(0.0, min(timeout, due - self._session.now))

    def _clear(self) -> None:
        self._signals.clear()
        self._inbox.clear()

    def on_task(self, task: Task) -> bool:
        """Start a split round; its task is answered when its steps are complete."""
        is_split = any(ask.perishable for ask in self._active.contract.values())
        if not is_split or task.ask == END:
            return False
        self._agenda.start(task)
        self._send(*self._active.learner.apply_perishable(self._active.state, task), task)
        return True

    def on_defect(self) -> None:
        """Discard the open round and its tasks."""
        self._agenda.finish()
        self._clear()

    def on_tick(self) -> None:
        """Answer perishable tasks in order of arrival; then request new graph output."""
        self._signals += self._inbox.tick(self._session.now)
        while self._signals:
            task = self._signals.popleft()
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
            self.device.serve(0.0)
            self._signals += self._inbox.tick(self._session.now)
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
            self._send(
                state, effects, Task(self.device.config.id, 0, SERVE, values={"half": self._half})
            )

    def _why_not_served(self) -> str:
        participation = self._session.participation
        if participation.why_stopped == "stop" or self._is_between_rounds:
            return participation.why_silent  # forecasts are helped without an open round, too
        return participation.why_stopped

    @property
    def _is_between_rounds(self) -> bool:
        """Return whether the run pauses between two rounds of its schedule, and not by an operator's order."""
        inbox = self._session.parts.inbox
        manifest = inbox.manifest
        is_pause = manifest is not None and manifest.phase == inbox.phase == "pause"
        return is_pause and manifest is not None and manifest.until == BETWEEN_ROUNDS

    def _note_not_served(self, why: str) -> None:
        if why:
            self._session.count("graph not asked")
        if why and why != self._not_served:
            logger.warning("graph model unavailable %s", fields(why=why))
        self._not_served = why

    def _send(self, state: Any, effects: Effects, task: Task) -> None:  # noqa: ANN401 - the half's own type
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
                self._send_signal(replace(effect, values=values), enc)
            except Refused:
                self._session.count("signals not finite")

    def _send_signal(self, signal: Signal, enc: str) -> None:
        """Send a perishable signal; drop it if it cannot be sent now.

        Raises:
            Refused: BAD_TENSOR: a scalar is not finite; nothing is sent.
        """
        session = self._session
        if session.participation.is_rationed or not session.is_linked:
            session.count("signals not sent")
            return
        messages = signal_messages(signal, enc, run=session.seen.run)
        size = sum(session.parts.link.send(message) for message in messages)
        session.count("signals")
        session.count(f"bytes up {signal.ask}", size)

    def _finish(self, call: Task) -> None:
        session, asked = self._session, self._agenda.current
        if asked is None or call.round != asked.round:
            return
        try:
            self.device.transaction().process(call, asked)
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
