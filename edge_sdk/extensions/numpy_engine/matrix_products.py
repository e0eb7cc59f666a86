"""Multiply matrices with the machine's BLAS, or by numpy's own loops under a tight limit of memory.

A BLAS takes tens of megabytes at its first product, and ends the process where the limit forbids that.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from edge_sdk.limits.resource_governor import data_limit
from edge_sdk.protocol.contract.method import Array

PLAIN_BELOW: Final = 128 * 2**20
"""Limit of the process's data, in bytes, below which no BLAS is used for graphs."""


def product(a: Array, b: Array) -> Array:
    """Return ``a @ b``.

    >>> a, b = np.arange(6.0).reshape(2, 3), np.ones((4, 3, 1))
    >>> bool((plain_product(a, b) == product(a, b)).all()), plain_product(a[0], b[0]).shape
    (True, (1,))
    """
    limit = data_limit()
    if limit is not None and limit < PLAIN_BELOW:
        return plain_product(a, b)
    return np.asarray(np.matmul(a, b))


def plain_product(a: Array, b: Array) -> Array:
    """Return ``a @ b`` by numpy's own loops."""
    left = a if a.ndim > 1 else a[None]
    right = b if b.ndim > 1 else b[:, None]
    out = np.einsum("...ij,...jk->...ik", left, right, optimize=False)
    out = out if a.ndim > 1 else out[..., 0, :]
    return np.asarray(out if b.ndim > 1 else out[..., 0])
