"""Calibrate Gaussian noise by the classical formula, and noise that shrinks while epsilon grows."""

from __future__ import annotations

import math
from collections.abc import Iterator

from edge_sdk.privacy import PrivacySection
from edge_sdk.privacy.noise import Calibration
from edge_sdk.privacy.noise_calibration import POINTS, Complaint


def extra_sigma(wanted: float, least: float) -> float:
    """Return the independent noise that makes a version with ``least`` noise one with ``wanted``.

    An epsilon that moves up to a final one: draw the final, least noise first and keep it; every
    earlier version is that plus this. All versions together cost what the least noisy one does.

    Raises:
        ValueError: Less noise is wanted than is there.

    >>> extra_sigma(0.5, 0.3)
    0.4
    """
    if wanted < least:
        raise ValueError(f"noise {least} cannot become {wanted}")
    return math.sqrt((wanted - least) * (wanted + least))


def classical_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Return √(2 ln(1.25/δ)) · Δ / ε, whatever ε is: a guarantee for ε ≤ 1 only.

    Dwork and Roth, "The algorithmic foundations of differential privacy" (2014), theorem A.1. The
    papers use it up to ε = 70, where the true ε is 165.

    >>> f"{classical_sigma(1.0, 1e-5):.6f}"
    '4.844805'
    >>> from edge_sdk.privacy.noise import epsilon_of
    >>> f"{epsilon_of(classical_sigma(70.0, 1e-5), 1e-5):.2f}"
    '165.12'
    """
    return math.sqrt(2.0 * math.log(1.25 / delta)) * sensitivity / epsilon


def _faults(section: PrivacySection) -> Iterator[Complaint]:
    mechanism, epsilon = section.mechanism, section.mechanism.epsilon
    if section.mode == "paper":
        return
    if POINTS[mechanism.point].is_on_readings:
        epsilon = section.budget.epsilon
    if epsilon is None:
        yield "mechanism.epsilon", "missing; the classical formula is for one release"
    elif epsilon > 1.0:
        why = "use 'analytic', or mode = 'paper' without a claim"
        text = f"the classical formula holds for epsilon up to 1, not {epsilon:g}; {why}"
        yield "mechanism.calibration", text


CLASSICAL = Calibration(classical_sigma, _faults)
