"""Build the result of a trained round: the state of the half, and the sealed update."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.config import Config
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.admission_policy import QUANTISED_NORM
from edge_sdk.protocol.block_quantisation import LARGEST_STEP, dequantise, quantise
from edge_sdk.protocol.codec import Leaf, pack_tensor
from edge_sdk.protocol.contract.method import CONTRACTS, Ask, Task, Update
from edge_sdk.protocol.keys import Signer
from edge_sdk.protocol.outbox_state import OutboxEntry, UplinkCounters
from edge_sdk.session.manifest_checks import NewestAnnouncements
from edge_sdk.store.rows import LearnedState
from edge_sdk.training.model_runtime import ModelRuntime

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
            **({} if residual is None else {"residual": residual.leaves()}),
        },
    )


class UpdateSealer(Protocol):
    """Maker of an update's outbox entry, whose bytes never change afterwards."""

    def seal(
        self,
        update: Update,
        task: Task,
        numbers: UplinkCounters,
        *,
        run: int,
        learner: ModelRuntime,
        encoding: UplinkEncoding,
        encrypt: Callable[[bytes], bytes] = bytes,
    ) -> OutboxEntry:
        """Number, encode, encrypt and sign an update.

        Args:
            update: Update as released by the mechanism.
            numbers: Last sequence number used, and the release count including this update.
            encoding: Encoding of the update's vector.
            encrypt: Returns the body that is sent from a clear one.

        Raises:
            Refused: CANNOT_OPEN: the key is of small order, and agrees on no secret.
        """


class SignedSealer:
    """The sealer of a device: the update of its contract, signed with its key.

    Args:
        config: Configuration with the ids of device and fleet.
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
        encrypt: Callable[[bytes], bytes] = bytes,
    ) -> OutboxEntry:
        """Number, encode, encrypt and sign an update, as ``UpdateSealer``."""
        message = update_message(update, task, numbers, run=run, learner=learner, encoding=encoding)
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


RESIDUAL_LIMIT: Final = 0.25
"""Largest length of the residual that is added, as a share of the update's length."""

_SEED: Final = b"gridfed/1/rounding\0"


@dataclass(frozen=True, slots=True)
class Residual:
    """The rounding error of a device's updates that has not been sent yet."""

    run: int
    round: int
    enc: str
    values: NDArray[np.float32]  # shape ``(P,)``, float32

    def leaves(self) -> dict[str, Leaf]:
        return {"run": self.run, "round": self.round, "enc": self.enc, "values": self.values}

    @classmethod
    def from_leaves(cls, leaves: Mapping[str, Any]) -> Residual:
        values = np.asarray(leaves["values"], np.float32)
        return cls(int(leaves["run"]), int(leaves["round"]), str(leaves["enc"]), values)

    def carried(self, *, run: int, round_: int, enc: str, size: int) -> NDArray[np.float64]:
        """Return the error carried into the update of a round, halved for each round in between.

        A residual of another run, encoding or layout counts for nothing.

        >>> kept = Residual(1, 4, "q4", np.array([8.0], np.float32))
        >>> [kept.carried(run=1, round_=r, enc="q4", size=1).tolist() for r in (5, 6, 7)]
        [[8.0], [4.0], [2.0]]
        >>> kept.carried(run=2, round_=5, enc="q4", size=1).tolist()
        [0.0]
        """
        if (self.run, self.enc, self.values.size) != (run, enc, size) or round_ < self.round:
            return np.zeros(size)
        missed = min(max(0, round_ - self.round - 1), 64)
        return np.asarray(self.values, np.float64) * 0.5**missed


def encode_with_feedback(
    vector: NDArray[Any], carried: NDArray[np.float64], enc: str, seed: bytes
) -> tuple[bytes, NDArray[np.float32]]:
    """Encode an update together with the residual of earlier ones.

    Args:
        vector: Update, shape ``(P,)``.
        carried: Residual of earlier updates, shape ``(P,)``; at most ``RESIDUAL_LIMIT`` times the
            update's length of it is used, so that the aggregator's bound on lengths still holds.
        enc: ``"q8"`` or ``"q4"``.
        seed: Seed of the rounding; the same seed gives the same bytes.

    Returns:
        The bytes to send, and the new residual, shape ``(P,)``.

    Example:
        Half a step is sent as 0 or as 1, and the next update makes up for it.

        >>> x, kept, sent = np.array([7.0, 0.5]), np.zeros(2), np.zeros(2)
        >>> for i in range(8):
        ...     blob, kept = encode_with_feedback(x, kept, "q4", bytes([i]))
        ...     sent += dequantise(blob, "q4", 2)
        >>> bool(np.abs(sent - 8 * x).max() <= 1.0)
        True
    """
    values = np.asarray(vector, np.float64)
    length = float(np.linalg.norm(values))
    wanted = values + bounded(carried, RESIDUAL_LIMIT * length)
    draws = np.random.Generator(np.random.Philox(key=int.from_bytes(seed[:16], "little")))
    blob = quantise(wanted, enc, draws.random(len(wanted)))
    if np.linalg.norm(dequantise(blob, enc, len(wanted))) > QUANTISED_NORM * length:
        blob, wanted = quantise(values, enc), values  # a few large scalars among many small ones
    residual = (wanted - dequantise(blob, enc, len(wanted))).astype(np.float32)
    return blob, residual


def bounded(vector: NDArray[np.float64], most: float) -> NDArray[np.float64]:
    """Shorten a vector to a length of at most ``most``."""
    length = float(np.linalg.norm(vector))
    return vector if length <= most else vector * (most / length)


def rounding_seed(device: str, *, run: int, task: Task) -> bytes:
    """Return the seed of the rounding of a task's answer: a digest of device and task.

    A task that is answered again after a crash gives the same bytes; no two tasks share a seed. The
    rounding hides nothing, so the seed may be known.
    """
    turn = (run, task.round, task.base, task.attempt, task.step)
    number = b"".join(n.to_bytes(8, "big", signed=True) for n in turn)
    return hashlib.sha256(_SEED + device.encode() + b"\0" + number).digest()


def uplink_encoding(ask: Ask, announced: tuple[str, ...], allowed: tuple[str, ...]) -> str:
    """Return the encoding of the updates that answer an ask.

    Args:
        announced: Encodings that the announced bundle allows; a quantised one is a wish.
        allowed: Encodings that the aggregator's welcome allows.

    >>> from edge_sdk.protocol.contract.method import Up
    >>> uplink_encoding(Ask(up=Up.DELTA), ("f4", "q4"), ("b1", "q4"))
    'q4'
    >>> uplink_encoding(Ask(up=Up.DELTA), ("f4", "q4"), ("b1",))
    'f4'
    """
    wished = [enc for enc in announced if enc in LARGEST_STEP and enc in allowed]
    return wished[-1] if wished and ask.is_quantisable else ask.enc


@dataclass(frozen=True, slots=True)
class UplinkEncoding:
    """Encoding of one update: a name, and the residual that is added before a quantised one."""

    enc: str
    carried: NDArray[np.float64] | None = None
    seed: bytes = b""

    def encode(self, vector: NDArray[Any]) -> bytes:
        """Return the bytes of an update."""
        if self.carried is None:
            return pack_tensor(vector, self.enc)
        return encode_with_feedback(vector, self.carried, self.enc, self.seed)[0]

    def residual(self, update: Update, *, run: int) -> Residual | None:
        """Return the rounding error after an update; None for an exact encoding."""
        if self.carried is None:
            return None
        _, values = encode_with_feedback(update.vector, self.carried, self.enc, self.seed)
        return Residual(run, update.round, self.enc, values)
