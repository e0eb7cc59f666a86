"""Read performance files of base stations: TS 32.435 and TS 28.532 XML, plain or gzip.

A file is read from its bytes; its name is not used. Vendors' deviations from the standard are accepted:
processing instructions before the XML declaration, offsets without a colon, empty object names,
counters as lists or one by one, periods shorter than the report. A document type is refused before
any entity could expand, and a tag or text of unusual length before it is parsed as a whole.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from xml.parsers import expat

from edge_sdk.extensions.sources.base import Rejected
from edge_sdk.extensions.sources.file_bounds import unpacked

LARGEST = 64 << 20  # bytes of a decompressed file; a node's quarter of an hour is a few MB
_NAMING: Mapping[str, tuple[str, ...]] = {
    "fileHeader": ("dnPrefix",),
    "fileSender": ("localDn", "senderName"),
    "measData": (),
    "managedElement": ("localDn", "userLabel"),
    "measEntity": ("localDn", "userLabel"),
}
"""Elements of a document that name a managed element, each with the attributes that do, in turn."""

_DEEPEST = 24  # nesting depth of elements; the schemas need 6
_LONGEST = 1 << 18  # characters of one text: a list of counters, or of results
_LONGEST_TAG = 1 << 16  # bytes of one tag with its attributes, comment or instruction
_ELEMENTS = 1 << 21  # elements of a file
_VALUES = 1 << 15  # values of a group, and measurements of a file
NAMED = 64  # counters that are not read, named one by one
_PREFACE = re.compile(
    rb"\A(?:\xef\xbb\xbf)?\s*(?:<\?(?!xml[\s?])(?:(?!\?>).)*\?>\s*)+(?=<\?xml\s)", re.DOTALL
)
_PERIOD = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?\Z")
_BROKEN = {
    expat.errors.codes[text]: "broken off"
    for text in (expat.errors.XML_ERROR_NO_ELEMENTS, expat.errors.XML_ERROR_UNCLOSED_TOKEN)
}


@dataclass(frozen=True, slots=True)
class CounterMeasurement:
    """One counter of one object over one period; NaN where a file has no value for the counter."""

    element: str  # Distinguished name of the managed element, as far as the file has it
    subject: str  # Distinguished name of the object, relative to its element; empty for the element
    counter: str  # name in the file, including the sub-counter
    begin: float  # start of the period, Unix seconds
    seconds: float  # length of the period
    value: float  # value in the counter's unit
    is_suspect: bool = False  # true if the file marks it as suspect


def measured(
    data: bytes, counters: Container[str], unread: MutableMapping[str, float] | None = None
) -> list[CounterMeasurement]:
    """Return a file's measurements of some counters, in file order.

    Args:
        data: The file, plain or gzip.
        unread: Takes the other counters that have values, each with the begin of its period.

    Raises:
        Rejected: The file is truncated, larger than the limits, or not a performance file.

    >>> text = b'''<?vendor x?><?xml version="1.0"?><measDataFile><measData><measInfo>
    ...   <granPeriod duration="PT60S" endTime="2026-01-01T00:01:00+0000"/>
    ...   <measType p="7">RRU.PrbTotDl</measType><measValue measObjLdn="">
    ...   <r p="7">41.5</r></measValue></measInfo></measData></measDataFile>'''
    >>> [(one.counter, one.value, one.seconds) for one in measured(text, {"RRU.PrbTotDl"})]
    [('RRU.PrbTotDl', 41.5, 60.0)]

    Reference:
        3GPP TS 32.435 section 4 and annex A; 3GPP TS 28.532 section 11.3.2.
    """
    document = _DocumentParser(counters, {} if unread is None else unread)
    parser = expat.ParserCreate(namespace_separator="}")
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = _no_doctype
    parser.StartElementHandler = document.start
    parser.EndElementHandler = document.end
    parser.CharacterDataHandler = document.text
    fed = 0
    try:
        for piece in unpacked(data, LARGEST):
            part = piece if fed else _PREFACE.sub(b"", piece, count=1)
            parser.Parse(part)
            fed += len(part)
            if fed - max(parser.CurrentByteIndex, 0) > _LONGEST_TAG + len(part):
                raise Rejected("tag too long")  # expat would scan it anew with every piece
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        raise Rejected(_BROKEN.get(error.code, "not xml")) from error
    except (LookupError, ValueError) as error:
        raise Rejected("unknown encoding") from error
    if not document.is_known:
        raise Rejected("not a file of measurements")
    if document.is_lost and not document.found:
        raise Rejected("no period")
    return document.found


def period(text: str) -> float:
    """Return an ISO 8601 duration, with days as the largest unit, in seconds.

    >>> period("PT900S"), period("PT15M"), period("PT1H")
    (900.0, 900.0, 3600.0)

    Raises:
        ValueError: Invalid, or zero.
    """
    content = _PERIOD.match(text.strip())
    parts = [float(part or 0) for part in content.groups()] if content else [0.0]
    seconds = sum(part * unit for part, unit in zip(parts, (86400, 3600, 60, 1), strict=False))
    if not seconds:
        raise ValueError(f"{text!r} is not a duration")
    return seconds


def moment(text: str) -> float:
    """Return a time with its offset, with or without a colon in it, as Unix seconds.

    >>> moment("2026-01-01T01:00:00+0100") == moment("2026-01-01T00:00:00Z")
    True

    Raises:
        ValueError: Invalid, or without an offset: the time zone cannot be guessed.
    """
    read = datetime.fromisoformat(text.strip())
    if read.tzinfo is None:
        raise ValueError(f"{text!r} has no offset")
    return read.timestamp()


@dataclass(slots=True)
class _Group:
    """One ``measInfo``: a period, and the counters of its values."""

    begin: float = math.nan
    seconds: float = math.nan
    counters: dict[str, str] = field(default_factory=dict)  # by position


@dataclass(slots=True)
class _DocumentParser:
    """The parser state at one position of a document."""

    counters: Container[str]
    unread: MutableMapping[str, float]
    path: list[str] = field(default_factory=list)
    group: _Group = field(default_factory=_Group)
    prefix: str = ""
    element: str = ""
    subject: str = ""
    elements: int = 0
    place: str = ""
    results: dict[str, str] = field(default_factory=dict)
    is_suspect: bool = False
    is_known: bool = False
    is_lost: bool = False  # a value without a period was found
    pieces: list[str] = field(default_factory=list)
    length: int = 0
    found: list[CounterMeasurement] = field(default_factory=list)

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        """Process the start of an element."""
        local = name.rpartition("}")[2]
        self.path.append(local)
        self.elements += 1
        if len(self.path) > _DEEPEST:
            raise Rejected("nested too deep")
        if self.elements > _ELEMENTS:
            raise Rejected("too many elements")
        if sum(map(len, attributes.values())) > _LONGEST_TAG:
            raise Rejected("tag too long")
        self.pieces.clear()
        self.length = 0
        if local in ("measCollecFile", "measDataFile"):
            self.is_known = True
        elif local in _NAMING:
            self._set_element(local, attributes)
        elif local == "measInfo":
            self.group = _Group()
        elif local == "granPeriod":
            self._set_period(attributes)
        elif local in ("measType", "r"):
            self.place = attributes.get("p", "")
        elif local == "measValue":
            self.subject = attributes.get("measObjLdn", "").strip()
            self.results, self.is_suspect = {}, False

    def text(self, data: str) -> None:
        """Append the text of an element."""
        self.length += len(data)
        if self.length > _LONGEST:
            raise Rejected("text too long")
        self.pieces.append(data)

    def end(self, _name: str) -> None:
        """Process the end of an element."""
        local = self.path.pop()
        content = "".join(self.pieces).strip()
        self.pieces.clear()
        if local == "measType":
            self.group.counters[self.place] = content
        elif local == "measTypes":
            self.group.counters |= {str(i): one for i, one in enumerate(content.split(), 1)}
        elif local == "r":
            self.results[self.place] = content
        elif local == "measResults":
            self.results |= {str(i): one for i, one in enumerate(content.split(), 1)}
        elif local == "suspect":
            self.is_suspect = content.lower() in ("true", "1")
        elif local == "measValue":
            self._close()
        if max(len(self.group.counters), len(self.results), len(self.found)) > _VALUES:
            raise Rejected("too many values")

    def _set_element(self, local: str, attributes: Mapping[str, str]) -> None:
        own = next((x.strip() for key in _NAMING[local] if (x := attributes.get(key))), "")
        if local in ("fileHeader", "fileSender"):
            self.prefix = self.prefix or own
        else:
            self.element = ",".join(filter(None, (self.prefix, own)))

    def _set_period(self, attributes: Mapping[str, str]) -> None:
        with suppress(ValueError, OverflowError):
            seconds = period(attributes.get("duration", ""))
            self.group.begin = moment(attributes.get("endTime", "")) - seconds
            self.group.seconds = seconds

    def _close(self) -> None:
        """Store the results of a ``measValue``."""
        group = self.group
        for place, text in self.results.items():
            counter = group.counters.get(place)
            if counter is None or counter not in self.counters:
                if counter and len(self.unread) < NAMED:
                    self.unread[counter] = group.begin
                continue
            if math.isnan(group.begin):
                self.is_lost = True
                continue
            value = _number(text)
            self.found.append(
                CounterMeasurement(
                    self.element,
                    self.subject,
                    counter,
                    group.begin,
                    group.seconds,
                    value,
                    self.is_suspect,
                )
            )


def _number(text: str) -> float:
    """Return a number, or NaN for anything else: empty, ``NIL``, and vendors' own marks."""
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def _no_doctype(*_arguments: object) -> None:
    raise Rejected("document type")
