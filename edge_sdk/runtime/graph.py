"""Define the interface of a loaded graph, independent of the engine."""

from __future__ import annotations

from typing import Protocol

from edge_sdk.wire.contract.method import Array


class GraphError(Exception):
    """An error: a graph that cannot be loaded or run here."""


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
