"""Process one task: train, add noise, record the privacy cost, commit, then send.

After a crash at any point, either the round was saved together with its release, and the same bytes
are sent, or nothing changed, and the same round is trained again with identical bits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from edge_sdk.app.cli import fields
from edge_sdk.app.extensions import ExtensionIndex
from edge_sdk.config import Config
from edge_sdk.errors import Reason, Refused, SignerUnavailable, StoreFull
from edge_sdk.privacy.ledger import BudgetSpent
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.codec import encode, pack_tensor
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.protocol.contract.method import CONTRACTS, END, Ask, Task, Update
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.protocol.keys import Signer
from edge_sdk.protocol.msgpack_reader import binary, text
from edge_sdk.protocol.outbox_state import OutboxEntry, UplinkCounters
from edge_sdk.runtime import GraphError
from edge_sdk.session.agenda import Agenda
from edge_sdk.session.manifest_checks import NewestAnnouncements
from edge_sdk.session.session import Session
from edge_sdk.store.rows import LearnedState
from edge_sdk.store.store import DeviceStore
from edge_sdk.training.active_run import OWN, TRAINED_UNTIL, ActiveRun, GivenUp, Residual
from edge_sdk.training.flush_scheduler import FlushScheduler
from edge_sdk.training.model_runtime import ModelRuntime

logger = logging.getLogger(__name__)

FEEDBACK = ExtensionIndex("edge_sdk").loaders("feedback")
"""Functions that import the constructor of a lossy update encoding, by the name of the encoding."""


def record(
    state: Any,  # noqa: ANN401 - the half's own type
    task: Task,
    learner: ModelRuntime,
    seen: NewestAnnouncements,
    residual: Residual | None = None,
) -> LearnedState:
    """Return the state to be saved; a local round does not count as one of the run's."""
    is_local, scale = task.round >= OWN, learner.scale
    turn = (seen.attempt, seen.step) if is_local else (task.attempt, task.step)
    return LearnedState(
        run=seen.run,
        round=seen.round if is_local else task.round,
        version=seen.version if is_local else task.base,
        spec=learner.spec.whole_digest,
        leaves={
            "half": state.arrays(),
            "scale": [scale.low, scale.high] if scale else [],
            "turn": list(turn),
            "noise": learner.mechanism.origin,
            **({} if residual is None else {"residual": residual}),
        },
    )


class UpdateSealer:
    """Maker of an update's outbox entry, whose bytes never change afterwards."""

    def __init__(self, config: Config, signer: Signer) -> None:
        self._config, self._signer = config, signer

    def seal(
        self, message: m.UpdateMessage, encrypt: Callable[[bytes], bytes] = bytes
    ) -> OutboxEntry:
        """Encode, encrypt and sign an update.

        Args:
            encrypt: Returns the body that is sent from a clear one.

        Raises:
            Refused: CANNOT_OPEN: the key is of small order, and agrees on no secret.
            SignerUnavailable: The signing key is away.
        """
        config = self._config
        return OutboxEntry.sealed(
            message, fleet=config.fleet, sender=config.id, signer=self._signer, encrypt=encrypt
        )


def update_message(
    update: Update,
    task: Task,
    numbers: UplinkCounters,
    *,
    run: int,
    learner: ModelRuntime,
    encoding: UplinkEncoding,
) -> m.UpdateMessage:
    """Return the message of an update, with the numbers that its contract declares.

    Args:
        update: Update as released by the mechanism.
        numbers: Last sequence number used, and the release count including this update.
        encoding: Encoding of the update's vector.
    """
    ask = CONTRACTS[learner.role.method][task.ask]
    declared = {"n", *(number.name for number in ask.report)}  # any other number is not sent
    values = {name: value for name, value in update.values.items() if name in declared}
    return m.UpdateMessage(
        run=run,
        round=update.round,
        base=update.base,
        life=numbers.life,
        seq=numbers.seq + 1,
        spent=numbers.spent,
        spec=learner.spec.digest,
        part=ask.up.value,
        enc=encoding.enc,
        n=int(values.pop("n", 0)),
        vals={name: value for name, value in values.items() if abs(value) <= m.FLOAT_LIMIT},
        check=update.check or None,
        blob=encoding.encode(update.vector),
    )


def uplink_encoding(ask: Ask, announced: tuple[str, ...], allowed: tuple[str, ...]) -> str:
    """Return the encoding of the updates that answer an ask.

    Args:
        announced: Encodings that the announced bundle allows; a quantised one is a wish.
        allowed: Encodings that the aggregator's welcome allows.

    >>> from edge_sdk.protocol.contract.method import Up
    >>> uplink_encoding(Ask(up=Up.DELTA), ("f4", "q4"), ("b1",))
    'f4'
    """
    wished = [enc for enc in announced if enc in FEEDBACK and enc in allowed]
    return wished[-1] if wished and ask.is_quantisable else ask.enc


class UplinkEncoding:
    """Encoding of one update."""

    def __init__(self, enc: str) -> None:
        self.enc = enc

    def encode(self, vector: NDArray[Any]) -> bytes:
        """Return the bytes of an update."""
        return pack_tensor(vector, self.enc)

    def residual(self, update: Update, *, run: int) -> Residual | None:  # noqa: ARG002 - for inexact ones
        """Return the rounding error after an update; None for an exact encoding."""
        return None


def encoding_of(
    enc: str, update: Update, task: Task, residual: Residual | None, *, device: str, run: int
) -> UplinkEncoding:
    """Return the encoding of the update that answers a task."""
    if enc not in FEEDBACK:
        return UplinkEncoding(enc)
    found: UplinkEncoding = FEEDBACK[enc]()(enc, update, task, residual, device=device, run=run)
    return found


_PROOF = 72  # bytes of a signature in an envelope, with its head


def update_bytes(config: Config, manifest: Manifest, spec: ParamSpec, method: str) -> int:
    """Return the payload bytes of one update with its envelope (MQTT, TLS and IP come on top)."""
    size = spec.shared_size
    if manifest.analytic is not None and method == "analytic":
        size = manifest.analytic.statistic_size(len(manifest.golden.yhat))
    if not size:
        return 0
    blob, about = bytes(4 * size), (spec.digest, "delta", "f4", 64, {"loss": 0.5})
    update = m.UpdateMessage(1, 100, 100, 1, 100, 100, *about, blob=blob)
    return 2 + sum(
        map(len, (text("update"), text(config.id), binary(encode(update)), binary(bytes(_PROOF))))
    )


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
            message = update_message(
                released[0], task, numbers, run=run, learner=learner, encoding=encoding
            )
            entry = self._sealer.seal(message, encrypt)
            residual = encoding.residual(released[0], run=run)
        numbers = replace(numbers, seq=entry.seq) if entry is not None else numbers
        learned = record(state, task, active.learner, session.seen, residual)
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
            return self._session.encryption(m.UpdateMessage.kind)
        except Refused as refused:
            logger.warning("update not released %s", fields(why=refused))
            raise GivenUp from refused

    def _encoding(self, update: Update, task: Task) -> UplinkEncoding:
        active, session = self._active, self._session
        announced, welcome = session.announced, session.outbox.welcome
        ask = active.contract[task.ask]
        enc = uplink_encoding(
            ask,
            announced.encs if announced is not None else (),
            welcome.caps if welcome is not None else (),
        )
        device, run = active.learner.config.id, session.seen.run
        return encoding_of(enc, update, task, active.residual, device=device, run=run)

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
