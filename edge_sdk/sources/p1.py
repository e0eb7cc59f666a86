"""Decode the P1 port of household meters: DSMR 4 and 5, ESMR; a telegram every second, or ten.

A telegram is ``/`` and a header line, lines of ``code(value)…``, ``!`` and four hex digits of
CRC-16/ARC over all from ``/`` to ``!``. (DSMR 5.0.2 P1 companion standard, sections 5 and 6.)
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

from edge_sdk.sources.base import RawFrame, Rejected, SourceSample

LONGEST = 8192
"""Largest size of a telegram in bytes; the standard's maximum, text included, is below 4 k."""

_END = re.compile(rb"!([0-9A-Fa-f]{4})?\r?\n")
_START = re.compile(rb"/[A-Za-z]{3}[0-9A-Za-z]")
_LINE = re.compile(r"(\d{1,3}-\d{1,3}:\d{1,3}\.\d{1,3}\.\d{1,3})((?:\([^()]*\))+)")
_NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,6})?")
_CLOCK, _SERIALS = "0-0:1.0.0", ("0-0:96.1.1", "0-0:96.1.0")
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
        """Begin with an empty buffer."""
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
    """Return the telegram from the first byte that gives a correct checksum, or None."""
    starts = [match.start() for match in _START.finditer(body)]
    for start in starts[-_STARTS:]:
        if crc16(body[start:]) == crc:
            return body[start:]
    return None


def telegram(frame: RawFrame, hours: float = 1.0) -> list[SourceSample]:
    r"""Decode one telegram.

    Args:
        frame: Telegram from ``/`` to ``!``, as ``TelegramFramer`` yields it.
        hours: Offset of the meter's winter time from UTC, in hours; summer time is one more.

    Returns:
        Every measured value with its code. Totals replace their tariffs, so that nothing is added
        twice. The meter's number is hashed.

    Raises:
        Rejected: Not ASCII, no time, a value that is no number, or a repeated code.

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
    time = _moment(lines[_CLOCK], hours)
    serial = next((lines[code][-1] for code in _SERIALS if code in lines), "")
    samples = [
        sample
        for code, groups in lines.items()
        if (sample := _sample(code, groups, time, _hashed(serial), hours)) is not None
    ]
    if not samples:
        raise Rejected("nothing measured")
    totals = {sample.name[:-1] for sample in samples if sample.name in ("1-0:1.8.0", "1-0:2.8.0")}
    return [s for s in samples if s.name[:-1] not in totals or s.name.endswith(".0")]


def _lines(payload: bytes) -> dict[str, list[str]]:
    if len(payload) > LONGEST:
        raise Rejected("too long")
    try:
        text = payload.decode("ascii")
    except UnicodeDecodeError:
        raise Rejected("not ASCII") from None
    lines: dict[str, list[str]] = {}
    for line in text.splitlines()[1:]:
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        groups = found[2][1:-1].split(")(")
        if lines.setdefault(found[1], groups) != groups:
            raise Rejected("told twice")
    return lines


def _sample(
    code: str, groups: list[str], time: float, device: str, hours: float
) -> SourceSample | None:
    """Return the sample of a measuring line: its last group is ``number*unit``."""
    value, star, unit = groups[-1].partition("*")
    if not star:
        return None
    if not _NUMBER.fullmatch(value):
        raise Rejected("bad value")
    medium, _, rest = code.partition(":")
    channel = medium.partition("-")[2]
    if rest != "24.2.1":
        return SourceSample(code, time, float(value), unit, device) if len(groups) == 1 else None
    if len(groups) != 2:
        raise Rejected("bad value")
    own = f"{device}/{channel}"
    return SourceSample("0-n:24.2.1", _moment(groups, hours), float(value), unit, own)


def _moment(groups: list[str], hours: float) -> float:
    """Parse ``YYMMDDhhmmssX``; X is S in summer time, W in winter time."""
    text = groups[0]
    summer = {"S": 1.0, "W": 0.0}.get(text[12:])
    if summer is None or not (text[:12].isascii() and text[:12].isdecimal()):
        raise Rejected("bad time")
    try:
        local = datetime.strptime(text[:12], "%y%m%d%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        raise Rejected("bad time") from None
    return local.timestamp() - (hours + summer) * 3600


def _hashed(serial: str) -> str:
    """Hash a serial number: meters stay distinct, and no number leads to a household."""
    return hashlib.sha256(serial.encode()).hexdigest()[:8] if serial else ""
