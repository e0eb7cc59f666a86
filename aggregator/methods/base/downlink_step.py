"""Adopt a new model as an eight-bit step from the last one, and keep what the step leaves out.

Error feedback (Seide et al. 2014) on the aggregator's side: the model is the last one plus the
decoded step C(x + e), where x is the step of the method, and e ← x + e - C(x + e) is added to the
next step. The residual is a part of the state, saved in the transaction that saves the version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.wire.protocol.block_quantisation import quantise
from edge_sdk.wire.protocol.model_step import STEP_ENCODING, stepped

STEP = "step"
"""Name of the step among the arrays of a common task: the bytes of its ``q8``, uint8."""

Leaves = Mapping[str, Any]


def adopted(
    before: NDArray[np.float64], after: NDArray[np.float64], kept: Leaves
) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """Return the model that devices with the last one reach by an eight-bit step.

    Args:
        before: The announced model, shape ``(P,)``; devices have it in float32.
        after: The method's new model, shape ``(P,)``.
        kept: What this function returned the last time; empty before the first step.

    Returns:
        The adopted model, exact in float32, shape ``(P,)``; and what to keep: the ``step`` (uint8)
        and the ``residual``, shape ``(P,)``.

    Example:
        Steps that are too small for their block accumulate until they count.

        >>> w, kept, wanted = np.zeros(2), {}, np.zeros(2)
        >>> for _ in range(10):
        ...     after = w + np.array([127.0, 0.25])
        ...     w, kept = adopted(w, after, kept)
        >>> w.tolist(), kept["residual"].tolist()
        ([1270.0, 3.0], [0.0, -0.5])
    """
    base = before.astype(np.float32)
    wanted = after + kept.get("residual", 0.0)
    blob = quantise(wanted - base, STEP_ENCODING)
    w = stepped(base, blob).astype(np.float64)
    return w, {STEP: np.frombuffer(blob, np.uint8), "residual": wanted - w}


def announced(kept: Leaves) -> dict[str, NDArray[np.uint8]]:
    """Return the arrays that announce the last step beside the whole model; none without one."""
    return {STEP: kept[STEP]} if STEP in kept else {}
