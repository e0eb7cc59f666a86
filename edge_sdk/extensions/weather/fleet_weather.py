"""Read the weather of a region that the aggregator distributes over the fleet's own link.

The session verifies and saves the messages; here a message becomes readings. A row counts as observed
once its time has passed: until a newer message replaces it, the forecast of an hour is the best that
is known about that hour. Rows after now go to a model that reads announced weather, and to no other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from typing import Annotated, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.clock import Clock, SystemClock
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.schema import Length
from edge_sdk.app.settings import from_table
from edge_sdk.errors import ConfigError
from edge_sdk.extensions.weather.messages import WeatherMessage, is_region
from edge_sdk.extensions.weather.weather_inbox import TYPE, WeatherInbox
from edge_sdk.forecasting.series import STREAMS, Reading
from edge_sdk.training.extension import DeviceExtension

_WEATHER = tuple(name for name in STREAMS if name.startswith("weather."))


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetWeatherSection:
    """``type = "fleet-weather"``: weather that the aggregator distributes by region."""

    type: str  # kind of source
    region: str = ""  # region; empty: the device's label "region", which the operator sets
    streams: Annotated[tuple[str, ...], Length(1, 8)] = _WEATHER  # streams to read

    def __post_init__(self) -> None:
        """Refuse a region that no topic can have, and a stream that is no weather."""
        if self.region and not is_region(self.region):
            raise ValueError(f"region: {self.region!r} is none; expected letters, digits, . _ -")
        for stream in self.streams:
            if stream not in _WEATHER:
                raise ValueError(f"streams: {stream!r}; known: {', '.join(_WEATHER)}")


@dataclass(slots=True)
class FleetWeatherSource:
    """One configured region."""

    region: str  # region; empty for the assigned one
    streams: frozenset[str]
    rejected: Counter[str] = field(default_factory=Counter)  # columns without use here, by reason
    accepted: int = 0  # number of messages used
    # Unix seconds of the issue of the message in use; None before the first
    issued: float | None = None
    _until: float = -math.inf
    _next: float = -math.inf

    def __iter__(self) -> Iterator[Reading]:
        return iter(())

    def over_link(self, client: WeatherClient) -> FleetWeather:
        """Read it with a running client."""
        return FleetWeather(self, client)

    def survey(self) -> tuple[str, ...]:
        """Return nothing: unused input is known once a message has arrived."""
        return ()

    def report(self) -> Mapping[str, Any]:
        """Refuse a test."""
        raise ConfigError(
            "source fleet-weather: arrives over the fleet's own link, while the agent runs",
            hint="gridfed-edge run; the log event weather received shows each arrival",
        )

    def due(
        self,
        weather: WeatherMessage | None,
        now: float,
        step: int,
        ahead: Collection[str] = (),
    ) -> Iterator[Reading]:
        """Yield the rows that have become past since the last call, or all of a newer message.

        Args:
            now: Unix seconds.
            step: Seconds of the device's grid.
            ahead: Streams of which the rows after now are read as well, once in every slot.
        """
        if weather is None:
            return
        if weather.t / 1000 != self.issued:
            self.issued, self._until, self._next = weather.t / 1000, -math.inf, -math.inf
            self.accepted += 1
            unused = set(weather.names) - self.streams
            self.rejected += Counter({"unused stream": len(unused)})
        if now < self._next:
            return
        self._next = (math.floor(now / step) + 1.0) * step
        times, columns = on_grid(weather, step)
        past = (times <= now) & (times > self._until)
        for name, values in columns.items():
            if name in self.streams:
                wanted = past | (times > now) if name in ahead else past
                known = wanted & np.isfinite(values)
                for at, value in zip(times[known], values[known], strict=True):
                    yield Reading(name, float(at), float(value))
        if past.any():
            self._until = float(times[past][-1])


def on_grid(
    weather: WeatherMessage, step: int
) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
    """Return the rows of a message on a grid of ``step`` seconds.

    Between two known rows values are interpolated; of several rows in a slot the first counts.

    Returns:
        Unix seconds of the slots, and a column for each stream, NaN where unknown.

    >>> two = np.array([1.0, 3.0], "<f4").tobytes()
    >>> message = WeatherMessage("x", 1, 0, 3_600_000, 2, ("weather.temperature",), two)
    >>> on_grid(message, 1800)[1]["weather.temperature"]
    array([1., 2., 3.])
    """
    every = weather.step / 1000
    at = weather.start / 1000 + every * np.arange(weather.num)
    is_finer = every < step
    first = math.floor(at[0] / step) if is_finer else math.ceil(at[0] / step)
    slots = np.arange(first, math.floor(at[-1] / step) + 1, dtype=np.float64) * step
    row = np.clip((slots - at[0]) / every, 0, weather.num - 1)
    below, above = np.floor(row).astype(np.int64), np.ceil(row).astype(np.int64)
    share, is_inside = row - below, at[above] < slots + step
    table = np.frombuffer(weather.blob, "<f4").astype(np.float64).reshape(-1, weather.num)
    columns = {}
    for name, values in zip(weather.names, table, strict=True):
        between = (1 - share) * values[below] + share * values[above]
        columns[name] = np.where(is_inside, values[above], np.nan) if is_finer else between
    return slots, columns


class WeatherClient(Protocol):
    """The part of ``Client`` that the weather of the fleet needs."""

    @property
    def step(self) -> int:
        """Seconds between two slots of the reading grid."""

    @property
    def streams_ahead(self) -> frozenset[str]:
        """Streams whose announced values the model reads."""

    def extension(self, name: str) -> DeviceExtension | None:
        """Return a running extension, or None."""

    def observe(self, reading: Reading) -> object:
        """Record one measurement."""

    def flush(self) -> None:
        """Write the recorded readings to the store."""


@dataclass(frozen=True, slots=True)
class FleetWeather:
    """One region, read in the agent's loop."""

    source: FleetWeatherSource
    client: WeatherClient  # client that receives the messages and observes the readings
    clock: Clock = field(default_factory=SystemClock)

    def turn(self) -> bool:
        """Record the rows that have become past; return whether there was one."""
        source, before = self.source, self.source.issued
        inbox, ahead = self.client.extension("weather"), self.client.streams_ahead
        message = inbox.newest(source.region) if isinstance(inbox, WeatherInbox) else None
        has_arrived = False
        for reading in source.due(message, self.clock.wall() / 1000, self.client.step, ahead):
            self.client.observe(reading)
            has_arrived = True
        if source.issued != before:
            self.client.flush()  # the next message may not have this one's history
        return has_arrived

    def health(self) -> dict[str, Any]:
        source, now = self.source, self.clock.wall() / 1000
        return {
            "type": TYPE,
            "linked": source.issued is not None,
            "lost": 0,
            "accepted": source.accepted,
            "rejected": dict(source.rejected),
            "noticed": {},
            "seconds_since": None if source.issued is None else round(now - source.issued, 1),
            "clock_offset": None,
        }


def fleet_weather(table: Mapping[str, Any]) -> FleetWeatherSource:
    """Build the source from its section of a configuration.

    Raises:
        Failure: An unknown or invalid key.
    """
    section = from_table(FleetWeatherSection, table, f"source {TYPE}")
    if len(set(section.streams)) < len(section.streams):
        raise ConfigError("source fleet-weather: streams: one is named twice")
    return FleetWeatherSource(section.region, frozenset(section.streams))
