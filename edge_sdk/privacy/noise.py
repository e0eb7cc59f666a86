"""Compute the Gaussian noise for a privacy guarantee, and draw noise that cannot be reproduced.

Analytic calibration: Balle and Wang, "Improving the Gaussian mechanism for differential privacy"
(2018), theorem 8. Every answer is rounded to the safe side. ``sigma`` is in units of the release.

Noise comes from the operating system's randomness. The samplers work on floating-point numbers, so the
last bits of a release depend on the hidden value (Mironov, "On significance of the least significant
bits", 2012). ``round_towards_zero`` and ``round_to_grid`` put values on a coarse grid before and after,
which removes those bits.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.privacy import CALIBRATIONS, MechanismSection, PrivacySection
from edge_sdk.privacy.mechanism import Entropy, Mechanism
from edge_sdk.privacy.noise_calibration import (
    Complaint,
    DeviceFacts,
    Noise,
    NoisePoint,
    no_faults,
)
from edge_sdk.protocol.contract.method import Contract, Up, Update, answered

Floats = NDArray[np.float64]

GRID = 2.0**-20
"""Grid step, in units of the sensitivity."""


def normal(count: int, entropy: Entropy = os.urandom) -> Floats:
    """Draw standard normal numbers (Box and Muller, from 64-bit uniforms), shape ``(count,)``.

    The largest possible value is 9.4: a true sample exceeds it once in 10²⁰ draws.

    >>> normal(3, lambda size: bytes([127]) * size).round(6)
    array([-1.180653,  0.014546, -1.180653])
    """
    pairs = (count + 1) // 2
    bits = np.frombuffer(entropy(16 * pairs), "<u8").reshape(2, pairs)
    radius = np.sqrt(-2.0 * np.log(_open(bits[0], 64)))
    angle = 2.0 * np.pi * _open(bits[1], 64)
    out = np.empty(2 * pairs)
    out[0::2], out[1::2] = radius * np.cos(angle), radius * np.sin(angle)
    return out[:count]


def laplace(count: int, entropy: Entropy = os.urandom) -> Floats:
    """Draw Laplace numbers of scale 1, shape ``(count,)``.

    >>> laplace(2, lambda size: bytes([127]) * size).round(6)
    array([-0.697076, -0.697076])
    """
    bits = np.frombuffer(entropy(8 * count), "<u8")
    size: Floats = -np.log(_open(bits >> np.uint64(1), 63))
    return np.where(bits & np.uint64(1), -size, size)


def uniform(count: int, entropy: Entropy = os.urandom) -> Floats:
    """Draw uniform numbers in (0, 1], shape ``(count,)``."""
    return _open(np.frombuffer(entropy(8 * count), "<u8"), 64)


def round_towards_zero(values: Floats, step: float) -> Floats:
    """Round values towards zero onto a grid: no norm grows by it.

    >>> round_towards_zero(np.array([0.9, -0.9, 2.0]), 0.5)
    array([ 0.5, -0.5,  2. ])
    """
    return np.trunc(values / step) * step


def round_to_grid(values: Floats, step: float) -> Floats:
    """Round values to the nearest point of a grid.

    >>> round_to_grid(np.array([0.9, -0.9]), 0.5)
    array([ 1., -1.])
    """
    return np.rint(values / step) * step


def _open(bits: NDArray[np.uint64], width: int) -> Floats:
    """Convert words to numbers in (0, 1]: never 0, whose logarithm is undefined."""
    return (bits.astype(np.float64) + 1.0) * 2.0**-width


_SAFE = 1e-12  # the relative step towards more noise, or a larger epsilon
_ROUNDING = 4.0 * 2.0**-53
_HALVINGS = 200


def sigma_for(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Return the smallest noise that is (ε, δ)-private, rounded up.

    Args:
        epsilon: Above 0; any size.
        delta: Between 0 and 1.
        sensitivity: Largest Euclidean distance between two neighbouring inputs.

    Raises:
        ValueError: Numbers outside these ranges.

    >>> f"{sigma_for(1.0, 1e-5):.6f}", f"{sigma_for(70.0, 1e-5):.6f}"
    ('3.730632', '0.119383')
    """
    _check(epsilon, delta)
    guess = 1.0 / math.sqrt(2.0 * epsilon)
    return sensitivity * _least(lambda sigma: sum(_delta(sigma, epsilon)) <= delta, guess)


def epsilon_of(sigma: float, delta: float, sensitivity: float = 1.0) -> float:
    """Return the smallest ε for which noise of ``sigma`` is (ε, δ)-private, rounded up.

    >>> f"{epsilon_of(0.1, 1e-5):.3f}", f"{epsilon_of(0.161494, 1e-5):.3f}"
    ('91.817', '44.822')
    """
    _check(1.0, delta)
    if not (sigma > 0.0 and sensitivity > 0.0):
        raise ValueError(f"sigma {sigma}, sensitivity {sensitivity}")
    unit = sigma / sensitivity
    if sum(_delta(unit, 0.0)) <= delta:
        return 0.0
    return _least(lambda epsilon: sum(_delta(unit, epsilon)) <= delta, 1.0)


def _delta(sigma: float, epsilon: float) -> tuple[float, float]:
    """Return δ at sensitivity 1, and a bound of its rounding error."""
    half, shift = 0.5 / sigma, epsilon * sigma
    far, near = log_cdf(-half - shift), log_cdf(half - shift)
    share = cdf(half - shift)
    return share * -math.expm1(min(epsilon + far - near, 0.0)), _ROUNDING * share * (1.0 - far)


def _check(epsilon: float, delta: float) -> None:
    if not (epsilon > 0.0 and math.isfinite(epsilon)):
        raise ValueError(f"epsilon must be above 0, got {epsilon}")
    if not 0.0 < delta < 1.0:
        raise ValueError(f"delta must lie between 0 and 1, got {delta}")


def _least(holds: Callable[[float], bool], guess: float) -> float:
    """Return the smallest positive number for which a monotone condition holds, from above."""
    low = high = guess
    while holds(low):
        low /= 2.0
    while not holds(high):
        high *= 2.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high * (1.0 + _SAFE)


_FAR = -35.0  # below it erfc is close to underflow, and seven terms of the series are exact
_ROOT2 = math.sqrt(2.0)
_LOG_ROOT_2PI = 0.5 * math.log(2.0 * math.pi)


def cdf(x: float) -> float:
    """Return Φ(x).

    >>> round(cdf(1.0), 12), cdf(-40.0)
    (0.841344746069, 0.0)
    """
    return 0.5 * math.erfc(-x / _ROOT2)


def log_cdf(x: float) -> float:
    """Return log Φ(x), where Φ(x) itself would be 0.

    Far in the tail it is the asymptotic series of the Mills ratio (Abramowitz and Stegun 26.2.12).

    >>> round(log_cdf(-40.0), 9), round(log_cdf(-1e4), 4), log_cdf(9.0) < 0.0
    (-804.608442014, -50000010.1293, True)
    """
    if x > 0.0:
        return math.log1p(-0.5 * math.erfc(x / _ROOT2))
    if x > _FAR:
        return math.log(cdf(x))
    inverse = 1.0 / (x * x)
    series, term = 0.0, 1.0
    for k in range(1, 8):
        term *= -(2 * k - 1) * inverse
        series += term
    return -0.5 * x * x - math.log(-x) - _LOG_ROOT_2PI + math.log1p(series)


@dataclass(frozen=True, slots=True)
class Calibration:
    """The rule by which Gaussian noise follows from epsilon and delta."""

    # from epsilon and delta, to the noise of one release over its sensitivity
    sigma: Callable[[float, float], float] = sigma_for
    faults: Callable[[PrivacySection], Iterable[Complaint]] = no_faults
    # from the section, to a paper's own noise over the clipping norm: a label and no guarantee. The
    # ledger records the actual noise. None where the noise follows from a guarantee.
    level: Callable[[PrivacySection], float] | None = None


ANALYTIC = Calibration()


def calibration_of(mechanism: MechanismSection) -> Calibration:
    """Return the calibration that a mechanism names."""
    found: Calibration | None = CALIBRATIONS[mechanism.calibration]
    return found or ANALYTIC


def clipped_noise(section: PrivacySection, apart: float, *, draws: int = 1) -> Noise:
    """Return noise over the clipping norm.

    Args:
        apart: Largest distance of two neighbouring releases, in units of the norm.
        draws: Draws of one round.
    """
    mechanism, budget = section.mechanism, section.budget
    if (level := calibration_of(mechanism).level) is not None:
        noise = level(section)
    elif mechanism.noise_multiplier is not None:
        noise = mechanism.noise_multiplier
    elif mechanism.epsilon is not None:
        noise = apart * calibrated_noise(mechanism, mechanism.epsilon, budget.delta)
    else:
        times = draws * (budget.max_releases or 1)
        grown = times if mechanism.name == "laplace" else math.sqrt(times)
        noise = apart * grown * calibrated_noise(mechanism, budget.epsilon or 0.0, budget.delta)
    return Noise(noise, noise / apart)


def calibrated_noise(mechanism: MechanismSection, epsilon: float, delta: float) -> float:
    """Return the noise of one release, over its sensitivity."""
    if mechanism.name == "laplace":
        return 1.0 / epsilon
    return calibration_of(mechanism).sigma(epsilon, delta)


def is_range(span: tuple[float, ...]) -> bool:
    return len(span) == 2 and math.isfinite(span[0]) and -math.inf < span[0] < span[1] < math.inf


def range_faults(mechanism: MechanismSection, facts: DeviceFacts) -> Iterator[Complaint]:
    """Yield a complaint without a public range: a scale from readings would be a release."""
    if not is_range(mechanism.range):
        unit, stream = facts.manifest.target.unit, facts.manifest.target.stream
        yield "mechanism.range", f"give [low, high] for {stream} in {unit}, as public constants"


def _of_update(section: PrivacySection, _facts: DeviceFacts, _unit: str) -> Noise:
    return clipped_noise(section, 2.0 if section.mechanism.adjacency == "replace" else 1.0)


def _conflicts_of_update(contract: Contract) -> Iterator[Complaint]:
    ask = answered(contract)[1]
    if ask.up == Up.SIGNS:
        yield "mechanism.point", "sends signs: set point = 'sign'"
    if ask.has_statistic:
        yield "mechanism.point", "sends a statistic: set point = 'statistic'"


@dataclass(slots=True)
class UpdateNoise(Mechanism):
    """Clip a whole update, then add noise to every coordinate."""

    def release(self, update: Update) -> Update:
        mechanism, kept = self.plan.mechanism, Mechanism.release(self, update)
        reach = mechanism.clip_norm or 0.0
        is_laplace = mechanism.name == "laplace"
        order: float = 1 if is_laplace else 2
        vector = clipped(np.asarray(update.vector, np.float64), reach, order)
        draw = laplace if is_laplace else normal
        step, is_on_grid = GRID * reach, self.plan.is_on_grid
        vector = round_towards_zero(vector, step) if is_on_grid else vector
        vector = vector + self.plan.noise * reach * draw(vector.size, self.entropy)
        return replace(kept, vector=round_to_grid(vector, step) if is_on_grid else vector)


def clipped(vector: Floats, reach: float, order: float) -> Floats:
    """Scale a vector down to a norm; one that is not finite becomes 0 and is protected as well."""
    size = float(np.linalg.norm(vector, order))
    if not np.isfinite(size):
        return np.zeros_like(vector)
    return vector * (reach / size) if size > reach else vector


UPDATE = NoisePoint(
    "edge_sdk.privacy.noise:UpdateNoise",
    names=("gaussian", "laplace"),
    units=("device",),
    keys=frozenset(
        {"clip_norm", "noise_multiplier", "epsilon", "calibration", "adjacency", "grid", "formula"}
    ),
    noise=_of_update,
    conflicts=_conflicts_of_update,
    is_clipped=True,
    has_grid=True,
    text="every update is clipped to {clip} and gets {name} noise",
)
