"""Solve a device's own model, drawn towards the fleet's as strongly as its held-back data says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_sdk.analytic.reweighting import QuantileLoss, reweighted
from edge_sdk.analytic.solve import predicted, ridge
from edge_sdk.analytic.statistics import Statistic, gather

Floats = NDArray[np.float64]

STRENGTHS = (0.0, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, math.inf)
"""Values of λ that a device tries: 0 is alone, infinity is the fleet's model."""

TAIL = 0.15
"""Share of a device's record that is held back to choose λ: its newest windows."""


@dataclass(frozen=True, slots=True, eq=False)
class PersonalModel:
    """A device's model.

    Attributes:
        coefficients: Shape ``(outputs, P)``.
        strengths: λ of every output, chosen on held-back windows, shape ``(outputs,)``.
        losses: Held-back loss of every λ that was tried, shape ``(tried, outputs)``.
    """

    coefficients: Floats
    strengths: Floats
    losses: Floats


def drawn(
    statistic: Statistic, fleet: Floats, strength: float, shape: Floats | None = None
) -> Floats:
    """Return argmin Σ w (y - vᵀφ)² + λ n Σ d (v - fleet)², shape ``(outputs, P)``.

    Args:
        statistic: The device's own.
        fleet: The model that the penalty draws towards, shape ``(outputs, P)``.
        strength: λ, from 0 (alone) to infinity (the fleet's model).
        shape: d, the relative penalty of each coordinate, shape ``(P,)``; 1 if left out.

    Example:
        >>> data = gather(np.array([[1.0], [1.0]]), np.array([[2.0], [4.0]]))
        >>> fleet = np.array([[7.0]])
        >>> [round(float(drawn(data, fleet, s)[0, 0]), 6) for s in (0.0, 1.0, math.inf)]
        [3.0, 5.0, 7.0]
    """
    if math.isinf(strength):
        return fleet
    relative = np.ones(statistic.width) if shape is None else shape
    return ridge(statistic, strength * statistic.count * relative, fleet)


def fit_personal(
    design: Floats,
    targets: Floats,
    fleet: Floats,
    loss: QuantileLoss,
    *,
    shape: Floats | None = None,
    strengths: Sequence[float] = STRENGTHS,
    tail: float = TAIL,
    passes: int = 2,
) -> PersonalModel:
    """Choose λ on the newest windows, then solve on all of them.

    Every λ is tried twice: under the weights of the fleet's residuals, and unweighted, which is the
    better start where the fleet's model does not fit. The final passes start from the best
    candidate. Every output chooses for itself. A record with fewer than two windows on either side
    of the cut keeps the fleet's model.

    Args:
        design: The device's rows, oldest first, shape ``(n, P)``.
        targets: Shape ``(n, outputs)``.
        fleet: The fleet's model, shape ``(outputs, P)``.
        loss: The loss of the choice and of the solution.
        shape: As for ``drawn``.
        strengths: Values of λ to try.
        tail: Share of the windows to hold back.
        passes: Re-weighted passes of the final solution.
    """
    cut = len(design) - max(1, round(tail * len(design)))
    outputs = len(fleet)
    if cut < 2 or len(design) - cut < 2:
        return PersonalModel(fleet, np.full(outputs, math.inf), np.empty((0, outputs)))
    early, late = design[:cut], design[cut:]
    weights = loss.weights(targets[:cut] - predicted(early, fleet))
    known = [gather(early, targets[:cut], w) for w in (weights, None)]
    tried = np.stack([[drawn(one, fleet, s, shape) for s in strengths] for one in known])
    losses = np.stack(
        [[loss.objective(targets[cut:] - predicted(late, one)) for one in row] for row in tried]
    )
    start, losses = np.argmin(losses, axis=0), losses.min(axis=0)
    best = np.argmin(losses, axis=0)
    each = np.arange(outputs)
    begin = tried[start[best, each], best, each]
    chosen = np.asarray(strengths)[best]
    relative = np.ones(design.shape[1]) if shape is None else shape
    found = fleet.copy()
    for strength in np.unique(chosen[np.isfinite(chosen)]):
        mine = np.flatnonzero(chosen == strength)
        levels = np.broadcast_to(np.asarray(loss.levels, np.float64), (outputs,))[mine]
        found[mine] = reweighted(
            design,
            targets[:, mine],
            QuantileLoss(levels.tolist(), loss.floor),
            begin[mine],
            penalty=float(strength) * len(design) * relative,
            towards=fleet[mine],
            passes=passes,
        )
    return PersonalModel(found, chosen, losses)
