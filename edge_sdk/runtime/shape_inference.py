"""Infer the shape of every array in a graph before it runs, and refuse a graph that is too large.

Each operator has a rule here, and no rule loops or reads a nested graph. So an upper bound on
memory and arithmetic is known before an engine loads the file: an engine folds constants while it
loads, and would allocate or loop then. The rules follow the ONNX operator specification, operator
sets 13 to 17.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from edge_sdk.protocol.contract.method import Array
from edge_sdk.runtime import GraphError
from edge_sdk.runtime.onnx_reader import Attribute, OnnxModel, OnnxNode

BATCH: Final = 64
"""Size assumed for every open dimension: windows in one batch."""
MOST_ELEMENTS: Final = 2**24
"""Largest number of elements of one array: 64 MiB of float32, 85 times the largest shipped."""
MOST_TOTAL: Final = 2**27
"""Elements of all arrays together, which an engine may hold until the run ends: 24 times as many
as the largest shipped graph makes."""
MOST_WORK: Final = 2**34
"""Largest number of multiplications of one run: 230 times those of the largest shipped graph."""
_FOLDED: Final = 65_536  # elements up to which a constant is computed here

Shape = tuple[int, ...]
_BAD = (ValueError, TypeError, IndexError, KeyError, OverflowError, ZeroDivisionError)


@dataclass(frozen=True, slots=True)
class GraphCost:
    """Upper bounds on one run, with ``BATCH`` for every open dimension."""

    largest: int  # number of elements of the largest array
    total: int  # number of elements of all arrays that nodes produce
    work: int  # number of multiplications, plus one for every element produced


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """Known properties of an array before a run: its shape, and its value where it is constant."""

    shape: Shape
    value: Array | None = None


def infer_cost(model: OnnxModel, batch: int = BATCH) -> GraphCost:
    """Return an upper bound on the cost of one run of a graph.

    Raises:
        GraphError: An operator without a rule, a shape that depends on readings or contradicts
            itself, or more than ``MOST_ELEMENTS``, ``MOST_TOTAL`` or ``MOST_WORK``.
    """
    known = {name: _Known(array.shape, array) for name, array in model.constants.items()}
    for feed in model.inputs:
        known[feed.name] = _Known(tuple(batch if n is None else n for n in feed.sizes))
    largest = max((math.prod(one.shape) for one in known.values()), default=0)
    total = work = 0
    _check_bounds("feeds and constants", largest, total, work)
    for node in model.nodes:
        given = [known[name] if name else None for name in node.inputs]
        made, cost = _inferred(node, given)
        sizes = [math.prod(shape) for shape in made]
        largest, total = max(largest, *sizes), total + sum(sizes)
        work += cost + sum(sizes)
        _check_bounds(node.kind, largest, total, work)
        values = _folded(node, given, made)
        for name, shape, value in zip(node.outputs, made, values, strict=False):
            if name:
                known[name] = _Known(shape, value)
    missing = next((feed.name for feed in model.outputs if feed.name not in known), None)
    if missing is not None:
        raise GraphError(f"no operator produces the output {missing!r}")
    return GraphCost(largest, total, work)


def _check_bounds(kind: str, largest: int, total: int, work: int) -> None:
    for name, value, most in (
        ("elements in one array", largest, MOST_ELEMENTS),
        ("elements in all arrays", total, MOST_TOTAL),
        ("multiplications", work, MOST_WORK),
    ):
        if value > most:
            raise GraphError(f"{kind}: {value} {name}, at most {most} are run")


def _inferred(node: OnnxNode, given: Sequence[_Known | None]) -> tuple[Sequence[Shape], int]:
    if node.kind not in _RULES:
        raise GraphError(f"operator {node.kind} is not allowed in a bundle")
    rule, defaults = _RULES[node.kind]
    try:
        made, work = rule({**defaults, **node.attributes}, given, len(node.outputs))
    except _BAD as error:
        raise GraphError(f"{node.kind}: the shape of its result is not known: {error}") from error
    if any(size < 0 for shape in made for size in shape):
        raise GraphError(f"{node.kind}: a negative size")
    return made, work


def _folded(
    node: OnnxNode, given: Sequence[_Known | None], made: Sequence[Shape]
) -> Sequence[Array | None]:
    """Compute whole numbers, such as sizes, that do not depend on readings; None for all else."""
    if node.kind == "Shape" and given[0] is not None:
        how = {**_RULES["Shape"][1], **node.attributes}
        return [np.array(given[0].shape[how["start"] : how["end"]], np.int64)]
    values = [one.value for one in given if one is not None]
    known = [x for x in values if x is not None and x.dtype == np.int64 and x.size <= _FOLDED]
    small = all(math.prod(shape) <= _FOLDED for shape in made)
    if node.kind not in _FOLDS or len(known) < len(given) or not small:
        return [None] * len(made)
    try:
        with np.errstate(all="ignore"):
            return [np.asarray(_FOLDS[node.kind](node.attributes, *known))]
    except _BAD as error:
        raise GraphError(f"{node.kind}: cannot be computed: {error}") from error


def _quotient(a: Array, b: Array) -> Array:
    return np.asarray(np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)))  # towards zero, as C


_FOLDS: Final[dict[str, Callable[..., Array]]] = {
    "Add": lambda _how, a, b: a + b,
    "Mul": lambda _how, a, b: a * b,
    "Div": lambda _how, a, b: _quotient(a, b),
    "Concat": lambda how, *parts: np.concatenate(parts, how["axis"]),
    "Slice": lambda _how, x, *cut: x[_cut(x.ndim, *map(_numbers, cut))],
}
"""Operators of which the exporter writes sizes."""


# --- rules ----------------------------------------------------------------------------------------

_Attributes = dict[str, Any]
_Rule = Callable[[_Attributes, Sequence[Any], int], tuple[Sequence[Shape], int]]
_RULES: Final[dict[str, tuple[_Rule, _Attributes]]] = {}


def _rule(*kinds: str, **defaults: Attribute | None) -> Callable[[_Rule], _Rule]:
    def enter(rule: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(kinds, (rule, defaults)))
        return rule

    return enter


def _whole(one: _Known | None) -> Shape:
    if one is None or one.value is None:
        raise ValueError("sizes and axes must be constant")
    return _numbers(one.value)


def _numbers(values: Array) -> Shape:
    return tuple(int(v) for v in np.ravel(values))


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} of {rank} dimensions")
    return axis % rank


def _at(given: Sequence[_Known | None], index: int) -> _Known | None:
    return given[index] if index < len(given) else None


@_rule("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Where", "Equal", "And", "Or", "Not")
@_rule("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Neg", "Abs", "Sign", "Sqrt", "Exp")
@_rule("Log", "Sin", "Cos", "Floor", "Tanh", "Reciprocal", "Relu", "Sigmoid", "Erf")
@_rule("Identity", "Cast")
def _elementwise(_how: _Attributes, given: Sequence[_Known], _count: int) -> Any:  # noqa: ANN401
    return [np.broadcast_shapes(*(one.shape for one in given))], 0


@_rule("Shape", start=0, end=None)
def _shape(how: _Attributes, given: Sequence[_Known], _count: int) -> Any:  # noqa: ANN401
    return [(len(given[0].shape[how["start"] : how["end"]]),)], 0


@_rule("Reshape", allowzero=0)
def _reshape(how: _Attributes, given: Sequence[_Known], _count: int) -> Any:  # noqa: ANN401
    old, wanted = given[0].shape, list(_whole(given[1]))
    if not how["allowzero"]:
        wanted = [old[i] if size == 0 else size for i, size in enumerate(wanted)]
    if wanted.count(-1) == 1:
        rest = -math.prod(wanted)
        wanted[wanted.index(-1)] = math.prod(old) // rest if rest else 0
    if math.prod(wanted) != math.prod(old):
        raise ValueError(f"{old} does not fit {wanted}")
    return [tuple(wanted)], 0


@_rule("Expand")
def _expand(_how: _Attributes, given: Sequence[_Known], _count: int) -> Any:  # noqa: ANN401
    return [np.broadcast_shapes(given[0].shape, _whole(given[1]))], 0


@_rule("Transpose", perm=None)
def _transpose(how: _Attributes, given: Sequence[_Known], _count: int) -> Any:  # noqa: ANN401
    old = given[0].shape
    order = how["perm"] or tuple(reversed(range(len(old))))
    if sorted(order) != list(range(len(old))):
        raise ValueError(f"perm {order} of {len(old)} dimensions")
    return [tuple(old[axis] for axis in order)], 0


@_rule("Unsqueeze")
def _unsqueeze(_how: _Attributes, given: Sequence[_Known], _count: int) -> Any:  # noqa: ANN401
    axes, old = _whole(given[1]), list(given[0].shape)
    for axis in sorted(_axis(axis, len(old) + len(axes)) for axis in axes):
        old.insert(axis, 1)
    return [tuple(old)], 0


@_rule("Squeeze")
def _squeeze(_how: _Attributes, given: Sequence[_Known], _count: int) -> Any:  # noqa: ANN401
    old = given[0].shape
    if _at(given, 1) is None:
        return [tuple(size for size in old if size != 1)], 0
    axes = {_axis(axis, len(old)) for axis in _whole(given[1])}
    return [tuple(size for i, size in enumerate(old) if i not in axes)], 0


@_rule("Concat", axis=None)
def _concat(how: _Attributes, given: Sequence[_Known], _count: int) -> Any:  # noqa: ANN401
    first = given[0].shape
    axis = _axis(how["axis"], len(first))
    size = sum(one.shape[axis] for one in given)
    return [(*first[:axis], size, *first[axis + 1 :])], 0


@_rule("Split", axis=0)
def _split(how: _Attributes, given: Sequence[_Known], count: int) -> Any:  # noqa: ANN401
    old = given[0].shape
    axis = _axis(how["axis"], len(old))
    constant = _at(given, 1)
    sizes = [old[axis] // count] * count if constant is None else _whole(constant)
    if sum(sizes) != old[axis] or len(sizes) != count:
        raise ValueError(f"{old[axis]} into {count} parts")
    return [(*old[:axis], size, *old[axis + 1 :]) for size in sizes], 0


@_rule("Slice")
def _slice(_how: _Attributes, given: Sequence[_Known], _count: int) -> Any:  # noqa: ANN401
    old = given[0].shape
    starts, ends = _whole(given[1]), _whole(given[2])
    axes, steps = (None if one is None else _whole(one) for one in (_at(given, 3), _at(given, 4)))
    cut = _cut(len(old), starts, ends, axes, steps)
    sizes = (len(range(*one.indices(size))) for one, size in zip(cut, old, strict=True))
    return [tuple(sizes)], 0


def _cut(
    rank: int, starts: Shape, ends: Shape, axes: Shape | None = None, steps: Shape | None = None
) -> tuple[slice, ...]:
    cut = [slice(None)] * rank
    along = range(len(starts)) if axes is None else axes
    by = (1,) * len(starts) if steps is None else steps
    for axis, start, end, step in zip(along, starts, ends, by, strict=True):
        cut[_axis(axis, rank)] = slice(start, end, step)
    return tuple(cut)


@_rule("Pad")
def _pad(_how: _Attributes, given: Sequence[_Known], _count: int) -> Any:  # noqa: ANN401
    old, around = given[0].shape, _whole(given[1])
    if len(around) != 2 * len(old) or min(around, default=0) < 0:
        raise ValueError(f"pads {around} of {len(old)} dimensions")
    pairs = zip(around[: len(old)], old, around[len(old) :], strict=True)
    return [tuple(map(sum, pairs))], 0


@_rule("Gather", axis=0)
def _gather(how: _Attributes, given: Sequence[_Known], _count: int) -> Any:  # noqa: ANN401
    old = given[0].shape
    axis = _axis(how["axis"], len(old))
    return [(*old[:axis], *given[1].shape, *old[axis + 1 :])], 0


@_rule("ReduceSum", keepdims=1, noop_with_empty_axes=0)
def _reduce_sum(how: _Attributes, given: Sequence[_Known], _count: int) -> Any:  # noqa: ANN401
    constant = _at(given, 1)
    axes = () if constant is None else _whole(constant)
    if not axes and how["noop_with_empty_axes"]:
        return [given[0].shape], 0
    return [_reduced(given[0].shape, axes, how["keepdims"])], math.prod(given[0].shape)


@_rule("ReduceMean", "ReduceMax", "ReduceMin", axes=None, keepdims=1)
def _reduce(how: _Attributes, given: Sequence[_Known], _count: int) -> Any:  # noqa: ANN401
    old = given[0].shape
    return [_reduced(old, how["axes"] or (), how["keepdims"])], math.prod(old)


@_rule("ArgMax", axis=0, keepdims=1)
def _argmax(how: _Attributes, given: Sequence[_Known], _count: int) -> Any:  # noqa: ANN401
    old = given[0].shape
    return [_reduced(old, (how["axis"],), how["keepdims"])], math.prod(old)


def _reduced(old: Shape, axes: Sequence[int], keep: Attribute) -> Shape:
    gone = {_axis(axis, len(old)) for axis in axes} or set(range(len(old)))
    if keep:
        return tuple(1 if i in gone else size for i, size in enumerate(old))
    return tuple(size for i, size in enumerate(old) if i not in gone)


@_rule("MatMul")
def _matmul(_how: _Attributes, given: Sequence[_Known], _count: int) -> Any:  # noqa: ANN401
    a, b = given[0].shape, given[1].shape
    inner = b[-2] if len(b) > 1 else b[0]
    if a[-1] != inner:
        raise ValueError(f"{a} times {b}")
    rows, columns = a[-2:-1], b[-1:] if len(b) > 1 else ()
    out = (*np.broadcast_shapes(a[:-2], b[:-2]), *rows, *columns)
    return [out], math.prod(out) * inner


@_rule("Gemm", transA=0, transB=0)
def _gemm(how: _Attributes, given: Sequence[_Known], _count: int) -> Any:  # noqa: ANN401
    (m, k), (rows, n) = given[0].shape, given[1].shape
    m, k = (k, m) if how["transA"] else (m, k)
    rows, n = (n, rows) if how["transB"] else (rows, n)
    if k != rows:
        raise ValueError(f"{given[0].shape} times {given[1].shape}")
    return [(m, n)], m * k * n


@_rule("LSTM", "GRU", hidden_size=None)
def _layer(how: _Attributes, given: Sequence[_Known], count: int) -> Any:  # noqa: ANN401
    steps, batch, width = given[0].shape
    _, rows, columns = given[1].shape
    hidden = int(how["hidden_size"])
    if columns != width or rows % hidden or given[2].shape != (1, rows, hidden):
        raise ValueError(f"weights {given[1].shape} and {given[2].shape} of width {hidden}")
    made = [(steps, 1, batch, hidden), (1, batch, hidden), (1, batch, hidden)]
    return made[:count], steps * batch * rows * (width + hidden)
