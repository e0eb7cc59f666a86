"""Calibrate one privacy mechanism from the ``[privacy]`` section, by the point where it adds noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from functools import partial
from pkgutil import resolve_name
from types import MappingProxyType

from edge_sdk.app.extensions import ExtensionIndex, PluginRegistry
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.privacy import MechanismSection, PrivacySection
from edge_sdk.privacy.ledger import PrivacyCharge, PrivacyLimit
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.protocol.contract.method import Contract

NO_CLAIM = "paper calibration, no formal DP claim"
CARRIED = 2
"""Number of gaps that an input is carried over (``edge_sdk.forecasting.windows.FILL``)."""

UNIT: Mapping[str, str] = MappingProxyType(
    {
        "reading": "reading",
        "window": "window of readings",
        "day": "day of readings",
        "device": "device's whole contribution",
    }
)
"""Units of a claim, in words."""
UNPROTECTED = (
    "no privacy mechanism is active: updates are sent as computed, and the information that they "
    "reveal about this device's readings is not bounded"
)

Complaint = tuple[str, str]
"""A key below ``[privacy]``, and its error."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Properties of the device that a plan depends on, beside its privacy section."""

    manifest: Manifest
    keep: int  # slots of history: the largest number of records
    max_steps: int  # largest number of local steps in one round
    shared: int  # number of scalars of one update

    @property
    def occurrences(self) -> int:
        """Return the largest number of windows in a minibatch that contain one reading of the target.

        It occurs as an input, carried forward over gaps and as every lag, and as a target.
        """
        batch = self.manifest.training.batch
        return min(batch, self.windows_of_a_reading)

    @property
    def windows_of_a_reading(self) -> int:
        """Return the largest number of windows in the whole record that contain one reading of the target."""
        window = self.manifest.window
        lags = sum(1 for feature in self.manifest.features if feature.kind == "lag")
        return (window.lookback + CARRIED) * (1 + lags) + window.horizon

    @property
    def streams(self) -> tuple[str, ...]:
        """Return every stream that the bundle reads, the target first."""
        target = self.manifest.target.stream
        others = {f.stream for f in self.manifest.features if f.stream} - {target}
        return target, *sorted(others)


@dataclass(frozen=True, slots=True)
class Noise:
    """The amount of noise of one draw."""

    size: float  # in units of the clip, of one coordinate's bound, or of the range
    cost: float  # multiplier that one draw is charged with, for one unit of the claim
    # public range of every perturbed stream (input)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    # Additional noise over the range while epsilon is below its final value (input)
    extra: float = 0.0


def no_faults(*_: object) -> Iterable[Complaint]:
    return ()


@dataclass(frozen=True, slots=True)
class NoisePoint:
    """A point where noise may be added."""

    # ``package.module:name`` of the mechanism's constructor, with the arguments of ``Mechanism``
    mechanism: str
    names: tuple[str, ...]  # mechanisms that can be attached
    units: tuple[str, ...]  # units of a claim; the first is the default
    keys: frozenset[str]  # keys of the section that apply, beside ``name`` and ``point``
    # from the section, the device's facts and the unit of the claim, to the amount of noise
    noise: Callable[[PrivacySection, DeviceFacts, str], Noise]
    text: str  # what it does, with ``{name}`` of the mechanism and its ``{clip}``
    # settings that cannot be satisfied, and methods that it cannot protect
    faults: Callable[[PrivacySection, DeviceFacts], Iterable[Complaint]] = no_faults
    conflicts: Callable[[Contract], Iterable[Complaint]] = no_faults
    is_clipped: bool = False  # the noise is over a bounded norm, ``clip_norm``
    is_on_readings: bool = False  # drawn once for a reading; what is computed from it is covered
    is_each_step: bool = False  # drawn in every local step
    has_grid: bool = False  # values are rounded to a grid, which hides the noise's last bits


@dataclass(frozen=True, slots=True)
class NoisePlan:
    """One calibrated mechanism."""

    section: PrivacySection
    limit: PrivacyLimit  # budget; infinite in ``paper`` mode, where nothing is claimed
    noise: float  # as in ``Noise``, like the following
    cost: float
    facts: DeviceFacts  # device properties it was calibrated for
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    extra: float = 0.0

    @property
    def point(self) -> NoisePoint:
        """Return the point where the noise is added."""
        return POINTS[self.mechanism.point]

    @property
    def mechanism(self) -> MechanismSection:
        """Return the mechanism's own part of the section."""
        return self.section.mechanism

    @property
    def is_paper(self) -> bool:
        return self.section.mode == "paper"

    @property
    def is_on_grid(self) -> bool:
        """Return whether releases are rounded to a grid, which hides the last bits of the noise."""
        is_whole = self.point.has_grid and not (self.point.is_on_readings and self.is_paper)
        return is_whole and self.mechanism.grid is not False

    @property
    def sends_metrics(self) -> bool:
        """Return whether measured numbers may be sent with an update."""
        if self.section.metrics != "auto":
            return self.section.metrics == "sent"
        return not self.hides_refusals

    @property
    def hides_refusals(self) -> bool:
        """Return whether noise is an update's only protection; its absence is then hidden too."""
        return self.mechanism.name != "none" and not self.point.is_on_readings

    @property
    def ledger_name(self) -> str:
        mechanism = self.mechanism
        if mechanism.name == "sign_gaussian" and mechanism.clip_norm is not None:
            return "gaussian"  # a sign is computed from the output of a Gaussian mechanism
        return mechanism.name

    @property
    def draws(self) -> int:
        """Return the largest number of draws in a round."""
        return self.facts.max_steps if self.point.is_each_step else 1

    @property
    def unit(self) -> str:
        """Return the unit that one claim is about, in words."""
        if self.point.is_on_readings and self.limit.unit == "device":
            return f"stretch of {self.facts.keep} slots of readings"
        return UNIT[self.limit.unit]

    @property
    def guarantee(self) -> str:
        """Return the guarantee of the mechanism, as one sentence."""
        mechanism, point, limit = self.mechanism, self.point, self.limit
        if mechanism.name == "none":
            return UNPROTECTED
        if self.is_paper:
            return f"{mechanism.name} noise at the {mechanism.point}: {NO_CLAIM}"
        how = point.text.format(name=mechanism.name, clip=f"{mechanism.clip_norm or 0:g}")
        serving = (
            "; live forecasts use the clean readings, are not covered, and are not sent"
            if point.is_on_readings
            else ""
        )
        outside = self.section.budget.unclaimed_releases
        after = f" after the first {outside} updates" if outside else ""
        return (
            f"{how}; over all releases{after}, one {self.unit} is "
            f"(epsilon {limit.epsilon:g}, delta {limit.delta:g})-private{serving}"
        )

    def charge(self, time: int = 0, *, count: int = 1, releases: int = 0) -> PrivacyCharge:
        """Return the charge of some draws of this noise."""
        point = self.mechanism.point
        return PrivacyCharge(
            time, self.limit.unit, point, self.ledger_name, self.cost, 1.0, count, releases
        )

    def release(self, time: int = 0, *, draws: int = 1) -> PrivacyCharge:
        """Return the charge of one numbered message, beyond earlier charges."""
        if self.point.is_on_readings and self.cost:
            point = self.mechanism.point
            return PrivacyCharge(time, self.limit.unit, point, "after", math.inf, releases=1)
        return self.charge(time, count=draws, releases=1)

    def unseen(self, time: int, releases: int) -> tuple[PrivacyCharge, ...]:
        """Charge releases that only the aggregator has recorded: an earlier store was lost.

        Their noise is unknown; the device's own configuration is the best estimate.
        """
        if releases <= 0:
            return ()
        one = self.release(time, draws=self.draws)
        return (replace(one, count=one.count * releases, releases=releases),)

    def most(self, allowed: int | None) -> int | None:
        limits = [n for n in (self.section.budget.max_releases, allowed) if n is not None]
        return min(limits, default=None)


def calibrate(section: PrivacySection, facts: DeviceFacts) -> NoisePlan:
    """Calibrate the noise of a valid section (``validation.plan_of`` has checked it).

    >>> from edge_sdk.privacy import BudgetSection
    >>> update = MechanismSection("gaussian", point="update", clip_norm=1.0)
    >>> budget = BudgetSection(epsilon=10.0, max_releases=100)
    >>> facts = DeviceFacts(None, keep=8760, max_steps=4, shared=1000)
    >>> plan = calibrate(PrivacySection(update, "honest", budget), facts)
    >>> f"{plan.cost:.4f} {plan.noise:.4f}"  # two updates lie at most 2 clips apart
    '4.9989 9.9978'
    """
    budget, point = section.budget, POINTS[section.mechanism.point]
    unit = budget.unit or point.units[0]
    is_limited = section.mode != "paper" and budget.epsilon is not None
    limit = PrivacyLimit(unit, budget.epsilon or math.inf if is_limited else math.inf, budget.delta)
    made = point.noise(section, facts, unit)
    return NoisePlan(section, limit, made.size, made.cost, facts, made.ranges, made.extra)


def _none(_section: PrivacySection, _facts: DeviceFacts, _unit: str) -> Noise:
    return Noise(0.0, 0.0)


NONE = NoisePoint(
    "edge_sdk.privacy.mechanism:Mechanism",
    names=("none",),
    units=("device", "day", "window", "reading"),
    keys=frozenset(),
    noise=_none,
    text="",
)
POINTS: PluginRegistry[NoisePoint] = PluginRegistry(
    {"none": NONE},
    "gridfed.noise_points",
    listed={
        "update": partial(resolve_name, "edge_sdk.privacy.noise:UPDATE"),
        **ExtensionIndex("edge_sdk").loaders("points"),
    },
)
"""Points where noise is added, by the values of ``mechanism.point``."""
