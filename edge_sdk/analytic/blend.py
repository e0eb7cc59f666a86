"""Blend forecasts by what they missed on windows that were held back from the whole record.

The newest windows alone are one season; blocks spread over the record are all seasons that it has.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

EVERY = 5
"""One block in so many is held back."""

FEW = 200.0
"""Held-back windows at which weights by least loss and by error alone count the same."""

_STEEP = 10.0
_ROUNDS = 300
_STEP = 4.0


def blocks_held_back(windows: int, block: int) -> NDArray[np.bool_]:
    """Return which of a device's windows are held back: every fifth block of the whole record.

    Args:
        windows: Number of windows, oldest first.
        block: Windows of a block, best a week's; a record of fewer than 15 blocks has shorter ones.

    Example:
        >>> blocks_held_back(15, 1).astype(int).tolist()
        [0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0]
    """
    size = max(1, min(block, windows // (3 * EVERY)))
    return np.asarray(np.arange(windows) // size % EVERY == EVERY // 2)


def least_loss_weights(forecasts: Floats, targets: Floats, *, level: float = 0.5) -> Floats:
    """Return the weights of a mean of forecasts whose pinball loss on held-back windows is least.

    Weights are at least 0 and sum to 1, so a blend is never outside what was forecast. They are
    found by exponentiated gradient steps (Kivinen and Warmuth 1997); the best of the way counts.

    Args:
        forecasts: Shape ``(n, candidates)``.
        targets: Shape ``(n,)``.
        level: Quantile level; one half is the absolute error.

    Returns:
        Shape ``(candidates,)``; all the same if there is no window.

    Example:
        >>> truth = np.array([1.0, -2.0, 3.0, -1.0])
        >>> least_loss_weights(np.stack([truth, -truth], 1), truth).round(2).tolist()
        [1.0, 0.0]
    """
    count = forecasts.shape[1]
    weights = np.full(count, 1.0 / count)
    if not len(targets):
        return weights
    unit = float(np.abs(targets[:, None] - forecasts).mean()) or 1.0
    least, best = np.inf, weights
    for number in range(_ROUNDS):
        missed = targets - np.einsum("nc,c->n", forecasts, weights)
        loss = float(np.maximum(level * missed, (level - 1.0) * missed).mean())
        if loss < least:
            least, best = loss, weights
        side = np.where(missed > 0.0, level, level - 1.0)
        slope = -np.einsum("n,nc->c", side, forecasts) / len(targets)
        slope -= (slope * weights).sum()
        weights = weights * np.exp(-2.0 * _STEP / unit / np.sqrt(1.0 + number / 10.0) * slope)
        weights = weights / weights.sum()
    return best


def served_weights(forecasts: Floats, targets: Floats, *, level: float = 0.5) -> Floats:
    """Return the weights of the mean that a device serves.

    A mixture: of ``least_loss_weights``, which many windows can determine, and of weights by each
    candidate's own loss to the power -10, which few windows can; ``FEW`` says what is few.

    Args:
        forecasts: Of held-back windows, shape ``(n, candidates)``.
        targets: Shape ``(n,)``.
        level: Quantile level.

    Returns:
        At least 0, with sum 1, shape ``(candidates,)``.

    Example:
        >>> truth = np.array([1.0, -2.0, 3.0, -1.0])
        >>> served_weights(np.stack([truth + 0.1, -truth], 1), truth).round(2).tolist()
        [1.0, 0.0]
    """
    least = least_loss_weights(forecasts, targets, level=level)
    if not len(targets):
        return least
    missed = targets[:, None] - forecasts
    losses = np.maximum(level * missed, (level - 1.0) * missed).mean(axis=0)
    losses = np.maximum(losses, 1e-12 + 1e-6 * losses.max())
    alone = (losses / losses.min()) ** -_STEEP
    few = FEW / (FEW + len(targets))
    return np.asarray((1.0 - few) * least + few * alone / alone.sum())
