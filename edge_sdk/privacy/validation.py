"""Validate the ``[privacy]`` section before any connection; every error names its key."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from edge_sdk.errors import ConfigError
from edge_sdk.privacy.noise_calibration import (
    PAPER_KEYS,
    PAPERS,
    UNITS,
    DeviceFacts,
    NoisePlan,
    calibrate,
)
from edge_sdk.privacy.settings import MechanismSection, PrivacySection
from edge_sdk.wire.contract.manifest import CLIPPED_GRADIENT

POINTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "none": ("none",),
        "gaussian": ("input", "gradient", "statistic", "update"),
        "laplace": ("input", "update"),
        "sign_gaussian": ("sign",),
        "sign_flip": ("sign",),
    }
)
"""Points at which each mechanism can be attached."""

_KEYS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "none": frozenset(),
        "input": frozenset(
            {
                "range",
                "stream_ranges",
                "public_streams",
                "noise_multiplier",
                "epsilon",
                "calibration",
                "grid",
            }
        ),
        "gradient": frozenset(
            {"range", "clip_norm", "noise_multiplier", "epsilon", "calibration", "adjacency"}
        ),
        "statistic": frozenset(
            {"range", "clip_norm", "noise_multiplier", "epsilon", "calibration"}
        ),
        "update": frozenset(
            {
                "clip_norm",
                "noise_multiplier",
                "epsilon",
                "calibration",
                "adjacency",
                "grid",
                "formula",
            }
        ),
        "sign": frozenset({"clip_norm", "coordinate_bound", "noise_multiplier", "epsilon"}),
    }
)

Complaint = tuple[str, str]
"""A key below ``[privacy]``, and its error."""


def plan_of(section: PrivacySection, facts: DeviceFacts) -> NoisePlan:
    """Return the calibrated mechanism of a section.

    Raises:
        ConfigError: The first setting that is invalid, or that the mechanism cannot guarantee.

    Example:
        >>> section = PrivacySection(MechanismSection("gaussian", point="update"), "honest")
        >>> plan_of(section, DeviceFacts(None, keep=8760, max_steps=4, shared=1000))
        Traceback (most recent call last):
        edge_sdk.errors.ConfigError: privacy.budget.epsilon: missing; set the total epsilon
    """
    for check in _CHECKS:
        for key, why in check(section, facts):
            raise ConfigError(f"privacy.{key}: {why}", hint="see docs/privacy.md")
    plan = calibrate(section, facts)
    if section.mechanism.name != "none" and not plan.is_paper:
        _refuse_less_than_one(plan)
    return plan


def _refuse_less_than_one(plan: NoisePlan) -> None:
    from edge_sdk.privacy.ledger import PrivacyAccount  # noqa: PLC0415 - only where a budget is checked

    one = plan.charge(count=_draws(plan))
    worth = PrivacyAccount(limit=plan.limit).plus(one).epsilon()
    if worth > plan.limit.epsilon * (1.0 + 1e-9):
        raise ConfigError(
            f"privacy.budget.epsilon: a single release costs epsilon {worth:.4g} a {plan.limit.unit}, "
            f"and the budget is {plan.limit.epsilon:g}",
            hint="more noise, a larger budget, or fewer steps in accept.max_steps",
        )


def _draws(plan: NoisePlan) -> int:
    return plan.facts.max_steps if plan.mechanism.point == "gradient" else 1


def _attachment(section: PrivacySection, _facts: DeviceFacts) -> Iterator[Complaint]:
    name, point, mode = section.mechanism.name, section.mechanism.point, section.mode
    if point not in POINTS[name]:
        yield "mechanism.point", f"{name} belongs at {' or '.join(POINTS[name])}, not {point!r}"
    for key in _changed_keys(section.mechanism) - _KEYS[point] - {"name", "point"}:
        yield f"mechanism.{key}", f"does not apply to {name} at {point!r}; remove it"
    if name == "none" and mode != "none":
        yield "mode", f"{mode!r} needs a mechanism other than 'none'"
    if name != "none" and mode == "none":
        yield (
            "mode",
            "expected 'honest', or 'paper' for a paper's noise level without a formal claim",
        )
    if section.budget.amplification:
        yield (
            "budget.amplification",
            (
                "participation is decided by the server or by order of arrival, which is "
                "neither secret nor Poisson sampling, so no amplification may be claimed"
            ),
        )


def _numbers(section: PrivacySection, facts: DeviceFacts) -> Iterator[Complaint]:
    mechanism, budget = section.mechanism, section.budget
    for key, value in (("mechanism", mechanism.epsilon), ("budget", budget.epsilon)):
        if value is not None and not (value > 0.0 and math.isfinite(value)):
            yield f"{key}.epsilon", f"must be above 0, got {value}"
    if not 0.0 < budget.delta < 1.0:
        yield "budget.delta", f"must lie between 0 and 1, got {budget.delta}"
    elif mechanism.name != "none" and budget.delta >= 1.0 / facts.keep:
        yield (
            "budget.delta",
            (
                f"{budget.delta:g} is not below 1/{facts.keep} (training.history_slots): it would allow "
                "the release of one reading in full"
            ),
        )
    if budget.unit is not None and budget.unit not in UNITS[mechanism.point]:
        known = ", ".join(UNITS[mechanism.point])
        yield "budget.unit", f"at {mechanism.point!r} a claim is about: {known}"
    if mechanism.name != "none" and section.mode == "honest" and budget.epsilon is None:
        yield "budget.epsilon", "missing; set the total epsilon"


def _amount(section: PrivacySection, _facts: DeviceFacts) -> Iterator[Complaint]:
    """Yield complaints unless the amount of noise is configured exactly once."""
    mechanism, budget = section.mechanism, section.budget
    if mechanism.noise_multiplier is not None and mechanism.epsilon is not None:
        yield "mechanism.noise_multiplier", "excludes mechanism.epsilon; set one of them"
    has_own = mechanism.noise_multiplier is not None or mechanism.epsilon is not None
    match mechanism.point:
        case "input" if mechanism.noise_multiplier is None and budget.epsilon is None:
            yield "budget.epsilon", "missing; the noise of a reading is calibrated from it"
        case "input" if mechanism.epsilon is not None:
            yield from _moving(section, mechanism.epsilon)
        case "gradient" | "statistic" | "update" if not has_own and budget.max_releases is None:
            yield (
                "budget.max_releases",
                "missing; set the number of updates that the budget covers, or mechanism.noise_multiplier",
            )
        case "sign" if mechanism.name == "sign_flip" and mechanism.epsilon is None:
            yield "mechanism.epsilon", "missing; set the epsilon of one coordinate's sign"
        case "sign" if mechanism.name == "sign_gaussian" and mechanism.noise_multiplier is None:
            yield (
                "mechanism.noise_multiplier",
                "missing; set the noise as a multiple of clip_norm or coordinate_bound",
            )


def _moving(section: PrivacySection, epsilon: float) -> Iterator[Complaint]:
    """Yield complaints unless the epsilon at the input is the present one and below the budget's."""
    if section.mechanism.name != "gaussian" or section.mode == "paper":
        yield (
            "mechanism.epsilon",
            "at point 'input' only gaussian noise in mode 'honest' can decrease over time",
        )
    elif epsilon > (section.budget.epsilon or 0.0):
        yield "mechanism.epsilon", f"{epsilon:g} is above budget.epsilon, the final value"


def _sensitivity(section: PrivacySection, facts: DeviceFacts) -> Iterator[Complaint]:
    """Yield complaints unless the sensitivity of a release is bounded."""
    mechanism = section.mechanism
    needs_range = mechanism.point == "input" and section.mode != "paper"
    is_in_training = mechanism.point in {"gradient", "statistic"}
    if is_in_training and facts.manifest.target.scale == "device":
        needs_range = True  # a scale from the device's own readings would be a release
    if needs_range and not _is_range(mechanism.range):
        unit, stream = facts.manifest.target.unit, facts.manifest.target.stream
        yield "mechanism.range", f"give [low, high] for {stream} in {unit}, as public constants"
    if mechanism.point in {"gradient", "statistic", "update"} and mechanism.clip_norm is None:
        yield "mechanism.clip_norm", "missing; noise needs a bounded norm"
    if mechanism.name == "sign_gaussian" and (mechanism.clip_norm is None) == (
        mechanism.coordinate_bound is None
    ):
        yield "mechanism.clip_norm", "expected either clip_norm or coordinate_bound, not both"
    if mechanism.name == "sign_flip" and _changed_keys(mechanism) & {
        "clip_norm",
        "coordinate_bound",
        "noise_multiplier",
    }:
        yield "mechanism.clip_norm", "sign_flip takes epsilon only"
    if mechanism.point == "input" and section.mode != "paper":
        yield from _streams(mechanism, facts)


def _streams(mechanism: MechanismSection, facts: DeviceFacts) -> Iterator[Complaint]:
    target, *others = facts.streams
    for stream, span in mechanism.stream_ranges.items():
        if stream not in others:
            yield (
                f"mechanism.stream_ranges.{stream}",
                "the bundle does not read this stream beside target",
            )
        if not _is_range(span):
            yield f"mechanism.stream_ranges.{stream}", "give [low, high] with low below high"
    if target in mechanism.public_streams:
        yield "mechanism.public_streams", f"{target} is the target and cannot be public"
    for stream in others:
        if (stream in mechanism.stream_ranges) == (stream in mechanism.public_streams):
            yield (
                "mechanism.public_streams",
                (
                    f"{stream} is an input of the bundle: list it here if it is public, "
                    "or set its range in mechanism.stream_ranges, not both"
                ),
            )


def _calibrations(section: PrivacySection, _facts: DeviceFacts) -> Iterator[Complaint]:
    mechanism = section.mechanism
    kind, is_paper = mechanism.calibration, section.mode == "paper"
    if kind != "analytic" and mechanism.name != "gaussian":
        yield "mechanism.calibration", f"{kind} is for gaussian noise"
    if kind in PAPERS and not (is_paper and mechanism.point == "update"):
        yield (
            "mechanism.calibration",
            f"{kind} is a paper's noise level: it needs point = 'update' and mode = 'paper' (no claim)",
        )
    if kind in PAPERS:
        yield from _formula(mechanism)
        if section.budget.epsilon is not None:
            why = f"{kind} gives no bound; remove it, and set mechanism.epsilon"
            yield "budget.epsilon", why
    elif mechanism.formula:
        yield "mechanism.formula", f"does not apply to calibration {kind!r}; remove it"
    epsilon = mechanism.epsilon
    if mechanism.point == "input":
        epsilon = section.budget.epsilon
    if kind == "classical" and not is_paper:
        if epsilon is None:
            yield "mechanism.epsilon", "missing; the classical formula is for one release"
        elif epsilon > 1.0:
            yield (
                "mechanism.calibration",
                (
                    f"the classical formula holds for epsilon up to 1, not {epsilon:g}; "
                    "use 'analytic', or mode = 'paper' without a claim"
                ),
            )


def _formula(mechanism: MechanismSection) -> Iterator[Complaint]:
    needed, allowed = PAPER_KEYS[mechanism.calibration]
    for key in sorted(needed - set(mechanism.formula)):
        yield f"mechanism.formula.{key}", f"missing; {mechanism.calibration} needs it"
    for key in sorted(set(mechanism.formula) - needed - allowed):
        yield f"mechanism.formula.{key}", f"unknown; known: {', '.join(sorted(needed | allowed))}"
    for key, value in mechanism.formula.items():
        if not (value > 0.0 and math.isfinite(value)):
            yield f"mechanism.formula.{key}", f"must be above 0, got {value}"
    if mechanism.epsilon is None:
        yield "mechanism.epsilon", "missing; set the paper's epsilon"


def _reports(section: PrivacySection, _facts: DeviceFacts) -> Iterator[Complaint]:
    point = section.mechanism.point
    if section.metrics == "sent" and point in {"gradient", "statistic", "update", "sign"}:
        yield (
            "metrics",
            (
                f"a loss or count without noise beside an update with noise at the {point} reveals "
                "what the noise hides; use 'withheld' or 'auto'"
            ),
        )


def _minibatches(section: PrivacySection, _facts: DeviceFacts) -> Iterator[Complaint]:
    mechanism, is_honest = section.mechanism, section.mode == "honest"
    if is_honest and mechanism.point == "gradient" and mechanism.adjacency == "add-remove":
        yield (
            "mechanism.adjacency",
            (
                "adding or removing a window changes the windows drawn for a minibatch, so "
                "clip_norm does not bound the difference; use 'replace'"
            ),
        )


def _graphs(section: PrivacySection, facts: DeviceFacts) -> Iterator[Complaint]:
    if section.mechanism.point == "statistic" and facts.manifest.analytic is None:
        yield (
            "mechanism.point",
            (
                f"bundle {facts.manifest.name} is no model in closed form, so no statistic leaves; use "
                "load-analytic, or noise at input, gradient or update"
            ),
        )
    if section.mechanism.point == "gradient" and CLIPPED_GRADIENT not in facts.manifest.graphs:
        yield (
            "mechanism.point",
            (
                f"bundle {facts.manifest.name} has no graph {CLIPPED_GRADIENT!r}, which clips the "
                "gradient of each window; use a bundle that has one, or noise at input or update"
            ),
        )


_CHECKS: tuple[Callable[[PrivacySection, DeviceFacts], Iterator[Complaint]], ...] = (
    _attachment,
    _numbers,
    _amount,
    _sensitivity,
    _calibrations,
    _reports,
    _minibatches,
    _graphs,
)


def _is_range(span: tuple[float, ...]) -> bool:
    return len(span) == 2 and math.isfinite(span[0]) and -math.inf < span[0] < span[1] < math.inf


def _changed_keys(mechanism: MechanismSection) -> set[str]:
    """Return the keys that differ from their defaults."""
    plain = MechanismSection(mechanism.name)
    names = MechanismSection.__dataclass_fields__
    return {name for name in names if getattr(mechanism, name) != getattr(plain, name)}
