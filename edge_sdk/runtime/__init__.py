"""Run a graph: one callable, whichever engine this device has.

Importing this package loads no engine; ``load_graph`` does, on first use.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from edge_sdk.runtime.graph import Graph, GraphError

__all__ = ["Graph", "GraphError", "load_graph"]


def load_graph(data: bytes | Path, *, threads: int = 1) -> Graph:
    """Load an exported graph with the engine that is installed.

    Args:
        data: The ``.onnx`` file, or its bytes.
        threads: Fixed for the life of the graph; results are bit-identical only at equal counts.

    Raises:
        GraphError: No engine is installed, or it cannot load the graph.
    """
    raw = data.read_bytes() if isinstance(data, Path) else data
    if find_spec("onnxruntime") is None:
        raise GraphError(
            "no engine to run graphs: onnxruntime is not installed on this device "
            "(pip install onnxruntime, where a wheel for it exists)"
        )
    from edge_sdk.runtime.ort import OrtGraph  # noqa: PLC0415 - loads the engine: only when needed

    return OrtGraph(raw, threads=threads)
