"""Convert samples to readings: canonical names and units, UTC, one grid, quality flags."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from edge_sdk.forecasting.series import Flag, Reading
from edge_sdk.sources.base import SourceSample
from edge_sdk.sources.counter_intervals import CounterSum
from edge_sdk.sources.stream_map import StreamName

NO_CLOCK_BEFORE = 1_577_836_800.0
"""Unix seconds; an earlier time (before 2020) counts as that of a clock that was never set."""

_STEP = 900.0  # seconds, where no grid is set

_METERS = 64  # meters whose registers are kept; beyond, the oldest are dropped
_SLOTS = 256  # open sums over several meters


@dataclass(slots=True)
class Normaliser:
    """Converts the samples of one source; keeps register state between frames.

    Attributes:
        names: Wanted names of the interface, with their streams.
        step: Seconds per slot of the registers' grid; 0 until ``settle`` sets it.
        gap: As in ``CounterSum``; 0 is a step.
        most: Largest accepted power, in kW (or the stream's unit per hour).
        modulus: Value at which registers wrap, in the stream's unit; 0 is never.
        counts: Counters of events, by reason.

    Example:
        >>> table = {"1-0:1.8.0": StreamName("elec.import.energy", "register")}
        >>> normaliser = Normaliser(table, step=3600, gap=3600, most=100)
        >>> for hour, wh in [(0, 7000), (1, 7400), (2, 8000)]:
        ...     time = 1_700_006_400.0 + hour * 3600
        ...     for reading in normaliser.normalise([SourceSample("1-0:1.8.0", time, wh, "Wh")]):
        ...         print(reading.stream, round(reading.value, 6))
        elec.import.energy 0.4
        elec.import.energy 0.6
    """

    names: Mapping[str, StreamName]
    step: float = 0.0
    gap: float = 0.0
    most: float = 250.0
    modulus: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    _meters: dict[tuple[str, str], CounterSum] = field(default_factory=dict)
    _sums: dict[tuple[str, float], dict[str, float]] = field(default_factory=dict)

    @property
    def streams(self) -> frozenset[str]:
        """Streams that its readings may belong to."""
        return frozenset(name.stream for name in self.names.values())

    def settle(self, step: float) -> None:
        """Set the grid of the reader, unless the configuration set one."""
        self.step = self.step or step

    def normalise(self, samples: Iterable[SourceSample]) -> Iterator[Reading]:
        """Convert the samples of one frame into readings; invalid ones are counted."""
        registers: dict[tuple[str, str, float, int], dict[str, float]] = {}
        for sample in samples:
            name = self.names.get(sample.name)
            value = None if name is None else self._value(name, sample)
            if name is None or value is None:
                continue
            if name.kind == "register":
                key = (name.stream, sample.device, sample.time, sample.flags)
                registers.setdefault(key, {})[sample.name] = value
            else:
                seconds = sample.seconds if name.kind == "interval" else None
                yield Reading(name.stream, sample.time, value, sample.flags, seconds)
        for (stream, device, time, flags), values in registers.items():
            if flags & Flag.SUSPECT:  # the meter flags it: the next reading covers its energy
                self.counts["suspect"] += 1
                continue
            yield from self._differenced(stream, device, time, values)

    def _value(self, name: StreamName, sample: SourceSample) -> float | None:
        if not (math.isfinite(sample.value) and math.isfinite(sample.time)):
            self.counts["not finite"] += 1
        elif sample.time < NO_CLOCK_BEFORE or sample.flags & Flag.CLOCK_UNSYNCED:
            self.counts["clock not set"] += 1
        else:
            try:
                return name.canonical(sample.value, sample.unit)
            except ValueError:
                self.counts["foreign unit"] += 1
        return None

    def _differenced(
        self, stream: str, device: str, time: float, values: Mapping[str, float]
    ) -> Iterator[Reading]:
        if min(values.values()) < 0 or max(values.values()) > 1e12:
            self.counts["implausible"] += 1
            return
        register = self._meters.get((stream, device))
        if register is None:
            register = self._meters[stream, device] = self._register()
            if len(self._meters) > _METERS:
                del self._meters[next(iter(self._meters))]
        for interval in register.add(time, values):
            total = self._summed(stream, device, interval.time, interval.value)
            yield Reading(stream, interval.time, total, 0, self.step)

    def _register(self) -> CounterSum:
        self.settle(_STEP)
        gap = self.gap or self.step
        return CounterSum(self.step, gap, self.most / 3600, self.modulus, self.counts)

    def _summed(self, stream: str, device: str, time: float, value: float) -> float:
        """Sum the values of a stream's meters, such as a charger's sockets, in one interval."""
        parts = self._sums.setdefault((stream, time), {})
        parts[device] = value
        if len(self._sums) > _SLOTS:
            del self._sums[next(iter(self._sums))]
        return math.fsum(parts.values())

    def saved(self) -> bytes:
        """Return the state for a restart, so that no interval is lost or counted twice."""
        meters = [[*key, register.saved()] for key, register in self._meters.items()]
        sums = [[*key, parts] for key, parts in self._sums.items()][-16:]
        return json.dumps({"step": self.step, "meters": meters, "sums": sums}).encode()

    def restore(self, saved: bytes) -> None:
        """Restore the state from ``saved``; ignore one of another grid, or a damaged one."""
        try:
            words = json.loads(saved)
            if words["step"] != self.step:
                return
            for stream, device, register in words["meters"]:
                made = self._register()
                made.restore(register)
                self._meters[stream, device] = made
            for stream, time, parts in words["sums"]:
                self._sums[stream, time] = dict(parts)
        except (ValueError, LookupError, TypeError, AttributeError):
            self._meters.clear()
            self._sums.clear()
            self.counts["saved state damaged"] += 1
