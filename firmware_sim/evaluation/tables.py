"""Read a folder of unprepared tables: one file a device, one wide file, or a long one.

Separator, marks in numbers, time column, order of day and month, time zone and layout are detected. Every
detection, and everything that is left out, is kept as a sentence so that the caller can print it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edge_sdk.extensions.sources.flow_names import IDENTIFIER, READING
from firmware_sim.evaluation.meter_flows import one_reading_a_meter, without_export
from firmware_sim.evaluation.record_parts import (
    SeenDevice,
    joined,
    put_together,
    without_numbers,
)
from firmware_sim.evaluation.table_files import (
    TableError,
    TableForm,
    day_rows,
    numeric_columns,
    pandas_library,
)
from firmware_sim.evaluation.table_times import (
    CHANGES,
    TimesFound,
    changes_within_a_day,
    is_fractional,
    lacks_the_hours_of,
    localised,
    repeats_the_hours_of,
    table_times,
)

SUFFIXES = (".csv", ".csv.gz", ".tsv", ".txt", ".parquet")
_AT = " instant"  # name of the parsed times among a file's columns
_REPEATED = 0.2  # share of the rows of a long table, at least, whose instant occurred before
_TWICE = 0.01  # share of a device's instants, at most, that occur twice
_LONG = 20  # rows a device, at least, before a text column is taken for the device's name

Edge = Literal["begin", "end"]  # edge of its interval that a time is


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTable:
    """One device's readings as found, in order of time."""

    device: str  # name: the file's, the column's, or the entry of the device column
    times: NDArray[np.int64]  # instants, Unix seconds, strictly increasing, shape ``(n,)``
    values: NDArray[np.float64]  # readings, not a number where one is missing, shape ``(n,)``
    is_end: bool = False  # whether a time is the end of the interval that its reading is of


@dataclass(slots=True)
class TablesRead:
    """All devices of a folder, and the detected formats."""

    devices: list[DeviceTable] = field(default_factory=list)  # in order of name
    zone: str = "UTC"  # name of the time zone of the calendar, ``UTC`` if none is known
    notes: list[str] = field(default_factory=list)  # what was detected, one sentence each


def read_tables(
    folder: Path,
    *,
    zone: str | None = None,
    time_column: str | None = None,
    value_column: str | None = None,
    decimal: str = "",
    edge: Edge | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> TablesRead:
    """Read every table of a folder, or one file.

    The form of every file is detected before the first is read, so that a file without a table is
    refused at once.

    Args:
        folder: A folder of CSV or Parquet files, or one such file.
        zone: Zone of times without an offset; detected from changes of the clock if left out.
        time_column: Detected if left out.
        value_column: Column of the readings where a file has several numeric ones.
        decimal: Decimal mark, ``.`` or ``,``; detected if empty.
        edge: Edge of its interval that a time is; detected if left out.
        progress: Called with each file's name.

    Raises:
        TableError: Nothing can be read; the sentence names the file and the remedy.
    """
    paths = _files(folder)
    read = TablesRead(notes=[f"{len(paths)} file{'s' * (len(paths) > 1)} in {folder}"])
    pandas_library()
    forms = [TableForm.of(path, decimal) for path in paths]
    is_one = len({without_numbers(path.name) for path in paths}) == 1
    found: dict[str, SeenDevice] = {}
    own: dict[str, SeenDevice] = {}
    first: list[str] = []
    several: list[str] = []
    for number, form in enumerate(forms, 1):
        progress(f"{number} of {len(forms)}: {form.path.name}")
        notes: list[str] = []
        parts = _file(form, notes, time_column, value_column, edge, is_one=is_one)
        first = first or notes
        prefix = "" if len(forms) == 1 or number == 1 else f"{form.path.name}: "
        read.notes += [
            note if note.startswith(prefix) else prefix + note
            for note in notes
            if number == 1 or note not in first
        ]
        for name, seen in parts.items():
            is_own = len(parts) == 1 and form.path.name.startswith(f"{name}.")
            devices = own if is_own else found
            several += [name] * (name in devices)
            devices[name] = (
                joined(name, devices[name], seen, form.path) if name in devices else seen
            )
    own = put_together(own, folder.resolve().name, read.notes)
    if both := own.keys() & found.keys():
        raise TableError(f"device {min(both)} is the name of a file and in another file")
    found |= own
    if several:
        read.notes.append(f"{len({*several})} devices are in several files: put together")
    read.zone = _zone([seen.series for seen in found.values()], zone, read.notes)
    clocks: dict[str, int] = {}
    repeats: dict[str, int] = {}
    for name in sorted(found):
        table, clocks[name], repeats[name] = _table(name, found[name], read.zone)
        read.devices.append(table)
    for counts, text in (
        (clocks, f"at times that the clock of {read.zone} skips or has twice: left out"),
        (repeats, "at a time that has another reading: the last one counts"),
    ):
        if total := sum(counts.values()):
            names = [name for name, count in counts.items() if count]
            more = f" and {len(names) - 1} others" * (len(names) > 1)
            read.notes.append(f"{total:,} reading{'s' * (total > 1)} of {names[0]}{more} {text}")
    return read


def _file(
    form: TableForm,
    notes: list[str],
    time_column: str | None,
    wanted: str | None,
    edge: Edge | None,
    *,
    is_one: bool,
) -> dict[str, SeenDevice]:
    path = form.path
    notes.append(form.sentence())
    frame = form.frame(notes)
    frame.columns = [str(name) for name in frame.columns]
    times = table_times(frame, form, time_column)
    notes.append(times.sentence)
    if (days := _as_day_rows(frame, times, form, notes)) is not None:
        frame, times, wanted = days
    _count_left_out(times, form, notes)
    is_end = times.is_end if edge is None else edge == "end"
    notes.append(
        f"times are the {'ends' if is_end else 'beginnings'} of the intervals"
        + (", as given" if edge else "")
    )
    rest = frame.drop(columns=times.columns).assign(**{_AT: times.instants})
    rest = rest[rest[_AT].notna()]
    numbers = numeric_columns(rest.drop(columns=_AT), form, notes)
    if numbers.empty:
        raise TableError(
            f"{path.name}: no numeric column beside {', '.join(times.columns)}"
            f" (columns: {', '.join(map(str, frame.columns))}){_why(notes, path)}",
            hint="give tables with one reading a row",
        )
    if wanted is not None and wanted not in numbers:
        raise TableError(
            f"{path.name}: no numeric column {wanted!r} (numeric: {', '.join(numbers)})",
            hint="--value-column NAME",
        )
    parts, layout = _devices(rest, numbers, path, wanted, notes, is_one=is_one)
    notes.append(layout)
    return {name: SeenDevice(series, is_end) for name, series in parts.items()}


def _why(notes: Sequence[str], path: Path) -> str:
    found = [note.removeprefix(f"{path.name}, ") for note in notes if note.endswith(": left out")]
    return f"; {'; '.join(found)}" if found else ""


def _as_day_rows(
    frame: Any,  # noqa: ANN401
    times: TimesFound,
    form: TableForm,
    notes: list[str],
) -> tuple[Any, TimesFound, str] | None:
    if changes_within_a_day(times.instants):
        return None
    rest = frame.drop(columns=times.columns)
    long = day_rows(rest, times.instants, form, notes)
    if long is None:
        return None
    return long, times._replace(columns=["time"], instants=long["time"], is_end=False), "reading"


def _count_left_out(times: TimesFound, form: TableForm, notes: list[str]) -> None:
    lost = times.instants.isna()
    if count := int(lost.sum()):
        line = form.line(times.instants.index[lost][0])
        notes.append(
            f"{form.path.name}: {count} of {len(lost)} rows left out: no time can be read,"
            f" first in line {line}"
        )


def _files(folder: Path) -> list[Path]:
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise TableError(f"{folder}: no such file or folder", hint="give --data FOLDER")
    paths = sorted(p for p in folder.iterdir() if p.name.lower().endswith(SUFFIXES))
    if not paths:
        raise TableError(
            f"{folder}: no file ends in {', '.join(SUFFIXES)}",
            hint="put one file for each device, or one file with a column for each, into the folder",
        )
    return paths


def _devices(
    frame: Any,  # noqa: ANN401
    numbers: Any,  # noqa: ANN401
    path: Path,
    wanted: str | None,
    notes: list[str],
    *,
    is_one: bool,
) -> tuple[dict[str, Any], str]:
    """Return one series per device, and a sentence about the layout."""
    pandas = pandas_library()

    def label_of(rows: Any) -> str | None:  # noqa: ANN401
        return _label(rows, wanted, path)

    frame, numbers = without_export(frame, numbers, _AT, label_of, notes)
    instants = frame[_AT]
    label = label_of(frame)
    if label is not None:
        value = wanted or _one(numbers.drop(columns=label, errors="ignore"), path, notes)
        parts = {
            str(name).strip().strip('="'): pandas.Series(
                numbers.loc[rows.index, value].to_numpy(), rows[_AT]
            )
            for name, rows in frame.groupby(label, sort=True)
        }
        if lost := int(frame[label].isna().sum()):
            notes.append(f"{lost} rows without an entry in column {label} left out")
        return parts, f"long table: devices in column {label}, readings in column {value}"
    if wanted is None:
        numbers = one_reading_a_meter(numbers, notes)
    if is_one and wanted is None and numbers.shape[1] > 1 and not _is_one(numbers):
        parts = {str(c): pandas.Series(numbers[c].to_numpy(), instants) for c in numbers}
        return parts, f"wide table: {numbers.shape[1]} devices, one a column"
    value = wanted or _one(numbers, path, notes)
    name = path.name.split(".")[0]
    return {name: pandas.Series(numbers[value].to_numpy(), instants)}, (
        f"one device a file, readings in column {value}"
    )


def _label(frame: Any, wanted: str | None, path: Path) -> str | None:  # noqa: ANN401
    """Return the column that names the device in a long table, or None.

    Most instants occur several times, and once for each entry of this column. A few that occur
    twice are the hour that autumn's change of the clock repeats.
    """
    if frame[_AT].duplicated().mean() < _REPEATED:
        return None
    names = [
        name
        for name in frame.columns
        if name not in {_AT, wanted} and 1 < frame[name].nunique() <= len(frame) / _LONG
    ]
    names = [name for name in names if not is_fractional(frame[name])]
    repeats = {name: float(frame.duplicated([name, _AT]).mean()) for name in names}
    found = min(
        names, key=lambda name: (repeats[name] > _TWICE, not IDENTIFIER.search(name)), default=None
    )
    if found is None or repeats[found] > _TWICE:
        raise TableError(
            f"{path.name}: {frame[_AT].duplicated().mean():.0%} of the rows have a time that another"
            " row has, and no column tells the devices apart",
            hint="one row a time, or a column with the name of the device",
        )
    return str(found)


def _is_one(numbers: Any) -> bool:  # noqa: ANN401
    return sum(bool(READING.search(str(column))) for column in numbers) == 1


def _one(numbers: Any, path: Path, notes: list[str]) -> str:  # noqa: ANN401
    columns = [str(column) for column in numbers]
    varied = [
        name for name in columns if numbers[name].nunique() > 1 and not IDENTIFIER.search(name)
    ] or columns
    for chosen in (varied, [name for name in varied if READING.search(name)]):
        if len(chosen) == 1:
            if len(columns) > 1:
                left = ", ".join(name for name in columns if name != chosen[0])
                notes.append(f"other numeric columns are not read: {left}")
            return chosen[0]
    raise TableError(
        f"{path.name}: several numeric columns: {', '.join(columns)}",
        hint="--value-column NAME says which one is the reading",
    )


def _zone(series: Sequence[Any], given: str | None, notes: list[str]) -> str:
    """Return the zone of the calendar: given, or detected from spring's missing or autumn's doubled hour."""
    pandas = pandas_library()
    if given is not None:
        try:
            pandas.Timestamp("2026-01-01").tz_localize(given)
        except Exception as error:
            raise TableError(
                f"--zone {given}: not a time zone", hint="such as Europe/Berlin or UTC"
            ) from error
        notes.append(f"time zone {given}, as given")
        return given
    if all(one.index.tz is not None for one in series):
        notes.append("times have offsets; the calendar is UTC (--zone NAME for another)")
        return "UTC"
    for zone, text in CHANGES:
        if lacks_the_hours_of(series[0], zone):
            notes.append(f"time zone {zone}: the clock lacks an hour where {text} clocks do")
            return zone
    for zone, text in CHANGES:
        if repeats_the_hours_of(series[0], zone):
            notes.append(f"time zone {zone}: the clock has an hour twice where {text} clocks do")
            return zone
    notes.append("no change of the clock in the times: standard time all year, taken as UTC")
    return "UTC"


def _table(name: str, seen: SeenDevice, zone: str) -> tuple[DeviceTable, int, int]:
    """Return a device's table, and the numbers of readings without an instant and with a shared one."""
    pandas = pandas_library()
    times = pandas.DatetimeIndex(seen.series.index)
    if times.tz is None:
        times = localised(times, zone)
    unix = times.tz_convert("UTC").as_unit("s").asi8
    kept = ~times.isna()
    order = np.argsort(unix[kept], kind="stable")
    at, values = unix[kept][order], seen.series.to_numpy(np.float64)[kept][order]
    fresh = np.concatenate([np.diff(at) > 0, [True]]) if len(at) else np.zeros(0, bool)
    values = np.where(np.isfinite(values), values, np.nan)
    table = DeviceTable(name, np.asarray(at[fresh], np.int64), values[fresh], seen.is_end)
    return table, int((~kept).sum()), int((~fresh).sum())
