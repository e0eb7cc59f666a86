"""Define the sections ``[privacy]``, which is mandatory, and ``[scores]``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from edge_sdk.wire.schema import Between, Length

Positive = Annotated[float, Between(1e-12, 1e12)]
Ranges = Mapping[str, tuple[float, float]]
Numbers = Mapping[str, float]
Point = Literal["none", "input", "gradient", "statistic", "update", "sign"]
Releases = Annotated[int, Between(1, 10**9)]


@dataclass(frozen=True, slots=True)
class MechanismSection:
    """Perturbation of releases. ``none`` must be configured explicitly."""

    name: Literal["none", "gaussian", "laplace", "sign_gaussian", "sign_flip"]  # kind of noise
    point: Point = "none"  # where noise is added
    range: Annotated[tuple[float, ...], Length(0, 2)] = ()  # public range of the target's readings
    stream_ranges: Ranges = field(default_factory=dict)  # public ranges of other streams
    public_streams: tuple[str, ...] = ()  # streams that are not secret: they stay unchanged
    clip_norm: Positive | None = (
        None  # largest norm of an update, a window's gradient, or a design row
    )
    coordinate_bound: Positive | None = None  # largest coordinate, instead of clip_norm, for signs
    noise_multiplier: Positive | None = None  # noise over clip_norm or range; else from the budget
    epsilon: float | None = None  # budget of one release; at the input: the current one
    calibration: Literal["analytic", "classical", "nbafl", "udp"] = "analytic"  # of the noise
    adjacency: Literal["replace", "add-remove"] = "replace"  # definition of neighbouring inputs
    grid: bool = False  # round to a grid of 2^-20 of the sensitivity
    formula: Numbers = field(default_factory=dict)  # parameters of the nbafl or udp formula


@dataclass(frozen=True, slots=True)
class BudgetSection:
    """Total privacy budget. Once it is spent, no update is sent; local training continues."""

    epsilon: float | None = None  # epsilon per unit, over all releases
    delta: float = 1e-5  # below 1 / (number of stored readings)
    unit: Literal["reading", "window", "day", "device"] | None = None  # unit of the claim
    max_releases: Releases | None = None  # largest number of updates
    unclaimed_releases: Annotated[int, Between(0, 10**9)] = 0  # first releases outside the claim
    releases_per_start: Annotated[int, Between(0, 8)] = 0  # releases charged at every program start
    amplification: bool = False  # true is refused: sampling does not amplify here


@dataclass(frozen=True, slots=True)
class PrivacySection:
    """Privacy configuration of a device."""

    mechanism: MechanismSection
    mode: Literal["none", "honest", "paper"] = "none"  # paper: no guarantee is claimed
    budget: BudgetSection = field(default_factory=BudgetSection)
    metrics: Literal["auto", "sent", "withheld"] = "auto"  # loss and counts sent with an update


@dataclass(frozen=True, slots=True)
class ScoresSection:
    """A noisy answer a day to the fleet's histogram of how well forecasts do. Off by default."""

    report: bool = False  # answer once a day, if the aggregator collects the histogram
    epsilon: Annotated[float, Between(0.1, 10.0)] = 1.0  # privacy loss of one answer
    budget: Annotated[float, Between(0.1, 1e6)] = 30.0  # privacy loss of all answers; then it stops

    def __post_init__(self) -> None:
        """Refuse a budget that no answer fits into."""
        if self.budget < self.epsilon:
            raise ValueError(
                f"budget: {self.budget:g} is below epsilon {self.epsilon:g}, so no answer fits into it"
            )
