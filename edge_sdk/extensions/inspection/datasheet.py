"""Describe the device's privacy guarantees and their limits as text and as a data sheet.

The sheet has the items that a claim must name by NIST SP 800-226, "Guidelines for evaluating
differential privacy guarantees" (2025): unit, mechanism, parameters, composition, trust,
randomness, limits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from edge_sdk.privacy.ledger import COARSER, PrivacyAccount, PrivacyCharge
from edge_sdk.privacy.noise_calibration import NO_CLAIM, NoisePlan

NEVER = (
    "that this device takes part, when it sends, how often, and how large its messages are",
    "the readings on this device against a person with access to it: they are stored unchanged",
    (
        "by federated learning, private layers and robust aggregation: they are not privacy "
        "mechanisms, and no claim is made for them"
    ),
)
"""Facts that no mechanism here protects."""


def charges_table(account: PrivacyAccount) -> list[dict[str, Any]]:
    """Return the charges so far, one line per kind, each with its own epsilon."""
    return [
        {
            "unit": charge.unit,
            "at": charge.point,
            "mechanism": charge.mechanism,
            "multiplier": finite(charge.multiplier),
            "draws": charge.count,
            "releases": charge.releases,
            "epsilon": finite(_alone(charge, account)),
        }
        for charge in account.charges
    ]


def explain_budget(plan: NoisePlan, account: PrivacyAccount) -> str:
    """Explain the budget to the operator: guarantee, spent, left, not covered.

    >>> from edge_sdk.privacy.ledger import PrivacyLimit
    >>> from edge_sdk.privacy import MechanismSection, PrivacySection
    >>> plan = NoisePlan(PrivacySection(MechanismSection("none")), PrivacyLimit(), 0.0, 0.0, None)
    >>> print(explain_budget(plan, PrivacyAccount()).splitlines()[0])
    no privacy mechanism is active: updates are sent as computed, and the information that they ...
    """
    limit, totals = account.limit, account.summary(plan.release())
    lines = [plan.guarantee]
    if not account.is_kept:
        lines.append("this does not hold for the updates already released: they exceed the budget")
    lines.append(f"{totals['releases']} updates released so far")
    if plan.section.budget.unclaimed_releases:
        lines.append(
            f"the first {plan.section.budget.unclaimed_releases} of them are outside the claim"
        )
    if plan.mechanism.name != "none":
        lines.append(
            f"they cost epsilon {_shown(totals['epsilon'])} for one {plan.unit}, at "
            f"delta {limit.delta:g}; {_shown(totals['allowed'])} is allowed"
        )
        lines.append(f"updates left: {_left(totals['left'], plan)}")
        lines += _odds(totals["allowed"])
    rows = charges_table(account)
    if rows:
        lines += ["", "unit      at        mechanism      noise/sens.   draws  releases  epsilon"]
    lines += [
        f"{row['unit']:<9} {row['at']:<9} {row['mechanism']:<14} {_noise(row['multiplier']):>11} "
        f"{row['draws']:>7} {row['releases']:>9}  {_shown(row['epsilon'])}"
        for row in rows
    ]
    lines += ["", "not protected:", *(f"- {what}" for what in gaps(plan))]
    return "\n".join(lines)


def gaps(plan: NoisePlan) -> list[str]:
    """List the quantities that this plan does not protect."""
    point, found = plan.mechanism.point, list(NEVER)
    if point == "input":
        public = ", ".join(plan.mechanism.public_streams)
        found += [
            "live forecasts: they are computed from clean readings, and must not be sent on",
            "which readings exist: gaps and the count of windows are taken to be public",
            "calendar, constants of the site" + (f", and the streams {public}" if public else ""),
        ]
    if point == "gradient":
        found.append(
            f"a single reading: it occurs in up to {plan.facts.occurrences} windows of a minibatch"
            if plan.limit.unit == "window"
            else "several readings together"
        )
    if plan.is_paper:
        found.insert(0, "everything: the noise level is that of a paper, and no claim is made")
    return found


def data_sheet(plan: NoisePlan, account: PrivacyAccount, version: str) -> dict[str, Any]:
    """Return the privacy data sheet of this device's present configuration."""
    mechanism, limit, budget = plan.mechanism, plan.limit, plan.section.budget
    honest = plan.section.mode == "honest"
    return {
        "device software": f"gridfed {version}, numpy {np.__version__}",
        "claim": plan.guarantee,
        "claim holds for the releases so far": account.is_kept if honest else None,
        "formal claim": honest,
        "unit of privacy": plan.unit if honest else "none",
        "neighbouring inputs": mechanism.adjacency if honest else "none",
        "trust model": "local: noise is added on the device, no other party is trusted with readings",
        "mechanism": mechanism.name,
        "attached at": mechanism.point,
        "calibration": NO_CLAIM if plan.is_paper else mechanism.calibration,
        "bounded by": _bounds(plan),
        "noise over the bound": finite(plan.noise) if mechanism.name != "none" else None,
        "noise over what one unit can move": finite(plan.cost) if honest else None,
        "epsilon of one release": _one(plan),
        "epsilon so far": account.summary()["epsilon"],
        "epsilon allowed": account.summary()["allowed"],
        "delta": limit.delta,
        "releases so far": account.released,
        "releases outside the claim": budget.unclaimed_releases,
        "releases left": account.left(plan.release()),
        "composition": "Gaussian releases exactly (one with noise / sqrt(T)); pure ones by "
        "addition, or advanced composition where that is less",
        "sampling": "no amplification is claimed: participation is neither secret nor Poisson-sampled",
        "randomness": "os.urandom; never a seed",
        "floating point": "values on a grid of 2^-20 of the sensitivity"
        if plan.is_on_grid
        else "noise is sampled in float64; its last bits are not protected",
        "resend": "the same bytes: noise is stored with the update",
        "measured numbers beside updates": "sent" if plan.sends_metrics else "withheld",
        "ledger": "charged and synced before anything is sent; it only grows",
        "after a lost store": "the account goes on from the larger of the aggregator's count of releases and "
        "the one outside the state folder; readings older than the loss are not used for training"
        if mechanism.point == "input"
        else "the account goes on from the larger of the aggregator's count of releases and the one "
        "outside the state folder",
        "after a restored disk image": "the account goes on from the count of releases outside the state "
        "folder; a copy that has both is not recognised",
        "not protected": gaps(plan),
        "charges": charges_table(account),
    }


def as_text(totals: Mapping[str, Any]) -> str:
    """Format a data sheet as text."""
    lines = []
    for key, value in totals.items():
        if key == "charges":
            continue
        if isinstance(value, list):
            lines += [f"{key}:", *(f"- {item}" for item in value)]
        else:
            is_amount = key in {"releases left", "epsilon allowed"}
            lines.append(f"{key}: {'no limit' if value is None and is_amount else _shown(value)}")
    return "\n".join(lines)


def finite(value: float) -> float | None:
    """Return a number, or None for one that JSON cannot represent."""
    return value if math.isfinite(value) else None


def _alone(charge: PrivacyCharge, account: PrivacyAccount) -> float:
    if charge.is_free:
        return 0.0
    unit = account.limit.unit
    unit = unit if charge.unit == unit or charge.unit in COARSER[unit] else charge.unit
    return PrivacyAccount((charge,), account.limit).epsilon(unit)


def _one(plan: NoisePlan) -> float | None:
    if plan.mechanism.name == "none":
        return None
    return finite(PrivacyAccount((plan.charge(),), plan.limit).epsilon())


def _bounds(plan: NoisePlan) -> str:
    mechanism = plan.mechanism
    match mechanism.point:
        case "input":
            spans = [f"{stream} in [{a:g}, {b:g}]" for stream, (a, b) in plan.ranges.items()]
            return ", ".join(spans) if not plan.is_paper else "nothing"
        case "sign" if mechanism.coordinate_bound is not None:
            return f"every coordinate within {mechanism.coordinate_bound:g}"
        case "none":
            return "nothing"
    norm = "L1" if mechanism.name == "laplace" else "Euclidean"
    return (
        f"{norm} norm of {mechanism.clip_norm:g}" if mechanism.clip_norm else "one bit a coordinate"
    )


def _left(left: int | None, plan: NoisePlan) -> str:
    if plan.mechanism.point == "input" and not plan.is_paper:
        return "no limit: updates are computed from readings that already have noise"
    if left is None:
        return "no limit"
    return str(left) if left else "none; the device trains locally"


def _odds(epsilon: float | None) -> list[str]:
    if epsilon is None:
        return []
    if epsilon > 10.0:
        return [
            (
                "an epsilon above 10 gives no meaningful protection: the releases may change the "
                f"odds of a guess about one unit by a factor of up to e^{epsilon:g}"
            )
        ]
    return [
        (
            "all releases together change the odds of any guess about one unit by a factor of at "
            f"most {math.exp(epsilon):.3g}"
        )
    ]


def _noise(multiplier: float | None) -> str:
    return "-" if not multiplier else f"{multiplier:.6g}"


def _shown(value: object) -> str:
    if value is None:
        return "unbounded"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
