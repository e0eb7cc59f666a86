"""Cut a network's forecast graph at its last hidden layer, with its trained vector inside.

The result is the graph ``hidden`` of a bundle in closed form: a device computes features with it,
and solves the last layer itself. Needs onnx, not torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from edge_sdk.protocol.contract.manifest import Manifest, ManifestError
from edge_sdk.protocol.contract.parameter_layout import Vector

_PRODUCTS = frozenset(("Gemm", "MatMul", "LSTM", "GRU"))


@dataclass(frozen=True, slots=True, eq=False)
class TrainedNet:
    """A network whose last hidden layer becomes features."""

    manifest: Manifest
    forecast: bytes  # its forecast graph, ONNX
    vector: Vector  # its trained vector, shape ``(P,)``


@dataclass(frozen=True, slots=True, eq=False)
class HiddenGraph:
    """A network from its window to its last hidden layer."""

    data: bytes  # the graph, ONNX: ``x [B, lookback, channels]`` to ``hidden [B, F]``
    width: int
    # the graph, computed by ONNX's reference evaluator: slow, and no device's engine
    run: Callable[..., tuple[Any, ...]]


def hidden_graph(
    net: TrainedNet,
    lookback: int,
    channels: Sequence[int],
    golden: np.ndarray[tuple[int, int], np.dtype[np.float64]],
) -> HiddenGraph:
    """Return the graph from a bundle's window to the hidden layer.

    Args:
        lookback: Rows of the bundle's window; the network reads the newest of them.
        channels: For each channel of the network, its place among the bundle's.
        golden: A window of the bundle, to run the graph once.

    Raises:
        ManifestError: The network has no single last hidden layer of one row a window.
    """
    model = onnx.load_from_string(net.forecast)
    graph = model.graph
    producers = {name: node for node in graph.node for name in node.output}
    layer = _last_hidden(net.manifest.name, graph.output[0].name, producers)
    nodes = [node for node in graph.node if node.op_type != "Constant"]
    needed = _ancestors(layer, producers)
    kept = [node for node in nodes if set(node.output) & needed]
    for node in kept:
        for place, name in enumerate(node.input):
            if name == "x":
                node.input[place] = "window"
    rows = net.manifest.window.lookback
    constants: Mapping[str, np.ndarray[tuple[int], np.dtype[np.int64]]] = {
        "hidden_from": np.array([lookback - rows]),
        "hidden_to": np.array([lookback]),
        "hidden_axis": np.array([1]),
        "hidden_channels": np.array(channels),
    }
    reads = [
        helper.make_node("Slice", ["x", "hidden_from", "hidden_to", "hidden_axis"], ["newest"]),
        helper.make_node("Gather", ["newest", "hidden_channels"], ["window"], axis=2),
    ]
    weights = [numpy_helper.from_array(np.asarray(net.vector, np.float32), "p")]
    weights += [numpy_helper.from_array(value, name) for name, value in constants.items()]
    used = {name for node in kept for name in node.input}
    weights += [one for one in graph.initializer if one.name in used]
    shape: list[str | int | None] = ["B", lookback, golden.shape[1]]
    made = helper.make_graph(
        [*reads, *kept, helper.make_node("Identity", [layer], ["hidden"])],
        "hidden",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("hidden", onnx.TensorProto.FLOAT, ["B", "F"])],
        weights,
    )
    found = helper.make_model(made, opset_imports=model.opset_import, ir_version=model.ir_version)
    data = found.SerializeToString(deterministic=True)
    evaluator = ReferenceEvaluator(data)

    def run(**feeds: Any) -> tuple[Any, ...]:  # noqa: ANN401 - arrays
        return tuple(evaluator.run(None, feeds))

    (row,) = run(x=np.asarray(golden, np.float32)[None])
    if row.ndim != 2 or not np.isfinite(row).all():
        raise ManifestError(
            f"network {net.manifest.name}: its last hidden layer has shape {row.shape}, expected (B, F)"
        )
    return HiddenGraph(data, int(row.shape[1]), run)


def _last_hidden(net: str, result: str, producers: Mapping[str, onnx.NodeProto]) -> str:
    """Return the input of the last product that has parameters on both sides: the last hidden layer.

    A path past the hidden layers, such as a linear one, reads the window alone.
    """
    found: set[str] = set()
    left = [result]
    while left:
        node = producers.get(left.pop())
        if node is None:
            continue
        if node.op_type not in _PRODUCTS:
            left.extend(node.input)
        elif {"p", "x"} <= _ancestors(node.input[0], producers):
            found.add(node.input[0])
    if len(found) != 1:
        raise ManifestError(f"network {net}: {len(found)} last hidden layers, exactly 1 is needed")
    return found.pop()


def _ancestors(name: str, producers: Mapping[str, onnx.NodeProto]) -> set[str]:
    seen: set[str] = set()
    left = [name]
    while left:
        one = left.pop()
        if one not in seen:
            seen.add(one)
            left.extend(producers[one].input if one in producers else ())
    return seen
