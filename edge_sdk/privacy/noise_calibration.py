"""Calibrate one privacy mechanism from the ``[privacy]`` section."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from edge_sdk.analytic.private_release import sensitivity
from edge_sdk.privacy import analytic_gaussian
from edge_sdk.privacy.event import PrivacyCharge
from edge_sdk.privacy.ledger import PrivacyLimit
from edge_sdk.privacy.pure_dp import epsilon_of_sign
from edge_sdk.privacy.settings import MechanismSection, PrivacySection
from edge_sdk.shared_math import paper_noise
from edge_sdk.wire.contract.manifest import Manifest

NO_CLAIM = "paper calibration, no formal DP claim"
CARRIED = 2
"""Number of gaps that an input is carried over (``edge_sdk.forecasting.windows.FILL``)."""

UNITS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "none": ("device", "day", "window", "reading"),
        "input": ("reading", "day", "device"),
        "gradient": ("window", "reading"),
        "statistic": ("window", "reading"),
        "update": ("device",),
        "sign": ("device",),
    }
)
"""Units of a claim, by the point where noise is added; the first is the default."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Properties of the device that a plan depends on, beside its privacy section.

    Attributes:
        manifest: Manifest of the bundle.
        keep: Slots of history: the largest number of records.
        max_steps: Largest number of local steps in one round.
        shared: Number of scalars of one update.
    """

    manifest: Manifest
    keep: int
    max_steps: int
    shared: int

    @property
    def slots_a_day(self) -> int:
        """Return the number of readings of one stream in a day."""
        return max(1, round(86_400 / self.manifest.window.step_seconds))

    @property
    def occurrences(self) -> int:
        """Return in how many windows of a minibatch one reading of the target can occur.

        It occurs as an input, carried forward over gaps and as every lag, and as a target.
        """
        batch = self.manifest.training.batch
        return min(batch, self.windows_of_a_reading)

    @property
    def windows_of_a_reading(self) -> int:
        """Return in how many windows of the whole record one reading of the target can occur."""
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
class NoisePlan:
    """One calibrated mechanism.

    Attributes:
        section: The configured section.
        limit: Budget; infinite in ``paper`` mode, where nothing is claimed.
        noise: Noise of one draw, in units of the clip, of one coordinate's bound, or of the range.
        cost: Multiplier that one draw is charged with, for one unit of the claim.
        facts: Device properties it was calibrated for.
        ranges: Public range of every perturbed stream (input).
        extra: Additional noise over the range while epsilon is below its final value (input).
    """

    section: PrivacySection
    limit: PrivacyLimit
    noise: float
    cost: float
    facts: DeviceFacts
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    extra: float = 0.0

    @property
    def mechanism(self) -> MechanismSection:
        """Return the mechanism's own part of the section."""
        return self.section.mechanism

    @property
    def is_paper(self) -> bool:
        """Return whether nothing is claimed."""
        return self.section.mode == "paper"

    @property
    def sends_metrics(self) -> bool:
        """Return whether measured numbers may be sent with an update."""
        if self.section.metrics != "auto":
            return self.section.metrics == "sent"
        return self.mechanism.point in {"none", "input"}

    @property
    def hides_refusals(self) -> bool:
        """Return whether noise is an update's only protection; its absence is then hidden too."""
        return self.mechanism.point in {"gradient", "statistic", "update", "sign"}

    @property
    def ledger_name(self) -> str:
        """Return the ledger's name of this mechanism."""
        mechanism = self.mechanism
        if mechanism.name == "sign_gaussian" and mechanism.clip_norm is not None:
            return "gaussian"  # a sign is computed from the output of a Gaussian mechanism
        return mechanism.name

    def charge(self, time: int = 0, *, count: int = 1, releases: int = 0) -> PrivacyCharge:
        """Return the charge of some draws of this noise."""
        point = self.mechanism.point
        return PrivacyCharge(
            time, self.limit.unit, point, self.ledger_name, self.cost, 1.0, count, releases
        )

    def release(self, time: int = 0, *, draws: int = 1) -> PrivacyCharge:
        """Return the charge of one numbered message, beyond earlier charges."""
        if self.mechanism.point == "input" and self.cost:
            return PrivacyCharge(time, self.limit.unit, "input", "after", math.inf, releases=1)
        return self.charge(time, count=draws, releases=1)

    def unseen(self, time: int, releases: int) -> tuple[PrivacyCharge, ...]:
        """Charge releases that only the aggregator has recorded: an earlier store was lost.

        Their noise is unknown; the device's own configuration is the best estimate.
        """
        if releases <= 0:
            return ()
        draws = self.facts.max_steps if self.mechanism.point == "gradient" else 1
        one = self.release(time, draws=draws)
        return (replace(one, count=one.count * releases, releases=releases),)

    def most(self, allowed: int | None) -> int | None:
        """Return how many releases are allowed, by the configuration and by the operator."""
        limits = [n for n in (self.section.budget.max_releases, allowed) if n is not None]
        return min(limits, default=None)


def calibrate(section: PrivacySection, facts: DeviceFacts) -> NoisePlan:
    """Calibrate the noise of a valid section (``validation.plan_of`` has checked it).

    Example:
        >>> from edge_sdk.privacy.settings import BudgetSection
        >>> update = MechanismSection("gaussian", point="update", clip_norm=1.0)
        >>> budget = BudgetSection(epsilon=10.0, max_releases=100)
        >>> facts = DeviceFacts(None, keep=8760, max_steps=4, shared=1000)
        >>> plan = calibrate(PrivacySection(update, "honest", budget), facts)
        >>> f"{plan.cost:.4f} {plan.noise:.4f}"  # two updates lie at most 2 clips apart
        '4.9989 9.9978'
    """
    mechanism, budget = section.mechanism, section.budget
    unit = budget.unit or UNITS[mechanism.point][0]
    is_limited = section.mode != "paper" and budget.epsilon is not None
    limit = PrivacyLimit(unit, budget.epsilon or math.inf if is_limited else math.inf, budget.delta)
    noise, cost, extra, ranges = 0.0, 0.0, 0.0, {}
    match mechanism.point:
        case "input":
            ranges = {**mechanism.stream_ranges, facts.streams[0]: mechanism.range[:2]}
            noise, cost = _at_input(section, facts, unit)
            if mechanism.epsilon is not None and cost:
                now = _calibrated(mechanism, mechanism.epsilon, budget.delta) * noise / cost
                extra = analytic_gaussian.extra_sigma(now, noise)
        case "gradient" | "update":
            apart = 2.0 if mechanism.adjacency == "replace" else 1.0
            windows = facts.occurrences if unit == "reading" else 1
            noise, cost = _at_model(section, facts, apart * windows)
        case "statistic":
            outputs = math.prod(facts.manifest.forecast_shape)
            windows = facts.windows_of_a_reading if unit == "reading" else 1
            noise, cost = _at_model(section, facts, sensitivity(outputs) * windows)
        case "sign":
            noise, cost = _at_sign(section, facts)
    return NoisePlan(section, limit, noise, cost, facts, ranges, extra)  # type: ignore[arg-type]


def _at_input(section: PrivacySection, facts: DeviceFacts, unit: str) -> tuple[float, float]:
    """Return noise over a stream's range, and over the change by one unit in the same units."""
    mechanism, budget = section.mechanism, section.budget
    streams = 1 + len(mechanism.stream_ranges)
    days = {"reading": 1, "day": facts.slots_a_day * streams, "device": facts.keep * streams}
    apart = float(days[unit]) if mechanism.name == "laplace" else math.sqrt(days[unit])
    if section.mode == "paper":
        z = mechanism.noise_multiplier or analytic_gaussian.classical_sigma(
            budget.epsilon or 1.0, budget.delta
        )
        return z, 0.0
    if mechanism.noise_multiplier is not None:
        return mechanism.noise_multiplier, mechanism.noise_multiplier / apart
    cost = _calibrated(mechanism, budget.epsilon or 0.0, budget.delta)
    return cost * apart, cost


def _at_model(section: PrivacySection, facts: DeviceFacts, apart: float) -> tuple[float, float]:
    """Return noise over the clip, and over the change by one unit."""
    mechanism, budget = section.mechanism, section.budget
    draws = facts.max_steps if mechanism.point == "gradient" else 1
    if mechanism.calibration in PAPERS:
        noise = PAPERS[mechanism.calibration](section) / (mechanism.clip_norm or 1.0)
    elif mechanism.noise_multiplier is not None:
        noise = mechanism.noise_multiplier
    elif mechanism.epsilon is not None:
        noise = apart * _calibrated(mechanism, mechanism.epsilon, budget.delta)
    else:
        times = draws * (budget.max_releases or 1)
        grown = times if mechanism.name == "laplace" else math.sqrt(times)
        noise = apart * grown * _calibrated(mechanism, budget.epsilon or 0.0, budget.delta)
    return noise, noise / apart


def _at_sign(section: PrivacySection, facts: DeviceFacts) -> tuple[float, float]:
    """Return noise over the clip or bound (of a flip: its epsilon), and the charged multiplier."""
    mechanism = section.mechanism
    if mechanism.name == "sign_flip":
        epsilon = mechanism.epsilon or 0.0
        return epsilon, 1.0 / (facts.shared * epsilon)
    noise = mechanism.noise_multiplier or 0.0
    if mechanism.clip_norm is not None:
        return noise, noise / 2.0
    return noise, 1.0 / (facts.shared * epsilon_of_sign(1.0, noise))


def _calibrated(mechanism: MechanismSection, epsilon: float, delta: float) -> float:
    if mechanism.name == "laplace":
        return 1.0 / epsilon
    if mechanism.calibration == "classical":
        return analytic_gaussian.classical_sigma(epsilon, delta)
    return analytic_gaussian.sigma_for(epsilon, delta)


def _nbafl(section: PrivacySection) -> float:
    numbers, clip = section.mechanism.formula, section.mechanism.clip_norm or 1.0
    return paper_noise.nbafl_uplink(
        section.mechanism.epsilon or 0.0,
        section.budget.delta,
        clip=clip,
        samples=int(numbers["samples"]),
        uploads=int(numbers.get("uploads", 1)),
    )


def _udp(section: PrivacySection) -> float:
    numbers, clip = section.mechanism.formula, section.mechanism.clip_norm or 1.0
    reach = paper_noise.udp_sensitivity(
        rate=numbers["rate"],
        steps=int(numbers["steps"]),
        clip=clip,
        samples=int(numbers["samples"]),
    )
    return paper_noise.udp_uplink(
        section.mechanism.epsilon or 0.0,
        section.budget.delta,
        sensitivity=reach,
        rounds=int(numbers["rounds"]),
        sampled=numbers.get("sampled", 1.0),
    )


PAPERS = MappingProxyType({"nbafl": _nbafl, "udp": _udp})
"""The papers' own formulas: labels and no guarantees. The ledger records the actual noise."""
PAPER_KEYS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = MappingProxyType(
    {
        "nbafl": (frozenset({"samples"}), frozenset({"uploads"})),
        "udp": (frozenset({"samples", "rate", "steps", "rounds"}), frozenset({"sampled"})),
    }
)
"""Required and optional parameters of each formula."""
