"""Rules for operators that move, cut, join, sum or multiply arrays. Importing registers them."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import torch

from aggregator.extensions.authoring.emit import (
    LAST,
    Call,
    Emitter,
    Fill,
    Result,
    Value,
    expression,
    rule,
)
from aggregator.extensions.authoring.export_spec import ExportError

A: Any = torch.ops.aten


@rule(operator.getitem)
def _getitem(call: Call) -> Value:
    part: Value = call.results(0)[call.arg(1)]
    return part


@rule(
    A.clone.default,
    A.detach.default,
    A.alias.default,
    A.lift_fresh_copy.default,
    A.lift_fresh.default,
    A.contiguous.default,
)
def _same(call: Call) -> Value:
    return call.value(0)


@rule(A.view.default, A._unsafe_view.default, A.reshape.default)  # noqa: SLF001 - its own name
def _reshape(call: Call) -> Value:
    value = call.value(0)
    if isinstance(value, Fill):
        return Fill(value.value, tuple(call.out.shape))
    if [expression(d) for d in call.shape(0)] == [expression(d) for d in call.out.shape]:
        return value
    return call.emitter.op("Reshape", value, call.emitter.shape(call.out.shape, infer=True))


@rule(A.t.default)
def _t(call: Call) -> Value:
    return _transposed(call, [1, 0] if call.rank(0) == 2 else [0])


@rule(A.transpose.int)
def _transpose(call: Call) -> Value:
    rank = call.rank(0)
    order = list(range(rank))
    a, b = call.arg(1) % rank, call.arg(2) % rank
    order[a], order[b] = order[b], order[a]
    return _transposed(call, order)


@rule(A.permute.default)
def _permute(call: Call) -> Value:
    return _transposed(call, [axis % call.rank(0) for axis in call.arg(1)])


def _transposed(call: Call, order: list[int]) -> Value:
    value = call.value(0)
    if isinstance(value, Fill):
        return Fill(value.value, tuple(call.out.shape))
    if order == sorted(order):
        return value
    if order == [1, 0] and value in call.emitter.transposed:
        return call.emitter.transposed[value]
    name = call.emitter.op("Transpose", value, perm=order)
    if order == [1, 0]:
        call.emitter.transposed[name] = value
    return name


@rule(A.mm.default)
def _mm(call: Call) -> Value:
    if _has_zero(call, 0, 1):
        return Fill(0.0, tuple(call.out.shape))
    return _product(call.emitter, call.tensor(0), call.tensor(1))


@rule(A.addmm.default)
def _addmm(call: Call) -> Value:
    if call.node.kwargs.get("alpha", 1) != 1 or call.node.kwargs.get("beta", 1) != 1:
        raise ExportError("torch.addmm: only alpha=1 and beta=1 can be exported")
    if _has_zero(call, 1, 2):
        return _expanded(call, call.value(0), call.shape(0))
    bias = call.value(0)
    if isinstance(bias, Fill) and bias.value == 0:
        return _product(call.emitter, call.tensor(1), call.tensor(2))
    return _product(call.emitter, call.tensor(1), call.tensor(2), call.tensor(0))


def _has_zero(call: Call, *indices: int) -> bool:
    values = [call.value(i) for i in indices]
    return any(isinstance(value, Fill) and value.value == 0 for value in values)


def _product(emitter: Emitter, a: str, b: str, c: str | None = None) -> str:
    """Write ``a @ b (+ c)``, with transposes as part of the product instead of copies."""
    left, right = emitter.transposed.get(a), emitter.transposed.get(b)
    if left is None and right is None and c is None:
        return emitter.op("MatMul", a, b)
    flags = {"transA": 1} if left else {}
    flags |= {"transB": 1} if right else {}
    return emitter.op("Gemm", left or a, right or b, *([c] if c else []), **flags)


@rule(A.mv.default)
def _mv(call: Call) -> Value:
    if _has_zero(call, 0, 1):
        return Fill(0.0, tuple(call.out.shape))
    return call.emitter.op("MatMul", call.tensor(0), call.tensor(1))


@rule(A.bmm.default)
def _bmm(call: Call) -> Value:
    return call.emitter.op("MatMul", call.tensor(0), call.tensor(1))


@rule(A.baddbmm.default)
def _baddbmm(call: Call) -> Value:
    product = call.emitter.op("MatMul", call.tensor(1), call.tensor(2))
    return call.emitter.op("Add", call.tensor(0), product)


@rule(A.cat.default)
def _cat(call: Call) -> Value:
    values = call.values(0)
    fills = {value.value for value in values if isinstance(value, Fill)}
    if len(fills) == 1 and all(isinstance(value, Fill) for value in values):
        return Fill(fills.pop(), tuple(call.out.shape))
    parts = [call.emitter.written(value) for value in values]
    return call.emitter.op("Concat", *parts, axis=call.arg(1, 0) % call.out.dim())


@rule(A.stack.default)
def _stack(call: Call) -> Value:
    axis = call.arg(1, 0) % call.out.dim()
    parts = [call.emitter.written(value) for value in call.values(0)]
    lifted = [call.emitter.op("Unsqueeze", part, call.emitter.ints(axis)) for part in parts]
    return call.emitter.op("Concat", *lifted, axis=axis)


@rule(A.split.Tensor, A.split_with_sizes.default)
def _split(call: Call) -> Result:
    """Split without a size list if parts are equal: one engine version refuses a long constant."""
    axis = call.arg(2, 0) % call.rank(0)
    sizes = [expression(part.shape[axis]) for part in call.out]
    value = call.value(0)
    if isinstance(value, Fill):
        return [Fill(value.value, tuple(part.shape)) for part in call.out]
    if len(sizes) == 1:
        return [value]
    if all(size == sizes[0] for size in sizes):
        return list(call.emitter.ops("Split", [value], len(sizes), axis=axis))
    return _cut(call.emitter, value, axis, sizes)


def _cut(emitter: Emitter, value: str, axis: int, sizes: list[Any]) -> list[Value]:
    parts: list[Value] = []
    start = expression(0)
    for size in sizes:
        ends = emitter.size(start), emitter.size(start + size)
        parts.append(emitter.op("Slice", value, *ends, emitter.ints(axis)))
        start += size
    return parts


@rule(A.unbind.int)
def _unbind(call: Call) -> Result:
    axis = call.arg(1, 0) % call.rank(0)
    value = call.value(0)
    if isinstance(value, Fill):
        return [Fill(value.value, tuple(part.shape)) for part in call.out]
    return [
        call.emitter.op("Gather", value, call.emitter.const(np.int64(i)), axis=axis)
        for i in range(len(call.out))
    ]


@rule(A.unsqueeze.default)
def _unsqueeze(call: Call) -> Value:
    value = call.value(0)
    if isinstance(value, Fill):
        return Fill(value.value, tuple(call.out.shape))
    return call.emitter.op("Unsqueeze", value, call.emitter.ints(call.arg(1) % call.out.dim()))


@rule(A.squeeze.dim, A.squeeze.dims)
def _squeeze(call: Call) -> Value:
    value, wanted = call.value(0), call.arg(1)
    if isinstance(value, Fill):
        return Fill(value.value, tuple(call.out.shape))
    rank, sizes = call.rank(0), call.shape(0)
    axes = [axis % rank for axis in (wanted if isinstance(wanted, (list, tuple)) else [wanted])]
    ones = [axis for axis in axes if expression(sizes[axis]) == 1]
    return call.emitter.op("Squeeze", value, call.emitter.ints(*ones)) if ones else value


@rule(A.select.int)
def _select(call: Call) -> Value:
    value = call.value(0)
    if isinstance(value, Fill):
        return Fill(value.value, tuple(call.out.shape))
    index = call.emitter.const(np.int64(call.arg(2)))
    return call.emitter.op("Gather", value, index, axis=call.arg(1) % call.rank(0))


@rule(A.slice.Tensor)
def _slice(call: Call) -> Value:
    value = call.value(0)
    if isinstance(value, Fill):
        return Fill(value.value, tuple(call.out.shape))
    axis = call.arg(1, 0) % call.rank(0)
    if expression(call.shape(0)[axis]) == expression(call.out.shape[axis]):
        return value
    e = call.emitter
    start, end = (_bound(call.arg(i, d), d) for i, d in ((2, 0), (3, LAST)))
    return e.op("Slice", value, e.size(start), e.size(end), e.ints(axis), e.ints(call.arg(4, 1)))


def _bound(value: Any, default: int) -> Any:  # noqa: ANN401 - int or SymInt
    return default if value is None else value


@rule(A.slice_backward.default)
def _slice_backward(call: Call) -> Value:
    """Place a slice's gradient among zeros; the gaps of a step are padded on a new axis."""
    sizes, axis, start, step = call.arg(1), call.arg(2), call.arg(3), call.arg(5)
    value = call.value(0)
    if isinstance(value, Fill) and value.value == 0:
        return Fill(0.0, tuple(call.out.shape))
    rank, name = call.out.dim(), call.tensor(0)
    axis %= rank
    here, whole = expression(call.shape(0)[axis]), expression(sizes[axis])
    if here == whole:
        return name
    if not isinstance(start, int):
        raise ExportError("a slice that depends on the batch size cannot be trained through")
    start = start + int(whole) if start < 0 else start
    if step > 1:
        name, here = _spread(call, name, axis, step), here * step
        return _placed(call.emitter, name, axis, rank, (start, whole - start - here))
    return _placed(call.emitter, name, axis, rank, (start, whole - start - here))


def _spread(call: Call, name: str, axis: int, step: int) -> str:
    """Insert ``step - 1`` zeros after every element along an axis."""
    e, sizes = call.emitter, list(call.shape(0))
    lifted = e.op("Unsqueeze", name, e.ints(axis + 1))
    rank = len(sizes) + 1
    pads = [0] * (2 * rank)
    pads[rank + axis + 1] = step - 1
    sizes[axis] *= step
    return e.op("Reshape", e.op("Pad", lifted, e.ints(*pads)), e.shape(sizes, infer=True))


def _placed(emitter: Emitter, name: str, axis: int, rank: int, gaps: tuple[Any, Any]) -> str:
    """Pad by ``gaps`` (before, after) along an axis; a negative gap cuts."""
    before, after = (expression(gap) for gap in gaps)
    if after.is_Integer and int(after) < 0:
        name = emitter.op(
            "Slice", name, emitter.ints(0), emitter.ints(int(after)), emitter.ints(axis)
        )
        after = expression(0)
    zeros = [expression(0)] * (2 * rank)
    zeros[axis], zeros[rank + axis] = before, after
    if all(gap == 0 for gap in zeros):
        return name
    return emitter.op("Pad", name, emitter.shape(zeros))


@rule(A.select_backward.default)
def _select_backward(call: Call) -> Value:
    sizes, axis, index = call.arg(1), call.arg(2), call.arg(3)
    value = call.value(0)
    if isinstance(value, Fill) and value.value == 0:
        return Fill(0.0, tuple(call.out.shape))
    rank = call.out.dim()
    axis %= rank
    whole = expression(sizes[axis])
    at = expression(index) if index >= 0 else whole + index
    lifted = call.emitter.op("Unsqueeze", call.tensor(0), call.emitter.ints(axis))
    return _placed(call.emitter, lifted, axis, rank, (at, whole - at - 1))


@rule(A.constant_pad_nd.default)
def _pad(call: Call) -> Value:
    """Pad; torch lists pads from the last axis backwards, and a negative pad cuts."""
    rank, wanted, fill = call.out.dim(), call.arg(1), call.arg(2, 0.0)
    name = call.tensor(0)
    pads = [0] * (2 * rank)
    for pair in range(len(wanted) // 2):
        axis = rank - 1 - pair
        before, after = int(wanted[2 * pair]), int(wanted[2 * pair + 1])
        if before < 0 or after < 0:
            ends = (
                call.emitter.ints(max(-before, 0)),
                call.emitter.ints(after if after < 0 else LAST),
            )
            name = call.emitter.op("Slice", name, *ends, call.emitter.ints(axis))
        pads[axis], pads[rank + axis] = max(before, 0), max(after, 0)
    if not any(pads):
        return name
    return call.emitter.op("Pad", name, call.emitter.ints(*pads), call.emitter.scalar(fill))


@rule(A.expand.default)
def _expand(call: Call) -> Value:
    return _expanded(call, call.value(0), call.shape(0))


def _expanded(call: Call, value: Value, shape: tuple[Any, ...]) -> Value:
    if isinstance(value, Fill):
        return Fill(value.value, tuple(call.out.shape))
    if [expression(d) for d in shape] == [expression(d) for d in call.out.shape]:
        return value
    return call.emitter.op("Expand", value, call.emitter.shape(call.out.shape))


@rule(A.flip.default)
def _flip(call: Call) -> Value:
    axes = [axis % call.rank(0) for axis in call.arg(1)]
    e, ones = call.emitter, [-1] * len(axes)
    ends = e.ints(*ones), e.ints(*([-LAST] * len(axes)))
    return e.op("Slice", call.tensor(0), *ends, e.ints(*axes), e.ints(*ones))


@rule(A.sum.dim_IntList)
def _sum(call: Call) -> Value:
    axes = call.arg(1) or range(call.rank(0))
    name = call.tensor(0)
    if call.node.args[0].meta["val"].dtype != call.out.dtype:  # type: ignore[union-attr]
        name = call.cast(name, call.out.dtype)
    keep = int(bool(call.arg(2, False)))
    return call.emitter.op("ReduceSum", name, call.emitter.ints(*axes), keepdims=keep)


@rule(A.sum.default)
def _sum_all(call: Call) -> Value:
    return call.emitter.op("ReduceSum", call.tensor(0), keepdims=0)


_BY_AXIS = {A.mean.dim: "ReduceMean", A.amax.default: "ReduceMax", A.amin.default: "ReduceMin"}


@rule(*_BY_AXIS)
def _reduce(call: Call) -> Value:
    axes = list(call.arg(1, [])) or list(range(call.rank(0)))
    keep = int(bool(call.arg(2, False)))
    kind = _BY_AXIS[call.target]
    return call.emitter.op(kind, call.tensor(0), axes=axes, keepdims=keep)


@rule(A.mean.default)
def _mean_all(call: Call) -> Value:
    return call.emitter.op("ReduceMean", call.tensor(0), keepdims=0)


@rule(A.var.correction, A.var_mean.correction)
def _variance(call: Call) -> Result:
    """Return the mean of squared distances, over ``n - correction``, for normalisation layers."""
    e, value, options = call.emitter, call.tensor(0), dict[str, Any](call.node.kwargs)
    axes = sorted(axis % call.rank(0) for axis in (call.arg(1) or range(call.rank(0))))
    correction, keep = options.get("correction"), int(bool(options.get("keepdim")))
    count = math.prod(int(call.shape(0)[axis]) for axis in axes)
    count -= 1 if correction is None else int(correction)
    deviation = e.op("Sub", value, e.op("ReduceMean", value, axes=axes, keepdims=1))
    total = e.op("ReduceSum", e.op("Mul", deviation, deviation), e.ints(*axes), keepdims=keep)
    variance = e.op("Mul", total, e.scalar(1 / count))
    if call.target is A.var.correction:
        return variance
    return [variance, e.op("ReduceMean", value, axes=axes, keepdims=keep)]


@rule(A.argmax.default)
def _argmax(call: Call) -> Value:
    axis = call.arg(1)
    if axis is None:
        raise ExportError("torch.argmax: give a dimension")
    keep = int(bool(call.arg(2, False)))
    return call.emitter.op("ArgMax", call.tensor(0), axis=axis, keepdims=keep)


@rule(A.tril.default, A.triu.default)
def _triangle(call: Call) -> Value:
    sizes = [expression(d) for d in call.out.shape]
    if not all(size.is_Integer for size in sizes):
        raise ExportError("a triangular mask must not depend on the batch size")
    upper = int(call.target is A.triu.default)
    kept = np.ones([int(s) for s in sizes], np.bool_)
    mask = np.triu(kept, call.arg(1, 0)) if upper else np.tril(kept, call.arg(1, 0))
    value = call.value(0)
    if call.out.dtype == torch.bool:
        known = isinstance(value, Fill) and value.value == 1
        return (
            call.emitter.const(mask)
            if known
            else call.emitter.op("And", call.tensor(0), call.emitter.const(mask))
        )
    zero = call.number(0, call.out.dtype)
    return call.emitter.op("Where", call.emitter.const(mask), call.operand(0), zero)


@rule(A.arange.default, A.arange.start, A.arange.start_step)
def _arange(call: Call) -> Value:
    count = expression(call.out.shape[0])
    if not count.is_Integer:
        raise ExportError("torch.arange over the batch cannot be exported")
    bounds = [float(v) for v in call.node.args if isinstance(v, (int, float))]
    start, step = (bounds[0] if len(bounds) > 1 else 0.0), (bounds[2] if len(bounds) > 2 else 1.0)
    kind = np.int64 if call.out.dtype == torch.int64 else np.float32
    return call.emitter.const((start + step * np.arange(int(count))).astype(kind))


@rule(A.ones_like.default, A.new_ones.default, A.ones.default)
def _ones(call: Call) -> Value:
    return Fill(1.0, tuple(call.out.shape))


@rule(A.zeros_like.default, A.new_zeros.default, A.zeros.default)
def _zeros(call: Call) -> Value:
    return Fill(0.0, tuple(call.out.shape))


@rule(A.full.default, A.full_like.default)
def _full(call: Call) -> Value:
    return Fill(float(call.arg(1)), tuple(call.out.shape))


@rule(A.new_full.default)
def _new_full(call: Call) -> Value:
    return Fill(float(call.arg(2)), tuple(call.out.shape))


@rule(A.empty_like.default)
def _empty(call: Call) -> Value:
    return Fill(math.nan, tuple(call.out.shape))


@rule(A.fill.Scalar)
def _filled(call: Call) -> Value:
    return Fill(float(call.arg(1)), tuple(call.out.shape))


@rule(A.scalar_tensor.default)
def _scalar(call: Call) -> Value:
    return Fill(float(call.arg(0)), ())
