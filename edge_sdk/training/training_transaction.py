"""Process one task: train, add noise, record the privacy cost, commit, then send.

After a crash at any point, either the round was saved together with its release, and the same bytes
are sent, or nothing changed, and the same round is trained again with identical bits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from edge_sdk.app.cli import fields
from edge_sdk.app.settings import seconds
from edge_sdk.config import Config
from edge_sdk.errors import Reason, Refused, SignerUnavailable, StoreFull
from edge_sdk.methods.local_sgd import TRAIN
from edge_sdk.privacy.ledger import BudgetSpent
from edge_sdk.protocol.contract.method import END, Task, Update
from edge_sdk.protocol.messages import UpdateMessage
from edge_sdk.runtime import GraphError
from edge_sdk.session.agenda import Agenda
from edge_sdk.session.session import Session
from edge_sdk.store.store import DeviceStore
from edge_sdk.training import outbox_entry
from edge_sdk.training.active_run import ActiveRun, GivenUp
from edge_sdk.training.flush_scheduler import FlushScheduler

logger = logging.getLogger(__name__)

TRAINED_UNTIL = "trained until"
"""Saved fact: time of the newest window at the last update, Unix seconds."""


class TrainingTransaction:
    """Processes a task: new state and, if it is released, one update in the outbox."""

    def __init__(
        self,
        *,
        store: DeviceStore,
        session: Session,
        agenda: Agenda,
        active: ActiveRun,
        scheduler: FlushScheduler,
        sealer: outbox_entry.UpdateSealer,
    ) -> None:
        self._store, self._session, self._agenda = store, session, agenda
        self._active, self._scheduler, self._sealer = active, scheduler, sealer
        self._waiting: tuple[int, int, int] | None = None

    def is_ready(self, task: Task) -> bool:
        """Return whether a task may run now: adopting the final model is always allowed.

        A task addressed to this device alone waits until there are windows to train on.
        """
        if task.ask == END:
            return True
        active, participation = self._active, self._session.participation
        is_allowed = participation.may_train and participation.accepts_encoding(active.ask.enc)
        if not (is_allowed and self._session.may_sign) or self._scheduler.blocking_limit():
            return False
        return active.is_common or len(active.learner.windows()) > 0

    def report_waiting(self, task: Task) -> None:
        """Log and report once that a task for this device alone waits for a complete window."""
        turn = task.round, task.attempt, task.step
        if turn == self._waiting or task.ask == END or self._active.is_common:
            return
        learner = self._active.learner
        if self._session.participation.may_train and not len(learner.windows()):
            self._waiting = turn
            self._session.refuse_round(Reason.NO_WINDOWS)
            why = learner.missing or "the targets were not all observed"
            logger.warning("round waiting %s", fields(round=task.round, why=why))

    def attempt(self, task: Task) -> None:
        """Train one round; abandon it without a trace if it cannot be finished or released.

        Without a complete window the device adopts the model, sends no update, and says so.
        """
        session, started_at = self._session, self._session.now
        learner = self._active.learner
        has_windows = task.ask == END or len(learner.windows()) > 0
        self._agenda.start(task)
        self._scheduler.count_time(awake=False)
        try:
            self.process(task)
        except GivenUp:
            session.count("rounds given up")
            if not self._active.is_common:
                self._agenda.postpone(task)
        except SignerUnavailable as error:  # nothing has changed; the same round is trained again
            session.note_signer(str(error))
            session.count("rounds not released")
            if task.round < outbox_entry.OWN:
                self._agenda.postpone(task)
        except (BudgetSpent, StoreFull, GraphError) as error:
            if isinstance(error, BudgetSpent):
                self._active.accountant.stop(error)
            session.count("rounds not released")
            logger.warning("update not released %s", fields(round=task.round, why=error))
        else:
            is_final, run = task.ask == END, session.seen.run
            if not has_windows:
                session.count("rounds without windows")
                session.refuse_round(Reason.NO_WINDOWS)
                why = learner.missing or "the targets were not all observed"
                logger.warning("round skipped %s", fields(run=run, round=task.round, why=why))
                return
            session.count("final models" if is_final else "rounds")
            task_fields = {"run": run, "round": task.round, "base": task.base}
            logger.info(
                "final model adopted %s" if is_final else "round trained %s",
                fields(**task_fields, seconds=session.now - started_at),
            )
        finally:
            self._agenda.finish()
            self._scheduler.count_time(awake=True)

    def process(self, event: Task, asked: Task | None = None) -> None:
        """Train, add noise, record the privacy cost, commit, then send.

        Parameters that fail the canary are rejected: the last good ones stay, the task counts as
        done, and no update is sent, unless ``_may_send_faulty`` allows it.

        Args:
            event: Event for the device half.
            asked: The task it answers, if that is a different one.

        Raises:
            BudgetSpent: Or ``StoreError``, or ``SignerUnavailable``: then nothing has changed.
            GivenUp: A newer task arrived, or no release is allowed now: nothing has changed either.
        """
        active, session, accountant = self._active, self._session, self._active.accountant
        state, effects = active.learner.learn(active.state, event)
        if asked is not None and not effects:  # the task it answers remains open
            active.advance(state)
            return
        task = asked or event
        is_returned = bool(active.fault_of(state))
        if is_returned:
            effects = effects if self._may_send_faulty(state, task) else ()
            state = active.last_good()
        if asked is None and task.ask != END and not len(active.learner.windows()):
            effects = ()  # nothing was learned, whatever the method would answer
        updates = [e for e in effects if isinstance(e, Update) and active.shares]
        if updates and not session.participation.may_release:
            raise GivenUp  # stopped, or the numbers are not confirmed yet
        encrypt = self._encryption() if updates else bytes
        charges, account = accountant.cost(len(updates))
        released = [accountant.mechanism.release(update) for update in updates]
        numbers = session.outbox.numbers
        numbers = replace(numbers, spent=numbers.spent + len(released))
        entry, residual = None, active.residual
        if released:
            encoding = self._encoding(released[0], task)
            run, learner = session.seen.run, active.learner
            message = outbox_entry.update_message(
                released[0], task, numbers, run=run, learner=learner, encoding=encoding
            )
            entry = self._sealer.seal(message, encrypt)
            residual = encoding.residual(released[0], run=run)
        numbers = replace(numbers, seq=entry.seq) if entry is not None else numbers
        learned = outbox_entry.record(state, task, active.learner, session.seen, residual)
        stored = session.parts.outbox.as_stored(entry) if entry is not None else None
        self._store.save(
            learned=learned,
            numbers=numbers,
            entry=stored,
            charges=charges,
            facts={
                **(active.returns if is_returned else {}),
                **({} if entry is None else {TRAINED_UNTIL: active.learner.recorded_until}),
            },
        )
        active.adopt(state, residual)
        accountant.adopt_account(account)
        session.parts.inbox.record_trained(
            (learned.round, *learned.leaves["turn"]), learned.version
        )
        if entry is not None and stored is not None:
            session.release(entry, stored)

    def _encryption(self) -> Callable[[bytes], bytes]:
        """Return the function from a clear body of an update to the one that is sent."""
        try:
            return self._session.encryption(UpdateMessage.kind)
        except Refused as refused:
            logger.warning("update not released %s", fields(why=refused))
            raise GivenUp from refused

    def _encoding(self, update: Update, task: Task) -> outbox_entry.UplinkEncoding:
        active, session = self._active, self._session
        announced, welcome = session.announced, session.outbox.welcome
        ask = active.contract[task.ask]
        enc = outbox_entry.uplink_encoding(
            ask,
            announced.encs if announced is not None else (),
            welcome.caps if welcome is not None else (),
        )
        device, run = active.learner.config.id, session.seen.run
        return outbox_entry.encoding_of(enc, update, task, active.residual, device=device, run=run)

    def _may_send_faulty(self, state: Any, task: Task) -> bool:  # noqa: ANN401 - as above
        """Return whether an update is sent although its parameters are at fault.

        It is sent where the received model was at fault, and training made it no worse, unless both
        ends compute on with the update. It is also sent where noise on the update hides the
        readings: its absence would reveal something that no account records.
        """
        active = self._active
        if active.accountant.mechanism.plan.hides_refusals:
            return True
        return not active.ask.mirrored and active.learner.mends(state, active.state, task)


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
        self._config, self._store, self._session = config, store, session
        self._active, self._transaction, self._scheduler = active, transaction, scheduler
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
        learner, local = self._active.learner, self._config.local_rounds
        training = learner.manifest.training
        values = {
            "steps": float(local.steps or training.steps),
            "rate": local.rate or training.rate,
        }
        w = learner.spec.shared(learner.vector(self._active.latest))
        return Task(
            self._config.id, outbox_entry.OWN + number, TRAIN, values=values, arrays={"w": w}
        )
