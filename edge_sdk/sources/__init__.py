"""Convert bytes of meters, chargers, cells and files into readings; bad input never raises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from edge_sdk.app.settings import refuse_renamed
from edge_sdk.errors import ConfigError
from edge_sdk.forecasting.series import Reading
from edge_sdk.sources.csvfile import csv_file
from edge_sdk.sources.factory import INTERFACES, replay
from edge_sdk.sources.fleet_weather import TYPE, FleetWeatherSource, fleet_weather
from edge_sdk.sources.renamed import RENAMED
from edge_sdk.sources.threaded_source import ThreadedSource
from edge_sdk.wire.plugin_registry import PluginRegistry


class Source(Protocol):
    """A source of readings. Bad input is counted by its reason and skipped, never raised."""

    @property
    def rejected(self) -> Counter[str]:
        """Number of rejected inputs, by reason."""

    @property
    def streams(self) -> frozenset[str]:
        """Streams that its readings may belong to."""

    def __iter__(self) -> Iterator[Reading]:
        """Yield the available readings, oldest first where the medium allows it."""


def _factory(_name: str, given: Any) -> Callable[[Mapping[str, Any]], Source]:  # noqa: ANN401 - foreign
    if not callable(given):
        raise TypeError(f"expected a function of the section, got {type(given).__name__}")
    made: Callable[[Mapping[str, Any]], Source] = given
    return made


GROUP = "gridfed.sources"
"""Entry-point group of sources from other packages: a name, and a factory for the section."""

SOURCES: PluginRegistry[Callable[[Mapping[str, Any]], Source]] = PluginRegistry(
    {"csv": csv_file, "replay": replay, TYPE: fleet_weather, **INTERFACES}, GROUP, _factory
)
"""Source types of a configuration: ``[[source]] type = "csv"``; each takes the section's keys."""

__all__ = ["GROUP", "SOURCES", "FleetWeatherSource", "Source", "ThreadedSource", "open_source"]


def open_source(section: Mapping[str, Any], where: str) -> Source:
    """Create one configured source; nothing of it is opened yet.

    Args:
        section: ``[[source]]`` section of the configuration.
        where: Origin named in an error message.

    Raises:
        Failure: An unknown type, or invalid keys.
    """
    kind = str(section.get("type", ""))
    refuse_renamed(RENAMED.get(kind, {}), section, where)
    if kind in SOURCES:
        return SOURCES[kind](section)
    known = ", ".join(SOURCES.names())
    raise ConfigError(f"{where}.type: unknown {kind!r}; known: {known}")
