"""Write a traced function as ONNX, with one rule for each operator in a table.

``torch.onnx.export`` is not used: with its defaults it removes the epsilon of an optimiser's
denominator, takes minutes, and fixes batch sizes. The rules are few: a trace has only a few dozen
kinds of operators, and the written ones load in any onnxruntime from 1.16 on.

The tracer already redirects later uses of a tensor to the result of an in-place operator, which is
written in its functional form. The remaining case is refused: a view of the same memory that is read
afterwards has the new values in torch, and the old ones in a graph.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import sympy
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import fx

from aggregator.extensions.authoring.export_spec import ExportError, UnsupportedOperator

OPSET = 17
IR_VERSION = 8
BATCH = "batch"

_TYPES = {
    torch.float32: TensorProto.FLOAT,
    torch.int64: TensorProto.INT64,
    torch.bool: TensorProto.BOOL,
}
_OUR_NAME = re.compile(r"[A-Z][A-Za-z]*_\d+|const_\d+")
LAST = 2**62  # end of a slice that lies beyond the end of any axis


@dataclass(frozen=True, slots=True)
class Fill:
    """A tensor of one repeated value that is not written; most are folded into their consumers."""

    value: float
    shape: tuple[Any, ...]


Value = str | Fill
Result = Value | list[Value]
Rule = Callable[["Call"], Result]
RULES: dict[Any, Rule] = {}


def rule(*targets: Any) -> Callable[[Rule], Rule]:  # noqa: ANN401 - torch's operators have no type
    """Register a function as the rule of these operators."""

    def enter(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(targets, function))
        return function

    return enter


class Emitter:
    """Collects nodes and constants. Equal nodes and equal constants are written once."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.transposed: dict[str, str] = {}  # a 2-D transpose's result -> its source
        self._made: dict[Any, tuple[str, ...]] = {}
        self._symbols: dict[sympy.Expr, tuple[str, int]] = {}

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:  # noqa: ANN401 - as ONNX
        return self.ops(kind, inputs, 1, **attributes)[0]

    def ops(self, kind: str, inputs: Sequence[str], results: int, **attributes: Any) -> list[str]:  # noqa: ANN401
        """Add a node, or return the equal existing one."""
        key = (kind, tuple(inputs), results, json.dumps(attributes, sort_keys=True))
        if key not in self._made:
            names = tuple(f"{kind}_{len(self._made) + i}" for i in range(results))
            self._made.update({(kind, name): (name,) for name in names[1:]})  # keeps numbers unique
            self._made[key] = names
            self.nodes.append(helper.make_node(kind, list(inputs), list(names), **attributes))
        return list(self._made[key])

    def const(self, values: Any) -> str:  # noqa: ANN401 - whatever numpy takes
        array = np.asarray(values)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._made:
            name = f"const_{len(self._made)}"
            self._made[key] = (name,)
            self.constants.append(numpy_helper.from_array(array, name))
        return self._made[key][0]

    def ints(self, *values: int) -> str:
        """Return a 1-D int64 constant."""
        return self.const(np.array(values, np.int64))

    def scalar(self, value: float) -> str:
        """Return a float32 scalar constant."""
        return self.const(np.float32(value))

    def bind(self, symbol: sympy.Expr, name: str, axis: int) -> None:
        self._symbols.setdefault(symbol, (name, axis))

    def size(self, value: Any) -> str:  # noqa: ANN401 - int, SymInt or expression
        """Return the name of a size as a 1-element int64 tensor."""
        e = expression(value)
        if e.is_Integer:
            return self.ints(int(e))
        if e.is_Symbol:
            name, axis = self._symbols[e]
            shape = self.op("Shape", name)
            return self.op("Slice", shape, self.ints(axis), self.ints(axis + 1))
        kind = "Add" if e.is_Add else "Mul" if e.is_Mul else None
        if kind is None:
            return self._divided(e)
        name = self.size(e.args[0])
        for other in e.args[1:]:
            name = self.op(kind, name, self.size(other))
        return name

    def _divided(self, e: sympy.Expr) -> str:
        if type(e).__name__ not in {"FloorDiv", "CleanDiv"}:
            raise ExportError(f"the batch size enters as {e}, which cannot be exported")
        return self.op("Div", self.size(e.args[0]), self.size(e.args[1]))

    def shape(self, dims: Sequence[Any], *, infer: bool = False) -> str:
        """Return the name of a shape; with ``infer`` one symbolic size may become -1."""
        sizes = [expression(d) for d in dims]
        unknown = sum(not e.is_Integer for e in sizes)
        if unknown == 0 or (infer and unknown == 1):
            return self.ints(*(int(e) if e.is_Integer else -1 for e in sizes))
        return self.op("Concat", *(self.size(e) for e in sizes), axis=0)

    def written(self, value: Value) -> str:
        """Return the name of a value, after writing a fill."""
        if isinstance(value, str):
            return value
        return self.op("Expand", self.scalar(value.value), self.shape(value.shape))


class Call:
    """One traced operator with its arguments, as the input of a rule."""

    def __init__(
        self,
        emitter: Emitter,
        node: fx.Node,
        target: Any,  # noqa: ANN401 - torch's operators have no type
        values: Mapping[fx.Node, Result],
    ) -> None:
        self.emitter, self.node, self.target, self._values = emitter, node, target, values
        self.out: Any = node.meta.get("val")

    def arg(self, index: int, default: Any = None) -> Any:  # noqa: ANN401
        """Return a plain argument; symbolic sizes come as ``SymInt``."""
        raw = self.node.args[index] if len(self.node.args) > index else default
        return fx.map_arg(raw, lambda n: n.meta["val"]) if raw is not default else default

    def value(self, index: int) -> Value:
        """Return a tensor argument unchanged: a name or a fill."""
        return self._of(self.node.args[index])

    def values(self, index: int) -> list[Value]:
        return [self._of(item) for item in self.node.args[index]]  # type: ignore[union-attr]

    def results(self, index: int) -> list[Value]:
        found = self._values[self.node.args[index]]  # type: ignore[index]
        return found if isinstance(found, list) else [found]

    def tensor(self, index: int) -> str:
        return self.emitter.written(self.value(index))

    def operand(self, index: int, dtype: torch.dtype | None = None) -> str:
        """Return an element-wise argument: fills and numbers as scalars, types promoted."""
        raw = self.node.args[index]
        wanted = dtype or self.out.dtype
        val = raw.meta["val"] if isinstance(raw, fx.Node) else raw
        if isinstance(val, torch.Tensor):
            value = self._of(raw)
            if isinstance(value, Fill):
                return self.number(value.value, wanted)
            return value if val.dtype == wanted else self.cast(value, wanted)
        if isinstance(val, torch.SymInt):
            scalar = self.emitter.op("Squeeze", self.emitter.size(val), self.emitter.ints(0))
            return self.cast(scalar, wanted)
        return self.number(val, wanted)

    def number(self, value: Any, dtype: torch.dtype) -> str:  # noqa: ANN401
        kinds = {torch.int64: np.int64, torch.bool: np.bool_}
        return self.emitter.const(kinds.get(dtype, np.float32)(value))

    def cast(self, name: str, dtype: torch.dtype) -> str:
        return self.emitter.op("Cast", name, to=onnx_type(dtype, self.node))

    def rank(self, index: int) -> int:
        return self.node.args[index].meta["val"].dim()  # type: ignore[union-attr,no-any-return]

    def shape(self, index: int) -> tuple[Any, ...]:
        return tuple(self.node.args[index].meta["val"].shape)  # type: ignore[union-attr]

    def _of(self, raw: Any) -> Value:  # noqa: ANN401
        found = self._values[raw]
        if isinstance(found, list):
            raise ExportError(f"{self.node.target}: expected one tensor, got several")
        return found


def emit(graph: fx.GraphModule, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto:
    """Write a traced function as an ONNX model.

    Args:
        graph: Result of ``trace``: aten operators, every node with its ``val``.

    Raises:
        ExportError: A name collides with a generated one, or a size cannot be written.
    """
    for name in (*inputs, *outputs):
        if _OUR_NAME.fullmatch(name):
            raise ExportError(f"graph input or output {name!r}: such names are the emitter's own")
    graph.graph.eliminate_dead_code()
    emitter, values = Emitter(), dict[fx.Node, Result]()
    feeds, names, results = [], iter(inputs), []
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            values[node] = name = next(names)
            feeds.append(_described(name, node, emitter))
        elif node.op == "get_attr":
            values[node] = emitter.const(getattr(graph, node.target).detach().numpy())
        elif node.op == "output":
            results = list(node.args[0])
        elif not isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, int, float)):
            values[node] = _applied(emitter, node, values)
    answers = [_answer(emitter, values, *pair) for pair in zip(results, outputs, strict=True)]
    return _model(emitter, feeds, answers)


def _applied(emitter: Emitter, node: fx.Node, values: Mapping[fx.Node, Result]) -> Result:
    target = functional(node)
    found = RULES.get(target)
    if found is None:
        raise UnsupportedOperator(str(node.target), _where(node))
    return found(Call(emitter, node, target, values))


def _where(node: fx.Node) -> str:
    return str(node.meta.get("nn_module_stack") or "the backward pass or the loss")


def _described(name: str, node: fx.Node, emitter: Emitter | None = None) -> onnx.ValueInfoProto:
    val = node.meta["val"]
    dims: list[int | str] = []
    for axis, size in enumerate(val.shape):
        e = expression(size)
        dims.append(int(e) if e.is_Integer else BATCH if axis == 0 else str(e))
        if emitter is not None and not e.is_Integer:
            emitter.bind(e, name, axis)
    return helper.make_tensor_value_info(name, onnx_type(val.dtype, node), dims)


def _answer(
    emitter: Emitter, values: Mapping[fx.Node, Result], node: fx.Node, name: str
) -> onnx.ValueInfoProto:
    value = values[node]
    assert not isinstance(value, list)
    emitter.nodes.append(helper.make_node("Identity", [emitter.written(value)], [name]))
    return _described(name, node)


def _model(
    emitter: Emitter, feeds: list[onnx.ValueInfoProto], answers: list[onnx.ValueInfoProto]
) -> onnx.ModelProto:
    """Remove the nodes that no output needs, and return the model."""
    live, kept = {answer.name for answer in answers}, []
    for node in reversed(emitter.nodes):
        if live.intersection(node.output):
            kept.append(node)
            live.update(node.input)
    constants = [constant for constant in emitter.constants if constant.name in live]
    graph = helper.make_graph(kept[::-1], "gridfed", feeds, answers, constants)
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(
        graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="gridfed"
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def expression(value: Any) -> sympy.Expr:  # noqa: ANN401 - int, SymInt or expression
    """Return a size as an expression in the batch size."""
    if isinstance(value, torch.SymInt):
        return value.node.expr
    return sympy.sympify(value)


def onnx_type(dtype: torch.dtype, node: fx.Node) -> int:
    """Return ONNX's number of a type; raise ExportError unless it is float32, int64 or bool."""
    if dtype not in _TYPES:
        raise ExportError(f"{node.target} (in {_where(node)}) makes {dtype}; use float32")
    return int(_TYPES[dtype])


def functional(node: fx.Node) -> Any:  # noqa: ANN401 - torch's operators have no type
    """Return a node's operator in its functional form; raise ExportError if a view of its memory is read later."""
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:  # noqa: SLF001
        return target
    name = target._schema.name.split("::")[1]  # noqa: SLF001 - the schema has no public reader
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    ordinary = getattr(packet, target._overloadname, None)  # noqa: SLF001
    if not name.endswith("_") or ordinary is None:
        return target
    if _read_later(node):
        raise ExportError(
            f"{target} changes memory that is read again through a view; use {name[:-1]}"
        )
    return ordinary


def _read_later(node: fx.Node) -> bool:
    changed = node.args[0]
    assert isinstance(changed, fx.Node)
    order = {each: place for place, each in enumerate(node.graph.nodes)}
    root = changed
    while _is_view(root) and isinstance(root.args[0], fx.Node):
        root = root.args[0]
    aliases, grown = {root}, [root]
    while grown:
        views = {user for user in grown.pop().users if _is_view(user)} - aliases
        aliases |= views
        grown += views
    readers = (user for alias in aliases for user in alias.users if user is not node)
    return any(order[user] > order[node] for user in readers)


def _is_view(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target.is_view  # noqa: SLF001
