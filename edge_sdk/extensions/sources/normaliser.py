"""Convert samples to readings: canonical names and units, UTC, one grid, quality flags."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import TypeVar

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.extensions.sources.base import NOT_MAPPED, SourceSample, tally
from edge_sdk.extensions.sources.counter_intervals import CounterSum, EnergyInterval
from edge_sdk.extensions.sources.slot_sums import IntervalSpread, SlotSums, ValueSeries
from edge_sdk.extensions.sources.stream_map import StreamName
from edge_sdk.forecasting.series import Flag, Reading

NO_CLOCK_BEFORE = 1_577_836_800.0
"""Unix seconds; an earlier time (before 2020) counts as that of a clock that was never set."""

_STEP = 900.0  # seconds, where no grid is set

_METERS = 256  # meters and series whose state is kept; beyond, the oldest are dropped

M = TypeVar("M")


@dataclass(slots=True)
class Normaliser:
    """Converts the samples of one source; keeps register state between frames.

    >>> table = {"1-0:1.8.0": StreamName("elec.import.energy", "register")}
    >>> normaliser = Normaliser(table, step=3600, gap=3600, most=100)
    >>> for hour, wh in [(0, 7000), (1, 7400), (2, 8000)]:
    ...     time = 1_700_006_400.0 + hour * 3600
    ...     for reading in normaliser.normalise([SourceSample("1-0:1.8.0", time, wh, "Wh")]):
    ...         print(reading.stream, round(reading.value, 6))
    elec.import.energy 0.4
    elec.import.energy 0.6
    """

    names: Mapping[str, StreamName]  # wanted names of the interface, with their streams
    step: float = 0.0  # seconds per slot of the registers' grid; 0 until ``settle`` sets it
    gap: float = 0.0  # as in ``CounterSum``; 0 is a step
    most: float = 250.0  # largest accepted power, in kW (or the stream's unit per hour)
    modulus: float = 0.0  # value at which registers wrap, in the stream's unit; 0 is never
    counts: Counter[str] = field(default_factory=Counter)  # counters of events, by reason
    # input that is not used, by name and reason, as ``tally`` counts it
    unused: Counter[str] = field(default_factory=Counter)
    _meters: dict[tuple[str, ValueSeries], CounterSum] = field(default_factory=dict)
    _spreads: dict[tuple[str, ValueSeries], IntervalSpread] = field(default_factory=dict)
    _sums: SlotSums = field(init=False)

    def __post_init__(self) -> None:
        self._sums = SlotSums(self.unused)

    @property
    def streams(self) -> frozenset[str]:
        """Streams that its readings may belong to."""
        return frozenset(name.stream for name in self.names.values())

    def settle(self, step: float) -> None:
        """Set the grid of the reader, unless the configuration set one."""
        self.step = self.step or step

    def normalise(self, samples: Iterable[SourceSample]) -> Iterator[Reading]:
        """Convert the samples of one frame into readings; count unused ones by name.

        A sum of registers that lacks one of them, because it is invalid, is not used.
        """
        registers: dict[tuple[str, ValueSeries, float, int], dict[str, float]] = {}
        lacking: set[tuple[str, ValueSeries, float]] = set()
        slots: dict[tuple[str, float], None] = {}
        others: dict[tuple[str, float, float | None], Reading] = {}
        for sample in samples:
            name = self.names.get(sample.name)
            if name is None:
                tally(self.unused, sample.name, NOT_MAPPED)
                continue
            value = self._value(name, sample)
            series = ValueSeries(sample.device, sample.rank, sample.variant, sample.covers)
            if value is None:
                if name.kind == "register" and not sample.fault:
                    lacking.add((name.stream, series, sample.time))
            elif name.kind == "register":
                key = (name.stream, series, sample.time, sample.flags)
                registers.setdefault(key, {})[sample.name] = value
            elif name.kind == "interval" and sample.seconds is not None and sample.rank:
                spread = self._spread(name.stream, series)
                done = spread.add(sample.time, sample.seconds, value)
                self._put(name.stream, series, done, slots)
            else:
                seconds = sample.seconds if name.kind == "interval" else None
                reading = Reading(name.stream, sample.time, value, sample.flags, seconds)
                if others.setdefault((name.stream, sample.time, seconds), reading) == reading:
                    yield reading
                else:
                    tally(self.unused, sample.name, "conflict")
        for (stream, series, time, flags), values in registers.items():
            if self._is_plausible(values, flags) and (stream, series, time) not in lacking:
                register = self._register(stream, series)
                self._put(stream, series, register.add(time, values), slots)
        yield from self._changed(slots)

    def _is_plausible(self, values: Mapping[str, float], flags: int) -> bool:
        if flags & Flag.SUSPECT:  # the meter flags it: the next reading covers its energy
            self.counts["suspect"] += 1
        elif min(values.values()) < 0 or max(values.values()) > 1e12:
            self.counts["implausible"] += 1
        else:
            return True
        return False

    def _changed(self, slots: Iterable[tuple[str, float]]) -> Iterator[Reading]:
        for stream, time in slots:
            total = self._sums.changed(stream, time)
            if total is not None:
                yield Reading(stream, time, total, 0, self.step)
        self._sums.trim()

    def _value(self, name: StreamName, sample: SourceSample) -> float | None:
        reason = sample.fault
        if reason:
            pass
        elif not (math.isfinite(sample.value) and math.isfinite(sample.time)):
            reason = "not finite"
        elif sample.time < NO_CLOCK_BEFORE or sample.flags & Flag.CLOCK_UNSYNCED:
            reason = "clock not set"
        else:
            try:
                return name.canonical(sample.value, sample.unit)
            except ValueError:
                reason = "foreign unit"
        self.counts[reason] += 1
        tally(self.unused, sample.name, reason)
        return None

    def _register(self, stream: str, series: ValueSeries) -> CounterSum:
        found = self._meters.get((stream, series))
        if found is None:
            self._sums.know(stream, series)
            found = CounterSum(*self._grid(), self.modulus, self.counts)
            _keep(self._meters, (stream, series), found)
        return found

    def _spread(self, stream: str, series: ValueSeries) -> IntervalSpread:
        found = self._spreads.get((stream, series))
        if found is None:
            self._sums.know(stream, series)
            found = IntervalSpread(*self._grid(), self.counts)
            _keep(self._spreads, (stream, series), found)
        return found

    def _grid(self) -> tuple[float, float, float]:
        """Return step and gap in seconds, and the largest rise per second."""
        self.settle(_STEP)
        return self.step, self.gap or self.step, self.most / 3600

    def _put(
        self,
        stream: str,
        series: ValueSeries,
        intervals: Iterable[EnergyInterval],
        slots: dict[tuple[str, float], None],
    ) -> None:
        """Store complete slots of one series, and add their times to ``slots``."""
        for interval in intervals:
            self._sums.add(stream, series, interval)
            slots[stream, interval.time] = None

    def saved(self) -> bytes:
        """Return the state for a restart, so that no interval is lost or counted twice."""
        meters = [
            [stream, series.device, meter.saved()]
            for (stream, series), meter in self._meters.items()
            if not series.rank
        ]
        saved = {"step": self.step, "meters": meters, "sums": self._sums.saved()}
        saved["unused"] = sorted(self.unused)
        return json.dumps(saved).encode()

    def restore(self, saved: bytes) -> None:
        """Restore the state from ``saved``; ignore one of another grid, or a damaged one."""
        try:
            words = json.loads(saved)
            if words["step"] != self.step:
                return
            for stream, device, register in words["meters"]:
                self._register(stream, ValueSeries(device)).restore(register)
            self._sums.restore(words["sums"])
        except (ValueError, LookupError, TypeError, AttributeError):
            self._meters.clear()
            self._sums.clear()
            self.counts["saved state damaged"] += 1


def _keep(kept: dict[tuple[str, ValueSeries], M], key: tuple[str, ValueSeries], made: M) -> None:
    kept[key] = made
    if len(kept) > _METERS:
        del kept[next(iter(kept))]
