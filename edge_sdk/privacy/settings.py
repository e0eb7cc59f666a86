"""The ``[privacy]`` section: what a person says about what may leave. It cannot be left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from edge_sdk.wire.schema import Between, Length

Positive = Annotated[float, Between(1e-12, 1e12)]


@dataclass(frozen=True, slots=True)
class MechanismSection:
    """How what leaves is perturbed. ``none`` must be said aloud."""

    name: Literal["none", "gaussian", "laplace", "sign_gaussian", "sign_flip"]  # of the noise
    point: Literal["none", "input", "gradient", "update", "sign"] = "none"  # where noise is put in
    range: Annotated[tuple[float, ...], Length(0, 2)] = ()  # public range of the target's readings
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # of other streams
    public: tuple[str, ...] = ()  # streams that are nobody's secret: they stay as they are
    clip: Positive | None = None  # largest norm of an update, or of one window's gradient
    bound: Positive | None = None  # largest size of one coordinate, for sign_gaussian without clip
    multiplier: Positive | None = None  # noise over clip (or over the range); else from the budget
    epsilon: float | None = None  # of one release; at the input: of now, below the budget's
    calibration: Literal["analytic", "classical", "nbafl", "udp"] = "analytic"  # of Gaussian noise
    neighbours: Literal["replace", "add-remove"] = "replace"  # what two indistinct inputs are
    grid: bool = False  # take the last bits away: values on steps of 2^-20 of the sensitivity
    paper: Mapping[str, float] = field(default_factory=dict)  # numbers of nbafl's or udp's formula


@dataclass(frozen=True, slots=True)
class BudgetSection:
    """What may be told in all. When it is spent, nothing leaves any more; learning goes on."""

    epsilon: float | None = None  # of the unit, over everything that ever leaves
    delta: float = 1e-5  # below one in as many readings as are kept
    unit: Literal["reading", "window", "day", "device"] | None = None  # what one claim is about
    releases: Annotated[int, Between(1, 1_000_000_000)] | None = None  # updates at most
    outside: Annotated[int, Between(0, 1_000_000_000)] = 0  # first releases outside the claim
    at_start: Annotated[int, Between(0, 8)] = 0  # releases charged at every start of the program
    amplification: bool = False  # no sampling here earns any: true is refused


@dataclass(frozen=True, slots=True)
class PrivacySection:
    """What may leave, and how."""

    mechanism: MechanismSection
    mode: Literal["none", "honest", "paper"] = "none"  # paper: nothing is claimed
    budget: BudgetSection = field(default_factory=BudgetSection)
    metrics: Literal["auto", "told", "withheld"] = "auto"  # loss and counts beside an update
