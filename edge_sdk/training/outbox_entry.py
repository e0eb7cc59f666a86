"""Build what is saved of a trained round: the state of the half, and the sealed update."""

from __future__ import annotations

from typing import Any, Protocol

from edge_sdk.config import Config
from edge_sdk.session.manifest_checks import NewestAnnouncements
from edge_sdk.store.store import LearnedState
from edge_sdk.training.error_feedback import Residual, UplinkEncoding
from edge_sdk.training.model_runtime import ModelRuntime
from edge_sdk.wire.contract.method import CONTRACTS, Task, Update
from edge_sdk.wire.keys import Signer
from edge_sdk.wire.protocol import messages as m
from edge_sdk.wire.protocol.outbox_state import OutboxEntry, UplinkCounters
from edge_sdk.wire.protocol.signed_body import signed_body

OWN = 2**40
"""First number of the rounds that a device sets itself; no server reaches it."""


def record(
    state: Any,  # noqa: ANN401 - the half's own type
    task: Task,
    learner: ModelRuntime,
    seen: NewestAnnouncements,
    residual: Residual | None = None,
) -> LearnedState:
    """Return the state to be saved; a local round does not count as one of the run's.

    Args:
        state: Learned state of the half.
        task: Task that led to it.
        learner: Model runtime of the bundle.
        seen: The run, and the last task of it.
        residual: Rounding error of the updates that has not been sent yet; None if exact.
    """
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
            **({} if residual is None else {"residual": residual.leaves()}),
        },
    )


class UpdateSealer(Protocol):
    """Make the outbox entry of an update; its bytes never change afterwards."""

    def seal(
        self,
        update: Update,
        task: Task,
        numbers: UplinkCounters,
        *,
        run: int,
        learner: ModelRuntime,
        encoding: UplinkEncoding,
        encrypt_to: bytes | None = None,
    ) -> OutboxEntry:
        """Number, encode, encrypt and sign an update.

        Args:
            update: Update as released by the mechanism.
            task: Task that it answers.
            numbers: Last sequence number used, and the release count including this update.
            run: Run of the task.
            learner: Model runtime of the bundle.
            encoding: Encoding of the update's vector.
            encrypt_to: Raw X25519 key of the aggregator; None if updates are sent clear.

        Raises:
            Refused: CANNOT_OPEN: the key is of small order, and agrees on no secret.
        """


class SignedSealer:
    """The sealer of a device: the update of its contract, signed with its key.

    Args:
        config: Configuration with the ids of device and fleet.
        signer: Signing key of the device.
    """

    def __init__(self, config: Config, signer: Signer) -> None:
        self._config, self._signer = config, signer

    def seal(
        self,
        update: Update,
        task: Task,
        numbers: UplinkCounters,
        *,
        run: int,
        learner: ModelRuntime,
        encoding: UplinkEncoding,
        encrypt_to: bytes | None = None,
    ) -> OutboxEntry:
        """Number, encode, encrypt and sign an update, as ``UpdateSealer``."""
        message = update_message(update, task, numbers, run=run, learner=learner, encoding=encoding)
        body, proof = signed(
            message, config=self._config, signer=self._signer, encrypt_to=encrypt_to
        )
        return OutboxEntry(
            life=message.life,
            seq=message.seq,
            body=body,
            proof=proof,
            run=message.run,
            round=message.round,
            base=message.base,
            spec=message.spec,
            spent=message.spent,
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
    """Return the message of an update, with the numbers that its contract declares."""
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


def signed(
    message: m.UpdateMessage, *, config: Config, signer: Signer, encrypt_to: bytes | None = None
) -> tuple[bytes, bytes]:
    """Return the body of an update message, encrypted if a key is given, and its signature."""
    return signed_body(
        message, fleet=config.fleet, sender=config.id, signer=signer, encrypt_to=encrypt_to
    )
