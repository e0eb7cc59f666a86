"""Compute calendar features of a site from UTC slots: local time, day, week and year."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, tzinfo
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DAY = 86_400


def time_zone(name: str) -> tzinfo:
    """Return the time zone of an IANA name.

    Raises:
        ValueError: The system has no such zone.
    """
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # noqa: PLC0415 - 0.5 MB; UTC is common

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f"time_zone: {name!r} is no zone of this system, such as Europe/Berlin"
        ) from None


def local_seconds(times: Ints, zone: tzinfo = UTC) -> Ints:
    """Return wall-clock seconds since 1970 in ``zone``; the grid itself stays in UTC.

    The offset is looked up once a day, and row by row only on the days it changes.
    """
    if zone is UTC or not len(times):
        return times

    def offset(moment: int) -> int:
        shift = datetime.fromtimestamp(int(moment), zone).utcoffset()
        return int(shift.total_seconds()) if shift is not None else 0

    days, which = np.unique(times // DAY, return_inverse=True)
    ends = np.array([[offset(day * DAY), offset(day * DAY + DAY)] for day in days])
    shifts = ends[which, 0]
    for row in np.flatnonzero((ends[:, 0] != ends[:, 1])[which]):
        shifts[row] = offset(times[row])
    return np.asarray(times + shifts, np.int64)


def calendar(what: str, local: Ints, step: int) -> Floats:
    """Return one calendar column for wall-clock seconds, unscaled.

    >>> calendar("slot_of_day", np.array([0, 900, 86399]), 900)
    array([ 0.,  1., 95.])
    >>> calendar("year", np.array([1577836799, 1577836800]), 3600)  # New Year's Eve, New Year
    array([2019., 2020.])

    Raises:
        ValueError: An unknown feature name.
    """
    if what not in CALENDAR:
        known = ", ".join(sorted(CALENDAR))
        raise ValueError(f"unknown calendar feature {what!r}; known: {known}")
    return np.asarray(CALENDAR[what](local, step), np.float64)


def _day_of_week(local: Ints, _: int = 0) -> Ints:
    return np.asarray((local // DAY + 3) % 7)  # 1970-01-01 was a Thursday; Monday is 0


def _dates(local: Ints) -> NDArray[np.datetime64]:
    return local.astype("datetime64[s]").astype("datetime64[D]")


def _month(local: Ints, _: int) -> Ints:
    return np.asarray(_dates(local).astype("datetime64[M]").astype(np.int64) % 12 + 1)


def _year(local: Ints, _: int) -> Ints:
    return np.asarray(_dates(local).astype("datetime64[Y]").astype(np.int64) + 1970)


def _day_of_month(local: Ints, _: int) -> Ints:
    dates = _dates(local)
    return np.asarray((dates - dates.astype("datetime64[M]")).astype(np.int64) + 1)


def _day_of_year(local: Ints, _: int) -> Ints:
    dates = _dates(local)
    return np.asarray((dates - dates.astype("datetime64[Y]")).astype(np.int64) + 1)


def _turn(share: NDArray[np.floating]) -> NDArray[np.floating]:
    return 2.0 * np.pi * share


CALENDAR: Mapping[str, Callable[[Ints, int], NDArray[Any]]] = MappingProxyType(
    {
        "slot_of_day": lambda t, step: t % DAY // step,
        "hour": lambda t, _: t % DAY // 3600,
        "hour_sin": lambda t, _: np.sin(_turn(t % DAY / DAY)),
        "hour_cos": lambda t, _: np.cos(_turn(t % DAY / DAY)),
        "day_of_week": _day_of_week,
        "dow_sin": lambda t, _: np.sin(_turn(_day_of_week(t) / 7)),
        "dow_cos": lambda t, _: np.cos(_turn(_day_of_week(t) / 7)),
        "weekend": lambda t, _: _day_of_week(t) >= 5,
        "day_of_month": _day_of_month,
        "day_of_year": _day_of_year,
        "month": _month,
        "year": _year,
    }
)
"""Calendar features by name, as functions of wall-clock seconds and the grid's step."""
