"""Blend forecasts by their errors on held-back windows of the whole record.

The newest windows alone are one season; blocks spread over the record are all seasons that it has.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

EVERY = 5
"""One block in so many is held back."""

FEW = 200.0
"""Number of held-back windows at which weights by least loss and weights by error count the same."""

PRIOR = 100.0
"""Number of held-back windows at which the fitted weights and the prior weights count the same."""

_STEEP = 10.0
_ROUNDS = 300
_STEP = 4.0


def blocks_held_back(windows: int, block: int) -> NDArray[np.bool_]:
    """Return which of a device's windows are held back: every fifth block of the whole record.

    Args:
        windows: Number of windows, oldest first.
        block: Windows of a block, best a week's; a record of fewer than 15 blocks has shorter ones.

    >>> blocks_held_back(15, 1).astype(int).tolist()
    [0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0]
    """
    return np.asarray(_folds(windows, block) == EVERY // 2)


def parts_held_back(windows: int, block: int) -> list[NDArray[np.bool_]]:
    """Return the parts of a device's windows that are held back one after the other.

    A record of at least 15 blocks has one part, ``blocks_held_back``'s. A fifth of a shorter one is
    too little to choose weights by, so each of its five parts is held back once.

    Args:
        windows: Number of windows, oldest first.
        block: Windows of a block, best a week's.

    >>> [part.astype(int).tolist() for part in parts_held_back(5, 7)]
    [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]
    >>> len(parts_held_back(105, 7)), parts_held_back(1, 7)
    (1, [])
    """
    if windows >= 3 * EVERY * block:
        return [blocks_held_back(windows, block)]
    folds = _folds(windows, block)
    parts = [np.asarray(folds == number) for number in range(EVERY)]
    return [part for part in parts if part.any() and not part.all()]


def _folds(windows: int, block: int) -> NDArray[np.int64]:
    """Return the number of each window's part, from 0 to 4."""
    size = max(1, min(block, windows // (3 * EVERY)))
    return np.arange(windows) // size % EVERY


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

    Returns:
        At least 0, with sum 1, shape ``(candidates,)``.

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


def weights_of_a_new_device(weights: Floats, begun: Floats, windows: int) -> Floats:
    """Return the weighted mean of the weights fitted to few held-back windows and of prior weights.

    A week of windows shows what fitted that week. The prior of a new device is best an equal mean of
    the fleet's model and its own drawn towards it; it counts as ``PRIOR`` windows do.

    Args:
        weights: Fitted to its held-back windows, shape ``(candidates,)``.
        begun: Prior weights, at least 0, with sum 1, same shape.

    >>> weights_of_a_new_device(np.array([1.0, 0.0]), np.array([0.0, 1.0]), 300).tolist()
    [0.75, 0.25]
    """
    return np.asarray((windows * weights + PRIOR * begun) / (windows + PRIOR))
