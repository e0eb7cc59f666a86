"""Put the parts of a record together that lie in several files, such as one for each month."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from firmware_sim.evaluation.table_files import TableError, pandas_library

_DATE = re.compile(r"(?<!\d)(?:19|20)\d\d(?:[-_. ]?(?:0[1-9]|1[0-2])(?:[-_. ]?[0-3]\d)?)?(?!\d)")
_MONTH = re.compile(
    r"(?<![a-z])(?:jan(?:uary?)?|feb(?:ruary?)?|mar(?:ch)?|m\u00e4rz?|mrz|apr(?:il)?|ma[iy]|jun[ei]?|jul[yi]?"
    r"|aug(?:ust)?|sept?(?:ember)?|o[ck]t(?:ober)?|nov(?:ember)?|de[cz](?:ember)?)(?![a-z])",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+")
_ANY, _CLOSE = 36_500, 7  # days between two parts, at most: with dates in their names, with numbers
_TWICE = 0.01  # share of a part's times, at most, that another part has too


class SeenDevice(NamedTuple):
    """A device's readings, before its zone is known."""

    series: Any  # readings by instant
    is_end: bool  # whether an instant is the end of the interval that its reading is of


def without_numbers(name: str) -> str:
    """Return a file's name without dates, months and numbers.

    >>> without_numbers("load_2026-01"), without_numbers("Lastgang M\u00e4rz (2)"), without_numbers("home-7b")
    ('load', 'Lastgang', 'home-b')
    """
    return _tidy(_NUMBER.sub("", _without_dates(name)))


def _without_dates(name: str) -> str:
    return _tidy(_MONTH.sub("", _DATE.sub("", name)))


def _tidy(name: str) -> str:
    return re.sub(r"([ _.-])[ _.-]+", r"\1", re.sub(r"\(\s*\)", "", name)).strip(" _-.")


def joined(name: str, before: SeenDevice, after: SeenDevice, path: Path) -> SeenDevice:
    """Return a device's readings with those of a further file.

    Raises:
        TableError: The files have the same times, or cannot be put together.
    """
    pandas = pandas_library()
    shared = after.series.index.isin(before.series.index).mean() if _is_alike(before, after) else 1
    if shared > _TWICE:
        raise TableError(
            f"{path.name}: device {name} is in another file too, at the same times",
            hint="one file a device, or files that follow one another; --value-column NAME for one column",
        )
    return before._replace(series=pandas.concat([before.series, after.series]))


def _is_alike(one: SeenDevice, other: SeenDevice) -> bool:
    return one.is_end == other.is_end and one.series.index.tz == other.series.index.tz


def put_together(
    found: Mapping[str, SeenDevice], folder: str, notes: list[str]
) -> dict[str, SeenDevice]:
    """Return the devices, with the parts of one record joined to one device.

    They are if their names differ in dates or numbers alone, and their times follow one another.

    Args:
        found: The readings of each file, by its name without ending.
        folder: Name of a record whose files have no other name.
        notes: Takes a sentence for each record.
    """
    devices = dict(found)
    for stem, days in ((_without_dates, _ANY), (without_numbers, _CLOSE)):
        groups: dict[str, list[str]] = {}
        for name in devices:
            groups.setdefault(stem(name), []).append(name)
        for record, names in groups.items():
            ordered = sorted(names, key=lambda name: devices[name].series.index.min())
            if len(names) < 2 or not _follow([devices[name] for name in ordered], days):
                continue
            parts = [devices.pop(name) for name in ordered]
            whole = pandas_library().concat([part.series for part in parts])
            devices[record or folder] = SeenDevice(whole, parts[0].is_end)
            notes.append(
                f"{len(names)} files are one record, {record or folder}: {ordered[0]} to {ordered[-1]};"
                " their names differ in numbers alone, and their times follow one another"
            )
    return devices


def _follow(parts: Sequence[SeenDevice], days: float) -> bool:
    if any(part.series.index.hasnans or not _is_alike(part, parts[0]) for part in parts):
        return False
    longest = pandas_library().Timedelta(days, "D")
    pauses = (b.series.index.min() - a.series.index.max() for a, b in pairwise(parts))
    return all(0 * longest <= pause <= longest for pause in pauses)
