"""Run a graph: one callable, whichever engine this device has.

Importing this package loads no engine; ``load_graph`` does, on first use.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from edge_sdk.runtime.graph import Graph, GraphError

__all__ = ["ENGINE", "Graph", "GraphError", "engine_name", "load_graph"]

ENGINE = "GRIDFED_ENGINE"
"""The variable that names an engine: ``auto`` (as if unset), ``onnxruntime`` or ``numpy``."""

_ENGINES = ("auto", "onnxruntime", "numpy")


def load_graph(data: bytes | Path, *, threads: int = 1) -> Graph:
    """Load an exported graph: with onnxruntime where it is installed, else with numpy alone.

    Args:
        data: The ``.onnx`` file, or its bytes.
        threads: Fixed for the life of the graph; results are bit-identical only at equal counts.
            Numpy takes as many as its own library was told.

    Raises:
        GraphError: No such engine, or it cannot load the graph.
    """
    raw = data.read_bytes() if isinstance(data, Path) else data
    if engine_name() == "numpy":
        from edge_sdk.runtime.plain import PlainGraph  # noqa: PLC0415 - only where it is used

        return PlainGraph(raw)
    from edge_sdk.runtime.ort import OrtGraph  # noqa: PLC0415 - loads the engine: only when needed

    return OrtGraph(raw, threads=threads)


def engine_name(environ: Mapping[str, str] = os.environ) -> str:
    """Say which engine ``load_graph`` takes here: ``onnxruntime`` or ``numpy``.

    A processor that a wheel installs on and crashes on (device notes: Cortex-A53 and some
    versions) is told ``GRIDFED_ENGINE=numpy`` by its service's environment.

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
