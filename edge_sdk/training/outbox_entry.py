"""Build the result of a trained round: the state of the half, and the sealed update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from edge_sdk.app.extensions import ExtensionIndex
from edge_sdk.config import Config
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.codec import encode, pack_tensor
from edge_sdk.protocol.contract.method import CONTRACTS, Ask, Task, Update
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.protocol.keys import Signer
from edge_sdk.protocol.msgpack_reader import binary, text
from edge_sdk.protocol.outbox_state import OutboxEntry, UplinkCounters
from edge_sdk.session.manifest_checks import NewestAnnouncements
from edge_sdk.store.rows import LearnedState
from edge_sdk.training.model_runtime import ModelRuntime

Residual = Mapping[str, Any]
"""Leaves of the rounding error of updates, which an encoding adds to the next one."""

FEEDBACK = ExtensionIndex("edge_sdk").loaders("feedback")
"""Functions that import the constructor of a lossy update encoding, by the name of the encoding."""

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
            **({} if residual is None else {"residual": residual}),
        },
    )


class UpdateSealer:
    """Maker of an update's outbox entry, whose bytes never change afterwards.

    Args:
        config: Configuration with the ids of device and fleet.
        signer: Key of the device.
    """

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
    """Return the encoding of the update that answers a task.

    Args:
        residual: Rounding error of the run's updates that has not been sent yet; None if exact.
    """
    if enc not in FEEDBACK:
        return UplinkEncoding(enc)
    found: UplinkEncoding = FEEDBACK[enc]()(enc, update, task, residual, device=device, run=run)
    return found


_PROOF = 72  # bytes of a signature in an envelope, with its head


def update_bytes(config: Config, spec: ParamSpec) -> int:
    """Return the payload bytes of one update with its envelope (MQTT, TLS and IP come on top)."""
    if not spec.shared_size:
        return 0
    blob, about = bytes(4 * spec.shared_size), (spec.digest, "delta", "f4", 64, {"loss": 0.5})
    update = m.UpdateMessage(1, 100, 100, 1, 100, 100, *about, blob=blob)
    return 2 + sum(
        map(len, (text("update"), text(config.id), binary(encode(update)), binary(bytes(_PROOF))))
    )
