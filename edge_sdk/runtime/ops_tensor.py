"""Operators that move, cut, join, sum or multiply arrays. Importing this module registers them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from edge_sdk.runtime.graph import GraphError
from edge_sdk.runtime.operator_registry import LARGEST, OperatorSite, Run, operator, require_small
from edge_sdk.wire.contract.method import Array

_RANK = 64  # of numpy's arrays


def _whole(values: Array | None) -> tuple[int, ...]:
    return () if values is None else tuple(int(v) for v in np.ravel(values))


@operator("Shape", start=0, end=None)
def _shape(site: OperatorSite) -> Run:
    cut = slice(site.attributes["start"], site.attributes["end"])
    return lambda x: np.array(np.shape(x)[cut], np.int64)


@operator("Reshape", allowzero=0)
def _reshape(site: OperatorSite) -> Run:
    """Reshape; a size 0 copies the input's, -1 is the remaining size."""
    keep = not site.attributes["allowzero"]

    def run(x: Array, sizes: Array) -> Array:
        wanted = _whole(sizes)
        if keep and 0 in wanted:
            wanted = tuple(x.shape[i] if size == 0 else size for i, size in enumerate(wanted))
        return np.reshape(x, wanted)

    known = site.constant(1)
    if known is None or (keep and 0 in _whole(known)):
        return run
    fixed = _whole(known)
    return lambda x, _sizes: x.reshape(fixed)


@operator("Expand")
def _expand(_site: OperatorSite) -> Run:
    """Broadcast in both directions: a requested size 1 keeps the input's own size."""

    def run(x: Array, sizes: Array) -> Array:
        shape = np.broadcast_shapes(np.shape(x), _whole(sizes))
        require_small(shape)
        return np.broadcast_to(x, shape)

    return run


@operator("Transpose", perm=None)
def _transpose(site: OperatorSite) -> Run:
    order = site.attributes["perm"]
    return lambda x: np.transpose(x, order)


@operator("Unsqueeze")
def _unsqueeze(site: OperatorSite) -> Run:
    fixed = None if site.constant(1) is None else _whole(site.constant(1))
    return lambda x, axes: np.expand_dims(x, fixed or _whole(axes))


@operator("Squeeze")
def _squeeze(site: OperatorSite) -> Run:
    if not site.has(1):
        return np.squeeze
    fixed = None if site.constant(1) is None else _whole(site.constant(1))
    return lambda x, axes: np.squeeze(x, fixed or _whole(axes))


@operator("Concat", axis=None)
def _concat(site: OperatorSite) -> Run:
    axis = site.attributes["axis"]
    return lambda *parts: np.concatenate(parts, axis)


@operator("Split", axis=0)
def _split(site: OperatorSite) -> Run:
    axis, results = site.attributes["axis"], site.results

    def equal(x: Array) -> tuple[Array, ...]:
        if x.shape[axis] % results:
            raise GraphError(f"Split: {x.shape[axis]} into {results} parts")
        size = x.shape[axis] // results
        return _parts(x, axis, [size] * results)

    if not site.has(1):
        return equal
    return lambda x, sizes: _parts(x, axis, _whole(sizes))


def _parts(x: Array, axis: int, sizes: Sequence[int]) -> tuple[Array, ...]:
    lead = (slice(None),) * (axis % x.ndim)
    starts = np.cumsum([0, *sizes])
    return tuple(x[(*lead, slice(a, b))] for a, b in pairwise(starts))


@operator("Slice")
def _slice(site: OperatorSite) -> Run:
    """Slice; ends beyond the array are clipped as in Python, backwards too."""

    def run(x: Array, starts: Array, ends: Array, *more: Array) -> Array:
        part: Array = x[_cut(x.ndim, starts, ends, *more)]
        return part

    ahead = [site.constant(i) for i in range(1, len(site.given))]
    if site.has(3) and all(part is not None for part in ahead) and min(_whole(ahead[2])) >= 0:
        rank = max(_whole(ahead[2])) + 1
        if rank > _RANK:
            raise GraphError(f"Slice: axis {rank - 1}, arrays have at most {_RANK} axes")
        fixed = _cut(rank, *ahead)
        return lambda x, *_ends: x[fixed]
    return run


def _cut(rank: int, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:  # noqa: ANN401
    first, last = _whole(starts), _whole(ends)
    along = range(len(first)) if axes is None else _whole(axes)
    by = (1,) * len(first) if steps is None else _whole(steps)
    cut = [slice(None)] * rank
    for axis, start, end, step in zip(along, first, last, by, strict=True):
        cut[axis] = slice(start, end, step)
    return tuple(cut)


@operator("Pad", mode="constant")
def _pad(site: OperatorSite) -> Run:
    """Pad with constants; numpy's own ``pad`` is ten times slower on small recurrent steps."""
    if site.attributes["mode"] != "constant":
        raise GraphError(f"Pad: mode {site.attributes['mode']!r} is not supported")

    def run(x: Array, pads: Array, fill: Array | None = None) -> Array:
        around, rank = _whole(pads), x.ndim
        before, after = around[:rank], around[rank:]
        if min(around) < 0:
            raise GraphError("Pad: a negative pad is not supported")
        sizes = [b + size + a for b, size, a in zip(before, x.shape, after, strict=True)]
        require_small(sizes)
        out = np.full(sizes, fill, x.dtype) if fill is not None else np.zeros(sizes, x.dtype)
        out[tuple(slice(b, b + size) for b, size in zip(before, x.shape, strict=True))] = x
        return out

    return run


@operator("Gather", axis=0)
def _gather(site: OperatorSite) -> Run:
    axis, known = site.attributes["axis"], site.constant(1)
    if known is not None and known.ndim == 0 and axis >= 0:
        at = (*(slice(None),) * axis, int(known))
        return lambda x, _index: x[at]
    return lambda x, index: np.take(x, index, axis)


@operator("ReduceSum", keepdims=1, noop_with_empty_axes=0)
def _reduce_sum(site: OperatorSite) -> Run:
    keep, idle = bool(site.attributes["keepdims"]), bool(site.attributes["noop_with_empty_axes"])

    def run(x: Array, axes: Array | None = None) -> Array:
        along = _whole(axes)
        if not along:
            return x if idle else np.sum(x, keepdims=keep, dtype=x.dtype)
        return np.sum(x, along, keepdims=keep, dtype=x.dtype)

    return run


def _reduced(by: Any, site: OperatorSite) -> Run:  # noqa: ANN401 - numpy's own reductions
    axes, keep = site.attributes["axes"], bool(site.attributes["keepdims"])
    return lambda x: by(x, axes, keepdims=keep)


@operator("ReduceMean", axes=None, keepdims=1)
def _reduce_mean(site: OperatorSite) -> Run:
    return _reduced(np.mean, site)


@operator("ReduceMax", axes=None, keepdims=1)
def _reduce_max(site: OperatorSite) -> Run:
    return _reduced(np.max, site)


@operator("ReduceMin", axes=None, keepdims=1)
def _reduce_min(site: OperatorSite) -> Run:
    return _reduced(np.min, site)


@operator("ArgMax", axis=0, keepdims=1)
def _argmax(site: OperatorSite) -> Run:
    """Return the index of the largest value, the first of equal ones."""
    axis, keep = site.attributes["axis"], bool(site.attributes["keepdims"])
    return lambda x: np.argmax(x, axis, keepdims=keep)


def _product(a: Array, b: Array) -> Array:
    """Return ``a @ b``; its size is at most that of the product of the operands' sizes."""
    if a.size * b.size > LARGEST and a.ndim > 1 and b.ndim > 1:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        require_small((*batch, a.shape[-2], b.shape[-1]))
    out: Array = np.matmul(a, b)
    return out


@operator("MatMul")
def _matmul(_site: OperatorSite) -> Run:
    return _product


@operator("Gemm", alpha=1.0, beta=1.0, transA=0, transB=0)
def _gemm(site: OperatorSite) -> Run:
    """Return ``alpha * a @ b + beta * c``, either factor transposed."""
    turn_a, turn_b = site.attributes["transA"], site.attributes["transB"]
    alpha, beta = (np.float32(site.attributes[name]) for name in ("alpha", "beta"))

    def run(a: Array, b: Array, c: Array | None = None) -> Array:
        out: Array = _product(a.T if turn_a else a, b.T if turn_b else b)
        if alpha != 1:
            out *= alpha
        if c is not None:
            out += c if beta == 1 else beta * c
        return out

    return run
