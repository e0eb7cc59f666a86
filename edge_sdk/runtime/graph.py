"""What a loaded graph is, whichever engine runs it."""

from __future__ import annotations

from typing import Protocol

from edge_sdk.wire.contract.method import Array


class GraphError(Exception):
    """A graph that cannot be loaded or run here."""


class Graph(Protocol):
    """One exported function: named float32 arrays in, a tuple of arrays out."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the feeds."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the results, in order."""

    def __call__(self, **feeds: Array) -> tuple[Array, ...]:
        """Run once."""
