"""State where a bundle's channels come from, and what a window still lacks for a forecast."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_sdk.forecasting.series import Series
from edge_sdk.forecasting.windows import filled
from edge_sdk.wire.contract.manifest import Feature, Manifest

Known = NDArray[np.bool_]

NEVER = "no model forecast and no training until it has a source"
MASKED = "optional: the model forecasts without it, less accurately"


@dataclass(frozen=True, slots=True)
class ChannelSource:
    """The origin of one channel of a bundle.

    Attributes:
        channel: Name of the channel.
        reads: Stream, calendar feature or site constant that it reads.
        source: Where that comes from; empty for none.
        consequence: Cost of a missing source costs; empty where there is a source.
    """

    channel: str
    reads: str
    source: str
    consequence: str = ""

    @property
    def is_missing(self) -> bool:
        """Return whether the channel has no source."""
        return not self.source

    @property
    def text(self) -> str:
        """Return the source, or the consequence of having none."""
        return self.source or f"no source: {self.consequence}"


def channel_sources(
    manifest: Manifest, given: Mapping[str, str], site: Mapping[str, float]
) -> list[ChannelSource]:
    """Return the source of every channel of a bundle, in the bundle's order, without its masks.

    Args:
        manifest: The bundle's manifest.
        given: Source of each stream, by the stream's name.
        site: Constants of the site.
    """
    return [
        _source_of(feature, manifest, given, site)
        for feature in manifest.features
        if feature.kind != "mask"
    ]


def _source_of(
    feature: Feature, manifest: Manifest, given: Mapping[str, str], site: Mapping[str, float]
) -> ChannelSource:
    lost = MASKED if feature.name in manifest.optional else NEVER
    if feature.kind == "calendar":
        return ChannelSource(feature.name, str(feature.what), "the clock")
    if feature.kind == "static":
        value = site.get(feature.name)
        source = "" if value is None else f"[site] {feature.name} = {value:g}"
        return ChannelSource(feature.name, "the site", source, "" if source else lost)
    stream = feature.stream or manifest.target.stream
    source = given.get(stream, "")
    if source and feature.lag_steps is not None:
        source = f"{source}, earlier readings"
    if source and feature.lead_steps is not None:
        source = f"{source}, values announced ahead; without them, the newest reading"
    return ChannelSource(feature.name, stream, source, "" if source else lost)


@dataclass(frozen=True, slots=True)
class MissingReadings:
    """The readings that the newest window lacks.

    Attributes:
        streams: Needed streams without any reading.
        rows: Number of further consecutive readings of the needed streams until the newest window
            is complete; 0 if it is.
        step: Seconds of a row.
    """

    streams: tuple[str, ...]
    rows: int
    step: int

    @property
    def text(self) -> str:
        """Return what is missing, for people; empty if nothing is.

        >>> MissingReadings((), 30, 3600).text
        '30 more readings without a gap (30 hours)'
        >>> MissingReadings(("weather.wind_speed",), 12, 900).text
        'no reading of weather.wind_speed yet; then 12 readings without a gap (3 hours)'
        """
        if not self.rows:
            return ""
        count = "reading" if self.rows == 1 else "readings"
        span = f"{_span(self.rows * self.step)}"
        if self.streams:
            names = ", ".join(self.streams)
            return f"no reading of {names} yet; then {self.rows} {count} without a gap ({span})"
        return f"{self.rows} more {count} without a gap ({span})"


def missing_readings(series: Series, manifest: Manifest) -> MissingReadings:
    """Return how many further readings complete the newest window, and which streams have none.

    The count assumes that every later slot has a reading of each needed stream. It is the smallest
    number of rows after which all channels of the last ``lookback`` rows are known.
    """
    lookback, step = manifest.window.lookback, manifest.window.step_seconds
    optional = manifest.optional
    needed = [f for f in manifest.features if f.name not in optional]
    shifts = {
        manifest.target.stream: sorted(
            {(f.lag_steps or 1) - 1 for f in needed if f.kind in ("target", "lag")}
        )
    }
    shifts |= {f.stream: [0] for f in needed if f.stream is not None}
    most = lookback + max(max(of) for of in shifts.values())
    rows = max(_rows_missing(series, name, of, lookback, most) for name, of in shifts.items())
    absent = [x for x in shifts if not len(series) or not np.isfinite(series.values(x)).any()]
    return MissingReadings(tuple(absent), rows, step)


def _rows_missing(
    series: Series, stream: str, shifts: Sequence[int], lookback: int, most: int
) -> int:
    """Return the first number of added rows after which every shifted window is known."""
    seen = np.isfinite(filled(series.values(stream))) if len(series) else np.zeros(0, np.bool_)
    past = np.concatenate([np.zeros(most, np.bool_), seen])[-most:]
    known = np.concatenate([past, np.ones(most, np.bool_)])
    holes = np.concatenate([[0], np.cumsum(~known)])
    ends = most + np.arange(most + 1)  # one past the newest row, with so many added
    complete = np.ones(most + 1, np.bool_)
    for shift in shifts:
        complete &= holes[ends - shift] == holes[ends - shift - lookback]
    return int(np.flatnonzero(complete)[0])


def _span(seconds: float) -> str:
    """Return a length of time in hours, or in days from two days on.

    >>> _span(5400), _span(176_400)
    ('1.5 hours', '2.0 days')
    """
    if seconds < 2 * 86_400:
        hours = seconds / 3600
        return f"{hours:.3g} hour{'' if hours == 1 else 's'}"
    return f"{seconds / 86_400:.1f} days"


def unsupplied(channels: Iterable[ChannelSource]) -> list[ChannelSource]:
    """Return the channels without a source."""
    return [channel for channel in channels if channel.is_missing]
