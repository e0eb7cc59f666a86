"""Define a source of readings, open the configured ones, and read those that have an end."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from edge_sdk.app.cli import fields
from edge_sdk.app.extensions import ExtensionIndex, PluginRegistry
from edge_sdk.app.settings import refuse_renamed
from edge_sdk.errors import ConfigError
from edge_sdk.forecasting.series import Reading

logger = logging.getLogger(__name__)

_AT_ONCE = 1024  # readings of a file that are recorded together


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


@runtime_checkable
class LiveSource(Source, Protocol):
    """An endless source, unless ``is_finite``; the agent polls it and never waits."""

    kind: str  # type in the configuration
    is_finite: bool  # true if the medium has an end: then it is read to it

    def on_grid(self, step: float) -> None:
        """Set the grid of the readings in seconds, unless the configuration set one."""

    def start(self, saved: bytes | None = None) -> None:
        """Start reading, from the state that ``saved`` returned in the previous process."""

    def poll(self) -> Iterator[Reading]:
        """Yield the readings since the last call; never waits."""

    def saved(self) -> bytes:
        """Return the state that a restart needs."""

    def saved_unused(self, saved: bytes | None) -> list[str]:
        """Return the names of the unused input in a result of ``saved``."""

    def health(self) -> dict[str, Any]:
        """Return the state of the source, without any value."""

    def close(self) -> None:
        """Stop reading."""


class SourceFeed(Protocol):
    """A source that is read in the agent's loop."""

    def turn(self) -> bool:
        """Pass new readings to the client; return whether there was one."""

    def health(self) -> dict[str, Any]:
        """Return the state of the source, without any value."""


@runtime_checkable
class LinkedSource(Protocol):
    """A source whose readings arrive over the fleet's own link."""

    def over_link(self, client: Any) -> SourceFeed:  # noqa: ANN401 - the part of a client that it needs
        """Return the feed of this source over the link of a running client."""


def _factory(_name: str, given: Any) -> Callable[[Mapping[str, Any]], Source]:  # noqa: ANN401 - foreign
    if not callable(given):
        raise TypeError(f"expected a function of the section, got {type(given).__name__}")
    made: Callable[[Mapping[str, Any]], Source] = given
    return made


GROUP = "gridfed.sources"
"""Entry-point group of sources from other packages: a name, and a factory for the section."""

SOURCES: PluginRegistry[Callable[[Mapping[str, Any]], Source]] = PluginRegistry(
    {}, GROUP, _factory, ExtensionIndex("edge_sdk").loaders("sources")
)
"""Source types of a configuration: ``[[source]] type = "csv"``; each takes the section's keys."""


def open_source(section: Mapping[str, Any], where: str) -> Source:
    """Create one configured source; nothing of it is opened yet.

    Raises:
        Failure: An unknown type, or invalid keys.
    """
    kind = str(section.get("type", ""))
    if kind not in SOURCES:
        known = ", ".join(SOURCES.names())
        raise ConfigError(f"{where}.type: unknown {kind!r}; known: {known}")
    factory = SOURCES[kind]
    refuse_renamed(renamed_keys(factory), section, where)
    return factory(section)


def renamed_keys(factory: object) -> Mapping[str, str]:
    """Return the new keys of a source's section by their old names."""
    found: Mapping[str, str] = getattr(getattr(factory, "section", factory), "renamed", {})
    return found


def parted(sources: Iterable[Source]) -> tuple[list[Source], dict[str, LiveSource]]:
    """Separate finite sources from continuous ones; name each of the latter uniquely."""
    live = {
        f"{number} {source.kind}": source
        for number, source in enumerate(sources)
        if isinstance(source, LiveSource) and not source.is_finite
    }
    running = {id(source) for source in live.values()}
    return [source for source in sources if id(source) not in running], live


def read_all(
    sources: list[Source],
    observe_all: Callable[[Sequence[Reading]], object],
    is_stopping: Callable[[], bool] = lambda: False,
) -> Counter[str]:
    """Read every finite source to its end; return the rejected readings, counted by reason."""
    rejected: Counter[str] = Counter()
    for source in parted(sources)[0]:
        waiting: list[Reading] = []
        for reading in source:
            waiting.append(reading)
            if is_stopping():
                break
            if len(waiting) == _AT_ONCE:
                observe_all(waiting)
                waiting = []
        observe_all(waiting)
        rejected += source.rejected
        for reason, line in getattr(source, "offending", {}).items():
            at = line.partition(":")[0].removeprefix("line ")  # its text has readings in it
            logger.warning("line rejected %s", fields(reason=reason, line=at))
    if rejected:
        reasons = {reason.replace(" ", "_"): count for reason, count in rejected.items()}
        logger.warning("readings rejected %s", fields(**reasons))
    return rejected
