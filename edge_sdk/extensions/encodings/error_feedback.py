"""Add the rounding error of an update to the next update (error feedback)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.extensions.encodings.block_quantisation import QUANTISED_NORM, dequantise, quantise
from edge_sdk.protocol.codec import Leaf
from edge_sdk.protocol.contract.method import Task, Update
from edge_sdk.training.active_run import Residual
from edge_sdk.training.training_transaction import UplinkEncoding

RESIDUAL_LIMIT: Final = 0.25
"""Largest length of the residual that is added, as a share of the update's length."""

_SEED: Final = b"gridfed/1/rounding\0"


@dataclass(frozen=True, slots=True)
class SavedResidual:
    """The rounding error of a device's updates that has not been sent yet."""

    run: int
    round: int
    enc: str
    values: NDArray[np.float32]  # shape ``(P,)``, float32

    def leaves(self) -> dict[str, Leaf]:
        return {"run": self.run, "round": self.round, "enc": self.enc, "values": self.values}

    @classmethod
    def from_leaves(cls, leaves: Mapping[str, Any]) -> SavedResidual:
        values = np.asarray(leaves["values"], np.float32)
        return cls(int(leaves["run"]), int(leaves["round"]), str(leaves["enc"]), values)

    def carried(self, *, run: int, round_: int, enc: str, size: int) -> NDArray[np.float64]:
        """Return the error carried into the update of a round, halved for each round in between.

        A residual of another run, encoding or layout counts for nothing.

        >>> kept = SavedResidual(1, 4, "q4", np.array([8.0], np.float32))
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


class FeedbackEncoding(UplinkEncoding):
    """Encoding of one update with the residual of earlier ones."""

    def __init__(self, enc: str, carried: NDArray[np.float64], seed: bytes) -> None:
        super().__init__(enc)
        self._carried, self._seed = carried, seed

    def encode(self, vector: NDArray[Any]) -> bytes:
        return encode_with_feedback(vector, self._carried, self.enc, self._seed)[0]

    def residual(self, update: Update, *, run: int) -> Residual:
        _, values = encode_with_feedback(update.vector, self._carried, self.enc, self._seed)
        return SavedResidual(run, update.round, self.enc, values).leaves()


def with_feedback(
    enc: str, update: Update, task: Task, residual: Residual | None, *, device: str, run: int
) -> FeedbackEncoding:
    """Return the encoding of the update that answers a task, as ``training_transaction.encoding_of``."""
    carried = np.zeros(update.vector.size)
    if residual is not None:
        saved = SavedResidual.from_leaves(residual)
        carried = saved.carried(run=run, round_=update.round, enc=enc, size=carried.size)
    return FeedbackEncoding(enc, carried, rounding_seed(device, run=run, task=task))
