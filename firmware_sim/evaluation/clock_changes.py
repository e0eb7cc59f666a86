"""Detect the time zone of local times by the changes of the clock, and convert them to instants."""

from __future__ import annotations

from typing import Any

CHANGES = (
    ("Europe/Berlin", "Central European"),
    ("Europe/London", "British"),
    ("America/New_York", "Eastern American"),
    ("America/Chicago", "Central American"),
    ("America/Los_Angeles", "Pacific American"),
    ("Australia/Sydney", "Eastern Australian"),
)
"""Zones whose changes of the clock are looked for in times without an offset."""

LONGEST = 50  # years of a record, above which one of its dates is wrong


def lacks_the_hours_of(series: Any, zone: str) -> bool:  # noqa: ANN401
    """Return whether times skip the hour that does not exist in a zone, each spring they cover."""
    import pandas  # noqa: PLC0415, ICN001 - only tables of times need it

    times = pandas.DatetimeIndex(series.index.dropna()).sort_values()
    if times.tz is not None or len(times) < 3 or times[-1].year - times[0].year > LONGEST:
        return False
    hours = pandas.date_range(times[0].floor("h"), times[-1].floor("h"), freq="h")
    lost = hours[hours.tz_localize(zone, ambiguous=False, nonexistent="NaT").isna()]
    if not len(lost):
        return False
    have = set(times.floor("h"))
    day = pandas.Timedelta("1D")
    known = [hour for hour in lost if hour - day in have and hour + day in have]
    return bool(known) and not any(hour in have for hour in known)


def localised(times: Any, zone: str) -> Any:  # noqa: ANN401
    """Return local times as instants; autumn's repeated hour by its order, if both are there."""
    try:
        return times.tz_localize(zone, ambiguous="infer", nonexistent="NaT")
    except ValueError:  # the hour is there once, or not in order
        return times.tz_localize(zone, ambiguous="NaT", nonexistent="NaT")
