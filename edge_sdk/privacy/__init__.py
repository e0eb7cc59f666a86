"""Define the section ``[privacy]``, which is mandatory in a fleet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from edge_sdk.app.extensions import ExtensionIndex, PluginRegistry
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.schema import Between, Known, Length

Positive = Annotated[float, Between(1e-12, 1e12)]
Ranges = Mapping[str, tuple[float, float]]
Numbers = Mapping[str, float]
Point = Literal["none", "input", "gradient", "statistic", "update", "sign"]
Releases = Annotated[int, Between(1, 10**9)]


CALIBRATIONS: PluginRegistry[Any] = PluginRegistry(
    {"analytic": None},
    "gridfed.calibrations",
    listed=ExtensionIndex("edge_sdk").loaders("calibrations"),
)
"""``noise.Calibration`` by the values of ``calibration``; None for the analytic one."""


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
    calibration: Annotated[str, Known(CALIBRATIONS)] = "analytic"  # of the noise
    adjacency: Literal["replace", "add-remove"] = "replace"  # definition of neighbouring inputs
    grid: bool | None = None  # round to a grid of 2^-20 of the sensitivity; unset: where it applies
    formula: Numbers = field(default_factory=dict)  # parameters of a paper's formula


@dataclass(frozen=True, slots=True)
class BudgetSection:
    """Total privacy budget. Once it is spent, no update is sent; local training continues."""

    epsilon: float | None = None  # epsilon per unit, over all releases
    delta: float = 1e-5  # below 1 / (number of stored readings)
    unit: Literal["reading", "window", "day", "device"] | None = None  # unit of the claim
    max_releases: Releases | None = None  # largest number of updates
    unclaimed_releases: Annotated[int, Between(0, 10**9)] = 0  # first releases outside the claim
    amplification: bool = False  # true is refused: sampling does not amplify here


@dataclass(frozen=True, slots=True)
class PrivacySection:
    """Privacy configuration of a device."""

    mechanism: MechanismSection
    mode: Literal["none", "honest", "paper"] = "none"  # paper: no guarantee is claimed
    budget: BudgetSection = field(default_factory=BudgetSection)
    metrics: Literal["auto", "sent", "withheld"] = "auto"  # loss and counts sent with an update
    second_count: Path | None = None  # releases counted outside state; unset: beside keys.device

    @property
    def is_bounded(self) -> bool:
        is_limited = self.mode != "paper" and self.budget.epsilon is not None
        return is_limited or self.budget.max_releases is not None
