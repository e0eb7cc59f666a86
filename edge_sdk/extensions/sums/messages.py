"""Define the messages of secure sums: the contracts, a device's masked numbers, and their receipt."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Final

from edge_sdk.app.extensions import ExtensionIndex
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.schema import Between, Length, Matches
from edge_sdk.protocol.messages import (
    SPAN_LIMIT,
    Moment,
    Ordinal,
    ProtocolMessage,
    PublicKey,
    Real,
    Ref,
    Text,
)

LENGTH_LIMIT: Final = 262_144
"""Most numbers of one vector: 2 MiB."""
DEVICES_LIMIT: Final = 2**20
"""Most devices of one sum."""
LEVELS_LIMIT: Final = 2**43
"""Largest integer that a device sends: the sum of all devices stays below 2^63, and never overflows."""
CONTRACTS_LIMIT: Final = 4
"""Most contracts of a fleet: one for each source."""
TIMED: Final = ("history", "tomorrow")
"""Sources of which each number belongs to an equal part of the period; others are named by the index."""

Name = Annotated[str, Matches(r"[a-z][a-z0-9-]{0,31}")]
Signature = Annotated[bytes, Length(64, 64)]
Contracts = Annotated[tuple[Annotated[bytes, Length(1, 1024)], ...], Length(0, CONTRACTS_LIMIT)]


def unknown_source(source: str, index: ExtensionIndex) -> str:
    """Return why a contract's source is none that devices of this version have; empty: they have it.

    >>> unknown_source("history", ExtensionIndex("edge_sdk"))
    ''
    """
    known = {*TIMED, *index.loaders("sums")}
    return "" if source in known else f"unknown {source!r}; known: {', '.join(sorted(known))}"


@dataclass(frozen=True, slots=True)
class SumContract(ProtocolMessage):
    """Terms of a sum: one vector of a device and a period. It is a part of ``SumsMessage``."""

    kind: ClassVar[str] = "contract"
    name: Name
    source: Name  # readings of a whole period, the expected values of one that begins, or another
    stream: Text  # canonical stream, or another name that the source defines
    unit: Text  # of the numbers below, and of the stream
    length: Annotated[int, Between(1, LENGTH_LIMIT)]  # numbers of one vector
    lowest: Real  # lower values are raised to it
    highest: Real  # higher values are lowered to it
    resolution: Real  # numbers are rounded to lowest plus a multiple of it
    period: Annotated[int, Between(1000, SPAN_LIMIT)]  # ms
    due: Annotated[int, Between(1, SPAN_LIMIT)]  # ms after a period's begin until it is closed
    least: Annotated[int, Between(2, DEVICES_LIMIT)]  # devices without which no sum is opened
    witness: PublicKey  # X25519 key that the seeds of the masks are agreed with
    offset: Annotated[int, Between(0, SPAN_LIMIT)] = 0  # ms: periods begin at it after a multiple
    cohort: Text = ""  # label of devices that are added up by its value; empty: all of them
    Norm: Real = 0.0  # a longer vector (Euclidean) is shortened to it; 0: none is
    Noise: Real = (
        0.0  # standard deviation of the noise in a sum of ``least`` devices, a tenth without
    )

    def __post_init__(self) -> None:
        """Refuse a contract whose sum could overflow, or whose numbers have no time of their own."""
        if not (self.lowest < self.highest and self.resolution > 0.0):
            raise ValueError("lowest, highest, resolution: expected lowest < highest, and above 0")
        if not 1 <= (self.highest - self.lowest) / self.resolution <= LEVELS_LIMIT:
            raise ValueError(
                f"resolution: expected 1 to 2^43 steps of it from lowest to highest, so that the sum "
                f"of 2^20 devices stays below 2^63; {self.resolution:g} is out of range"
            )
        if (self.is_timed and self.period % self.length) or self.offset >= self.period:
            raise ValueError("period: expected a multiple of length, above offset")
        if self.Norm < 0.0 or (self.Norm and not self.lowest <= 0.0 <= self.highest):
            raise ValueError("norm: expected 0 or more, and 0 between lowest and highest")
        if self.Noise and not (
            4.0 <= self.own_noise <= 2.0**36 and self.levels <= LEVELS_LIMIT // 2
        ):
            raise ValueError(
                f"noise: expected 4 to 2^36 steps of resolution in each device's part, and at most 2^42 "
                f"steps from lowest to highest; {self.own_noise:g} of {self.levels} steps is out of range"
            )

    @property
    def levels(self) -> int:
        """Return the largest integer that a device sends."""
        return math.floor((self.highest - self.lowest) / self.resolution + 1e-6)

    @property
    def is_timed(self) -> bool:
        """Return whether each number belongs to an equal part of the period."""
        return self.source in TIMED

    @property
    def step(self) -> int:
        """Return the milliseconds to which one number belongs."""
        return self.period // self.length if self.is_timed else self.period

    @property
    def own_noise(self) -> float:
        """Return the standard deviation of each device's noise, in steps of the resolution."""
        return self.Noise / math.sqrt(0.9 * self.least) / self.resolution

    @property
    def multiplier(self) -> float:
        """Return the noise of a sum over what one device can move it, whichever numbers it has.

        Two vectors of the box differ by its diagonal at most, and two of a length by twice that, or by √2 times if
        no number is negative. Rounding after the shortening moves each number by half a step.
        """
        root = math.sqrt(self.length)
        moved = root * (self.highest - self.lowest)
        if self.Norm:
            factor = math.sqrt(2.0) if self.lowest >= 0.0 else 2.0
            moved = min(moved, factor * self.Norm + root * self.resolution)
        return self.Noise / moved

    def begins(self, period: int) -> bool:
        """Return whether a period begins at a time, Unix milliseconds."""
        return period % self.period == self.offset

    def last_begin(self, now: int) -> int:
        """Return the begin of the period at a time, Unix milliseconds."""
        return now - (now - self.offset) % self.period


@dataclass(frozen=True, slots=True)
class SumsMessage(ProtocolMessage):
    """The contracts of a fleet, signed by its root. Retained; the latest replaces."""

    kind: ClassVar[str] = "sums"
    of_root = True
    of_fleet = True
    serial: Ordinal  # rises with every announcement
    contracts: Contracts  # canonical bytes of each, one for a source


@dataclass(frozen=True, slots=True)
class SumMessage(ProtocolMessage):
    """A device's masked numbers of one period, if its owner allows it. Receipted."""

    kind: ClassVar[str] = "sum"
    from_device = True
    is_encryptable = True
    is_offered = True
    of: Ref  # of the contract
    period: Moment  # begin of the period
    enc: PublicKey  # encapsulated key of the seed, for the witness
    proof: Signature  # of the device, which the witness verifies without the numbers
    blob: Annotated[bytes, Length(0, 8 * LENGTH_LIMIT)] = b""  # uint64 little-endian, masked


@dataclass(frozen=True, slots=True)
class SumReceiptMessage(ProtocolMessage):
    """Confirm that a device's masked numbers are stored."""

    kind: ClassVar[str] = "sumreceipt"
    of: Ref  # reference of the message
