"""Define the interface of a loaded graph, independent of the engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from edge_sdk.wire.contract.method import Array


class GraphError(Exception):
    """An error: a graph that cannot be loaded or run here."""


def require_inputs(inputs: tuple[str, ...], feeds: Iterable[str]) -> None:
    """Refuse feeds that are not exactly a graph's inputs.

    Raises:
        GraphError: One is missing or unknown.

    >>> require_inputs(("p", "x"), {"p": 0})
    Traceback (most recent call last):
    edge_sdk.runtime.graph.GraphError: the graph takes p, x; got p
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
