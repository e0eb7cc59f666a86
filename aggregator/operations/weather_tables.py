"""Read weather for a region from CSV or JSON, on a regular grid, in the units of the streams."""

from __future__ import annotations

import csv
import json
import math
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.cli import RUNTIME, Failure
from edge_sdk.app.csv_dialect import EPOCH, ISO, CsvDialect, detected
from edge_sdk.app.json_path import JsonPath, PathError
from edge_sdk.wire.protocol.messages import WEATHER_LIMIT, WeatherMessage

STREAMS: Final = ("weather.temperature", "weather.wind_speed", "weather.irradiance")
"""Canonical streams of weather, in °C, m/s and W/m²."""

OPEN_METEO: Final = {
    "weather.temperature": "$.hourly.temperature_2m[*]",
    "weather.wind_speed": "$.hourly.wind_speed_10m[*]",
    "weather.irradiance": "$.hourly.shortwave_radiation[*]",
}
OPEN_METEO_TIMES: Final = "$.hourly.time[*]"

_LARGEST = 4 << 20  # bytes of a document
_DAYS = 400  # days of one message
_SHORTEST, _LONGEST = 60, 86_400  # seconds between two rows
_UNITS: Mapping[str, tuple[str, float, float]] = {
    "°c": ("weather.temperature", 1.0, 0.0),
    "°f": ("weather.temperature", 5 / 9, -160 / 9),
    "k": ("weather.temperature", 1.0, -273.15),
    "m/s": ("weather.wind_speed", 1.0, 0.0),
    "km/h": ("weather.wind_speed", 1 / 3.6, 0.0),
    "mp/h": ("weather.wind_speed", 0.44704, 0.0),
    "mph": ("weather.wind_speed", 0.44704, 0.0),
    "kn": ("weather.wind_speed", 1852 / 3600, 0.0),
    "w/m²": ("weather.irradiance", 1.0, 0.0),
}


class WeatherError(Failure):
    """Weather that cannot be read or published."""

    exit_code = RUNTIME


@dataclass(frozen=True, slots=True, eq=False)
class WeatherTable:
    """Weather on a regular grid.

    Attributes:
        start: Unix seconds of the first row.
        step: Seconds from row to row.
        columns: Values by stream, NaN where unknown, each of shape ``(rows,)``.
        dropped: Oldest rows that did not fit into one message.
    """

    start: int
    step: int
    columns: Mapping[str, NDArray[np.float64]]
    dropped: int = 0

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return len(next(iter(self.columns.values())))

    @classmethod
    def of(cls, times: Sequence[float], columns: Mapping[str, Sequence[float]]) -> WeatherTable:
        """Return the table of rows in any order; of two rows at one time the last counts.

        Raises:
            WeatherError: Fewer than two rows, rows off a regular grid, or no value at all.

        >>> table = WeatherTable.of([7200, 0, 3600], {"weather.temperature": [3.0, 1.0, 2.0]})
        >>> table.start, table.step, table.columns["weather.temperature"].tolist()
        (0, 3600, [1.0, 2.0, 3.0])
        """
        at = np.round(np.asarray(times, np.float64)).astype(np.int64)
        unique = np.unique(at)
        if len(unique) < 2:
            raise WeatherError(f"weather: {len(unique)} rows with a time; expected at least 2")
        step = int(np.gcd.reduce(np.diff(unique)))
        if not _SHORTEST <= step <= _LONGEST:
            raise WeatherError(
                f"weather: the times lie on a grid of {step} s; expected {_SHORTEST} to {_LONGEST} s",
                hint="use rows at regular times, such as every hour",
            )
        rows = int(unique[-1] - unique[0]) // step + 1
        most = min(WEATHER_LIMIT // len(columns), _DAYS * 86_400 // step)
        dropped = max(0, rows - most)
        table = {}
        for name, values in columns.items():
            column = np.full(rows, np.nan)
            column[(at - unique[0]) // step] = values
            table[name] = column[dropped:]
        if not any(np.isfinite(column).any() for column in table.values()):
            raise WeatherError("weather: no row has a value")
        return cls(int(unique[0]) + dropped * step, step, table, dropped)

    def message(self, region: str, t: int) -> WeatherMessage:
        """Return the message of a region, issued at ``t`` Unix milliseconds."""
        stacked = np.stack([*self.columns.values()]).astype("<f4")
        return WeatherMessage(
            region=region,
            t=t,
            start=1000 * self.start,
            step=1000 * self.step,
            num=self.rows,
            names=tuple(self.columns),
            blob=stacked.tobytes(),
        )


def stream_of(column: str) -> str | None:
    """Return the stream that a column's name stands for, or None.

    >>> stream_of("temperature"), stream_of("weather.wind_speed"), stream_of("station")
    ('weather.temperature', 'weather.wind_speed', None)
    """
    name = column.strip()
    return next((x for x in STREAMS if name in (x, x.removeprefix("weather."))), None)


def from_csv(path: Path, *, time_column: str = "time") -> WeatherTable:
    """Read a file with a header line; separator, decimal mark and form of times are detected.

    Columns are named as the streams, with or without ``weather.``, in their units; others are ignored.

    Raises:
        WeatherError: The file cannot be read, or a row is wrong; the message names the line.
    """
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WeatherError(f"weather: cannot read {str(path)!r}: {error}") from error
    dialect = detected(lines, time_column, ())
    header = next(csv.reader(lines[:1], delimiter=dialect.delimiter), [])
    for mark in (",", ";", "\t", "|"):
        names = next(csv.reader(lines[:1], delimiter=mark), [])
        if time_column in names and any(stream_of(name) for name in names):
            header, dialect = (
                names,
                detected(lines, time_column, [x for x in names if stream_of(x)]),
            )
    streams = {stream: place for place, name in enumerate(header) if (stream := stream_of(name))}
    if time_column not in header or not streams:
        known = ", ".join(x.removeprefix("weather.") for x in STREAMS)
        raise WeatherError(
            f"weather: {path.name}: expected the columns {time_column!r} and one of {known}; "
            f"it has {', '.join(header) or 'none'}"
        )
    if not dialect.time_format:
        raise WeatherError(
            f"weather: {path.name}: the dates are ambiguous", hint="write times as ISO 8601"
        )
    return _table(lines, dialect, header.index(time_column), streams, path.name)


def _table(
    lines: Sequence[str], dialect: CsvDialect, when: int, streams: Mapping[str, int], name: str
) -> WeatherTable:
    reader = csv.reader(lines, delimiter=dialect.delimiter)
    next(reader)
    times: list[float] = []
    columns: dict[str, list[float]] = {stream: [] for stream in streams}
    for row in reader:
        if not row:
            continue
        try:
            times.append(_moment(row[when], dialect))
            for stream, place in streams.items():
                text = row[place].strip()
                is_absent = text.lower() in ("", "na", "nan", "null")
                columns[stream].append(math.nan if is_absent else dialect.number(text))
        except (ValueError, IndexError, OverflowError) as error:
            raise WeatherError(f"weather: {name}, line {reader.line_num}: {error}") from error
    return WeatherTable.of(times, columns)


def _moment(text: str, dialect: CsvDialect) -> float:
    if dialect.time_format == EPOCH:
        return float(text)
    form = dialect.time_format
    read = (
        datetime.fromisoformat(text.strip())
        if form == ISO
        else datetime.strptime(text.strip(), form).replace(tzinfo=UTC)
    )
    return read.replace(tzinfo=read.tzinfo or UTC).timestamp()


def from_json(
    raw: bytes, paths: Mapping[str, str] = OPEN_METEO, times: str = OPEN_METEO_TIMES
) -> WeatherTable:
    """Read a JSON document; without paths, one of the form of Open-Meteo.

    A path may end in its unit, as in ``$.wind[*] km/h``; Open-Meteo names its own.

    Raises:
        WeatherError: It is no JSON, or lacks the times or every value.
    """
    try:
        document = json.loads(raw)
        moments = [_json_time(one) for one in JsonPath.parse(times).find(document)]
    except PathError as error:
        raise WeatherError(f"weather: times: {error}") from error
    except LookupError as error:
        raise WeatherError(f"weather: the document has no times at {times}: {error}") from error
    except (ValueError, OverflowError, RecursionError) as error:
        raise WeatherError(f"weather: the document cannot be read: {error}") from error
    columns: dict[str, list[float]] = {}
    for stream, text in paths.items():
        path, _, unit = text.strip().partition(" ")
        found = _found(document, path)
        if found is None:
            continue
        if len(found) != len(moments):
            raise WeatherError(f"weather: {len(found)} values at {path} for {len(moments)} times")
        scale, shift = _unit(stream, unit.strip() or _named_unit(document, path))
        columns[stream] = [scale * _number(one) + shift for one in found]
    if not columns:
        raise WeatherError(f"weather: the document has none of {', '.join(paths.values())}")
    return WeatherTable.of(moments, columns)


def _found(document: object, path: str) -> list[object] | None:
    try:
        return JsonPath.parse(path).find(document)
    except PathError as error:
        raise WeatherError(f"weather: {error}") from error
    except LookupError:
        return None


def _named_unit(document: Any, path: str) -> str:  # noqa: ANN401 - any JSON
    """Return the unit that Open-Meteo names beside an array, or an empty text."""
    name = path.removesuffix("[*]").rpartition(".")[2]
    units = document.get("hourly_units") if isinstance(document, dict) else None
    unit = units.get(name) if isinstance(units, dict) else None
    return unit if isinstance(unit, str) else ""


def _unit(stream: str, unit: str) -> tuple[float, float]:
    if not unit:
        return 1.0, 0.0
    of, scale, shift = _UNITS.get(unit.lower(), ("", 0.0, 0.0))
    if of != stream:
        raise WeatherError(
            f"weather: {unit!r} is no unit of {stream}",
            hint=f"known: {', '.join(u for u, (s, *_) in _UNITS.items() if s == stream)}",
        )
    return scale, shift


def _number(value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else math.nan  # type: ignore[arg-type]


def _json_time(value: object) -> float:
    if isinstance(value, str):
        read = datetime.fromisoformat(value)
        return read.replace(tzinfo=read.tzinfo or UTC).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no time")  # noqa: TRY004 - a wrong document, not a wrong call
    return value / 1000 if abs(value) > 1e11 else float(value)


def fetched(url: str, *, timeout: float = 30.0) -> bytes:
    """Return the document at an address.

    Raises:
        WeatherError: The address is no http or https, or it does not answer.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise WeatherError(f"weather: --url: {url!r} is no http:// or https:// address")
    request = urllib.request.Request(url, headers={"User-Agent": "gridfed"})  # noqa: S310 - checked above
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310 - as above
            raw: bytes = answer.read(_LARGEST + 1)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise WeatherError(f"weather: {urlsplit(url).hostname}: {error}") from error
    if len(raw) > _LARGEST:
        raise WeatherError(f"weather: the document is larger than {_LARGEST} bytes")
    return raw


def merged(tables: Iterable[WeatherTable]) -> WeatherTable:
    """Return one table of several; where two have a value for a time, the later table's counts.

    Raises:
        WeatherError: As ``WeatherTable.of``.
    """
    cells: dict[int, dict[str, float]] = {}
    names: dict[str, None] = {}
    for table in tables:
        for stream, column in table.columns.items():
            names[stream] = None
            for row in np.flatnonzero(np.isfinite(column)):
                cells.setdefault(table.start + int(row) * table.step, {})[stream] = float(
                    column[row]
                )
    times = sorted(cells)
    return WeatherTable.of(
        times, {name: [cells[at].get(name, math.nan) for at in times] for name in names}
    )
