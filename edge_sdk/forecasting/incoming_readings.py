"""Sort the readings of a file into columns, and keep values announced for later slots.

A channel with a lead of k steps reads, in the row of slot i, the value of slot i + k: the weather of the
hour that is forecast. What was announced is kept in a stream of its own (``Feature.lead_stream``), in the
row that reads it, so that a series never reaches beyond its newest reading. A value is final when the
target of its slot has been observed: training then sees what the forecast saw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from edge_sdk.forecasting.series import (
    FARTHEST,
    STREAMS,
    Reading,
    ReadingOutcome,
    Series,
    SeriesColumn,
)
from edge_sdk.protocol.contract.manifest import Feature, Manifest

MOST: Final = 1024
"""Slots ahead of the newest row for which values are kept: 42 days of hours."""


class AnnouncedValues:
    """Values announced for slots after the newest row, in memory; sources announce them again.

    Args:
        manifest: Manifest of the bundle in use.

    Attributes:
        streams: Streams of which announced values are read.
        rows: Streams of the series that keep them, by the row that reads them.
        changes: Number of rows that an announcement has changed so far.

    >>> from edge_sdk.bundle import Bundle, TrustedKeys
    >>> manifest = Bundle.open("load-week-weather-ahead-1", trust=TrustedKeys()).manifest
    >>> announced, series = AnnouncedValues(manifest), Series(3600, manifest.streams)
    >>> _ = series.add(Reading("elec.import.energy", 7 * 3600, 1.0))
    >>> announced.add(Reading("weather.temperature", 8 * 3600, 21.0), series)
    <ReadingOutcome.ANNOUNCED: 'announced'>
    >>> series.values("weather.temperature+1"), announced.changes
    (array([21.]), 1)
    """

    def __init__(self, manifest: Manifest) -> None:
        self._target = manifest.target.stream
        self._leads: dict[str, list[Feature]] = {}
        for feature in manifest.features:
            if feature.lead_steps is not None and feature.stream is not None:
                self._leads.setdefault(feature.stream, []).append(feature)
        self.streams = frozenset(self._leads)
        self.rows = frozenset(str(x.lead_stream) for leads in self._leads.values() for x in leads)
        self.changes = 0
        self._waiting: dict[str, dict[int, Reading]] = {name: {} for name in self._leads}

    def reads(self, reading: Reading, latest: float, step: int) -> bool:
        """Return whether a reading may be of a slot that is still to be forecast.

        Args:
            reading: Reading, perhaps of the past: the slot of the newest target is still open.
            latest: Unix seconds of the latest measured value; later ones are announced.
        """
        return reading.stream in self.streams and reading.time > latest - 2 * step

    def add(self, reading: Reading, series: Series) -> ReadingOutcome:
        """Keep an announced value; of several in a slot the earliest counts.

        Returns:
            ANNOUNCED, AGAIN for the value that is kept already, LATE for a slot whose target is
            known, FUTURE for one too far ahead, NOT_FINITE, or OFF_GRID for the sum of another
            interval than the grid's.
        """
        if refusal := _refusal(reading, series.step):
            return refusal
        slot, waiting = math.floor(reading.time / series.step), self._waiting[reading.stream]
        if slot <= series.newest_of(self._target):
            return ReadingOutcome.LATE
        if len(series) and slot > series.newest + MOST:
            return ReadingOutcome.FUTURE
        before = waiting.get(slot)
        if before is not None and (before.time < reading.time or before == reading):
            return ReadingOutcome.AGAIN
        if before is None and len(waiting) >= 2 * MOST:
            return ReadingOutcome.FUTURE
        waiting[slot] = reading
        self.settle(series)
        return ReadingOutcome.ANNOUNCED

    def settle(self, series: Series) -> bool:
        """Write the values that a row of the series reads; return whether one has changed."""
        if not len(series) or not any(self._waiting.values()):
            return False
        known, before = series.newest_of(self._target), self.changes
        for stream, waiting in self._waiting.items():
            for row in list(_rows(self._leads[stream], waiting, series)):
                seen = series.add(row)
                self.changes += seen in {ReadingOutcome.NEW, ReadingOutcome.CHANGED}
            for slot in [slot for slot in waiting if slot <= known]:
                del waiting[slot]
        return self.changes > before


def _refusal(reading: Reading, step: int) -> ReadingOutcome | None:
    if not (math.isfinite(reading.value) and math.isfinite(reading.time)):
        return ReadingOutcome.NOT_FINITE
    adds = reading.stream in STREAMS and STREAMS[reading.stream].adds
    return ReadingOutcome.OFF_GRID if adds and (reading.seconds or step) != step else None


def _rows(
    leads: Sequence[Feature], waiting: dict[int, Reading], series: Series
) -> Iterator[Reading]:
    for slot, reading in waiting.items():
        for feature in leads:
            row = slot - (feature.lead_steps or 0)
            if series.oldest <= row <= series.newest:
                yield Reading(str(feature.lead_stream), float(row * series.step), reading.value)


def columns_of(
    readings: Iterable[Reading], series: Series, latest: Callable[[str], float]
) -> tuple[SeriesColumn, ...] | None:
    """Return readings as columns for ``Series.merge``.

    Args:
        readings: Readings, in the order in which ``Series.add`` would be given them.
        latest: Returns the time, by stream, after which readings are refused.

    Returns:
        The columns; None where a reading needs ``Series.add``: it is refused, flagged or a part of a
        sum, or the readings of a stream are not in ascending order of slots.
    """
    by_stream: dict[str, list[Reading]] = {}
    for reading in readings:
        by_stream.setdefault(reading.stream, []).append(reading)
    kept, unused = [], []
    for stream, some in by_stream.items():
        if stream in series.streams:
            column = _column(stream, some, series.step, latest(stream))
            if column is None:
                return None
            kept.append(column)
        else:
            unused.append(SeriesColumn(stream, np.zeros(len(some), np.int64), np.zeros(len(some))))
    ends = [int(end) for column in kept for end in (column.slots[0], column.slots[-1])]
    is_short = max(ends, default=0) - min(ends, default=0) < series.capacity
    return (*kept, *unused) if is_short else None


def _column(stream: str, some: list[Reading], step: int, latest: float) -> SeriesColumn | None:
    times = np.array([reading.time for reading in some], np.float64)
    values = np.array([reading.value for reading in some], np.float64)
    is_finite = bool(np.isfinite([times, values]).all())
    if not is_finite or any(reading.flags for reading in some):
        return None
    slots = np.floor(times / step)
    if stream in STREAMS and STREAMS[stream].adds:
        is_whole = {reading.seconds for reading in some} <= {None, step}
        if not (is_whole and (times == slots * step).all()):
            return None
    is_near = times.max() <= latest and np.abs(times).max() < FARTHEST
    is_ascending = bool((np.diff(slots) > 0).all())
    return (
        SeriesColumn(stream, slots.astype(np.int64), values) if is_near and is_ascending else None
    )
