"""Define the section ``[sums]`` of the aggregator's configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from edge_sdk.app.extensions import ExtensionIndex
from edge_sdk.app.schema import Between, Length, Matches
from edge_sdk.app.settings import Duration, seconds
from edge_sdk.extensions.sums.messages import (
    CONTRACTS_LIMIT,
    DEVICES_LIMIT,
    LENGTH_LIMIT,
    Name,
    SumContract,
    unknown_source,
)
from edge_sdk.privacy.noise import epsilon_of

if TYPE_CHECKING:
    from aggregator.config import AggregatorConfig

DELTA = 1e-5
YEAR = 365 * 86_400_000  # ms
LEAST = 8
"""Devices below which a contract is refused unless ``sums.few`` is true."""

Hex = Annotated[str, Matches(r"[0-9a-f]{64}")]


@dataclass(frozen=True, slots=True)
class ContractSection:
    """Terms of a sum, as a table ``[[sums.contract]]``."""

    name: Name
    # history: readings of each whole period; tomorrow: the expected values of the one that begins
    source: Name
    stream: str  # canonical stream, in its own unit
    unit: str  # unit of the stream
    lowest: float  # lower values are raised to it
    highest: float  # higher values are lowered to it
    resolution: float  # numbers are rounded to multiples of it
    length: Annotated[int, Between(1, LENGTH_LIMIT)] = 96  # numbers of a period
    period: Duration = "1d"
    offset: Duration = "0s"  # periods begin so long after midnight, UTC
    due: Duration = "30h"  # time after a period's begin at which it is closed
    least: Annotated[int, Between(2, DEVICES_LIMIT)] = 20  # devices without which no sum is opened
    cohort: str = ""  # label by whose value devices are added up; empty: all together
    norm: Annotated[float, Between(0.0, 1e30)] = 0.0  # a longer vector is shortened to it; 0: none
    # standard deviation of the noise that the devices add together, in unit; 0: none
    noise: Annotated[float, Between(0.0, 1e30)] = 0.0

    def terms(self, witness: bytes) -> SumContract:
        """Return the contract; raise ValueError if it could overflow or has no whole step.

        Args:
            witness: X25519 public key of the witness.
        """
        of = self
        period, offset, due = (round(1000 * seconds(x)) for x in (of.period, of.offset, of.due))
        return SumContract(
            of.name, of.source, of.stream, of.unit, of.length, of.lowest, of.highest, of.resolution,
            period, due, of.least, witness, offset, of.cohort, of.norm, of.noise,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SumsSection:
    """Sums of masked numbers, which only a witness of another organisation can open."""

    # one table for each contract; its keys are on the page about sums
    contract: Annotated[tuple[ContractSection, ...], Length(0, CONTRACTS_LIMIT)] = ()
    witness_open: Hex = "00" * 32  # X25519 key of the witness: gridfed-witness sum-keys
    witness_sign: Hex = "00" * 32  # Ed25519 key of its answers
    witness: str = ""  # id under which the witness is enrolled, for sets over the broker
    few: bool = False  # allow contracts of fewer than 8 devices: a sum of few hides little
    keep_days: Annotated[int, Between(1, 3650)] = 40  # days for which masked numbers are kept

    def __post_init__(self) -> None:
        """Refuse contracts of an unknown source, that hide little, that clash, or that have no witness."""
        for one in self.contract:
            one.terms(bytes(32))
            if why := unknown_source(one.source, ExtensionIndex("edge_sdk")):
                raise ValueError(f"contract {one.name}: source: {why}")
            if one.least < LEAST and not self.few:
                raise ValueError(
                    f"contract {one.name}: least: a sum of {one.least} devices hides little; expected at "
                    f"least {LEAST}, or few = true"
                )
        for key in ("name", "source"):
            values = [getattr(one, key) for one in self.contract]
            if len(set(values)) < len(values):
                raise ValueError(f"contract: two contracts have one {key}")
        if self.contract and not (int(self.witness_open, 16) and int(self.witness_sign, 16)):
            raise ValueError("witness_open, witness_sign: expected the keys of a witness")

    def contracts(self) -> tuple[SumContract, ...]:
        """Return the contracts that the root is to sign."""
        return tuple(one.terms(bytes.fromhex(self.witness_open)) for one in self.contract)


def year_of_noise(config: AggregatorConfig) -> dict[str, str]:
    """Return for ``check`` what all sums of a year reveal of one device, by contract with noise.

    It is the ε of all that the device can have sent, at a δ of 10⁻⁵.
    """
    found = {}
    for one in config.section("sums").contracts():
        if one.Noise:
            sums = math.ceil(YEAR / one.period)
            loss = epsilon_of(one.multiplier / math.sqrt(sums), DELTA)
            once = epsilon_of(one.multiplier, DELTA)
            text = (
                f"epsilon {once:.3g} a sum, {loss:.3g} for {sums} sums of a year, delta {DELTA:g}"
            )
            found[f"sums.contract {one.name}"] = text
    return found
