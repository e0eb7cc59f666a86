"""Solve a device's own model, drawn towards the fleet's as strongly as its held-back data says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.extensions.analytic.reweighting import QuantileLoss, reweighted
from edge_sdk.extensions.analytic.solve import RidgePath, predicted, ridge
from edge_sdk.extensions.analytic.statistics import DesignRows, Statistic, gather

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

STRENGTHS = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, math.inf)
"""Values of λ that a device tries: towards 0 it goes its own way, infinity is the fleet's model."""

ALONE = (1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3)
"""Ridge penalties per window of the models without a fleet that a device tries beside them."""

TAIL = 0.15
"""Share of a device's record that is held back to choose: its newest windows."""

SHORT = 1000
"""Windows below which every quarter of the record is held back in turn, not the newest ones alone."""

LONG = 180.0
"""Days of record from which blocks of every season are held back in turn."""

EQUAL = 0.01
"""Difference of two held-back losses that does not count, in floors of the loss."""

_FOLDS = 4
_SEASONS = 6  # blocks of a long record; of a year each has two months


@dataclass(frozen=True, slots=True, eq=False)
class PersonalModel:
    """A device's model."""

    coefficients: Floats  # shape ``(outputs, P)``
    strengths: Floats  # λ of every output, chosen on held-back windows, shape ``(outputs,)``
    # outputs whose model is drawn towards zero and owes nothing to the fleet
    is_alone: NDArray[np.bool_]
    # least held-back loss, shape ``(outputs,)``; not a number if nothing was held back
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
    design: DesignRows,
    targets: Floats,
    fleet: Floats,
    loss: QuantileLoss,
    *,
    shape: Floats | None = None,
    strengths: Sequence[float] = STRENGTHS,
    alone: Sequence[float] = ALONE,
    days: float = 0.0,
    tail: float = TAIL,
    passes: int = 2,
    is_exact: bool = False,
) -> PersonalModel:
    """Choose a model on held-back windows, then solve it on all of them.

    Candidates are drawn towards the fleet's model (``strengths``) or towards zero (``alone``), so a
    fleet of unlike devices does not make a device worse than it is alone. Every candidate is tried
    twice: under the weights of the fleet's residuals, and unweighted, which is the better start
    where the fleet's model does not fit. The final passes start from the best candidate. Every
    output chooses for itself. ``held_back`` returns the windows to choose by. A record with fewer
    than eight windows keeps the fleet's model.

    Args:
        design: The device's rows, oldest first, shape ``(n, P)``.
        targets: Shape ``(n, outputs)``.
        fleet: The fleet's model, at best ``solve.leave_one_out``'s, shape ``(outputs, P)``.
        loss: The loss of the choice and of the solution.
        shape: As for ``drawn``.
        alone: Penalties towards zero to try; none if empty.
        days: As for ``held_back``.
        tail: As for ``held_back``.
        passes: Re-weighted passes of the final solution.
        is_exact: As for ``statistics.gather``.
    """
    parts, outputs = held_back(len(design), days, tail), len(fleet)
    if not parts:
        nothing = np.full(outputs, math.nan)
        return PersonalModel(
            fleet, np.full(outputs, math.inf), np.zeros(outputs, np.bool_), nothing
        )
    candidates = [*((s, False) for s in strengths), *((s, True) for s in alone)]
    tried = np.zeros((2 * len(candidates), *fleet.shape))
    losses, count = np.zeros((len(tried), outputs)), 0
    weighted = (loss.weights(targets - predicted(design, fleet)), None)
    known = [gather(design, targets, w, is_exact=is_exact) for w in weighted]
    for late in parts:
        rows, goals = design[late], targets[late]
        held = [
            gather(rows, goals, None if w is None else w[late], is_exact=is_exact) for w in weighted
        ]
        models = np.concatenate(
            [
                _tried(k - h, fleet, shape, strengths, alone)
                for k, h in zip(known, held, strict=True)
            ]
        )
        losses += [loss.pointwise(goals - predicted(rows, m)).sum(axis=0) for m in models]
        count += len(rows)
        tried += models / len(parts)
    losses /= count
    best = _best(losses, candidates, EQUAL * loss.floor)
    chosen = best % len(candidates)
    levels = np.broadcast_to(np.asarray(loss.levels, np.float64), (outputs,))
    relative = np.ones(design.shape[1]) if shape is None else shape
    found = fleet.copy()
    for number in np.unique(chosen):
        strength, own = candidates[number]
        mine = np.flatnonzero(chosen == number)
        if not math.isinf(strength):
            found[mine] = reweighted(
                design,
                targets[:, mine],
                QuantileLoss(levels[mine].tolist(), loss.floor),
                tried[best[mine], mine],
                penalty=strength * len(design) * (np.ones_like(relative) if own else relative),
                towards=None if own else fleet[mine],
                passes=passes,
                is_exact=is_exact,
            )
    picked = np.array([candidates[number][0] for number in chosen])
    is_alone = np.array([candidates[number][1] for number in chosen])
    return PersonalModel(found, picked, is_alone, losses[best, np.arange(outputs)])


def _tried(
    known: Statistic,
    fleet: Floats,
    shape: Floats | None,
    strengths: Sequence[float],
    alone: Sequence[float],
) -> Floats:
    """Return all candidates of one statistic, shape ``(candidates, outputs, P)``."""
    path = RidgePath.of(known, shape)
    plain = path if shape is None else RidgePath.of(known)
    count, zero = known.count, np.zeros_like(fleet)
    towards = [fleet if math.isinf(s) else path.solution(s * count, fleet) for s in strengths]
    return np.stack([*towards, *(plain.solution(s * count, zero) for s in alone)])


def _best(losses: Floats, candidates: Sequence[tuple[float, bool]], equal: float) -> Ints:
    """Return the best candidate of each output; among equals, the one with the strongest penalty.

    A record may be foreseen almost perfectly, for it repeats itself. Then a model without a penalty
    is best by next to nothing, and far off as soon as the load changes.
    """
    penalties = np.array([penalty for penalty, _ in candidates] * 2)[:, None]
    good = losses <= losses.min(axis=0) + equal
    strongest = np.where(good, penalties, -1.0).max(axis=0)
    return np.asarray(np.where(good & (penalties == strongest), losses, math.inf).argmin(axis=0))


def held_back(windows: int, days: float = 0.0, tail: float = TAIL) -> list[slice]:
    """Return the windows to hold back, one part after the other; none if there are too few.

    The newest windows are nearest to what is forecast, but one season. Load that hardly runs in it,
    such as a heat pump in September, would be chosen by next to nothing. So a record of ``LONG``
    days is cut into blocks, each held back once; so is one of fewer than ``SHORT`` windows, whose
    newest part would be too small.

    Args:
        windows: Number of windows, oldest first.
        tail: Share of a record between short and long that is held back: its newest windows.

    >>> held_back(10), held_back(2000)
    ([slice(0, 2, None), slice(2, 5, None), slice(5, 7, None), slice(7, 10, None)], [slice(1700, 2000, None)])
    >>> len(held_back(8760, days=365.0)), held_back(7)
    (6, [])
    """
    if windows < 2 * _FOLDS:
        return []
    folds = _FOLDS if windows < SHORT else _SEASONS if days >= LONG else 1
    if folds == 1:
        return [slice(windows - max(1, round(tail * windows)), windows)]
    edges = [windows * i // folds for i in range(folds + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


RANGE = 100.0
"""Largest ratio of a relative penalty to the mean one, either way."""


def own_variance(statistic: Statistic, penalty: float) -> Floats:
    """Return the sampling variance of a device's own ridge coefficients, shape ``(outputs, P)``.

    s² (A + κI)⁻¹ A (A + κI)⁻¹ on its diagonal, with s² the weighted residual variance.

    Args:
        penalty: κ of its solution, above 0, not per window.
    """
    found = ridge(statistic, penalty)
    variances = []
    for output, own in enumerate(found):
        gram = statistic.matrix(output)
        inverse = np.linalg.inv(gram + penalty * np.eye(len(gram)))
        explained = 2.0 * own @ statistic.cross[output] - own @ gram @ own
        noise = max(float(statistic.squares[output] - explained), 0.0) / max(statistic.count, 1.0)
        variances.append(noise * np.einsum("ij,jk,ik->i", inverse, gram, inverse, optimize=True))
    return np.stack(variances)


def relative_penalty(models: Floats, sampling: Floats) -> Floats:
    """Return d, the relative penalty of each coordinate: large where devices agree.

    The variance between devices is estimated by moments (variance of the devices' own coefficients
    minus their mean sampling variance), and d is proportional to its inverse, bounded, with
    geometric mean 1.

    Args:
        models: Own coefficients of each device, shape ``(devices, outputs, P)``.
        sampling: Their sampling variances, same shape.

    Returns:
        Shape ``(P,)``, averaged over outputs.

    >>> models = np.array([[[0.0, 1.0]], [[4.0, 1.1]]])
    >>> relative_penalty(models, np.zeros_like(models)).round(3).tolist()
    [0.025, 40.0]

    Reference:
        Efron and Morris, "Data analysis using Stein's estimator and its generalizations", 1975.
    """
    between = np.maximum(models.var(axis=0, ddof=1) - sampling.mean(axis=0), 0.0).mean(axis=0)
    typical = float(np.median(between[between > 0.0])) if (between > 0.0).any() else 1.0
    inverse = typical / np.maximum(between, typical / RANGE**2)
    inverse = inverse / np.exp(np.log(inverse).mean())
    return np.asarray(np.clip(inverse, 1.0 / RANGE, RANGE))
