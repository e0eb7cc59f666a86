"""Read a folder of tables that nobody prepared: one file a device, one wide file, or a long one.

Separator, decimal mark, time column, order of day and month, time zone and layout are detected, and
every detection is kept as a sentence so that the caller can print it.
"""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.cli import USAGE, Failure
from firmware_sim.evaluation.clock_changes import CHANGES, lacks_the_hours_of, localised

SUFFIXES = (".csv", ".csv.gz", ".tsv", ".txt", ".parquet")
SEPARATORS = ",;\t|"
SAMPLE = 65_536  # characters of a text file from which its form is detected
PREFERRED = re.compile(
    r"value|load|energy|power|consum|demand|import|usage|traffic|internet|kwh|kw\b|mw\b|wh\b",
    re.IGNORECASE,
)
"""Names of columns that are taken for the reading if a file has several numeric columns."""

_DAY_FIRST = re.compile(r"^\s*(\d{1,2})[./-](\d{1,2})[./-]\d{2,4}")
_UNIX_SECONDS, _UNIX_MILLISECONDS = (5e8, 5e9), (5e11, 5e12)
_PARSED = 0.99  # share of a column's entries that must be instants
_AT = " instant"  # name of the parsed times among a file's columns
_REPEATED = 0.2  # share of the rows of a long table, at least, whose instant occurred before
_LONG = 20  # rows a device, at least, before a text column is taken for the device's name


class TableError(Failure):
    """An error: a folder or file from which no record can be read."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTable:
    """One device's readings as found, in order of time.

    Attributes:
        device: Name: the file's, the column's, or the entry of the device column.
        times: Instants, Unix seconds, strictly increasing, shape ``(n,)``.
        values: Readings, not a number where one is missing, shape ``(n,)``.
    """

    device: str
    times: NDArray[np.int64]
    values: NDArray[np.float64]


@dataclass(slots=True)
class TablesRead:
    """All devices of a folder, and what was detected.

    Attributes:
        devices: In order of name.
        zone: Name of the time zone of the calendar, ``UTC`` if none is known.
        notes: What was detected, one sentence each.
    """

    devices: list[DeviceTable] = field(default_factory=list)
    zone: str = "UTC"
    notes: list[str] = field(default_factory=list)


def read_tables(
    folder: Path,
    *,
    zone: str | None = None,
    time_column: str | None = None,
    value_column: str | None = None,
) -> TablesRead:
    """Read every table of a folder, or one file.

    Args:
        folder: A folder of CSV or Parquet files, or one such file.
        zone: Zone of times without an offset; detected from changes of the clock if left out.
        time_column: Detected if left out.
        value_column: Column of the readings where a file has several numeric ones.

    Raises:
        TableError: Nothing can be read; the sentence names the file and the remedy.
    """
    paths = _files(folder)
    read = TablesRead(notes=[f"{len(paths)} file{'s' * (len(paths) > 1)} in {folder}"])
    found: dict[str, Any] = {}
    for number, path in enumerate(paths):
        frame, form = _frame(path)
        column, instants, how = _times(frame, path, time_column)
        numbers = _numeric(frame.drop(columns=column))
        if numbers.empty:
            raise TableError(
                f"{path.name}: no numeric column beside {', '.join(column)}"
                f" (columns: {', '.join(map(str, frame.columns))})",
                hint="give tables with one reading a row",
            )
        rest = frame.drop(columns=column).assign(**{_AT: instants})
        parts, layout = _devices(rest, numbers, path, value_column, is_only=len(paths) == 1)
        if number == 0:
            read.notes += [form, how, layout]
        for name, series in parts.items():
            if name in found:
                raise TableError(f"{path.name}: device {name} is in another file too")
            found[name] = series
    read.zone = _zone(list(found.values()), zone, read.notes)
    for name in sorted(found):
        read.devices.append(_table(name, found[name], read.zone))
    return read


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


def _frame(path: Path) -> tuple[Any, str]:
    """Return a file as a data frame, and a sentence about its form."""
    pandas = _pandas()
    if path.suffix == ".parquet":
        frame = pandas.read_parquet(path)
        if not isinstance(frame.index, pandas.RangeIndex):
            frame = frame.reset_index()
        return frame, "Parquet"
    with (gzip.open if path.suffix == ".gz" else open)(
        path, "rt", encoding="utf-8-sig", errors="replace"
    ) as text:
        head = text.read(SAMPLE)
    lines = [line for line in head.splitlines() if line.strip()][:50]
    if len(lines) < 2:
        raise TableError(f"{path.name}: fewer than two lines")
    separator = _separator(lines)
    comma = separator != "," and bool(re.search(rf"(^|{re.escape(separator)})-?\d+,\d+", head))
    frame = pandas.read_csv(
        path,
        sep=separator,
        decimal="," if comma else ".",
        encoding="utf-8-sig",
        encoding_errors="replace",
        skipinitialspace=True,
        comment="#",
        low_memory=False,
    )
    named = {"\t": "tabulator"}.get(separator, separator)
    return frame, f"separator {named}, decimal {'comma' if comma else 'point'}"


def _separator(lines: Sequence[str]) -> str:
    try:
        return csv.Sniffer().sniff("\n".join(lines), SEPARATORS).delimiter
    except csv.Error:
        return max(SEPARATORS, key=lines[0].count)


def _times(frame: Any, path: Path, wanted: str | None) -> tuple[list[str], Any, str]:  # noqa: ANN401
    """Return the time column or columns, the instants, and a sentence."""
    names = [str(name) for name in frame.columns]
    frame.columns = names
    if wanted is not None and wanted not in names:
        raise TableError(
            f"{path.name}: no column {wanted!r} (columns: {', '.join(names)})",
            hint="--time-column NAME",
        )
    for name in [wanted] if wanted else names:
        instants, how = _instants(frame[name])
        if instants is not None:
            has_hours = _changes_within_a_day(instants)
            second = names[names.index(name) + 1 : names.index(name) + 2]
            if not has_hours and second and _is_clock(frame[second[0]]):
                joined = frame[name].astype(str) + " " + frame[second[0]].astype(str)
                instants, how = _instants(joined)
                if instants is not None:
                    both = [name, second[0]]
                    return both, instants, f"time in columns {' and '.join(both)}: {how}"
            else:
                return [name], instants, f"time in column {name}: {how}"
    raise TableError(
        f"{path.name}: no column has dates and times (columns: {', '.join(names)})",
        hint="--time-column NAME; ISO 8601 such as 2026-01-31T13:45 is always understood",
    )


def _instants(column: Any) -> tuple[Any, str]:  # noqa: ANN401
    """Return a column as instants, or None, and how they were understood."""
    types = _pandas().api.types
    if types.is_datetime64_any_dtype(column):
        return column, "dates of the file"
    if types.is_bool_dtype(column):
        return None, ""
    return _unix(column) if types.is_numeric_dtype(column) else _written(column.astype(str))


def _unix(column: Any) -> tuple[Any, str]:  # noqa: ANN401
    """Return a numeric column as instants, where all its numbers lie in the years 1985 to 2128."""
    numbers = column.dropna()
    for (low, high), unit, text in (
        (_UNIX_SECONDS, "s", "Unix seconds"),
        (_UNIX_MILLISECONDS, "ms", "Unix milliseconds"),
    ):
        if len(numbers) and numbers.between(low, high).all() and numbers.nunique() > 1:
            return _pandas().to_datetime(column, unit=unit, utc=True), text
    return None, ""


def _written(texts: Any) -> tuple[Any, str]:  # noqa: ANN401
    """Return a column of texts as instants, where nearly all of them are dates."""
    if texts.str.contains(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}|\d{8}").mean() < _PARSED:
        return None, ""
    parts = texts.str.extract(_DAY_FIRST).dropna().astype(int)
    day_first, how = False, "ISO 8601"
    if len(parts) > len(texts) / 2:
        day_first = bool((parts[0] > 12).any()) or not bool((parts[1] > 12).any())
        how = f"{'day' if day_first else 'month'} first"
    has_offset = bool(texts.str.contains(r"(?:Z|[+-]\d\d:?\d\d)\s*$", regex=True).mean() > _PARSED)
    options = {"errors": "coerce", "dayfirst": day_first, "utc": has_offset}
    for form in ("ISO8601", "mixed") if how == "ISO 8601" else ("mixed",):
        instants = _pandas().to_datetime(texts, format=form, **options)
        if instants.isna().mean() <= 1.0 - _PARSED:
            return instants, how + (" with offsets" if has_offset else "")
    return None, ""


def _changes_within_a_day(instants: Any) -> bool:  # noqa: ANN401
    return bool((instants.dropna().dt.normalize() != instants.dropna()).any())


def _is_clock(column: Any) -> bool:  # noqa: ANN401
    return bool(column.astype(str).str.match(r"^\d{1,2}:\d\d(:\d\d)?$").mean() > _PARSED)


def _numeric(frame: Any) -> Any:  # noqa: ANN401
    """Return the numeric columns; a column of texts that are nearly all numbers is one."""
    pandas = _pandas()
    kept = {}
    for name in frame.columns:
        column = frame[name]
        if pandas.api.types.is_bool_dtype(column):
            continue
        numbers = pandas.to_numeric(column, errors="coerce")
        if len(numbers) and numbers.notna().sum() >= max(2, 0.9 * column.notna().sum()):
            kept[name] = numbers.astype(float)
    return pandas.DataFrame(kept, index=frame.index)


def _devices(
    frame: Any,  # noqa: ANN401
    numbers: Any,  # noqa: ANN401
    path: Path,
    wanted: str | None,
    *,
    is_only: bool,
) -> tuple[dict[str, Any], str]:
    """Return one series per device, and a sentence about the layout."""
    pandas = _pandas()
    if wanted is not None and wanted not in numbers:
        raise TableError(
            f"{path.name}: no numeric column {wanted!r} (numeric: {', '.join(numbers)})",
            hint="--value-column NAME",
        )
    instants = frame[_AT]
    label = _label(frame, wanted)
    if label is not None:
        value = wanted or _one(numbers.drop(columns=label, errors="ignore"), path)
        parts = {
            str(name): pandas.Series(numbers.loc[rows.index, value].to_numpy(), rows[_AT])
            for name, rows in frame.groupby(label, sort=True)
        }
        return parts, f"long table: devices in column {label}, readings in column {value}"
    if is_only and wanted is None and numbers.shape[1] > 1 and not _is_one(numbers):
        parts = {str(c): pandas.Series(numbers[c].to_numpy(), instants) for c in numbers}
        return parts, f"wide table: {numbers.shape[1]} devices, one a column"
    value = wanted or _one(numbers, path)
    name = path.name.split(".")[0]
    return {name: pandas.Series(numbers[value].to_numpy(), instants)}, (
        f"one device a file, readings in column {value}"
    )


def _label(frame: Any, wanted: str | None) -> str | None:  # noqa: ANN401
    """Return the column that names the device in a long table, or None.

    Most instants occur several times, and once for each entry of this column. A few that occur
    twice are the hour that autumn's change of the clock repeats.
    """
    if frame[_AT].duplicated().mean() < _REPEATED:
        return None
    for column in frame.columns:
        if column in {_AT, wanted} or not 1 < frame[column].nunique() <= len(frame) / _LONG:
            continue
        if not frame.duplicated([column, _AT]).any():
            return str(column)
    return None


def _is_one(numbers: Any) -> bool:  # noqa: ANN401
    """Return whether the columns are measurements of one device: exactly one has a load's name."""
    return sum(bool(PREFERRED.search(str(column))) for column in numbers) == 1


def _one(numbers: Any, path: Path) -> str:  # noqa: ANN401
    """Return the column of the readings.

    Raises:
        TableError: Several columns could be it.
    """
    if numbers.shape[1] == 1:
        return str(numbers.columns[0])
    named = [str(column) for column in numbers if PREFERRED.search(str(column))]
    if len(named) == 1:
        return named[0]
    raise TableError(
        f"{path.name}: several numeric columns: {', '.join(map(str, numbers.columns))}",
        hint="--value-column NAME says which one is the reading",
    )


def _zone(series: Sequence[Any], given: str | None, notes: list[str]) -> str:
    """Return the zone of the calendar: given, or detected from a missing hour in spring."""
    pandas = _pandas()
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
    notes.append("no change of the clock in the times: standard time all year, taken as UTC")
    return "UTC"


def _table(name: str, series: Any, zone: str) -> DeviceTable:  # noqa: ANN401
    pandas = _pandas()
    times = pandas.DatetimeIndex(series.index)
    if times.tz is None:
        times = localised(times, zone)
    unix = times.tz_convert("UTC").as_unit("s").asi8
    kept = ~times.isna()
    order = np.argsort(unix[kept], kind="stable")
    at, values = unix[kept][order], series.to_numpy(np.float64)[kept][order]
    fresh = np.concatenate([np.diff(at) > 0, [True]]) if len(at) else np.zeros(0, bool)
    values = np.where(np.isfinite(values), values, np.nan)
    return DeviceTable(name, np.asarray(at[fresh], np.int64), values[fresh])


def _pandas() -> Any:  # noqa: ANN401 - an optional library
    """Import pandas, which reads the tables.

    Raises:
        TableError: It is not installed.
    """
    try:
        import pandas as pd  # noqa: PLC0415 - only this command needs it
    except ImportError as error:
        raise TableError(
            "reading tables needs pandas", hint="pip install 'gridfed[sim,evaluate]'"
        ) from error
    return pd
