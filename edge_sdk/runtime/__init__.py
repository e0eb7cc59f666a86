"""Load and run exported graphs with onnxruntime, or with the engine of an extension.

Importing this package loads no engine; ``load_graph`` does, on first use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from edge_sdk.app.extensions import ExtensionIndex, PluginRegistry
from edge_sdk.protocol.contract.method import Array

__all__ = ["ENGINE", "Graph", "GraphError", "engine_name", "inspect_graph", "load_graph"]

ENGINE = "GRIDFED_ENGINE"
"""Environment variable with an engine: ``auto`` (as if unset), ``onnxruntime``, or a further one."""


class GraphError(Exception):
    """An error: a graph that cannot be loaded or run here."""


def require_inputs(inputs: tuple[str, ...], feeds: Iterable[str]) -> None:
    """Refuse feeds that are not exactly a graph's inputs.

    Raises:
        GraphError: One is missing or unknown.

    >>> require_inputs(("p", "x"), {"p": 0})
    Traceback (most recent call last):
    edge_sdk.runtime.GraphError: the graph takes p, x; got p
    """
    if set(feeds) != set(inputs):
        given = ", ".join(sorted(feeds)) or "nothing"
        raise GraphError(f"the graph takes {', '.join(inputs)}; got {given}")


class Graph(Protocol):
    """One exported function: named float32 arrays in, a tuple of arrays out."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the names of the feeds."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the names of the results, in order."""

    def __call__(self, **feeds: Array) -> tuple[Array, ...]:
        """Run the graph once."""


AUTO = "auto"


def _onnxruntime() -> Callable[..., Graph]:
    from edge_sdk.runtime.ort_engine import OrtGraph  # noqa: PLC0415 - only where it is used

    return OrtGraph


ENGINES: PluginRegistry[Callable[..., Graph]] = PluginRegistry(
    {},
    "gridfed.engines",
    listed={"onnxruntime": _onnxruntime, **ExtensionIndex("edge_sdk").loaders("engines")},
)
"""Engines by the name of the package that they need; the first installed one is preferred."""


def load_graph(data: bytes | Path, *, threads: int = 1) -> Graph:
    """Load an exported graph with the engine that is configured or installed.

    Args:
        data: The ``.onnx`` file, or its bytes.
        threads: Fixed for the life of the graph; results are bit-identical only at equal counts.

    Raises:
        GraphError: No such engine, it cannot load the graph, or ``inspect_graph`` refuses it.
    """
    raw = data.read_bytes() if isinstance(data, Path) else data
    inspect_graph(raw)
    return ENGINES[engine_name()](raw, threads=threads)


def inspect_graph(data: bytes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return a graph's feeds and results after checking its operators and sizes; run nothing.

    Only operators with a rule in ``edge_sdk.runtime.shape_inference`` are accepted, none of which
    loops or holds another graph, and only as many elements and multiplications as it allows.

    Raises:
        GraphError: The graph is refused; no engine has loaded it.
    """
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
    """Return the name of the engine that ``load_graph`` uses here.

    Raises:
        GraphError: No engine is installed, or not the one of the environment.
    """
    wanted = environ.get(ENGINE, AUTO) or AUTO
    if wanted not in (AUTO, *ENGINES):
        raise GraphError(f"{ENGINE}: unknown {wanted!r}; known: {', '.join((AUTO, *ENGINES))}")
    found = next(filter(find_spec, ENGINES if wanted == AUTO else [wanted]), None)
    if found is None:
        asked = (
            "graphs need one of " + ", ".join(ENGINES)
            if wanted == AUTO
            else f"{ENGINE} asks for {wanted}"
        )
        raise GraphError(f"{asked}, which is not installed on this device")
    return found
