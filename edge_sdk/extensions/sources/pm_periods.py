"""Combine the objects of a station's files, such as its cells, into one sample per counter and period.

The latest periods are kept, because the cells of a station may be in several files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import ClassVar, NamedTuple

from edge_sdk.app.settings import Duration, seconds
from edge_sdk.errors import ConfigError
from edge_sdk.extensions.sources.base import NOT_MAPPED, Decoder, FramedLink, RawFrame, SourceSample
from edge_sdk.extensions.sources.drop_folder import DropFolder
from edge_sdk.extensions.sources.interface import Interface, LiveSection
from edge_sdk.extensions.sources.pm3gpp import NAMED, measured
from edge_sdk.extensions.sources.stream_map import names
from edge_sdk.forecasting.series import Flag

_KEPT = 1 << 14  # values of the latest periods, kept for further files of a period


class _Kept(NamedTuple):
    """A value of the latest periods."""

    value: float
    is_suspect: bool


@dataclass(slots=True)
class PmDecoder:
    """The decoder of one folder's files: one sample per counter and period.

    Values of several objects, such as a station's cells, in one file or several, are summed where the
    counter is a sum, and averaged otherwise. A sum is suspect if it lacks one of its objects: one
    without a value, or one that the period before has. A sample of a period replaces an earlier one.

    >>> def file(*cells):
    ...     values = "".join(
    ...         f'<measValue measObjLdn="Cell={n}"><measResults>{text}</measResults></measValue>'
    ...         for n, text in cells
    ...     )
    ...     period = '<granPeriod duration="PT900S" endTime="2026-01-01T00:15:00Z"/>'
    ...     group = f"<measInfo>{period}<measTypes>volume load</measTypes>{values}</measInfo>"
    ...     text = f"<measCollecFile><measData>{group}</measData></measCollecFile>"
    ...     return RawFrame(text.encode(), 0.0)
    >>> read = PmDecoder({"volume": True, "load": False})
    >>> [(one.name, one.value) for one in read(file((1, "3 40"), (2, "4 50")))]
    [('volume', 7.0), ('load', 45.0)]
    >>> [(one.name, one.value) for one in read(file((3, "5 60")))]
    [('volume', 12.0), ('load', 50.0)]
    """

    counters: Mapping[str, bool]  # counters to read, each with True if it is a sum over its period
    # shell pattern of the distinguished names to read, with or without the element's
    subjects: str = "*"
    _periods: dict[tuple[float, float], dict[str, dict[str, _Kept]]] = field(default_factory=dict)
    _size: int = 0
    _closed: float = -math.inf  # begin of the newest period that is not kept any more

    def __call__(self, frame: RawFrame) -> list[SourceSample]:
        """Decode one file.

        Raises:
            Rejected: The file is truncated, larger than the limits, or not a performance file.
        """
        unread: dict[str, float] = {}
        changed: dict[tuple[str, float, float], None] = {}
        noticed: list[SourceSample] = []
        for key, parts in self._grouped(frame.payload, unread).items():
            counter, begin, seconds = key
            if (begin, seconds) not in self._periods and begin <= self._closed:
                noticed.append(_noticed(counter, begin, "later than the periods kept"))
                continue
            kept = self._periods.setdefault((begin, seconds), {}).setdefault(counter, {})
            for name, values in parts.items():
                before, value = kept.get(name), values[0]
                if len({x.value for x in values if not math.isnan(x.value)}) > 1:
                    noticed.append(_noticed(counter, begin, "told twice"))
                    value = _Kept(math.nan, is_suspect=True)
                elif before and not math.isnan(before.value) and before.value != value.value:
                    noticed.append(_noticed(counter, begin, "sent again by a later file"))
                    value = before if math.isnan(value.value) else value
                self._size += before is None
                kept[name] = value
            changed[key] = None
        samples = [self._combined(*key) for key in changed]
        self._forget()
        noticed += (_noticed(name, begin, NOT_MAPPED) for name, begin in unread.items())
        return samples + noticed

    def _grouped(
        self, data: bytes, unread: MutableMapping[str, float]
    ) -> dict[tuple[str, float, float], dict[str, list[_Kept]]]:
        groups: dict[tuple[str, float, float], dict[str, list[_Kept]]] = {}
        for one in measured(data, self.counters, unread):
            full = ",".join(filter(None, (one.element, one.subject)))
            if not any(fnmatchcase(name, self.subjects) for name in (one.subject, full)):
                if len(unread) < NAMED:
                    unread[f"object {one.subject!r} outside 'objects'"] = one.begin
                continue
            parts = groups.setdefault((one.counter, one.begin, one.seconds), {})
            values = parts.setdefault(f"{one.element}\n{one.subject}", [])
            value = _Kept(one.value, one.is_suspect)
            if math.isnan(one.value):
                values.append(value)
            else:
                values.insert(0, value)
        return groups

    def _combined(self, counter: str, begin: float, seconds: float) -> SourceSample:
        parts = self._periods[begin, seconds][counter]
        before = self._periods.get((begin - seconds, seconds), {}).get(counter, {})
        known = [one.value for one in parts.values() if not math.isnan(one.value)]
        total, adds = math.fsum(known) if known else math.nan, self.counters[counter]
        lacks = adds and (len(known) < len(parts) or bool(before.keys() - parts.keys()))
        is_suspect = lacks or any(one.is_suspect for one in parts.values())
        flags = Flag.SUSPECT if is_suspect else Flag.NONE
        value = total if adds or not known else total / len(known)
        return SourceSample(counter, begin, value, "", flags=int(flags), seconds=seconds)

    def _forget(self) -> None:
        for key in sorted(self._periods)[:-2] if self._size > _KEPT else ():
            if self._size <= _KEPT:
                return
            self._size -= sum(map(len, self._periods.pop(key).values()))
            self._closed = max(self._closed, key[0])


def _noticed(name: str, begin: float, reason: str) -> SourceSample:
    return SourceSample(name, begin, math.nan, "", fault=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class PmSection(LiveSection):
    """``type = "pm3gpp"``: performance files of a base station, TS 32.435 or TS 28.532."""

    folder: str = ""  # folder in which the element manager drops files
    pattern: str = ""  # shell pattern of file names; empty: XML, and names by TS 32.432
    objects: str = "*"  # measured objects to read, by distinguished name
    poll_interval: Duration = "5s"  # scan interval; a file must be unchanged for so long
    max_age: Duration = "7d"  # largest age of a file
    renamed: ClassVar[Mapping[str, str]] = {
        **LiveSection.renamed,
        "every": "poll_interval",
        "history": "max_age",
    }


def _feed(section: PmSection) -> FramedLink:
    if not section.folder:
        raise ConfigError(
            "source pm3gpp: 'folder' is missing: the folder that the element manager writes to"
        )
    interval, max_age = seconds(section.poll_interval), seconds(section.max_age)
    return DropFolder(Path(section.folder), section.pattern, interval, max_age)


def _decoder(section: PmSection) -> Decoder:
    table = names("pm3gpp", section.map, "source pm3gpp")
    counters = {name: row.kind == "interval" for name, row in table.items()}
    return PmDecoder(counters, section.objects)


PM3GPP = Interface("pm3gpp", PmSection, _feed, _decoder, ahead=16)
