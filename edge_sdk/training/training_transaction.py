"""Process one task: train, add noise, record the privacy cost, commit, then send.

After a crash at any point, either the round was saved together with its release, and the same bytes
are sent, or nothing changed, and the same round is trained again with identical bits.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from edge_sdk.app.cli import fields
from edge_sdk.errors import StoreFull
from edge_sdk.privacy.ledger import BudgetSpent
from edge_sdk.runtime import GraphError
from edge_sdk.session.agenda import Agenda
from edge_sdk.session.session import Session
from edge_sdk.store.store import DeviceStore
from edge_sdk.training.active_run import ActiveRun, GivenUp
from edge_sdk.training.error_feedback import UplinkEncoding, rounding_seed, uplink_encoding
from edge_sdk.training.flush_scheduler import FlushScheduler
from edge_sdk.training.outbox_entry import OWN, UpdateSealer, record
from edge_sdk.wire.contract.method import END, Task, Update
from edge_sdk.wire.errors import Reason, Refused, SignerUnavailable
from edge_sdk.wire.protocol.block_quantisation import LARGEST_STEP
from edge_sdk.wire.protocol.codec import Leaf
from edge_sdk.wire.protocol.messages import UpdateMessage

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
        sealer: UpdateSealer,
    ) -> None:
        """Keep the parts that a transaction uses."""
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
            if task.round < OWN:
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
        if updates and not accountant.may_release:
            raise GivenUp  # stopped, or the numbers are not confirmed yet
        encrypt_to = self._encryption_key() if updates else None
        charges, account = accountant.cost(len(updates))
        released = [accountant.mechanism.release(update) for update in updates]
        numbers = session.outbox.numbers
        numbers = replace(numbers, spent=numbers.spent + len(released))
        entry, residual = None, active.residual
        if released:
            encoding = self._encoding(released[0], task)
            entry = self._sealer.seal(
                released[0],
                task,
                numbers,
                run=session.seen.run,
                learner=active.learner,
                encoding=encoding,
                encrypt_to=encrypt_to,
            )
            residual = encoding.residual(released[0], run=session.seen.run)
        numbers = replace(numbers, seq=entry.seq) if entry is not None else numbers
        learned = record(state, task, active.learner, session.seen, residual)
        stored = session.as_stored(entry) if entry is not None else None
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
        session.record_trained((learned.round, *learned.leaves["turn"]), learned.version)
        if entry is not None and stored is not None:
            session.release(entry, stored)

    def _encryption_key(self) -> bytes | None:
        """Return the key to which an update must be encrypted, or None.

        Raises:
            GivenUp: It must be encrypted, and no key has been announced.
        """
        try:
            return self._session.encryption_key(UpdateMessage.kind)
        except Refused as refused:
            logger.warning("update not released %s", fields(why=refused))
            raise GivenUp from refused

    def _encoding(self, update: Update, task: Task) -> UplinkEncoding:
        """Return the encoding of an update, with the residual of earlier ones."""
        active, session = self._active, self._session
        announced, welcome = session.announced, session.outbox.welcome
        ask = active.contract[task.ask]
        enc = uplink_encoding(
            ask,
            announced.encs if announced is not None else (),
            welcome.caps if welcome is not None else (),
        )
        if enc not in LARGEST_STEP:
            return UplinkEncoding(enc)
        run, size = session.seen.run, update.vector.size
        carried = np.zeros(size)
        if active.residual is not None:
            carried = active.residual.carried(run=run, round_=update.round, enc=enc, size=size)
        seed = rounding_seed(active.learner.config.id, run=run, task=task)
        return UplinkEncoding(enc, carried, seed)

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

    def save_exchange(self, state: Any, leaves: Mapping[str, Leaf], releases: int) -> None:  # noqa: ANN401 - the half's own type
        """Charge the releases to peers, and save the charges with the learned state.

        Args:
            state: State of the half.
            leaves: State of the peer exchange.
            releases: Number of releases.

        Raises:
            BudgetSpent: Or ``StoreFull``: then nothing has changed.
        """
        active, session, accountant = self._active, self._session, self._active.accountant
        charges, account = accountant.cost(releases)
        numbers, seen = session.outbox.numbers, session.seen
        numbers = replace(numbers, spent=numbers.spent + releases)
        me = active.learner.config.id
        here = Task(me, seen.round, "", seen.step, seen.version, attempt=seen.attempt)
        learned = record(state, here, active.learner, seen, active.residual)
        learned = replace(learned, leaves={**learned.leaves, "gossip": leaves})
        self._store.save(learned=learned, numbers=numbers, charges=charges)
        session.adopt_numbers(numbers)
        active.advance(state)
        accountant.adopt_account(account)
        accountant.mechanism.begin()
