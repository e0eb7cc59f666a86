"""Rules for element-wise operators. Importing this module registers them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from aggregator.extensions.authoring.emit import Call, Fill, Value, expression, rule

A: Any = torch.ops.aten

_UNARY = {
    A.sigmoid.default: "Sigmoid",
    A.tanh.default: "Tanh",
    A.relu.default: "Relu",
    A.sqrt.default: "Sqrt",
    A.neg.default: "Neg",
    A.sign.default: "Sign",
    A.sgn.default: "Sign",
    A.abs.default: "Abs",
    A.reciprocal.default: "Reciprocal",
    A.exp.default: "Exp",
    A.log.default: "Log",
    A.erf.default: "Erf",
    A.sin.default: "Sin",
    A.cos.default: "Cos",
    A.floor.default: "Floor",
    A.logical_not.default: "Not",
    A.bitwise_not.default: "Not",
}
_BINARY: dict[Any, tuple[str, Callable[[float, float], float] | None]] = {
    A.add.Tensor: ("Add", operator.add),
    A.add.Scalar: ("Add", operator.add),
    A.sub.Tensor: ("Sub", operator.sub),
    A.sub.Scalar: ("Sub", operator.sub),
    A.mul.Tensor: ("Mul", operator.mul),
    A.mul.Scalar: ("Mul", operator.mul),
    A.div.Tensor: ("Div", operator.truediv),
    A.div.Scalar: ("Div", operator.truediv),
    A.maximum.default: ("Max", max),
    A.minimum.default: ("Min", min),
    A.clamp_min.default: ("Max", max),
    A.clamp_max.default: ("Min", min),
    A.pow.Scalar: ("Pow", None),
    A.pow.Tensor_Tensor: ("Pow", None),
    A.logical_and.default: ("And", None),
    A.logical_or.default: ("Or", None),
    A.bitwise_and.Tensor: ("And", None),
    A.bitwise_or.Tensor: ("Or", None),
}
_COMPARE = {
    "gt": "Greater",
    "lt": "Less",
    "ge": "GreaterOrEqual",
    "le": "LessOrEqual",
    "eq": "Equal",
}
_COMPARISONS = {
    getattr(getattr(A, name), kind): onnx_name
    for name, onnx_name in _COMPARE.items()
    for kind in ("Scalar", "Tensor")
}


@rule(*_UNARY)
def _unary(call: Call) -> Value:
    return full(call, call.emitter.op(_UNARY[call.target], call.operand(0)), 0)


@rule(*_BINARY)
def _binary(call: Call) -> Value:
    """Fold numbers; drop an addition of zero or a product with one; else write the node."""
    kind, fold = _BINARY[call.target]
    alpha = call.node.kwargs.get("alpha", 1)
    known = [_known(call, 0), _known(call, 1)]
    if known[1] is not None:
        known[1] *= alpha
    if known[0] is not None and known[1] is not None and fold is not None:
        return Fill(float(fold(known[0], known[1])), tuple(call.out.shape))
    neutral = _neutral(call, kind, known)
    if neutral is not None:
        return neutral
    second = call.operand(1)
    if alpha != 1:
        second = call.emitter.op("Mul", second, call.number(alpha, call.out.dtype))
    return full(call, call.emitter.op(kind, call.operand(0), second), 0, 1)


def _known(call: Call, index: int) -> Any:  # noqa: ANN401 - a number, or None
    raw = call.node.args[index]
    if isinstance(raw, torch.fx.Node):
        if not isinstance(raw.meta["val"], torch.Tensor):
            return None
        value = call.value(index)
        return value.value if isinstance(value, Fill) else None
    return raw


def _neutral(call: Call, kind: str, known: list[Any]) -> Value | None:
    """Return the other operand of a neutral one, or zero for an annihilating one.

    A constant zero times a weight or an activation is zero for every finite value; an infinite one
    reaches the loss by its other paths.
    """
    if 0.0 in known and kind == "Mul":
        return Fill(0.0, tuple(call.out.shape))
    for here, other in ((0, 1), (1, 0)):
        passes = (kind == "Add" and known[here] == 0) or (kind == "Mul" and known[here] == 1)
        passes = passes or (here == 1 and kind == "Sub" and known[1] == 0)
        passes = passes or (here == 1 and kind == "Div" and known[1] == 1)
        if passes and known[other] is None and _whole(call, other):
            return call.value(other)
    return None


def _whole(call: Call, index: int) -> bool:
    """Return True if a tensor argument has the result's own shape and type."""
    val = call.node.args[index].meta["val"]  # type: ignore[union-attr]
    if not isinstance(val, torch.Tensor) or val.dtype != call.out.dtype:
        return False
    return _sizes(val.shape) == _sizes(call.out.shape)


def _sizes(shape: Any) -> list[Any]:  # noqa: ANN401
    return [expression(size) for size in shape]


def full(call: Call, name: str, *indices: int) -> str:
    """Expand a result that is too small because a fill entered it as a scalar."""
    tensors = _tensors(call, indices)
    written = [i for i in tensors if not isinstance(call.value(i), Fill)]
    if len(written) == len(tensors):
        return name
    wanted = _sizes(call.out.shape)
    if not wanted or any(_sizes(call.shape(i)) == wanted for i in written):
        return name
    return call.emitter.op("Expand", name, call.emitter.shape(call.out.shape))


def _tensors(call: Call, indices: tuple[int, ...]) -> list[int]:
    found = []
    for i in indices:
        raw = call.node.args[i]
        if isinstance(raw, torch.fx.Node) and isinstance(raw.meta["val"], torch.Tensor):
            found.append(i)
    return found


@rule(*_COMPARISONS)
def _compare(call: Call) -> Value:
    kinds = [call.node.args[i].meta["val"].dtype for i in _tensors(call, (0, 1))]  # type: ignore[union-attr]
    common = torch.float32 if torch.float32 in kinds else kinds[0]
    first, second = call.operand(0, common), call.operand(1, common)
    return full(call, call.emitter.op(_COMPARISONS[call.target], first, second), 0, 1)


@rule(A.ne.Scalar, A.ne.Tensor)
def _differ(call: Call) -> Value:
    equal = call.emitter.op("Equal", call.operand(0, torch.float32), call.operand(1, torch.float32))
    return full(call, call.emitter.op("Not", equal), 0, 1)


@rule(A.rsub.Scalar, A.rsub.Tensor)
def _rsub(call: Call) -> Value:
    return full(call, call.emitter.op("Sub", call.operand(1), call.operand(0)), 0, 1)


@rule(A.pow.Tensor_Scalar)
def _power(call: Call) -> Value:
    base, power = call.operand(0), call.arg(1)
    if power == 1:
        return full(call, base, 0)
    if power == 2:
        return full(call, call.emitter.op("Mul", base, base), 0)
    return full(call, call.emitter.op("Pow", base, call.emitter.scalar(power)), 0)


@rule(A.rsqrt.default)
def _rsqrt(call: Call) -> Value:
    return full(call, call.emitter.op("Reciprocal", call.emitter.op("Sqrt", call.operand(0))), 0)


@rule(A.log1p.default)
def _log1p(call: Call) -> Value:
    one = call.emitter.op("Add", call.operand(0), call.emitter.scalar(1.0))
    return full(call, call.emitter.op("Log", one), 0)


@rule(A.expm1.default)
def _expm1(call: Call) -> Value:
    power = call.emitter.op("Exp", call.operand(0))
    return full(call, call.emitter.op("Sub", power, call.emitter.scalar(1.0)), 0)


@rule(A.clamp.default, A.hardtanh.default)
def _clamp(call: Call) -> Value:
    """Write ``Max`` and ``Min`` rather than ``Clip``, whose open ends differ between versions."""
    name = call.operand(0)
    for kind, bound in (("Max", call.arg(1, -math.inf)), ("Min", call.arg(2, math.inf))):
        if bound is not None and math.isfinite(bound):
            name = call.emitter.op(kind, name, call.number(bound, call.out.dtype))
    return full(call, name, 0)


@rule(A.where.self)
def _where(call: Call) -> Value:
    first, second = call.operand(1), call.operand(2)
    condition = call.operand(0, torch.bool)
    return full(call, call.emitter.op("Where", condition, first, second), 0, 1, 2)


@rule(A.masked_fill.Scalar)
def _masked(call: Call) -> Value:
    name = call.emitter.op("Where", call.operand(1, torch.bool), call.operand(2), call.operand(0))
    return full(call, name, 0, 1)


@rule(A._to_copy.default)  # noqa: SLF001 - the operator's own name
def _convert(call: Call) -> Value:
    value = call.value(0)
    same = call.node.args[0].meta["val"].dtype == call.out.dtype  # type: ignore[union-attr]
    return value if same or isinstance(value, Fill) else call.cast(value, call.out.dtype)
