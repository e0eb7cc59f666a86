"""Poisoned readings: a device's frame with its target, and all inputs derived from it, changed.

Values are changed in the device's own unit interval, after the scale was fixed on the real
readings: a scale fixed on shifted readings would undo the shift.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from firmware_sim.attacks import BoundAttack
from firmware_sim.attacks.data import Scaled


def poisoned(frame: Any, features: Iterable[Any], bound: BoundAttack, seed: int) -> Any:  # noqa: ANN401 - the SDK's own frame
    """Return a frame in which the target is changed by an attack.

    Args:
        frame: A device's channels, targets and scale.
        features: The bundle's inputs, in the order of the channels.
        seed: Seed of its draws; the same for every channel, so that all change alike.
    """

    def poison(y: Scaled) -> Scaled:
        changed: Scaled = bound.act(y, np.random.default_rng(seed))
        return changed

    low, width = frame.scale.low, frame.scale.width
    raw = low + width * poison(frame.scale.shrink(frame.raw))
    if bound.attack.labels_only:
        return replace(frame, raw=raw)
    last = low + width * poison(frame.scale.shrink(frame.last))
    channels = frame.channels.copy()
    for column, feature in enumerate(features):
        if feature.kind in {"target", "lag"}:
            behind = feature.lag_steps - 1 if feature.kind == "lag" else 0
            channels[:, column] = _later(poison(frame.scale.shrink(frame.last)), behind)
    return replace(frame, raw=raw, last=last, channels=channels)


def _later(values: Scaled, rows: int) -> Scaled:
    """Shift later by some rows: the first ones become NaN.

    >>> _later(np.array([1.0, 2.0, 3.0]), 1)
    array([nan,  1.,  2.])
    """
    return np.concatenate([np.full(min(rows, len(values)), np.nan), values])[: len(values)]


@dataclass(slots=True)
class DataPoisoner:
    """Poisons a device's training data, once per frame."""

    bound: BoundAttack
    # returns the bundle's inputs; called when needed, as a run may change the bundle
    features: Callable[[], Iterable[Any]]
    seed: int  # seed of the attack's draws
    _clean: Any = None
    _spoilt: Any = None

    def windows(self, drawable: Any) -> Any:  # noqa: ANN401 - the SDK's own
        """Return the training windows, poisoned."""
        if drawable.frame is not self._clean:
            self._clean = drawable.frame
            self._spoilt = poisoned(drawable.frame, self.features(), self.bound, self.seed)
        return replace(drawable, frame=self._spoilt)
