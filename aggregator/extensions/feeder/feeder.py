"""Forecast the next day of a feeder from the opened sums of its devices, and keep the newest forecast.

The contract with the source ``history`` tells what the devices drew, the one with the source ``tomorrow`` what
they expect. A sum has some of the devices only: it is scaled to all of them by their number, and the number of
those that are missing is a part of the result.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from zoneinfo import ZoneInfo

import numpy as np

from aggregator.config import AggregatorConfig
from aggregator.extensions.feeder.feeder_model import (
    LEAST_ORIGINS,
    Floats,
    Ints,
    fan,
    fitted,
    issues,
    to_whole,
)
from edge_sdk.app.permissions import make_private_folder
from edge_sdk.errors import Failure
from edge_sdk.extensions.analytic.profile_features import ProfileRecord
from edge_sdk.protocol.keys import write_atomically

DAY = 86_400_000
PARTS = 4
"""Origins a day from which the closed form learns."""


class FeederError(Failure):
    """Sums that are not sufficient for a forecast."""


class OpenedSum(Protocol):
    """Sum of a cohort's devices over a period, as the extension with the key ``opened`` returns it."""

    @property
    def contract(self) -> str: ...  # name
    @property
    def source(self) -> str: ...  # history or tomorrow
    @property
    def value(self) -> str: ...  # of the cohort's label: the feeder's name
    @property
    def period(self) -> int: ...  # begin, Unix milliseconds
    @property
    def step(self) -> int: ...  # milliseconds of one number
    @property
    def members(self) -> int: ...  # devices in the sum
    @property
    def expected(self) -> int: ...  # devices of the cohort
    @property
    def values(self) -> Floats: ...  # in the unit, shape ``(length,)``
    @property
    def unit(self) -> str: ...
    @property
    def opened(self) -> int: ...  # Unix milliseconds
    @property
    def part(self) -> float | None: ...  # part of the cohort in the sum, by a label; None: unknown


@dataclass(frozen=True, slots=True)
class FeederDay:
    """The newest day of a feeder of which a sum is known, scaled to all its devices."""

    begin: int  # Unix milliseconds
    values: tuple[float, ...]
    members: int  # devices in the sum
    expected: int  # devices of the feeder


@dataclass(frozen=True, slots=True)
class FeederForecast:
    """The forecast of a feeder's next day."""

    feeder: str
    unit: str
    step: int  # milliseconds
    begin: int  # of the first value, Unix milliseconds
    values: tuple[float, ...]
    lower: tuple[float, ...] | None  # ends of the interval that is meant to contain 80 %
    upper: tuple[float, ...] | None
    how: str  # method: combined, devices or history
    share: float  # of the history, closed form and mean; the rest is the sum of the devices
    members: int  # devices in the sum of expected values; 0 without one
    expected: int  # devices of the feeder
    days: int  # of the history
    until: int  # end of the history, Unix milliseconds
    opened: int  # newest opened sum, Unix milliseconds
    yesterday: FeederDay
    part: float | None = None  # part of the devices in the sum of expected values, by a label

    @property
    def missing(self) -> int:
        """Devices that are not in the sum of expected values."""
        return self.expected - self.members

    def rows(self) -> list[dict[str, Any]]:
        """Return start (Unix milliseconds), value and interval of every step."""
        return [
            {
                "start": self.begin + i * self.step,
                "value": value,
                "lower": None if self.lower is None else self.lower[i],
                "upper": None if self.upper is None else self.upper[i],
            }
            for i, value in enumerate(self.values)
        ]

    def document(self) -> dict[str, Any]:
        """Return the forecast for programs."""
        return {
            "feeder": self.feeder,
            "unit": self.unit,
            "how": self.how,
            "share_of_history": self.share,
            "devices": self.expected,
            "missing": self.missing,
            "part": self.part,
            "days": self.days,
            "history_until": _iso(self.until),
            "opened": _iso(self.opened),
            "yesterday": {
                "start": _iso(self.yesterday.begin),
                "devices": self.yesterday.expected,
                "missing": self.yesterday.expected - self.yesterday.members,
                "values": list(self.yesterday.values),
            },
            "values": [row | {"start": _iso(row["start"])} for row in self.rows()],
        }


@dataclass(frozen=True, slots=True)
class FeederBook:
    """The newest forecast of each feeder, as a file in the state folder."""

    folder: Path

    @classmethod
    def of(cls, config: AggregatorConfig) -> FeederBook:
        return cls(config.state / "feeders")

    def save(self, forecast: FeederForecast) -> None:
        """Store a forecast in place of an older one."""
        make_private_folder(self.folder)
        path = self.folder / f"{forecast.feeder.encode().hex() or '-'}.json"
        write_atomically(path, json.dumps(asdict(forecast)).encode(), 0o600)

    def all(self) -> Iterator[FeederForecast]:
        """Yield the stored forecasts, by feeder; a damaged file is none."""
        found = []
        for path in self.folder.glob("*.json"):
            try:
                found.append(_read(json.loads(path.read_bytes())))
            except (OSError, ValueError, TypeError, KeyError):
                continue
        yield from sorted(found, key=lambda one: one.feeder)

    def mark(self) -> float:
        """Return a number that differs after a forecast was stored."""
        paths = self.folder.glob("*.json")
        return max((path.stat().st_mtime for path in paths if path.exists()), default=0.0)


def opened_sums(config: AggregatorConfig, since: int = 0, label: str = "") -> list[OpenedSum]:
    """Return the opened sums that an extension keeps; none without such an extension.

    Args:
        since: Unix milliseconds before which no period begins.
        label: Label by whose numbers a sum of some devices is scaled to all; empty: by their number.
    """
    found: list[OpenedSum] = []
    for entry in config.index.values():
        if "opened" in entry.row and entry.is_configured(config.tables):
            found += entry.load("opened")(config, since, label)
    return found


def feeders_of(sums: Sequence[OpenedSum]) -> list[str]:
    """Return the names of the feeders of which the load of some day is known."""
    return sorted({one.value for one in sums if one.source == "history"})


def feeder_forecast(
    sums: Sequence[OpenedSum], feeder: str, zone: ZoneInfo, most_days: int = 400
) -> FeederForecast:
    """Return the forecast of the newest day that the devices expect, or of the day after the history.

    Args:
        sums: Opened sums of any contracts and feeders.
        feeder: Value of the cohort's label.
        zone: Of the calendar.
        most_days: Newest days of the history that are used.

    Raises:
        FeederError: No history of this feeder, or sums of periods that are no whole days.
    """
    history = [one for one in sums if one.source == "history" and one.value == feeder]
    if not history:
        known = ", ".join(feeders_of(sums)) or "none"
        raise FeederError(
            f"no sum of the load of {feeder or 'all devices'} is opened; feeders: {known}"
        )
    newest = max(history, key=lambda one: one.period)
    step, length = newest.step, len(newest.values)
    if step * length != DAY or 3_600_000 % step:
        raise FeederError(
            f"contract {newest.contract}: periods of {length} x {step} ms; a feeder's forecast needs "
            f"days of numbers whose length divides an hour"
        )
    begin_of_all = newest.period - (most_days - 1) * DAY
    history = [one for one in history if one.step == step and one.period >= begin_of_all]
    expected = {
        one.period: one
        for one in sums
        if one.source == "tomorrow"
        and one.value == feeder
        and (one.step, len(one.values)) == (step, length)
        and one.period >= begin_of_all
        and (one.period - newest.period) % DAY == 0
    }
    end = newest.period + DAY
    begin = max([end, *expected])
    record = _record(history, begin + DAY, zone)
    found = _forecast(record, min(one.period for one in history), end, begin, expected)
    devices = expected.get(begin)
    yesterday = FeederDay(newest.period, _numbers(_whole(newest)), newest.members, newest.expected)
    return FeederForecast(
        feeder, newest.unit, step, begin, *found,
        0 if devices is None else devices.members,
        newest.expected if devices is None else devices.expected,
        len(history), end, max(one.opened for one in (*history, *expected.values())), yesterday,
        None if devices is None else devices.part,
    )  # fmt: skip


_Ends = tuple[float, ...] | None


def _forecast(
    record: ProfileRecord, first: int, end: int, begin: int, expected: Mapping[int, OpenedSum]
) -> tuple[tuple[float, ...], _Ends, _Ends, str, float]:
    """Return values, both ends of the interval, the name of the method, and the share of the history.

    Args:
        first: Begin of the record, Unix milliseconds.
        end: Of the history.
        begin: Of the day that is forecast.
        expected: Sums of the devices' expected values, by begin.
    """
    step, day = record.step * 1000, record.day
    skip, known = (begin - end) // step, (end - first) // step
    whole = {period: _whole(one) for period, one in expected.items()}
    nothing = np.full(day, np.nan)

    def of_devices(origins: Ints) -> Floats:
        begins = first + (origins + 1 + skip) * step
        return np.stack([whole.get(int(at), nothing) for at in begins])

    origins = np.arange(known - 1, day - 2, -(day // PARTS))[::-1]
    seen = np.isfinite(record.values)
    is_taught = [
        bool(seen[: at + 1].any() and seen[at + 1 + skip : at + 1 + skip + day].any())
        for at in origins
    ]
    past = origins[np.array(is_taught) & (origins + skip + day < known)]
    last = np.array([known - 1])
    now = issues(record, last, day, of_devices(last), skip)
    model = None
    if len(past) >= PARTS * LEAST_ORIGINS:
        taught = issues(record, past, day, of_devices(past), skip)
        model = fitted(taught, a_day=PARTS, lag=PARTS * (day + skip) // day)
    has_devices = bool(np.isfinite(now.expected).all())
    if model is None:
        # too few days to judge: the devices have a model of a fleet
        profile = (now.rows.base * now.rows.level[:, None])[0]
        values = now.expected[0] if has_devices else profile
        return _numbers(values), None, None, "devices" if has_devices else "history", 0.0
    table = fan(model, now)[0]
    how = "combined" if has_devices else "history"
    share = 1.0 - float(model.shares[1]) if has_devices else 1.0
    return _numbers(table[:, 0]), _numbers(table[:, 1]), _numbers(table[:, 3]), how, share


def _record(history: Sequence[OpenedSum], end: int, zone: ZoneInfo) -> ProfileRecord:
    """Return the load of all devices on a grid, NaN where no sum is, and the calendar until ``end``."""
    step, first = history[0].step, min(one.period for one in history)
    until = max(one.period for one in history) + DAY
    values = np.full((until - first) // step, np.nan)
    for one in history:
        at = (one.period - first) // step
        values[at : at + len(one.values)] = _whole(one)
    seconds = np.arange(first // 1000, end // 1000, step // 1000)
    shifts = [_shift(at, zone) for at in seconds.tolist()]
    return ProfileRecord(values, seconds + np.array(shifts), step // 1000)


def _whole(one: OpenedSum) -> Floats:
    if one.part is not None:
        return to_whole(one.values, one.part, 1.0)
    return to_whole(one.values, one.members, one.expected)


def _shift(seconds: int, zone: ZoneInfo) -> int:
    offset = datetime.fromtimestamp(seconds, zone).utcoffset()
    return 0 if offset is None else int(offset.total_seconds())


def _numbers(values: Floats) -> tuple[float, ...]:
    return tuple(float(f"{value:.6g}") for value in values)


def _read(data: Mapping[str, Any]) -> FeederForecast:
    day = FeederDay(**_with_tuples(data["yesterday"]))
    return FeederForecast(**{**_with_tuples(data), "yesterday": day})


def _with_tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(x) if isinstance(x, list) else x for name, x in data.items()}


def _iso(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")
