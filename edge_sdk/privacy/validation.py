"""Validate the ``[privacy]`` section before any connection; every error names its key."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import get_args

from edge_sdk.errors import ConfigError
from edge_sdk.privacy import MechanismSection, Point, PrivacySection
from edge_sdk.privacy.noise_calibration import (
    POINTS,
    Complaint,
    DeviceFacts,
    NoisePlan,
    calibrate,
)
from edge_sdk.protocol.contract.method import Contract, Up, answered


def plan_of(section: PrivacySection, facts: DeviceFacts) -> NoisePlan:
    """Return the calibrated mechanism of a section.

    Raises:
        ConfigError: The first setting that is invalid, or that the mechanism cannot guarantee.

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

    one = plan.charge(count=plan.draws)
    worth = PrivacyAccount(limit=plan.limit).plus(one).epsilon()
    if worth > plan.limit.epsilon * (1.0 + 1e-9):
        raise ConfigError(
            f"privacy.budget.epsilon: a single release costs epsilon {worth:.4g} a {plan.limit.unit}, "
            f"and the budget is {plan.limit.epsilon:g}",
            hint="more noise, a larger budget, or fewer steps in accept.max_steps",
        )


def _attachment(section: PrivacySection, _facts: DeviceFacts) -> Iterator[Complaint]:
    name, point, mode = section.mechanism.name, section.mechanism.point, section.mode
    if point not in POINTS or name not in POINTS[point].names:
        known = [one for one in get_args(Point) if one in POINTS and name in POINTS[one].names]
        yield "mechanism.point", f"{name} belongs at {' or '.join(known)}, not {point!r}"
        return
    for key in _changed_keys(section.mechanism) - POINTS[point].keys - {"name", "point"}:
        if key != "grid" or section.mechanism.grid:  # false was the default
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
    units = POINTS[mechanism.point].units
    if budget.unit is not None and budget.unit not in units:
        known = ", ".join(units)
        yield "budget.unit", f"at {mechanism.point!r} a claim is about: {known}"
    if mechanism.name != "none" and section.mode == "honest" and budget.epsilon is None:
        yield "budget.epsilon", "missing; set the total epsilon"


def _amount(section: PrivacySection, _facts: DeviceFacts) -> Iterator[Complaint]:
    """Yield complaints unless the amount of noise is configured exactly once."""
    mechanism, budget = section.mechanism, section.budget
    if mechanism.noise_multiplier is not None and mechanism.epsilon is not None:
        yield "mechanism.noise_multiplier", "excludes mechanism.epsilon; set one of them"
    has_own = mechanism.noise_multiplier is not None or mechanism.epsilon is not None
    if POINTS[mechanism.point].is_clipped:
        if not has_own and budget.max_releases is None:
            yield (
                "budget.max_releases",
                "missing; set the number of updates that the budget covers, or mechanism.noise_multiplier",
            )
        if mechanism.clip_norm is None:
            yield "mechanism.clip_norm", "missing; noise needs a bounded norm"


def _at_point(section: PrivacySection, facts: DeviceFacts) -> Iterable[Complaint]:
    return POINTS[section.mechanism.point].faults(section, facts)


def _calibrations(section: PrivacySection, _facts: DeviceFacts) -> Iterator[Complaint]:
    mechanism, kind = section.mechanism, section.mechanism.calibration
    if mechanism.name == "none":
        return
    from edge_sdk.privacy.noise import calibration_of  # noqa: PLC0415 - for a device with noise

    calibration = calibration_of(mechanism)
    if kind != "analytic" and mechanism.name != "gaussian":
        yield "mechanism.calibration", f"{kind} is for gaussian noise"
    if mechanism.formula and calibration.level is None:
        yield "mechanism.formula", f"does not apply to calibration {kind!r}; remove it"
    yield from calibration.faults(section)


def _reports(section: PrivacySection, _facts: DeviceFacts) -> Iterator[Complaint]:
    point, name = section.mechanism.point, section.mechanism.name
    if section.metrics == "sent" and name != "none" and not POINTS[point].is_on_readings:
        yield (
            "metrics",
            (
                f"a loss or count without noise beside an update with noise at the {point} reveals "
                "what the noise hides; use 'withheld' or 'auto'"
            ),
        )


_CHECKS: tuple[Callable[[PrivacySection, DeviceFacts], Iterable[Complaint]], ...] = (
    _attachment,
    _numbers,
    _amount,
    _at_point,
    _calibrations,
    _reports,
)


def _changed_keys(mechanism: MechanismSection) -> set[str]:
    plain = MechanismSection(mechanism.name)
    names = MechanismSection.__dataclass_fields__
    return {name for name in names if getattr(mechanism, name) != getattr(plain, name)}


def refuse_method(plan: NoisePlan, method: str, contract: Contract) -> None:
    """Refuse a method that this mechanism cannot protect, or that would fail with it.

    Raises:
        ConfigError: The message names the key.
    """
    for key, why in _conflicts(plan, contract):
        raise ConfigError(f"privacy.{key}: method {method!r} {why}", hint="see docs/privacy.md")


def _conflicts(plan: NoisePlan, contract: Contract) -> Iterator[tuple[str, str]]:
    """Yield each key below ``[privacy]`` that conflicts with the method, and the reason."""
    point, (_, ask) = plan.mechanism.point, answered(contract)
    yield from plan.point.conflicts(contract)
    if point != "sign" and ask.enc == "b1":
        yield "mechanism.point", "sends signs, which need a mechanism at point 'sign'"
    if point in {"update", "sign"} and ask.mirrored:
        yield (
            "mechanism.point",
            "replays its updates on both ends, which noise would change: set point = 'input'",
        )
    if plan.hides_refusals and any(a.up is Up.SIGNAL for a in contract.values()):
        why = "sends activations and their gradients, which have no noise: set point = 'input'"
        yield "mechanism.point", why
    every = (number for one in contract.values() for number in one.report)
    withheld = [n.name for n in every if n.measured and n.needed]
    if withheld and not plan.sends_metrics:
        yield "metrics", f"needs {withheld[0]!r}, a measured number that is withheld"
