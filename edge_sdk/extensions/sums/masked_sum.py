"""Round a device's numbers, mask them, sign them, and read opened sums: integers modulo 2^64.

A device sends ``k + mask`` modulo 2^64, where k counts steps of the contract's resolution above its lowest
value, and the mask is a ChaCha20 stream of a fresh seed. The sum of masked vectors minus the sum of masks is
the sum of all k. No sum of 2^20 devices reaches 2^63, so it never wraps around.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.cli import fields
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.sums.messages import SumContract, SumMessage, SumsMessage
from edge_sdk.extensions.sums.seed import ExchangeKey, mask_of, new_seed
from edge_sdk.protocol.codec import decode, encode
from edge_sdk.protocol.keys import Signer

Integers = NDArray[np.uint64]
Floats = NDArray[np.float64]

logger = logging.getLogger(__name__)

_WORD = np.dtype("<u8")


@dataclass(frozen=True, slots=True)
class FollowedContract:
    """A contract with its digest, which every signature covers."""

    terms: SumContract
    digest: bytes  # SHA-256 of its canonical bytes (32 bytes)

    @property
    def ref(self) -> bytes:
        """Return the 16 bytes by which messages name it."""
        return self.digest[:16]

    @classmethod
    def read(cls, body: bytes) -> FollowedContract:
        """Read the bytes of a contract.

        Raises:
            Refused: MALFORMED: they are none, or not in canonical form.
        """
        terms = decode(SumContract, body)
        if encode(terms) != body:
            raise Refused(Reason.MALFORMED, "a contract that is not in canonical form")
        return cls(terms, hashlib.sha256(body).digest())


def contracts_of(announced: SumsMessage) -> tuple[FollowedContract, ...]:
    """Return the contracts of an announcement, without those with a key that must be understood and is not.

    Raises:
        Refused: MALFORMED: one cannot be read, or two have one name or one source.
    """
    found = tuple(_readable(announced.contracts))
    for values in ({one.terms.name for one in found}, {one.terms.source for one in found}):
        if len(values) < len(found):
            raise Refused(Reason.MALFORMED, "two contracts of one name or one source")
    return found


def _readable(bodies: Iterable[bytes]) -> Iterator[FollowedContract]:
    for body in bodies:
        try:
            yield FollowedContract.read(body)
        except Refused as refused:
            if refused.reason != Reason.UNKNOWN_FIELD:
                raise
            logger.warning("sum contract declined %s", fields(why=refused))


def rounded(values: Floats, terms: SumContract) -> Integers:
    """Clip and round numbers to steps of the resolution above the lowest value.

    Args:
        values: Finite numbers in the contract's unit, shape ``(length,)``.

    Raises:
        ValueError: Another number of values, or one that is not finite.

    >>> terms = SumContract("one", "history", "elec.import.power", "kW", 4, -10.0, 30.0, 0.5,
    ...                     86_400_000, 90_000_000, 8, bytes(32))
    >>> rounded(np.array([-99.0, -10.0, 0.2, 99.0]), terms)
    array([ 0,  0, 20, 80], dtype=uint64)
    """
    if values.shape != (terms.length,) or not np.isfinite(values).all():
        raise ValueError(f"expected {terms.length} finite numbers, got shape {values.shape}")
    clipped = np.clip(values, terms.lowest, terms.highest)
    if terms.Norm:
        clipped *= min(1.0, terms.Norm / max(float(np.linalg.norm(clipped)), terms.Norm))
    steps = np.rint((clipped - terms.lowest) / terms.resolution)
    return np.minimum(steps, terms.levels).astype(np.uint64)


def noised(steps: Integers, terms: SumContract) -> Integers:
    """Return rounded numbers with a device's part of the contract's noise, modulo 2^64.

    >>> terms = SumContract("one", "history", "elec.import.power", "kW", 2, 0.0, 9.0, 0.001,
    ...                     86_400_000, 90_000_000, 10, bytes(32), Noise=3.0)
    >>> drawn = noised(np.zeros(2, np.uint64), terms).astype(np.int64)
    >>> bool((abs(drawn) < 20_000).all()), round(terms.own_noise)  # 3 / sqrt(9) / 0.001 steps
    (True, 1000)
    """
    if not terms.Noise:
        return steps
    from edge_sdk.extensions.sums.discrete_noise import (  # noqa: PLC0415 - for noise alone
        discrete_gaussian,
    )

    return steps + discrete_gaussian(len(steps), terms.own_noise).astype(np.uint64)


def values_of(total: Integers, members: int, terms: SumContract) -> Floats:
    """Return an opened sum in the contract's unit.

    Args:
        total: Sum of the rounded vectors of all members.
    """
    signed = total.view(np.int64)  # noise may lead below 0
    found: Floats = signed.astype(np.float64) * terms.resolution + members * terms.lowest
    return found


def added(vectors: Iterable[Integers], length: int) -> Integers:
    """Add vectors modulo 2^64."""
    total = np.zeros(length, np.uint64)
    for one in vectors:
        total += one
    return total


def packed(vector: Integers) -> bytes:
    """Return a vector as 8 bytes a number, little-endian."""
    return vector.astype(_WORD).tobytes()


def unpacked(blob: bytes, length: int) -> Integers:
    """Read a vector; raise Refused, WRONG_SIZE, if it has another length."""
    if len(blob) != 8 * length:
        raise Refused(Reason.WRONG_SIZE, f"{len(blob)} bytes, expected {8 * length}")
    return np.frombuffer(blob, _WORD).astype(np.uint64)


@dataclass(frozen=True, slots=True)
class SumContext:
    """One period of one contract of one device, for which a seed and a signature are valid."""

    fleet: str
    device: str
    contract: bytes  # digest of the contract
    period: int  # begin, Unix milliseconds

    def info(self) -> bytes:
        """Return the context of the seed."""
        return b"gridfed/1/sum seed\0" + self._bytes()

    def signed(self, enc: bytes, masked: bytes) -> bytes:
        """Return the bytes that the device signs.

        Args:
            enc: Encapsulated key of the seed.
            masked: SHA-256 of the masked vector.
        """
        return b"gridfed/1/sum\0" + self._bytes() + enc + masked

    def _bytes(self) -> bytes:
        names = b"".join(
            bytes([len(raw)]) + raw for raw in (self.fleet.encode(), self.device.encode())
        )
        return names + self.contract + self.period.to_bytes(8, "big")


def masked_message(
    values: Floats,
    contract: FollowedContract,
    context: SumContext,
    signer: Signer,
    ephemeral: ExchangeKey | None = None,
) -> SumMessage:
    """Round, mask and sign the numbers of a period, with the contract's noise.

    Args:
        values: Finite numbers in the contract's unit, shape ``(length,)``.
        ephemeral: Key of this message; drawn unless given, and given by test vectors only.

    Raises:
        ValueError: Another number of values, one that is not finite, or a witness's key of small order.
        SignerUnavailable: The signing key is away.
    """
    terms = contract.terms
    enc, seed = new_seed(terms.witness, info=context.info(), ephemeral=ephemeral)
    steps = noised(rounded(values, terms), terms)
    blob = packed(added((steps, mask_of(seed, terms.length)), terms.length))
    signature = signer.sign(context.signed(enc, hashlib.sha256(blob).digest()))
    return SumMessage(contract.ref, context.period, enc, signature, blob)
