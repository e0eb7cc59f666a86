"""Mix a device's model with its neighbours' models: average, clipped or trimmed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge_sdk.protocol.contract.method import Scalars
from edge_sdk.protocol.contract.parameter_layout import Vector

PLAIN, CLIPPED, TRIMMED = 0.0, 1.0, 2.0
"""Values of a task's ``robust``."""

Matrix = NDArray[np.float64]


def mix(own: Vector, received: Matrix, weights: Matrix, values: Scalars) -> Vector:
    """Mix the device's vector with the neighbours', by the task's ``robust``.

    Args:
        own: Device's own vector, shape ``(P,)``.
        received: One row per neighbour that counts, shape ``(n, P)``.
        weights: Weight of each neighbour, shape ``(n,)``; the device's own is the rest to 1.
        values: Numbers of the task: ``robust``, and its ``radius`` or ``trim``.

    Returns:
        Shape ``(P,)``, in the dtype of ``own``; computed in float64.
    """
    robust = values.get("robust", PLAIN)
    if robust == CLIPPED:
        mixed = clipped_average(own, received, weights, float(values.get("radius", np.inf)))
    elif robust == TRIMMED:
        mixed = trimmed_mean(own, received, int(values.get("trim", 0)))
    else:
        mixed = average(own, received, weights)
    return mixed.astype(own.dtype)


def average(own: Vector, received: Matrix, weights: Matrix) -> Matrix:
    """Return ``w_own own + sum_j w_j theirs_j``, where ``w_own`` is 1 minus the other weights.

    >>> average(np.array([0.0]), np.array([[3.0], [6.0]]), np.array([0.5, 0.25])).tolist()
    [3.0]
    """
    local = own.astype(np.float64)
    mixed: Matrix = (1.0 - float(weights.sum())) * local + weights @ received
    return mixed


def clipped_average(own: Vector, received: Matrix, weights: Matrix, radius: float) -> Matrix:
    """Average, with each neighbour's difference clipped to ``radius`` (Euclidean norm).

    A Byzantine neighbour moves this device by at most its weight times the radius in one exchange.
    With an infinite radius it is the average. Where two models differ by more than the radius, the
    two ends of a link clip differently, so the average over all devices moves.

    >>> far = np.array([[3.0, 4.0]])
    >>> clipped_average(np.zeros(2), far, np.array([0.5]), 1.0).round(12).tolist()
    [0.3, 0.4]

    Reference:
        He, Karimireddy and Jaggi, Byzantine-Robust Decentralized Learning via ClippedGossip, 2022,
        equation (4).
    """
    local = own.astype(np.float64)
    differ = received - local
    lengths = np.sqrt(np.einsum("ij,ij->i", differ, differ))
    factors = np.minimum(1.0, radius / np.maximum(lengths, 1e-300))
    mixed: Matrix = local + (weights * factors) @ differ
    return mixed


def trimmed_mean(own: Vector, received: Matrix, trim: int) -> Matrix:
    """Average coordinates over the device and its neighbours, without ``trim`` at either end.

    The remaining values have equal weights. With too few neighbours to leave any value, the
    device's own vector is returned.

    >>> received = np.array([[1.0], [2.0], [99.0]])
    >>> trimmed_mean(np.array([4.0]), received, 1).tolist(), trimmed_mean(np.array([4.0]), received, 2).tolist()
    ([3.0], [4.0])

    Reference:
        Fang, Yang and Bajwa, BRIDGE: Byzantine-Resilient Decentralized Gradient Descent, 2022,
        algorithm 1 with the trimmed mean.
    """
    local = own.astype(np.float64)
    left = len(received) - 2 * trim
    if left < 1:
        return local
    inner = np.sort(received, axis=0)[trim : trim + left]
    mixed: Matrix = (local + inner.sum(axis=0)) / (left + 1)
    return mixed
