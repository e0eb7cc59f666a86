"""Read performance files of base stations: TS 32.435 and TS 28.532 XML, plain or gzip.

The decoder is a pure function of a file's bytes; the file name is not used. It accepts vendors'
deviations from the standard: processing instructions before the XML declaration, offsets without a
colon, empty object names, counters as lists or one by one, periods shorter than the report. A
document type is refused before any entity could expand.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from xml.parsers import expat

from edge_sdk.forecasting.series import Flag
from edge_sdk.sources.base import Decoder, RawFrame, Rejected, SourceSample

LARGEST = 64 << 20  # bytes of a decompressed file; a node's quarter of an hour is a few MB
_CHUNK = 1 << 16
_DEEPEST = 24  # nesting depth of elements; the schemas need 6
_LONGEST = 1 << 20  # characters of one text: a list of counters, or of results
_GZIP = b"\x1f\x8b"
_PREFACE = re.compile(
    rb"\A(?:\xef\xbb\xbf)?\s*(?:<\?(?!xml[\s?]).*?\?>\s*)+(?=<\?xml\s)", re.DOTALL
)
_PERIOD = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?\Z")
_BROKEN = {
    expat.errors.codes[text]: "broken off"
    for text in (expat.errors.XML_ERROR_NO_ELEMENTS, expat.errors.XML_ERROR_UNCLOSED_TOKEN)
}


@dataclass(frozen=True, slots=True)
class CounterMeasurement:
    """One counter of one object over one period; NaN where a file has no value for the counter.

    Attributes:
        subject: Distinguished name of the object, relative to its element; empty for the element.
        counter: Name in the file, including the sub-counter.
        begin: Start of the period, Unix seconds.
        seconds: Length of the period.
        value: Value in the counter's unit.
        is_suspect: True if the file marks it as suspect.
    """

    subject: str
    counter: str
    begin: float
    seconds: float
    value: float
    is_suspect: bool = False


def decoder(counters: Mapping[str, bool], subjects: str = "*") -> Decoder:
    """Return a decoder of one station's files: one sample per counter and period.

    Values of several objects, such as a station's cells, are summed where the counter is a sum, and
    averaged otherwise. A sum that lacks one of its objects is suspect.

    Args:
        counters: Counters to read, each with True if it is a sum over its period.
        subjects: Shell pattern of the distinguished names to read.

    Example:
        >>> cells = b'''<measCollecFile><measData><measInfo>
        ...   <granPeriod duration="PT900S" endTime="2026-01-01T00:15:00Z"/>
        ...   <measTypes>volume load</measTypes>
        ...   <measValue measObjLdn="Cell=1"><measResults>3 40</measResults></measValue>
        ...   <measValue measObjLdn="Cell=2"><measResults>4 50</measResults></measValue>
        ...   </measInfo></measData></measCollecFile>'''
        >>> read = decoder({"volume": True, "load": False})
        >>> [(one.name, one.value) for one in read(RawFrame(cells, 0.0))]
        [('volume', 7.0), ('load', 45.0)]
    """

    def decode(frame: RawFrame) -> list[SourceSample]:
        parts: dict[tuple[str, float, float], dict[str, CounterMeasurement]] = {}
        for one in measured(frame.payload, counters):
            if fnmatchcase(one.subject, subjects):
                key = (one.counter, one.begin, one.seconds)
                parts.setdefault(key, {})[one.subject] = one  # written twice: the last one counts
        return [
            _combined(list(parts_of.values()), adds=counters[key[0]])
            for key, parts_of in parts.items()
        ]

    return decode


def _combined(parts: Sequence[CounterMeasurement], *, adds: bool) -> SourceSample:
    """Combine several objects' values of one counter and period."""
    known = [one.value for one in parts if not math.isnan(one.value)]
    total = math.fsum(known) if known else math.nan
    lacks = adds and len(known) < len(parts)
    flags = Flag.SUSPECT if lacks or any(one.is_suspect for one in parts) else Flag.NONE
    first = parts[0]
    value = total if adds or not known else total / len(known)
    return SourceSample(
        first.counter, first.begin, value, "", flags=int(flags), seconds=first.seconds
    )


def measured(data: bytes, counters: Container[str]) -> list[CounterMeasurement]:
    """Return a file's measurements of some counters, in file order.

    Raises:
        Rejected: The file is truncated, or not a performance file.

    Example:
        >>> text = b'''<?vendor x?><?xml version="1.0"?><measDataFile><measData><measInfo>
        ...   <granPeriod duration="PT60S" endTime="2026-01-01T00:01:00+0000"/>
        ...   <measType p="7">RRU.PrbTotDl</measType><measValue measObjLdn="">
        ...   <r p="7">41.5</r></measValue></measInfo></measData></measDataFile>'''
        >>> [(one.counter, one.value, one.seconds) for one in measured(text, {"RRU.PrbTotDl"})]
        [('RRU.PrbTotDl', 41.5, 60.0)]

    Reference:
        3GPP TS 32.435 section 4 and annex A; 3GPP TS 28.532 section 11.3.2.
    """
    document = _DocumentParser(counters)
    parser = expat.ParserCreate(namespace_separator="}")
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = _no_doctype
    parser.StartElementHandler = document.start
    parser.EndElementHandler = document.end
    parser.CharacterDataHandler = document.text
    is_first = True
    try:
        for piece in _unpacked(data):
            parser.Parse(_PREFACE.sub(b"", piece, count=1) if is_first else piece)
            is_first = False
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
    path: list[str] = field(default_factory=list)
    group: _Group = field(default_factory=_Group)
    subject: str = ""
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
        if len(self.path) > _DEEPEST:
            raise Rejected("nested too deep")
        self.pieces.clear()
        self.length = 0
        if local in ("measCollecFile", "measDataFile"):
            self.is_known = True
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
                continue
            if math.isnan(group.begin):
                self.is_lost = True
                continue
            value = _number(text)
            self.found.append(
                CounterMeasurement(
                    self.subject, counter, group.begin, group.seconds, value, self.is_suspect
                )
            )


def _number(text: str) -> float:
    """Return a number, or NaN for anything else: empty, ``NIL``, and vendors' own marks."""
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def _unpacked(data: bytes) -> Iterator[bytes]:
    """Yield a file's content in pieces, at most ``LARGEST`` bytes in all."""
    if not data.startswith(_GZIP):
        if len(data) > LARGEST:
            raise Rejected("too large")
        yield from (data[at : at + _CHUNK] for at in range(0, len(data), _CHUNK))
        return
    inflater, size, rest = zlib.decompressobj(wbits=31), 0, data
    while not inflater.eof:
        try:
            piece = inflater.decompress(rest, _CHUNK)
        except zlib.error as error:
            raise Rejected("not gzip") from error
        rest = inflater.unconsumed_tail
        size += len(piece)
        if size > LARGEST:
            raise Rejected("too large")
        if not piece and not rest and not inflater.eof:
            raise Rejected("broken off")
        yield piece


def _no_doctype(*_arguments: object) -> None:
    raise Rejected("document type")
