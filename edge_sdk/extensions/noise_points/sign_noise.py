"""Release only randomised signs of an update."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from edge_sdk.privacy import PrivacySection, noise
from edge_sdk.privacy.mechanism import Mechanism
from edge_sdk.privacy.noise import Floats, clipped, log_cdf
from edge_sdk.privacy.noise_calibration import Complaint, DeviceFacts, Noise, NoisePoint
from edge_sdk.protocol.contract.method import Contract, Up, Update, answered


@dataclass(slots=True)
class SignNoise(Mechanism):
    """Release only the sign of every coordinate, randomised (DP-RSA)."""

    def release(self, update: Update) -> Update:
        """Return 1 or -1 for every coordinate; the sign of 0 is drawn."""
        mechanism, kept = self.plan.mechanism, Mechanism.release(self, update)
        vector = np.asarray(update.vector, np.float64)
        if mechanism.name == "sign_gaussian":
            return replace(kept, vector=self._signs(self._blurred(vector)))
        true = noise.uniform(vector.size, self.entropy) <= keep_probability(self.plan.noise)
        return replace(kept, vector=self._signs(vector) * np.where(true, 1.0, -1.0))

    def _blurred(self, vector: Floats) -> Floats:
        clip, bound = self.plan.mechanism.clip_norm, self.plan.mechanism.coordinate_bound
        reach = clip or bound or 0.0
        kept = clipped(vector, reach, 2) if clip else np.clip(np.nan_to_num(vector), -reach, reach)
        return kept + self.plan.noise * reach * noise.normal(vector.size, self.entropy)

    def _signs(self, vector: Floats) -> Floats:
        coin = noise.uniform(vector.size, self.entropy) <= 0.5
        return np.where(vector == 0.0, np.where(coin, 1.0, -1.0), np.sign(np.nan_to_num(vector)))


def keep_probability(epsilon: float) -> float:
    """Return the probability that ``sign_flip`` keeps a sign: e^ε / (1 + e^ε).

    >>> round(keep_probability(1.0), 8)
    0.73105858
    """
    return 1.0 / (1.0 + math.exp(-epsilon))


def epsilon_of_sign(bound: float, sigma: float) -> float:
    """Return the ε of one coordinate's sign after clipping to ±bound and adding N(0, σ²).

    DP-RSA, *this project's* accounting: the publication's calibration is unknown. A message of P
    coordinates costs P times as much.

    >>> [round(epsilon_of_sign(ratio, 1.0), 5) for ratio in (0.1, 0.5, 1.0)]
    [0.15965, 0.80697, 1.66827]
    """
    return log_cdf(bound / sigma) - log_cdf(-bound / sigma)


def _noise(section: PrivacySection, facts: DeviceFacts, _unit: str) -> Noise:
    mechanism = section.mechanism
    if mechanism.name == "sign_flip":
        epsilon = mechanism.epsilon or 0.0
        return Noise(epsilon, 1.0 / (facts.shared * epsilon))
    noise = mechanism.noise_multiplier or 0.0
    if mechanism.clip_norm is not None:
        return Noise(noise, noise / 2.0)
    return Noise(noise, 1.0 / (facts.shared * epsilon_of_sign(1.0, noise)))


def _faults(section: PrivacySection, _facts: DeviceFacts) -> Iterator[Complaint]:
    mechanism = section.mechanism
    bounds = (mechanism.clip_norm, mechanism.coordinate_bound)
    if mechanism.name == "sign_flip":
        if mechanism.epsilon is None:
            yield "mechanism.epsilon", "missing; set the epsilon of one coordinate's sign"
        if any(one is not None for one in (*bounds, mechanism.noise_multiplier)):
            yield "mechanism.clip_norm", "sign_flip takes epsilon only"
        return
    if mechanism.noise_multiplier is None:
        yield (
            "mechanism.noise_multiplier",
            "missing; set the noise as a multiple of clip_norm or coordinate_bound",
        )
    if bounds.count(None) != 1:
        yield "mechanism.clip_norm", "expected either clip_norm or coordinate_bound, not both"


def _conflicts(contract: Contract) -> Iterator[Complaint]:
    if (up := answered(contract)[1].up) != Up.SIGNS:
        yield "mechanism.point", f"answers {up.value!r}, not signs"


SIGN = NoisePoint(
    "edge_sdk.extensions.noise_points.sign_noise:SignNoise",
    names=("sign_gaussian", "sign_flip"),
    units=("device",),
    keys=frozenset({"clip_norm", "coordinate_bound", "noise_multiplier", "epsilon"}),
    noise=_noise,
    faults=_faults,
    conflicts=_conflicts,
    text="only noisy signs are sent ({name})",
)
