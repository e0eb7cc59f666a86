"""Put the devices' readings on one uniform grid with its calendar, and list the changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from edge_sdk.extensions.sources.register_column import LEAST_CHANGES, register_differences
from firmware_sim.evaluation.table_files import TableError
from firmware_sim.evaluation.tables import DeviceTable, TablesRead

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DAY = 86_400
# grid steps in seconds; a cadence is rounded up to the next of these
STEPS = (300, 600, 900, 1200, 1800, 3600, 7200, 10_800, 14_400, 21_600)
SMALLEST = 900  # s; finer readings are averaged unless a step is asked for
LEAST_DAYS = 21  # days of history that a comparison needs
MOST_LATE = 15.0  # s by which a reading may be early or late to be regular
ALIKE = 0.93  # correlation above which a register counts what other readings are
MOST_ALIKE = 12  # devices, at most, among which such readings are looked for
LEAST_KNOWN = 0.5  # share of a device's slots that must have a reading

Kind = Literal["register", "energy", "level"]
"""Kind of the readings: a register's differences and energies are added to the grid's step, levels averaged."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceRecord:
    """One device on the grid."""

    device: str
    start: int  # Unix seconds of row 0
    values: Floats  # readings, not a number where one is missing, shape ``(T,)``
    slots: Ints  # slot of the local day of every row, shape ``(T,)``
    weekdays: Ints  # local day of the week, Monday is 0, shape ``(T,)``


@dataclass(frozen=True, slots=True, eq=False)
class FleetRecords:
    """All devices that can be compared."""

    devices: list[DeviceRecord]  # in order of name
    step: int  # seconds between two rows
    zone: str  # time zone of the calendar
    notes: list[str]  # what was detected and changed

    @property
    def day(self) -> int:
        return DAY // self.step


def on_grid(read: TablesRead, step: int | None = None, kind: Kind | None = None) -> FleetRecords:
    """Put tables on a grid.

    Args:
        step: Seconds between two rows, a divisor of a day; the median cadence if left out,
            at least a quarter of an hour.
        kind: Kind of all readings; if left out, registers are recognised, and others are levels.

    Raises:
        TableError: The step does not divide a day, the readings are too far apart, or no device has
            enough history.
    """
    notes = list(read.notes)
    tables = [_regular(table, kind, read.zone, notes) for table in read.devices]
    cadence = _cadence(tables)
    chosen = _chosen_step(cadence, step)
    place = len(notes)
    kept: list[DeviceRecord] = []
    registers: dict[str, list[str]] = {}
    shared = 0
    for found in tables:
        table, clauses = _kind(found, kind, read.zone)
        if clauses is not None:
            registers[table.device] = clauses
        if (slots := _slots(table, chosen)) * LEAST_KNOWN > len(table.times):
            known = len(table.times) / slots
            notes.append(
                f"{table.device} left out: {slots * chosen / DAY:.0f} days, {known:.0%} of slots known"
            )
            continue
        record = _record(table, chosen, read.zone)
        if chosen <= cadence:
            shared += len(table.times) - len(np.unique(table.times // chosen))
        if clauses is not None or kind == "energy":
            record = replace(record, values=record.values * max(1.0, chosen / _cadence([table])))
        days = len(record.values) * chosen / DAY
        known = float(np.isfinite(record.values).mean()) if len(record.values) else 0.0
        if days < LEAST_DAYS or known < LEAST_KNOWN:
            notes.append(f"{table.device} left out: {days:.0f} days, {known:.0%} of slots known")
        elif np.nanstd(record.values) == 0.0:
            notes.append(f"{table.device} left out: all readings are equal")
        else:
            kept.append(record)
    is_sum = kind == "energy" or len(registers) == len(read.devices)
    verb = "added" if is_sum else "averaged"
    notes.insert(
        place,
        f"cadence {span(cadence)}" + (f", {verb} to {span(chosen)}" if chosen > cadence else ""),
    )
    kept = _once(kept, registers, notes)
    if not kept:
        raise TableError(
            f"no device has {LEAST_DAYS} days of readings that vary, on {LEAST_KNOWN:.0%} of its slots;"
            f" {notes[-1]}",
            hint=f"more history, or another --step (now {span(chosen)})",
        )
    if shared:
        notes.append(f"readings in a slot of {span(chosen)} that has another: {shared:,}, averaged")
    notes += _of_registers(registers, len(read.devices))
    return FleetRecords(kept, chosen, read.zone, notes)


def _once(
    kept: Sequence[DeviceRecord], registers: Mapping[str, list[str]], notes: list[str]
) -> list[DeviceRecord]:
    """Leave out duplicates: a register beside its own readings, and a daily register beside a permanent one."""
    if len(kept) > MOST_ALIKE:
        return list(kept)
    rank = {
        one.device: 1 + any("restarts" in clause for clause in registers[one.device])
        if one.device in registers
        else 0
        for one in kept
    }
    found: list[DeviceRecord] = []
    for record in sorted(kept, key=lambda one: rank[one.device]):
        lower = [one for one in found if rank[one.device] < rank[record.device]]
        other = next((one.device for one in lower if _is_same(one, record)), None)
        if other is None:
            found.append(record)
        else:
            notes.append(f"{record.device} left out: its differences are the readings of {other}")
    return sorted(found, key=lambda record: record.device)


def _is_same(one: DeviceRecord, other: DeviceRecord) -> bool:
    """Return whether two records rise and fall together, in whatever units, also a row apart."""
    if abs(one.start - other.start) > DAY:
        return False
    return any(
        _correlation(one.values[a:], other.values[b:]) > ALIKE for a, b in ((0, 0), (1, 0), (0, 1))
    )


def _correlation(one: Floats, other: Floats) -> float:
    length = min(len(one), len(other))
    pair = np.stack([one[:length], other[:length]])
    pair = pair[:, np.isfinite(pair).all(axis=0)]
    if pair.shape[1] < LEAST_KNOWN * length:
        return 0.0
    apart = pair - pair.mean(axis=1, keepdims=True)
    spread = float(np.sqrt((apart**2).sum(axis=1)).prod())
    return float(apart[0] @ apart[1]) / spread if spread else 0.0


def _chosen_step(cadence: int, step: int | None) -> int:
    if step is not None and (step < 60 or DAY % step):
        raise TableError(f"--step {step} s: not a whole part of a day", hint="such as 15min or 1h")
    if cadence > STEPS[-1]:
        raise TableError(
            f"the readings are {span(cadence)} apart; a comparison needs at most {span(STEPS[-1])}",
            hint="give readings of every hour, or finer ones",
        )
    return step or _step(cadence)


def _of_registers(registers: Mapping[str, list[str]], devices: int) -> list[str]:
    """Return a sentence for each way in which registers were read, the same devices in one."""
    if not registers:
        return []
    clauses: dict[str, list[str]] = {}
    for device, found in registers.items():
        clauses.setdefault("; ".join(found), []).append(device)
    lines = []
    for clause, names in clauses.items():
        some = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        lines.append(
            f"registers (counters), read as differences: {len(names)} of {devices} devices ({some})"
            + (f"; {clause}" if clause else "")
        )
    return [*lines, "--kind level reads a register's values as they are"]


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


def _regular(table: DeviceTable, kind: Kind | None, zone: str, notes: list[str]) -> DeviceTable:
    """Return a register that is read at irregular times with the values between, at regular ones.

    A time has no value between two readings that are more than two steps apart, or where it falls.
    """
    known = np.isfinite(table.values)
    times, values = table.times[known], table.values[known]
    passed = np.diff(times)
    if len(passed) < LEAST_CHANGES or kind not in {None, "register"}:
        return table
    usual = np.median(passed)
    is_usual = np.abs(passed - usual) <= max(MOST_LATE, 0.02 * usual)
    if np.mean(is_usual) > 0.5 or _kind(table, kind, zone)[1] is None:
        return table
    step = _step(int(min(np.quantile(passed, 0.9), STEPS[-1])))
    at = np.arange(-(-times[0] // step) * step, times[-1] + 1, step)
    after = np.clip(np.searchsorted(times, at), 1, len(times) - 1)
    rise = values[after] - values[after - 1]
    is_far = (passed[after - 1] > 2 * step) & (rise != 0.0)
    between = np.where((rise < 0.0) | is_far, np.nan, np.interp(at, times, values))
    notes.append(
        f"{table.device}: {np.mean(~is_usual):.0%} of the readings come at irregular times: its register is"
        f" interpolated to every {span(step)}"
    )
    return DeviceTable(table.device, at, between)


def _kind(table: DeviceTable, kind: Kind | None, zone: str) -> tuple[DeviceTable, list[str] | None]:
    """Return readings at the beginnings of their intervals, a register's as differences.

    Returns:
        The table, and what was done with a register; None if it is none.
    """
    found = None
    if kind in {None, "register"}:
        place = ZoneInfo(zone)

        def seconds_of_day(moment: float) -> float:
            local = datetime.fromtimestamp(moment, place)
            return local.hour * 3600.0 + local.minute * 60 + local.second

        found = register_differences(
            table.times.astype(np.float64),
            table.values,
            seconds_of_day,
            is_known=kind == "register",
        )
    if found is not None:
        times = found.times.astype(np.int64)
        return DeviceTable(table.device, times, found.values), [*found.sentences()]
    if table.is_end:
        table = DeviceTable(table.device, table.times - _cadence([table]), table.values)
    return table, None


def _slots(table: DeviceTable, step: int) -> int:
    return int(table.times[-1] // step - table.times[0] // step) + 1 if len(table.times) else 0


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
