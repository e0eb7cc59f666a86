"""Create a live source from its ``[[source]]`` section."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from edge_sdk.app.schema import Between
from edge_sdk.app.settings import Duration, from_table, seconds
from edge_sdk.errors import ConfigError
from edge_sdk.extensions.sources.base import Decoder, FramedLink, Framer
from edge_sdk.extensions.sources.normaliser import Normaliser
from edge_sdk.extensions.sources.recording import RecordedFeed
from edge_sdk.extensions.sources.stream_map import StreamName, names
from edge_sdk.extensions.sources.threaded_source import ThreadedSource
from edge_sdk.sources import SOURCES, Source

S = TypeVar("S", bound="LiveSection")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSection:
    """Keys common to every live source."""

    type: str  # kind of source
    map: Mapping[str, Any] = field(default_factory=dict)  # streams by name, added to the table
    step: Duration | None = None  # grid of the registers; unset: the bundle's
    max_gap: Duration | None = None  # longest interpolated gap; unset: a step
    max_power: Annotated[float, Between(1e-6, 1e9)] = 250.0  # largest accepted power, kW
    rollover: Annotated[float, Between(0, 1e12)] = 0.0  # value at which registers wrap; 0 is never
    renamed: ClassVar[Mapping[str, str]] = {
        "gap": "max_gap",
        "modulus": "rollover",
        "most": "max_power",
    }


@dataclass(frozen=True, slots=True)
class Interface(Generic[S]):
    """A factory for one type of source."""

    name: str  # name in the configuration, in ``streams.toml`` and in recordings
    section: type[S]
    feed: Callable[[S], FramedLink]
    decoder: Callable[[S], Decoder]
    # factory of the framer of plain bytes, where the interface is a line
    framer: Callable[[], Framer] | None = None
    ahead: int = 512  # largest number of frames that wait for the agent
    is_retold: bool = False  # true if the medium delivers everything again after a restart
    # meaning of each name of the interface; None reads ``streams.toml`` and ``map``
    names: Callable[[S], Mapping[str, StreamName]] | None = None

    def __call__(self, table: Mapping[str, Any]) -> ThreadedSource:
        """Build a source from its section of a configuration; nothing is opened yet.

        Raises:
            Failure: A missing, unknown or invalid key.
        """
        section = from_table(self.section, table, f"source {self.name}")
        return self._with(section, self.feed(section))

    def replayed(self, table: Mapping[str, Any], path: Path) -> ThreadedSource:
        """Build the same source on a recording of it."""
        keys = {"url": "tcp://recorded:1"} if "url" in self.section.__dataclass_fields__ else {}
        section = from_table(self.section, keys | dict(table), "source replay")
        framer = None if self.framer is None else self.framer()
        return replace(self._with(section, RecordedFeed(path, self.name, framer)), is_finite=True)

    def _with(self, section: S, feed: FramedLink) -> ThreadedSource:
        table = (
            names(self.name, section.map, f"source {self.name}")
            if self.names is None
            else self.names(section)
        )
        step = 0.0 if section.step is None else seconds(section.step)
        gap = 0.0 if section.max_gap is None else seconds(section.max_gap)
        normaliser = Normaliser(table, step, gap, section.max_power, section.rollover)
        decode = self.decoder(section)
        made = ThreadedSource(self.name, feed, decode, normaliser, ahead=self.ahead)
        return replace(made, is_retold=self.is_retold)


class Replay:
    """Builds a source on a recording: ``path``, its type in ``recorded_type``, and the keys of that type."""

    renamed: Mapping[str, str] = {"of": "recorded_type"}

    def __call__(self, table: Mapping[str, Any]) -> Source:
        """Build the source of a section.

        Raises:
            Failure: A missing, unknown or invalid key, or a missing file.
        """
        keys = {key: value for key, value in table.items() if key not in ("recorded_type", "path")}
        kind, path = str(table.get("recorded_type", "")), Path(str(table.get("path", "")))
        replayed = getattr(SOURCES.get(kind), "replayed", None)
        if replayed is None:
            known = ", ".join(
                sorted(name for name in SOURCES if hasattr(SOURCES[name], "replayed"))
            )
            raise ConfigError(f"source replay: recorded_type: unknown {kind!r}; known: {known}")
        if not path.is_file():
            raise ConfigError(f"source replay: path: no such file: {str(path)!r}")
        source: Source = replayed(keys, path)
        return source


REPLAY = Replay()
"""Type of a source that reads a recording again."""
