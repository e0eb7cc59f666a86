"""Decode the P1 port of household meters: DSMR 4 and 5, ESMR; a telegram every second, or ten.

A telegram is ``/`` and a header line, lines of ``code(value)…``, ``!`` and four hex digits of
CRC-16/ARC over all from ``/`` to ``!``. (DSMR 5.0.2 P1 companion standard, sections 5 and 6.)
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Annotated

from edge_sdk.app.schema import Between
from edge_sdk.extensions.sources.base import Decoder, FramedLink, RawFrame, Rejected, SourceSample
from edge_sdk.extensions.sources.byte_links import ListeningFeed, SourceAddress
from edge_sdk.extensions.sources.interface import Interface, LiveSection

LONGEST = 8192
"""Largest size of a telegram in bytes; the standard's maximum, text included, is below 4 k."""

_END = re.compile(rb"!([0-9A-Fa-f]{4})?\r?\n")
_START = re.compile(rb"/[A-Za-z]{3}[0-9A-Za-z]")
_LINE = re.compile(rb"([0-9A-Za-z.:-]{1,32})(?:\*[0-9]{1,3})?[ \t]*(\(.*)", re.DOTALL)
_GROUPS = re.compile(r"(?:\([^()]*\))+")
_NUMBER = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]+)?")
_CLOCK, _SERIALS = "0-0:1.0.0", ("0-0:96.1.1", "0-0:96.1.0")
_KIND = re.compile(r"0-([0-9]{1,3}):24\.1\.0")  # the kind of the meter on an M-Bus channel
_KINDS = re.compile(r"\([0-9]{1,3}\)")
_BUS = re.compile(r"0-([0-9]{1,3}):(24\.[2-9]\.[0-9]{1,3})")  # its value
_ENERGY = re.compile(r"(1-[0-9]{1,3}:[12]\.8\.)([0-9]{1,3})")  # a total, or one of its tariffs
_ONE_WAY = re.compile(r"1-[0-9]{1,3}:(?:[246]?[12]\.[78]\.[0-9]+)|0-n:24\.2\.[13]")
_TIME = re.compile(r"\(([0-9]{12})([SW])\)")
_GAS = 3  # EN 13757-3: 2 electricity, 3 gas, 4 heat, 6 warm water, 7 water
_AHEAD = 3600.0  # longest time in seconds by which a value may be later than its telegram
_SEALED = re.compile(rb"\xdb\x08[A-Z]{3}.{5}\x82", re.DOTALL)  # AES-GCM: Luxembourg, Austria
_STARTS = 4  # candidates for a telegram's first byte in a noisy buffer


def _table() -> tuple[int, ...]:
    rows = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ 0xA001 if value & 1 else value >> 1  # noqa: PLW2901 - shifted in place
        rows.append(value)
    return tuple(rows)


_CRC = _table()


def crc16(data: bytes) -> int:
    """Return CRC-16/ARC: polynomial 0x8005 reflected, start 0.

    >>> f"{crc16(b'123456789'):04X}"
    'BB3D'
    """
    crc = 0
    for byte in data:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 0xFF]
    return crc


class TelegramFramer:
    r"""Splits a serial stream into telegrams with a correct checksum.

    Example:
        Noise before a telegram, even with a ``/`` in it, loses no telegram.

        >>> body = b"/ABC5x\r\n\r\n1-0:1.7.0(00.5*kW)\r\n!"
        >>> framer = TelegramFramer()
        >>> stream = b"\x80/\xff" + body + b"%04X\r\n" % crc16(body)
        >>> [frame == body for piece in (stream[:20], stream[20:]) for frame in framer.feed(piece)]
        [True]
        >>> list(framer.feed(stream[:-6] + b"0000\r\n")), dict(framer.rejected)
        ([], {'wrong checksum': 1})
    """

    def __init__(self) -> None:
        self.rejected: Counter[str] = Counter()
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Append bytes; yield the telegrams that they complete, from ``/`` to ``!``."""
        for start in range(0, len(data), LONGEST):
            self._buffer += data[start : start + LONGEST]
            yield from self._cut()
            if len(self._buffer) > LONGEST:
                reason = "encrypted" if _SEALED.search(self._buffer) else "too long"
                self.rejected[reason] += 1
                del self._buffer[: -LONGEST // 2]

    def _cut(self) -> Iterator[bytes]:
        done = 0
        for end in _END.finditer(self._buffer):
            body = bytes(self._buffer[done : end.start() + 1])
            done = end.end()
            if end[1] is None:
                if _START.search(body):
                    self.rejected["no checksum"] += 1
                continue
            frame = _telegram(body, int(end[1], 16))
            if frame is None:
                self.rejected["wrong checksum"] += 1
            else:
                yield frame
        del self._buffer[:done]

    def forget(self) -> None:
        """Discard the unfinished telegram after the link broke."""
        self._buffer.clear()


def _telegram(body: bytes, crc: int) -> bytes | None:
    starts = [match.start() for match in _START.finditer(body)]
    for start in starts[-_STARTS:]:
        if crc16(body[start:]) == crc:
            return body[start:]
    return None


def telegram(
    frame: RawFrame, hours: float = 1.0, chosen: Mapping[str, object] = MappingProxyType({})
) -> list[SourceSample]:
    r"""Decode one telegram; a line that cannot be read costs itself only.

    The value of an M-Bus meter is named by its code and the meter's kind, on whatever channel it is:
    ``0-n:24.2.1`` and ``0-n:24.2.3`` are gas, ``0-n:24.2.1/007`` is water. A name in ``chosen`` comes
    first, so that a channel can be mapped by itself, as ``0-2:24.2.1``.

    Args:
        frame: Telegram from ``/`` to ``!``, as ``TelegramFramer`` yields it.
        hours: Offset of the meter's winter time from UTC, in hours; summer time is one more.
        chosen: Names that a user maps, each with false if it is not to be used.

    Returns:
        Every line with its code; one without a usable number has a ``fault``. Totals replace their
        tariffs, so that nothing is added twice. The meter's number is hashed.

    Raises:
        Rejected: No time, or nothing else.

    Example:
        The repeated hour in autumn is two hours: first summer time, then winter time.

        >>> def at(clock):
        ...     text = f"/ABC5x\r\n\r\n0-0:1.0.0({clock})\r\n1-0:1.8.0(000001.5*kWh)\r\n!"
        ...     return telegram(RawFrame(text.encode(), 0.0))[0].time
        >>> at("231029020000W") - at("231029020000S")
        3600.0
    """
    lines = _lines(frame.payload)
    if _CLOCK not in lines:
        raise Rejected("no time")
    moments = [_moment(text, hours) for text in lines.pop(_CLOCK)]
    readable = [moment for moment in moments if not math.isnan(moment)]
    if len(readable) != 1:
        raise Rejected("told twice" if readable else "bad time")
    time = readable[0]
    serial = next((lines.pop(code)[0] for code in _SERIALS if code in lines), "")
    device = _hashed(serial.rpartition("(")[2].removesuffix(")"))
    kinds = {
        found[1]: int(values[0][1:-1])
        for code, values in lines.items()
        if (found := _KIND.fullmatch(code)) and len(values) == 1 and _KINDS.fullmatch(values[0])
    }
    samples = [
        _sample(_named(code, kinds, chosen), values, time, hours, _device(code, device))
        for code, values in lines.items()
        if not ((found := _KIND.fullmatch(code)) and found[1] in kinds)
    ]
    if not samples:
        raise Rejected("nothing measured")
    return _counted_once(samples, chosen)


def _lines(payload: bytes) -> dict[str, list[str]]:
    """Return the different texts of every code, each from its first parenthesis on."""
    if len(payload) > LONGEST:
        raise Rejected("too long")
    lines: dict[str, list[str]] = {}
    for line in payload.removesuffix(b"!").splitlines()[1:]:
        if not line.strip():
            continue
        found = _LINE.fullmatch(line.rstrip())
        code = "a line without a code" if found is None else found[1].decode("ascii")
        text = "" if found is None else found[2].decode("latin-1")
        if text not in lines.setdefault(code, []):
            lines[code].append(text)
    return lines


def _named(code: str, kinds: Mapping[str, int], chosen: Mapping[str, object]) -> str:
    found = _BUS.fullmatch(code)
    if found is None or code in chosen or found[1] not in kinds:
        return code
    kind = kinds[found[1]]
    return f"0-n:{found[2]}" + ("" if kind == _GAS else f"/{kind:03d}")


def _device(code: str, device: str) -> str:
    found = _BUS.fullmatch(code)
    return f"{device}/{found[1]}" if found else device


def _sample(name: str, values: list[str], time: float, hours: float, device: str) -> SourceSample:
    """Return the value of a line: ``(number*unit)``, or ``(time)(number*unit)``."""
    groups = values[0][1:-1].split(")(")
    number, star, unit = groups[-1].partition("*")
    at = _moment(f"({groups[0]})", hours) if len(groups) == 2 else time
    if len(values) > 1:
        fault = "told twice"
    elif not (_GROUPS.fullmatch(values[0]) and len(groups) <= 2 and _NUMBER.fullmatch(number)) or (
        number.startswith("-") and _ONE_WAY.fullmatch(name)
    ):
        fault = "bad value"
    elif _ONE_WAY.fullmatch(name) and not star:
        fault = "no unit"
    elif math.isnan(at) or at > time + _AHEAD:
        fault = "bad time"
    else:
        return SourceSample(name, at, float(number), unit, device)
    return SourceSample(name, time, math.nan, "", device, fault=fault)


def _counted_once(samples: list[SourceSample], chosen: Mapping[str, object]) -> list[SourceSample]:
    """Leave out values that are part of another value.

    A readable total comes in place of its tariffs. Tariffs without it count together or not at all.
    Of a gas meter that sends its volume at two temperatures, the standard one counts.
    """
    sums: dict[str, list[SourceSample]] = {}
    for sample in samples:
        found = _ENERGY.fullmatch(sample.name)
        if found and chosen.get(sample.name) is not False:
            sums.setdefault(found[1], []).append(sample)
    left: dict[tuple[str, str], str] = {}
    for register, parts in sums.items():
        total = next((x for x in parts if x.name == f"{register}0" and not x.fault), None)
        tariffs = [x for x in parts if x.name != f"{register}0"]
        if total is not None or any(x.fault for x in tariffs):
            reason = "part of a total" if total is not None else "sum not complete"
            left |= {(x.name, x.device): reason for x in tariffs if not x.fault}
    if chosen.get("0-n:24.2.1") is not False:
        standard = {x.device for x in samples if x.name == "0-n:24.2.1" and not x.fault}
        left |= {("0-n:24.2.3", device): "the same as 0-n:24.2.1" for device in standard}
    return [
        replace(x, value=math.nan, fault=left[x.name, x.device])
        if (x.name, x.device) in left and not x.fault
        else x
        for x in samples
    ]


def _moment(text: str, hours: float) -> float:
    """Parse ``(YYMMDDhhmmssX)``; X is S in summer time, W in winter time. NaN for anything else."""
    found = _TIME.fullmatch(text)
    if found is None:
        return math.nan
    try:
        local = datetime.strptime(found[1], "%y%m%d%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return math.nan
    return local.timestamp() - (hours + (found[2] == "S")) * 3600


def _hashed(serial: str) -> str:
    return hashlib.sha256(serial.encode()).hexdigest()[:8] if serial else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class P1Section(LiveSection):
    """``type = "p1"``: the consumer port of a household meter."""

    url: str  # serial:///dev/ttyUSB0?baud=115200 or tcp://host:port
    utc_offset: Annotated[float, Between(-12, 14)] = 1.0  # hours of the meter's winter time


def _feed(section: P1Section) -> FramedLink:
    return ListeningFeed(SourceAddress.parse(section.url), TelegramFramer())


def _decoder(section: P1Section) -> Decoder:
    hours, chosen = section.utc_offset, section.map
    return lambda frame: telegram(frame, hours, chosen)


P1 = Interface("p1", P1Section, _feed, _decoder, TelegramFramer)
