"""Bytes of real meters, chargers, cells and files into readings; nothing raises past this door."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from edge_sdk.errors import ConfigError
from edge_sdk.forecasting.series import Reading
from edge_sdk.sources.csvfile import csv_file
from edge_sdk.sources.factory import INTERFACES, replay
from edge_sdk.sources.threaded_source import ThreadedSource


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


SOURCES: Mapping[str, Callable[[Mapping[str, Any]], Source]] = MappingProxyType(
    {"csv": csv_file, "replay": replay, **INTERFACES}
)
"""Source types of a configuration: ``[[source]] type = "csv"``; each takes the section's keys."""

GROUP = "gridfed.sources"
"""Entry points of sources that another package brings: a name, and what takes the section."""

__all__ = ["GROUP", "SOURCES", "Source", "ThreadedSource", "open_source"]


def open_source(section: Mapping[str, Any], where: str) -> Source:
    """Make one configured source; nothing of it is opened yet.

    Args:
        section: A ``[[source]]`` of the configuration.
        where: Blamed for an unknown type.

    Raises:
        Failure: An unknown type, or keys that do not fit.
    """
    kind = str(section.get("type", ""))
    if kind in SOURCES:
        return SOURCES[kind](section)
    from importlib.metadata import entry_points  # noqa: PLC0415 - 15 ms, and rare

    found = entry_points(group=GROUP)
    if kind in found.names:
        made: Source = found[kind].load()(section)
        return made
    known = ", ".join(sorted({*SOURCES, *found.names}))
    raise ConfigError(f"{where}.type: unknown {kind!r}; known: {known}")
