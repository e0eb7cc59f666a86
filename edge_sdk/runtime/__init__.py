"""Load and run exported graphs with onnxruntime or numpy.

Importing this package loads no engine; ``load_graph`` does, on first use.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from edge_sdk.runtime.graph import Graph, GraphError

__all__ = ["ENGINE", "Graph", "GraphError", "engine_name", "inspect_graph", "load_graph"]

ENGINE = "GRIDFED_ENGINE"
"""Environment variable with an engine: ``auto`` (as if unset), ``onnxruntime`` or ``numpy``."""

_ENGINES = ("auto", "onnxruntime", "numpy")


def load_graph(data: bytes | Path, *, threads: int = 1) -> Graph:
    """Load an exported graph: with onnxruntime where it is installed, else with numpy alone.

    Args:
        data: The ``.onnx`` file, or its bytes.
        threads: Fixed for the life of the graph; results are bit-identical only at equal counts.
            Numpy uses as many as its own library is configured with.

    Raises:
        GraphError: No such engine, it cannot load the graph, or ``inspect_graph`` refuses it.
    """
    raw = data.read_bytes() if isinstance(data, Path) else data
    engine = engine_name()
    inspect_graph(raw)
    if engine == "numpy":
        from edge_sdk.runtime.numpy_engine import NumpyGraph  # noqa: PLC0415 - only where it is used

        return NumpyGraph(raw)
    from edge_sdk.runtime.ort_engine import OrtGraph  # noqa: PLC0415 - loads the engine: only when needed

    return OrtGraph(raw, threads=threads)


def inspect_graph(data: bytes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return a graph's feeds and results after checking its operators and sizes; run nothing.

    Only operators of the table in ``edge_sdk.runtime.operator_registry`` are accepted, none of
    which loops or holds another graph, and only as many elements and multiplications as
    ``edge_sdk.runtime.shape_inference`` allows.

    Raises:
        GraphError: The graph is refused; no engine has loaded it.
    """
    from edge_sdk.runtime import ops_elementwise, ops_recurrent, ops_tensor  # noqa: F401, PLC0415 - enter operators
    from edge_sdk.runtime.onnx_reader import read_onnx  # noqa: PLC0415 - only where graphs are loaded
    from edge_sdk.runtime.shape_inference import infer_cost  # noqa: PLC0415 - as above

    try:
        model = read_onnx(data)
        infer_cost(model)
    except GraphError as error:
        raise GraphError(f"cannot load the graph: {error}") from error
    inputs = tuple(feed.name for feed in model.inputs)
    return inputs, tuple(feed.name for feed in model.outputs)


def engine_name(environ: Mapping[str, str] = os.environ) -> str:
    """Return the name of the engine that ``load_graph`` uses here: ``onnxruntime`` or ``numpy``.

    Where a wheel installs but crashes on the processor (device notes: Cortex-A53 and some
    versions), set ``GRIDFED_ENGINE=numpy`` in the service's environment.

    Raises:
        GraphError: The variable names no engine, or one that is not installed.
    """
    wanted = environ.get(ENGINE, "auto") or "auto"
    if wanted not in _ENGINES:
        raise GraphError(f"{ENGINE}: unknown {wanted!r}; known: {', '.join(_ENGINES)}")
    has_wheel = find_spec("onnxruntime") is not None
    if wanted == "onnxruntime" and not has_wheel:
        raise GraphError(f"{ENGINE} asks for onnxruntime, which is not installed on this device")
    return "numpy" if wanted == "numpy" or not has_wheel else "onnxruntime"
