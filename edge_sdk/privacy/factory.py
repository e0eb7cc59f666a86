"""Create the privacy mechanism that a plan configures."""

from __future__ import annotations

import os
from collections.abc import Callable

from edge_sdk.privacy.gradient_noise import GradientNoise, PaperInputNoise
from edge_sdk.privacy.input_noise import InputNoise, NoisyReadingStore
from edge_sdk.privacy.mechanism import Mechanism, NoMechanism
from edge_sdk.privacy.noise import Entropy
from edge_sdk.privacy.noise_calibration import NoisePlan
from edge_sdk.privacy.statistic_noise import StatisticNoise
from edge_sdk.privacy.update_noise import SignNoise, UpdateNoise

__all__ = ["Mechanism", "mechanism_of"]


def mechanism_of(
    plan: NoisePlan,
    shelf: NoisyReadingStore,
    clock: Callable[[], int],
    *,
    measured: frozenset[str],
    entropy: Entropy = os.urandom,
) -> Mechanism:
    """Return the mechanism of a plan, to be attached at its point.

    Args:
        plan: Plan from ``validation.plan_of``.
        shelf: Store of the perturbed readings.
        clock: Function that returns milliseconds since 1970, for the ledger.
        measured: Names of the update's scalars that are derived from readings.
        entropy: Source of random bytes; only a test passes another one.
    """
    point = plan.mechanism.point
    if point == "input" and not plan.is_paper:
        return InputNoise(plan, measured, entropy, shelf=shelf, clock=clock)
    kinds = {
        "update": UpdateNoise,
        "sign": SignNoise,
        "gradient": GradientNoise,
        "statistic": StatisticNoise,
        "input": PaperInputNoise,
    }
    return kinds.get(point, NoMechanism)(plan, measured, entropy)
