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
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from threading import Thread
from typing import IO, Any, Final
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import RUNTIME, Failure
from edge_sdk.extensions.sources.csv_dialect import (
    ABSENT,
    EPOCH,
    ISO,
    CsvDialect,
    at_midnight,
    detected,
)
from edge_sdk.extensions.sources.csv_head import fields_of, header_of
from edge_sdk.extensions.sources.json_path import JsonPath, PathError
from edge_sdk.extensions.weather.messages import WEATHER_LIMIT, WeatherMessage

# canonical streams of weather, in °C, m/s and W/m²
STREAMS: Final = ("weather.temperature", "weather.wind_speed", "weather.irradiance")
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
    """Weather on a regular grid."""

    start: int  # Unix seconds of the first row
    step: int  # seconds from row to row
    # values by stream, NaN where unknown, each of shape ``(rows,)``
    columns: Mapping[str, NDArray[np.float64]]
    dropped: int = 0  # oldest rows that did not fit into one message

    @property
    def rows(self) -> int:
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


def contents(path: Path) -> bytes:
    """Return the bytes of a weather file; raise WeatherError if it cannot be read, or is larger than any table."""
    try:
        with path.open("rb") as file:
            found = file.read(_LARGEST + 1)
    except OSError as error:
        raise WeatherError(f"weather: cannot read {str(path)!r}: {error}") from error
    if len(found) > _LARGEST:
        raise WeatherError(f"weather: {str(path)!r} is larger than {_LARGEST} bytes")
    return found


def from_csv(path: Path, *, time_column: str = "time") -> WeatherTable:
    """Read a file with a header line; separator, decimal mark and form of times are detected.

    Columns are named as the streams, with or without ``weather.``, in their units; others are ignored.

    Raises:
        WeatherError: The file cannot be read, or a row is wrong; the message names the line.
    """
    try:
        lines = contents(path).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise WeatherError(f"weather: cannot read {str(path)!r}: {error}") from error
    start, mark = header_of(lines, {time_column})
    header = fields_of(lines[start], mark) if lines else []
    streams = {stream: place for place, name in enumerate(header) if (stream := stream_of(name))}
    if time_column not in header or not streams:
        known = ", ".join(x.removeprefix("weather.") for x in STREAMS)
        raise WeatherError(
            f"weather: {path.name}: expected the columns {time_column!r} and one of {known}; "
            f"it has {', '.join(header) or 'none'}"
        )
    dialect = detected(lines, (time_column,), [header[place] for place in streams.values()])
    if not dialect.time_format:
        raise WeatherError(
            f"weather: {path.name}: the dates are ambiguous", hint="write times as ISO 8601"
        )
    return _table(lines, dialect, header.index(time_column), streams, path.name)


def _table(
    lines: Sequence[str], dialect: CsvDialect, when: int, streams: Mapping[str, int], name: str
) -> WeatherTable:
    reader = csv.reader(lines[dialect.header :], delimiter=dialect.delimiter)
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
                is_absent = text.lower() in ABSENT
                columns[stream].append(math.nan if is_absent else dialect.number(text))
        except (ValueError, IndexError, OverflowError) as error:
            line = dialect.header + reader.line_num
            raise WeatherError(f"weather: {name}, line {line}: {error}") from error
    return WeatherTable.of(times, columns)


def _moment(text: str, dialect: CsvDialect) -> float:
    if dialect.time_format == EPOCH:
        return float(text)
    form = dialect.time_format
    bare, is_next_day = at_midnight(text.strip())
    read = (
        datetime.fromisoformat(bare)
        if form == ISO
        else datetime.strptime(bare, form).replace(tzinfo=UTC)
    )
    return read.replace(tzinfo=read.tzinfo or UTC).timestamp() + 86_400 * is_next_day


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


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follows a redirect to the same host, over the same protocol or a safer one."""

    def redirect_request(  # noqa: PLR0917 - as urllib calls it
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if new.scheme not in ("https", old.scheme) or new.hostname != old.hostname:
            fp.close()
            raise WeatherError(
                f"weather: {old.hostname} redirects to {newurl!r}, which is not followed",
                hint="give that address with --url if you trust it",
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def opener() -> urllib.request.OpenerDirector:
    """Return the opener of document addresses: http and https only, no redirect to another host."""
    found = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.UnknownHandler(),
        _SameHost(),
    ):
        found.add_handler(handler)
    return found


def fetched(url: str, *, timeout: float = 30.0) -> bytes:
    """Return the document at an address.

    Args:
        url: Address, http or https. A redirect is followed on the same host only.
        timeout: Seconds in which the whole answer must have arrived, from the look-up of the name on.

    Raises:
        WeatherError: The address is no http or https, does not answer in time, or leads elsewhere; or
            the document is too large.
    """
    host = urlsplit(url).hostname
    if urlsplit(url).scheme not in ("http", "https") or not host:
        raise WeatherError(f"weather: --url: {url!r} is no http:// or https:// address")
    request = urllib.request.Request(url, headers={"User-Agent": "gridfed"})  # noqa: S310 - checked above
    answers: list[bytes | Exception] = []

    def fetch() -> None:
        try:
            with opener().open(request, timeout=timeout) as answer:
                answers.append(answer.read(_LARGEST + 1))
        except (OSError, ValueError, HTTPException, WeatherError) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            answers.append(error)

    thread = Thread(
        target=fetch, daemon=True
    )  # a read, or the look-up of a name, may last for ever
    thread.start()
    thread.join(timeout)
    if not answers:
        raise WeatherError(f"weather: {host}: no whole answer within {timeout:g} s")
    if isinstance(answers[0], WeatherError):
        raise answers[0]
    if isinstance(answers[0], Exception):
        raise WeatherError(f"weather: {host}: {answers[0]}") from answers[0]
    if len(answers[0]) > _LARGEST:
        raise WeatherError(f"weather: {host}: the document is larger than {_LARGEST} bytes")
    return answers[0]


def merged(tables: Iterable[WeatherTable]) -> WeatherTable:
    """Return one table of several; where two have a value for a time, the later table's counts."""
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
