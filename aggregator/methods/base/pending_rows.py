"""The updates that wait for a round to close: how one more is added."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edge_sdk.wire.contract.method import Array

AddRow = Callable[[Mapping[str, Array], str, Array], Mapping[str, Array]]
"""Returns the waiting updates with one more, and leaves the argument as it is."""


def with_row(pending: Mapping[str, Array], name: str, vector: Array) -> Mapping[str, Array]:
    """Return the waiting updates with one more, in memory."""
    return {**pending, name: vector}
