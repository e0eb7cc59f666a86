"""Attention over layers: the farther an update lies from the model, the larger its weight.

This is the method as its authors published it (softmax over the *distances*, not over their
negatives), and the opposite of robustness: one client with a large update takes nearly the whole
weight of every layer. It must not be used where clients may be Byzantine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edge_sdk.protocol.contract.parameter_layout import ParamSpec

Vector64 = NDArray[np.float64]
Matrix = NDArray[np.float64]
Slices = tuple[slice, ...]


def shared_slices(spec: ParamSpec) -> Slices:
    """Return each shared layer's slice of the *exchanged* vector, in model order.

    >>> spec = ParamSpec.of([("body", (2,)), ("mine", (5,)), ("head", (3,))], ["body", "head"])
    >>> [(part.start, part.stop) for part in shared_slices(spec)]
    [(0, 2), (2, 5)]
    """
    slices, start = [], 0
    for layer in spec.layers:
        if layer.name in spec.shared_names:
            slices.append(slice(start, start + layer.size))
            start += layer.size
    return tuple(slices)


def softmax(values: Sequence[float] | Vector64) -> Vector64:
    """Return ``exp(v) / sum exp(v)``, the largest subtracted first to avoid overflow.

    >>> softmax([1.0, 2.0]).round(8).tolist()
    [0.26894142, 0.73105858]
    >>> softmax([0.0, 1e300]).tolist()
    [0.0, 1.0]
    """
    given = np.asarray(values, np.float64)
    powers = np.exp(given - given.max())
    shares: Vector64 = powers / powers.sum()
    return shares


def attend(rows: Matrix, slices: Slices) -> tuple[Vector64, Matrix]:
    """Return the attended difference, and the weight of every row in every layer.

    In layer k row i has weight ``a = softmax_i(||row_i,k||)``; the difference is
    ``sum_i a row_i,k``, added up in order of the rows.

    Args:
        rows: Received minus trained, in order of client id, shape ``(n, d)``, n at least 1.

    Returns:
        The difference, shape ``(d,)``, and the shares, shape ``(layers, n)``.

    >>> step, shares = attend(np.array([[-1.0, 0.0], [0.0, -2.0]]), (slice(0, 2),))
    >>> (0.0 - 1.0 * step).round(8).tolist(), (0.0 - 1.2 * step).round(8).tolist()
    ([0.26894142, 1.46211716], [0.32272971, 1.75454059])

    Reference:
        Ji et al., Learning Private Neural Language Modeling with Attentive Aggregation, IJCNN 2019
        (arXiv 1812.07108). Checked against the authors' published code, which does the same; its
        optional Gaussian perturbation of the model is left out (a mechanism's business here).
    """
    step = np.zeros(rows.shape[1])
    shares = np.empty((len(slices), len(rows)))
    for number, part in enumerate(slices):
        shares[number] = softmax([_length(row[part]) for row in rows])
        for share, row in zip(shares[number], rows, strict=True):
            step[part] += share * row[part]
    return step, shares


def towards(w: Vector64, anchor: Vector64, slices: Slices) -> Vector64:
    """Return ``b_k (w_k - anchor_k)`` with ``b = softmax_k(||w_k - anchor_k||)`` over the layers.

    FedDA's pull towards its quasi-global model: the larger a layer's distance, the larger the pull.

    >>> towards(np.zeros(2), np.ones(2), (slice(0, 2),)).tolist()
    [-1.0, -1.0]
    """
    difference = w - anchor
    pulls = softmax([_length(difference[part]) for part in slices])
    out = np.empty_like(difference)
    for pull, part in zip(pulls, slices, strict=True):
        out[part] = pull * difference[part]
    return out


def _length(vector: Vector64) -> float:
    return float(np.sqrt(np.sum(vector * vector)))
