"""Choose how strongly the fleet's prior holds the part of a device's own of tomorrow's profile.

A fleet finds it, for each number of known days, on rows that its devices hold back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edge_sdk.extensions.analytic.profile_form import own_part
from edge_sdk.extensions.analytic.reweighting import QuantileLoss
from edge_sdk.forecasting.calendar_features import Floats

OWN_STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, math.inf)
"""Strengths that a fleet tries; infinity is a device without a part of its own."""


def strength_losses(
    design: NDArray[np.float32],
    missed: Floats,
    is_known: NDArray[np.bool_],
    loss: QuantileLoss,
    *,
    strengths: Sequence[float] = OWN_STRENGTHS,
    passes: int = 4,
) -> Floats:
    """Return the mean loss of each strength on rows that were held back from δ.

    A device of the fleet pretends to be new: δ learns from a few days of its record, and the days
    after them are what it is judged by. ``missed`` must be under a prior that the device is no part
    of, such as ``solve.leave_one_out``'s.

    Args:
        is_known: Rows that δ learns from, shape ``(N,)``; all others judge.

    Returns:
        Shape ``(len(strengths),)``, as shares of the loss without δ; 1 where nothing can be judged.
    """
    judged = ~is_known & np.isfinite(missed)
    whole = float(loss.pointwise(missed[judged, None]).mean()) if judged.any() else 0.0
    if whole <= 0.0:
        return np.ones(len(strengths))
    found = []
    for strength in strengths:
        own = own_part(design[is_known], missed[is_known], strength, loss, passes)
        left = missed[judged] - design[judged] @ own.astype(np.float32)
        found.append(float(loss.pointwise(left[:, None]).mean()) / whole)
    return np.array(found)


def best_strengths(losses: Floats, strengths: Sequence[float] = OWN_STRENGTHS) -> Floats:
    """Return the strength of every stage: least mean loss over devices, never rising with the stage.

    Args:
        losses: Of ``strength_losses``, shape ``(devices, stages, strengths)``.

    >>> best_strengths(np.array([[[1.1, 1.0], [0.9, 1.0]]]), (0.1, math.inf)).tolist()
    [inf, 0.1]
    """
    best = np.asarray(strengths, np.float64)[losses.mean(axis=0).argmin(axis=1)]
    return np.asarray(np.minimum.accumulate(best))
