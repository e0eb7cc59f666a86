"""Put the devices' readings on one uniform grid with its calendar, and say what was changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from firmware_sim.evaluation.tables import DeviceTable, TableError, TablesRead

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DAY = 86_400
STEPS = (300, 600, 900, 1200, 1800, 3600, 7200, 10_800, 14_400, 21_600)
"""Grid steps in seconds; a cadence is rounded up to the next of these."""

SMALLEST = 900  # s; finer readings are averaged unless a step is asked for
LEAST_DAYS = 21  # days of history that a comparison needs
LEAST_KNOWN = 0.5  # share of a device's slots that must have a reading
_COUNTER = 0.999  # share of changes that do not fall, above which readings are a counter


@dataclass(frozen=True, slots=True, eq=False)
class DeviceRecord:
    """One device on the grid.

    Attributes:
        device: Name.
        start: Unix seconds of row 0.
        values: Readings, not a number where one is missing, shape ``(T,)``.
        slots: Slot of the local day of every row, shape ``(T,)``.
        weekdays: Local day of the week, Monday is 0, shape ``(T,)``.
    """

    device: str
    start: int
    values: Floats
    slots: Ints
    weekdays: Ints


@dataclass(frozen=True, slots=True, eq=False)
class FleetRecords:
    """All devices that can be compared.

    Attributes:
        devices: In order of name.
        step: Seconds between two rows.
        zone: Time zone of the calendar.
        notes: What was detected and changed.
    """

    devices: list[DeviceRecord]
    step: int
    zone: str
    notes: list[str]

    @property
    def day(self) -> int:
        """Rows in a day."""
        return DAY // self.step


def on_grid(read: TablesRead, step: int | None = None) -> FleetRecords:
    """Put tables on a grid.

    Args:
        read: Tables of all devices.
        step: Seconds between two rows, a divisor of a day; the median cadence if left out,
            at least a quarter of an hour.

    Raises:
        TableError: The step does not divide a day, or no device has enough history.
    """
    notes = list(read.notes)
    if step is not None and (step < 60 or DAY % step):
        raise TableError(f"--step {step} s: not a whole part of a day")
    cadence = _cadence(read.devices)
    chosen = step or _step(cadence)
    notes.append(
        f"cadence {span(cadence)}" + (f", averaged to {span(chosen)}" if chosen > cadence else "")
    )
    kept: list[DeviceRecord] = []
    counters: list[str] = []
    for found in read.devices:
        table, is_counter = _differences(found)
        if is_counter:
            counters.append(table.device)
        record = _record(table, chosen, read.zone)
        days = len(record.values) * chosen / DAY
        known = float(np.isfinite(record.values).mean()) if len(record.values) else 0.0
        if days < LEAST_DAYS or known < LEAST_KNOWN:
            notes.append(f"{table.device} left out: {days:.0f} days, {known:.0%} of slots known")
        elif np.nanstd(record.values) == 0.0:
            notes.append(f"{table.device} left out: all readings are equal")
        else:
            kept.append(record)
    if counters:
        notes.append(f"{len(counters)} counters, read as differences ({counters[0]}, …)")
    if not kept:
        raise TableError(
            f"no device has {LEAST_DAYS} days of readings that vary, on {LEAST_KNOWN:.0%} of its slots;"
            f" {notes[-1]}",
            hint=f"more history, or another --step (now {span(chosen)})",
        )
    return FleetRecords(kept, chosen, read.zone, notes)


def _cadence(tables: Sequence[DeviceTable]) -> int:
    gaps = [np.median(np.diff(table.times)) for table in tables if len(table.times) > 1]
    return int(np.median(gaps)) if gaps else 3600


def _step(cadence: int) -> int:
    """Return the smallest step that holds whole readings, else the next larger one.

    >>> _step(60), _step(600), _step(900), _step(3601)
    (900, 1200, 900, 7200)
    """
    least = max(cadence, SMALLEST)
    whole = (step for step in STEPS if step >= least and step % cadence == 0)
    return next(whole, next((step for step in STEPS if step >= least), STEPS[-1]))


def _differences(table: DeviceTable) -> tuple[DeviceTable, bool]:
    """Return a counter's readings as differences, and whether it is one."""
    known = np.isfinite(table.values)
    values, times = table.values[known], table.times[known]
    change = np.diff(values)
    is_counter = (
        len(change) > 100
        and bool((change >= 0.0).mean() > _COUNTER)
        and bool((change > 0.0).mean() > 0.3)
        and values[-1] - values[0] > 20.0 * float(np.median(change[change > 0.0]))
    )
    if not is_counter:
        return table, False
    usual = np.median(np.diff(times))
    change = np.where((change >= 0.0) & (np.diff(times) <= 1.5 * usual), change, np.nan)
    return DeviceTable(table.device, times[:-1], change), True


def _record(table: DeviceTable, step: int, zone: str) -> DeviceRecord:
    if not len(table.times):
        return DeviceRecord(table.device, 0, np.zeros(0), *_calendar(0, 0, step, zone))
    start = int(table.times[0] // step * step)
    rows = (table.times - start) // step
    known = np.isfinite(table.values)
    length = int(rows[-1]) + 1
    count = np.bincount(rows[known], minlength=length)
    total = np.bincount(rows[known], weights=table.values[known], minlength=length)
    values = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return DeviceRecord(table.device, start, values, *_calendar(start, length, step, zone))


def _calendar(start: int, length: int, step: int, zone: str) -> tuple[Ints, Ints]:
    """Return slot of the day and day of the week of every row, in local time."""
    at = start + step * np.arange(length, dtype=np.int64)
    place = ZoneInfo(zone)
    hours = at // 3600
    offsets = {
        int(hour): int(
            (
                datetime.fromtimestamp(int(hour) * 3600, place).utcoffset() or timedelta()
            ).total_seconds()
        )
        for hour in np.unique(hours)
    }
    local = at + np.array([offsets[int(hour)] for hour in hours], np.int64).reshape(at.shape)
    return local % DAY // step, (local // DAY + 3) % 7  # 1 January 1970 was a Thursday


def span(seconds: int) -> str:
    """Return seconds as text.

    >>> span(900), span(3600), span(90), span(86_400)
    ('15 min', '1 h', '90 s', '24 h')
    """
    if seconds % 3600 == 0:
        return f"{seconds // 3600} h"
    return f"{seconds // 60} min" if seconds % 60 == 0 else f"{seconds} s"
