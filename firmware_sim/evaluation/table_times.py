"""Find the times of a table: their column or columns, their form, their time zone, and the edge that they are of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from edge_sdk.extensions.sources.csv_clock import interval_begin, is_clock, with_offset
from edge_sdk.extensions.sources.csv_dialect import (
    EPOCH,
    ISO,
    at_midnight,
    joined_times,
    time_format,
)
from edge_sdk.extensions.sources.flow_names import END
from firmware_sim.evaluation.table_files import TableError, TableForm, pandas_library

_DAY_FIRST = re.compile(r"^\s*(\d{1,2})[./-](\d{1,2})[./-]\d{2,4}")
_DATED = (
    r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}|\d{8}|\d{1,2}[ -][A-Za-z]{3}[ -]\d{2,4}"
    r"|[A-Za-z]{3,9} \d{1,2},? \d{4}"
)
_OFFSET = r"\dZ\s*$|:\d\d(?:[.,:]\d+)*\s*[+-]\d\d:?\d\d\s*$"
_UNIX = (
    (5e8, "s", "Unix seconds"),
    (5e11, "ms", "Unix milliseconds"),
    (5e14, "us", "Unix microseconds"),
    (5e17, "ns", "Unix nanoseconds"),
)
_POINTS = r"([ T]\d{1,2})\.(\d\d)$"  # a time of day with a point
_WHOLE = 2.0**53  # numbers below it are exact in a column of floating point
_FEW = 500  # entries whose form is that of a column
_PARSED = 0.9  # share of a column's entries, at least, that must be instants; others are left out


class TimesFound(NamedTuple):
    """The times of a file."""

    columns: list[str]  # their column, or the columns of date and time of day
    instants: Any  # as pandas reads them, not a time where one cannot be read
    sentence: str  # how they were understood
    is_end: bool  # whether they are the ends of the intervals


def table_times(frame: Any, form: TableForm, wanted: str | None) -> TimesFound:  # noqa: ANN401
    """Return the times of a file."""
    names, path = list(frame.columns), form.path
    if wanted is not None and wanted not in names:
        raise TableError(
            f"{path.name}: no column {wanted!r} (columns: {', '.join(names)})",
            hint="--time-column NAME",
        )
    partly = ""
    for name in [wanted] if wanted else names:
        instants, how, is_end = _instants(frame[name])
        if instants is None:
            continue
        share = float(instants.notna().mean())
        if share < _PARSED:
            row = frame.index[instants.isna()][0]
            partly = partly or (
                f"column {name}: only {share:.0%} of the rows have a date and time; line"
                f" {form.line(row)} has {frame[name][row]!r}"
            )
            continue
        is_end = is_end or bool(END.search(name))
        clock = None if changes_within_a_day(instants) else _clock(frame, names, name)
        if clock is None:
            return TimesFound([name], instants, f"time in column {name}: {how}", is_end)
        days, clocks = instants, _texts(frame[clock])
        if (begins := counted_hours(days, clocks)) is not None:
            how = f"time in columns {name} and {clock}: {how}, hours counted from midnight, also on days of"
            return TimesFound([name, clock], begins, f"{how} 23 and 25 hours", is_end=False)
        dates = frame[name].astype(str).fillna("").tolist()
        texts, is_numbered = joined_times(dates, clocks)
        instants, how, has_24 = _instants(_series(texts, frame.index))
        if instants is not None:
            how = f"time in columns {name} and {clock}: {how}"
            how += ", hours numbered from 1" if is_numbered else ""
            return TimesFound([name, clock], instants, how, is_numbered or has_24 or is_end)
    raise TableError(
        f"{path.name}: {partly}"
        if partly
        else f"{path.name}: no column has dates and times (columns: {', '.join(names)})",
        hint="--time-column NAME; ISO 8601 such as 2026-01-31T13:45 is always understood",
    )


def counted_hours(days: Any, clocks: Sequence[str]) -> Any:  # noqa: ANN401
    """Return the beginnings of hours that are numbered from 1, also over a change of the clock.

    Returns:
        None, if no day has 25 hours, or 23 and no 24th, where some zone changes its clock.
    """
    pandas = pandas_library()
    found = _series(clocks, days.index).str.extract(r"^(\d{1,2})(?::00(?::00)?)?$")[0]
    hours, days = pandas.to_numeric(found), days.dt.normalize()
    if hours.isna().any() or days.isna().any() or hours.min() != 1:
        return None
    last = hours.groupby(days).max()
    changed = {
        day: int(count)
        for day, count in last.items()
        if count == 25 or (count == 23 and (hours[days == day].nunique() == 23))
    }
    zone = next((z for z, _ in CHANGES if changed and _has_days(changed, z)), None)
    if zone is None:
        return None
    midnights = days.dt.tz_localize(zone)
    return (midnights + pandas.to_timedelta(hours - 1, unit="h")).dt.tz_localize(None)


def _has_days(hours: Mapping[Any, int], zone: str) -> bool:
    """Return whether local days have as many hours in a zone."""
    day = pandas_library().Timedelta("1D")
    return all(
        ((at + day).tz_localize(zone) - at.tz_localize(zone)).total_seconds() == 3600 * count
        for at, count in hours.items()
    )


def _clock(frame: Any, names: Sequence[str], date: str) -> str | None:  # noqa: ANN401
    """Return the column with the times of day that belong to a column of dates, or None."""
    after = names[names.index(date) + 1 :]
    for name in (*after, *names[: names.index(date)]):
        texts = frame[name].dropna()
        if is_clock(name, _texts(texts)):
            return name
    return None


def is_fractional(column: Any) -> bool:  # noqa: ANN401
    """Return whether a column has numbers that are not whole."""
    types = pandas_library().api.types
    return bool(types.is_float_dtype(column)) and bool((column % 1 != 0).any())


def _texts(column: Any) -> list[str]:  # noqa: ANN401
    """Return entries as text; times of day that were read as numbers have their zeros again."""
    types = pandas_library().api.types
    if is_fractional(column):
        return [f"{entry:.2f}" for entry in column.tolist()]
    if types.is_float_dtype(column):
        column = column.astype("Int64")
    texts = [str(entry) for entry in column.astype(str).fillna("").tolist()]
    is_number = types.is_numeric_dtype(column) and len(column.dropna())
    if not is_number or not 100 <= column.max() <= 240_000:
        return texts
    return [text.zfill(4 if column.max() <= 2400 else 6) if text else "" for text in texts]


def _series(entries: Sequence[object], index: Any) -> Any:  # noqa: ANN401
    return pandas_library().Series(entries, index=index)


def _instants(column: Any) -> tuple[Any, str, bool]:  # noqa: ANN401
    """Return a column as instants, or None; how they were understood; whether 24:00 occurs."""
    types = pandas_library().api.types
    if types.is_datetime64_any_dtype(column):
        return column, "dates of the file", False
    if types.is_bool_dtype(column):
        return None, "", False
    if types.is_numeric_dtype(column):
        found = _digit_dates(column)
        return found if found[0] is not None else (*_unix(column), False)
    return _written(column.astype(str).fillna(""))


def _digit_dates(column: Any) -> tuple[Any, str, bool]:  # noqa: ANN401
    """Return numbers such as 20260131 or 202601312345 as instants, or None."""
    known = column.dropna()
    if not len(known) or known.abs().max() >= _WHOLE or (known % 1).any():
        return None, "", False
    texts = column.astype("Int64").astype(str)
    form = time_format(texts[column.notna()].head(_FEW).tolist())
    if form in (EPOCH, ISO) or not form.startswith("%Y%m%d"):
        return None, "", False
    found = pandas_library().to_datetime(texts, format=form, errors="coerce")
    return found, f"dates of {len(texts[known.index[0]])} digits", False


def _unix(column: Any) -> tuple[Any, str]:  # noqa: ANN401
    """Return a numeric column as instants, where all its numbers lie in the years 1985 to 2128."""
    numbers = column.dropna()
    for low, unit, text in _UNIX:
        if len(numbers) and numbers.between(low, 10 * low).all() and numbers.nunique() > 1:
            return pandas_library().to_datetime(column, unit=unit, utc=True), text
    return None, ""


def _written(texts: Any) -> tuple[Any, str, bool]:  # noqa: ANN401
    """Return a column of texts as instants, where most of them are dates; whether 24:00 occurs."""
    if texts.str.contains(_DATED).mean() < 0.5:
        return None, "", False
    begins = _series([interval_begin(text) for text in texts.tolist()], texts.index)
    is_span = bool((begins != texts.str.strip()).mean() > 0.5)
    texts = (begins if is_span else texts).str.replace(_POINTS, r"\1:\2", regex=True)
    moved = [at_midnight(with_offset(text)) for text in texts.tolist()]
    late = _series([is_late for _, is_late in moved], texts.index)
    texts = _series([text for text, _ in moved], texts.index)
    parts = texts.str.extract(_DAY_FIRST).dropna().astype(int)
    day_first, how = False, "ISO 8601"
    if len(parts) > len(texts) / 2:
        day_first = bool((parts[0] > 12).any()) or not bool((parts[1] > 12).any())
        how = f"{'day' if day_first else 'month'} first"
    offsets = texts.str.contains(_OFFSET, regex=True)
    has_offset = bool(offsets.mean() > 0.5)
    texts = texts.where(offsets == has_offset, "")  # a few of the other form cannot be placed
    options = {"errors": "coerce", "dayfirst": day_first, "utc": has_offset}
    for form in ("ISO8601", "mixed") if how == "ISO 8601" else ("mixed",):
        try:
            instants = pandas_library().to_datetime(texts, format=form, **options)
        except ValueError:  # zones by name, in some of the rows
            return None, "", False
        if instants.isna().mean() <= 1.0 - _PARSED or form == "mixed":
            break
    if instants.notna().mean() < 0.5:
        return None, "", False
    instants = instants.where(~late, instants + pandas_library().Timedelta("1D"))
    how += " with offsets" if has_offset else ""
    how += ", spans read at their beginnings" if is_span else ""
    return instants, how + (", 24:00 ends a day" if late.any() else ""), bool(late.any())


def changes_within_a_day(instants: Any) -> bool:  # noqa: ANN401
    """Return whether instants are times of day, not dates alone."""
    return bool((instants.dropna().dt.normalize() != instants.dropna()).any())


# zones whose changes of the clock are looked for in times without an offset
CHANGES = (
    ("Europe/Berlin", "Central European"),
    ("Europe/London", "British"),
    ("America/New_York", "Eastern American"),
    ("America/Chicago", "Central American"),
    ("America/Los_Angeles", "Pacific American"),
    ("Australia/Sydney", "Eastern Australian"),
)

LONGEST = 50  # years of a record, above which one of its dates is wrong


def lacks_the_hours_of(series: Any, zone: str) -> bool:  # noqa: ANN401
    """Return whether times skip the hour that does not exist in a zone, each spring they cover."""
    counts, lost = _changed_hours(series, zone, ambiguous=False, nonexistent="NaT")
    return bool(lost) and not any(counts.get(hour, 0) for hour in lost)


def repeats_the_hours_of(series: Any, zone: str) -> bool:  # noqa: ANN401
    """Return whether times have the hour twice that is there twice in a zone, each autumn they cover."""
    counts, twice = _changed_hours(series, zone, ambiguous="NaT", nonexistent="shift_forward")
    day = pandas_library().Timedelta("1D")
    return bool(twice) and all(counts.get(hour, 0) == 2 * counts[hour - day] for hour in twice)


def _changed_hours(series: Any, zone: str, **how: object) -> tuple[Mapping[Any, int], list[Any]]:  # noqa: ANN401
    """Return the number of times in each hour, and the hours that a zone has in some odd way.

    Of these, those whose hours a day before and a day after have times.
    """
    pandas = pandas_library()
    times = pandas.DatetimeIndex(series.index.dropna()).sort_values()
    if times.tz is not None or len(times) < 3 or times[-1].year - times[0].year > LONGEST:
        return {}, []
    hours = pandas.date_range(times[0].floor("h"), times[-1].floor("h"), freq="h")
    odd = hours[hours.tz_localize(zone, **how).isna()]
    counts = pandas.Series(1, times).groupby(times.floor("h")).sum().to_dict() if len(odd) else {}
    day = pandas.Timedelta("1D")
    return counts, [hour for hour in odd if hour - day in counts and hour + day in counts]


def localised(times: Any, zone: str) -> Any:  # noqa: ANN401
    """Return local times as instants; autumn's repeated hour by its order, if both are there."""
    try:
        return times.tz_localize(zone, ambiguous="infer", nonexistent="NaT")
    except ValueError:  # the hour is there once, or not in order
        return times.tz_localize(zone, ambiguous="NaT", nonexistent="NaT")
