"""Add noise to a whole update, or release randomised signs only."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from edge_sdk.privacy import noise
from edge_sdk.privacy.mechanism import NoMechanism
from edge_sdk.privacy.noise import Floats
from edge_sdk.privacy.pure_dp import keep_probability
from edge_sdk.wire.contract.method import Update


@dataclass(slots=True)
class UpdateNoise(NoMechanism):
    """Clip a whole update, then add noise to every coordinate."""

    def release(self, update: Update) -> Update:
        """Return the update clipped and noisy."""
        mechanism, kept = self.plan.mechanism, NoMechanism.release(self, update)
        reach = mechanism.clip_norm or 0.0
        is_laplace = mechanism.name == "laplace"
        order: float = 1 if is_laplace else 2
        vector = _clipped(np.asarray(update.vector, np.float64), reach, order)
        draw = noise.laplace if is_laplace else noise.normal
        step = noise.GRID * reach
        vector = noise.round_towards_zero(vector, step) if mechanism.grid else vector
        vector = vector + self.plan.noise * reach * draw(vector.size, self.entropy)
        return replace(kept, vector=noise.round_to_grid(vector, step) if mechanism.grid else vector)


@dataclass(slots=True)
class SignNoise(NoMechanism):
    """Release only the sign of every coordinate, randomised (DP-RSA)."""

    def release(self, update: Update) -> Update:
        """Return 1 or -1 for every coordinate; the sign of 0 is drawn."""
        mechanism, kept = self.plan.mechanism, NoMechanism.release(self, update)
        vector = np.asarray(update.vector, np.float64)
        if mechanism.name == "sign_gaussian":
            return replace(kept, vector=self._signs(self._blurred(vector)))
        true = noise.uniform(vector.size, self.entropy) <= keep_probability(self.plan.noise)
        return replace(kept, vector=self._signs(vector) * np.where(true, 1.0, -1.0))

    def _blurred(self, vector: Floats) -> Floats:
        clip, bound = self.plan.mechanism.clip_norm, self.plan.mechanism.coordinate_bound
        reach = clip or bound or 0.0
        kept = _clipped(vector, reach, 2) if clip else np.clip(np.nan_to_num(vector), -reach, reach)
        return kept + self.plan.noise * reach * noise.normal(vector.size, self.entropy)

    def _signs(self, vector: Floats) -> Floats:
        coin = noise.uniform(vector.size, self.entropy) <= 0.5
        return np.where(vector == 0.0, np.where(coin, 1.0, -1.0), np.sign(np.nan_to_num(vector)))


def _clipped(vector: Floats, reach: float, order: float) -> Floats:
    """Scale a vector down to a norm; one that is not finite becomes 0 and is protected as well."""
    size = float(np.linalg.norm(vector, order))
    if not np.isfinite(size):
        return np.zeros_like(vector)
    return vector * (reach / size) if size > reach else vector
