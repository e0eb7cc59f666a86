"""Bytes of real meters, chargers, cells and files into readings; nothing raises past this door."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from edge_sdk.series import Reading
from edge_sdk.sources.csvfile import csv_file


class Source(Protocol):
    """What yields readings. Bad input is counted by its reason and skipped, never raised."""

    @property
    def rejected(self) -> Counter[str]:
        """How many pieces of input were dropped, by reason."""

    @property
    def streams(self) -> frozenset[str]:
        """Which streams its readings may be of."""

    def __iter__(self) -> Iterator[Reading]:
        """Yield what there is to read, oldest first where the medium allows it."""


SOURCES: Mapping[str, Callable[[Mapping[str, Any]], Source]] = MappingProxyType({"csv": csv_file})
"""Source types of a configuration: ``[[source]] type = "csv"``; each takes the section's keys."""
