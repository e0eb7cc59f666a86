"""Read Modbus registers of meters, rectifiers and inverters over TCP or a serial line.

Only functions 3 and 4 are implemented; no code here writes to a device. One poll is one frame of
lines ``table address hex``, so that a recording replays without a device. SunSpec devices describe
themselves: their chain of models is walked once, and the meter is read.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal

from edge_sdk.app.schema import Between, Length
from edge_sdk.app.settings import Duration, seconds
from edge_sdk.errors import ConfigError
from edge_sdk.extensions.sources.base import Decoder, FramedLink, RawFrame, Rejected, tally
from edge_sdk.extensions.sources.byte_links import ByteLink, SourceAddress
from edge_sdk.extensions.sources.interface import Interface, LiveSection
from edge_sdk.extensions.sources.register_map import (
    RegisterPoint,
    RegisterRequest,
    Table,
    block,
    described,
    requests,
)

_FUNCTION: Mapping[str, int] = MappingProxyType({"holding": 3, "input": 4})
_MBAP = struct.Struct(">HHHB")

_INTEGERS, _FLOATS = range(201, 205), range(211, 215)  # SunSpec's models of a meter
BASES = (40_000, 50_000, 0)
"""Possible starts of a SunSpec chain."""

_ILLEGAL_ADDRESS = "illegal data address"
_ERRORS: Mapping[int, str] = MappingProxyType(
    {
        1: "illegal function",
        2: _ILLEGAL_ADDRESS,
        3: "illegal data value",
        4: "device failure",
        6: "device busy",
        10: "gateway path unavailable",
        11: "no answer from the device behind the gateway",
    }
)
_SMALLER = frozenset({f"refused by the device: {_ERRORS[code]}" for code in (2, 3, 4)})
"""Refusals after which a request for fewer registers may succeed."""


def crc16(data: bytes) -> int:
    """Return the checksum of a serial message: reflected 0x8005, start 0xFFFF.

    >>> hex(crc16(b"123456789"))
    '0x4b37'
    """
    crc = 0xFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0xA001 if crc & 1 else crc >> 1
    return crc


@dataclass(slots=True)
class ModbusClient:
    """A client for one device on one link, with one request at a time."""

    link: ByteLink
    unit: int  # unit identifier of the device
    is_serial: bool  # true for serial framing (RTU), False for TCP framing
    patience: float  # longest wait for a reply, in seconds
    _number: int = 0
    _kept: bytearray = field(default_factory=bytearray)

    def read(self, table: Table, at: int, count: int) -> list[int]:
        """Return the values of consecutive registers.

        Raises:
            Rejected: The device refuses the request; others may succeed.
            OSError: No reply, or an invalid one: the link must be opened again. Its text says why.
        """
        function = _FUNCTION[table]
        body = struct.pack(">BHH", function, at, count)
        answer = self._serial(body) if self.is_serial else self._tcp(body)
        if answer[0] == function | 0x80:
            error = _ERRORS.get(answer[1], f"exception {answer[1]}")
            raise Rejected(f"refused by the device: {error}")
        if answer[0] != function or len(answer) != 2 + 2 * count or answer[1] != 2 * count:
            raise ConnectionError("a reply of another function or length")
        return list(struct.unpack(f">{count}H", answer[2:]))

    def _tcp(self, body: bytes) -> bytes:
        self._number = (self._number + 1) % 65536
        self.link.write(_MBAP.pack(self._number, 0, 1 + len(body), self.unit) + body)
        end = time.monotonic() + self.patience
        head = self._take(_MBAP.size, end)
        number, protocol, length, unit = _MBAP.unpack(head)
        if protocol != 0 or not 3 <= length <= 254:
            raise ConnectionError("not Modbus")
        answer = self._take(length - 1, end)
        self._require(unit)
        if number != self._number:
            raise ConnectionError("a reply to another request")
        return answer

    def _require(self, unit: int) -> None:
        if unit != self.unit:
            raise ConnectionError(f"a reply from unit {unit}, not {self.unit}; see unit_id")

    def _serial(self, body: bytes) -> bytes:
        message = bytes([self.unit]) + body
        self.link.write(message + crc16(message).to_bytes(2, "little"))
        end = time.monotonic() + self.patience
        head = self._take(3, end)
        rest = self._take(2 if head[1] & 0x80 else head[2] + 2, end)
        answer = head + rest
        if crc16(answer[:-2]).to_bytes(2, "little") != answer[-2:]:
            raise ConnectionError("a reply with a wrong checksum")
        self._require(answer[0])
        return answer[1:-2]

    def _take(self, count: int, end: float) -> bytes:
        data, self._kept = self._kept, bytearray()
        while len(data) < count:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no answer from unit {self.unit}")
            data += self.link.read(left)
        self._kept = data[count:]
        return bytes(data[:count])


def sunspec(
    read: Callable[[Table, int, int], list[int]], bases: Iterable[int] = BASES
) -> list[RegisterPoint]:
    """Walk a device's chain of SunSpec models; return the points of its meter.

    Args:
        read: Function that reads registers.
        bases: Possible starts of the chain, in the order in which they are tried.

    Raises:
        Rejected: There is no chain, or no meter model (201 to 204, 211 to 214) in it.
        OSError: As ``read``: the device may answer at another base.
    """
    models: list[int] = []
    for base in bases:
        try:
            if read("holding", base, 2) != [0x5375, 0x6E53]:
                continue
            at = base + 2
            for _ in range(64):
                model, length = read("holding", at, 2)
                if model in _INTEGERS:
                    return _meter(at)
                if model in _FLOATS:
                    return _float_meter(at)
                if model == 0xFFFF or at + length + 4 > 65_535:
                    break
                models.append(model)
                at += 2 + length
        except Rejected:
            continue
    if models:
        listed = ", ".join(map(str, models[:8]))
        raise Rejected(f"no SunSpec meter (model 201 to 204, 211 to 214) among models {listed}")
    raise Rejected(f"no SunSpec chain at {', '.join(map(str, BASES))}")


def _meter(at: int) -> list[RegisterPoint]:
    energy = {"data_type": "u32", "unit": "Wh", "scale_address": at + 54, "zero_is_absent": True}
    return [
        RegisterPoint("export.energy", at + 38, **energy),  # type: ignore[arg-type]
        RegisterPoint("import.energy", at + 46, **energy),  # type: ignore[arg-type]
        RegisterPoint("power", at + 18, "i16", unit="W", scale_address=at + 22),
    ]


def _float_meter(at: int) -> list[RegisterPoint]:
    """Return the points of a model whose values are float32, and not a number where there is none."""
    return [
        RegisterPoint("export.energy", at + 60, "f32", unit="Wh"),
        RegisterPoint("import.energy", at + 68, "f32", unit="Wh"),
        RegisterPoint("power", at + 28, "f32", unit="W"),
    ]


@dataclass(slots=True)
class PollingFeed:
    """A feed that polls all points at an interval."""

    address: SourceAddress
    unit: int
    is_serial: bool
    every: float  # seconds between two polls
    patience: float  # longest wait for a reply, in seconds
    points: tuple[RegisterPoint, ...]  # points to read; empty discovers them (SunSpec)
    # refused requests and lost links, by reason
    rejected: Counter[str] = field(default_factory=Counter)
    # points whose registers the device refuses, by name and reason
    unused: Counter[str] = field(default_factory=Counter)
    _master: ModbusClient | None = None
    _asked: tuple[RegisterPoint, ...] = ()
    _divided: set[RegisterRequest] = field(default_factory=set)
    _answered: set[RegisterRequest] = field(default_factory=set)
    _bases: tuple[int, ...] = BASES
    _next: float = 0.0

    def frames(self, patience: float) -> list[RawFrame]:
        """Wait for the next poll, at most ``patience`` seconds; return the values read."""
        left = self._next - time.monotonic()
        if left > 0:
            time.sleep(min(left, patience))
            return []
        if self._master is None:
            link = self.address.open()
            self._master = ModbusClient(link, self.unit, self.is_serial, self.patience)
        self._next = time.monotonic() + self.every
        try:
            lines = list(self._lines(self._master))
        except Rejected as verdict:
            self.rejected[verdict.reason] += 1
            return []
        except OSError as error:
            self.rejected[str(error)] += 1
            self._next = 0.0
            raise
        return [RawFrame("\n".join(lines).encode(), time.time())] if lines else []

    def _lines(self, master: ModbusClient) -> Iterator[str]:
        """Read all points; divide a request that never succeeded, because a register may not exist."""
        self._asked = self._asked or self.points or self._discovered(master)
        if not self.points:  # a recording must contain the discovered points
            yield from map(described, self._asked)
        waiting = requests(self._asked)[::-1]
        while waiting:
            request = waiting.pop()
            if request in self._divided:
                waiting += request.halves()[::-1]
                continue
            is_divisible = request not in self._answered and bool(request.halves())
            try:
                words = master.read(request.table, request.first, request.end - request.first)
            except Rejected as verdict:
                if is_divisible and verdict.reason in _SMALLER:
                    self._divided.add(request)
                    waiting.append(request)
                    continue
                self.rejected[verdict.reason] += 1
                for _, _, name in request.parts:
                    tally(self.unused, name, verdict.reason)
            except (
                TimeoutError,
                ConnectionResetError,
            ):  # some devices do not refuse, but fall silent
                self._divided |= {request} if is_divisible else set()
                raise
            else:
                self._answered.add(request)
                yield f"{request.table} {request.first} {''.join(f'{word:04x}' for word in words)}"

    def _discovered(self, master: ModbusClient) -> tuple[RegisterPoint, ...]:
        """Find the meter; where the device is silent at a base, begin with the next one next time."""
        tried: list[int] = []

        def read(table: Table, at: int, count: int) -> list[int]:
            tried.extend([at] if at in self._bases else [])
            return master.read(table, at, count)

        try:
            return tuple(sunspec(read, self._bases))
        except OSError:
            turn = self._bases.index(tried[-1]) + 1
            self._bases = self._bases[turn:] + self._bases[:turn]
            raise

    def close(self) -> None:
        """Close the link; the points are discovered again after it reopens."""
        self._asked = ()
        if self._master is not None:
            self._master.link.close()
            self._master = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModbusSection(LiveSection):
    """``type = "modbus"``: registers of a meter or a power supply, read-only."""

    url: str  # tcp://host:502 or serial:///dev/ttyUSB0?baud=9600
    unit_id: Annotated[int, Between(0, 255)] = 1  # unit identifier
    framing: Literal["auto", "rtu"] = "auto"  # rtu: serial framing, also behind a TCP converter
    poll_interval: Duration = "10s"  # polling interval
    timeout: Duration = "2s"  # longest wait for a reply
    sunspec: bool = False  # discover the points by SunSpec, instead of point
    point: Annotated[tuple[RegisterPoint, ...], Length(0, 256)] = ()  # registers to read
    renamed: ClassVar[Mapping[str, str]] = {
        **LiveSection.renamed,
        "every": "poll_interval",
        "patience": "timeout",
        "point[].at": "point[].address",
        "point[].form": "point[].data_type",
        "point[].scale_at": "point[].scale_address",
        "point[].words": "point[].word_order",
        "unit": "unit_id",
    }


def _feed(section: ModbusSection) -> FramedLink:
    if bool(section.point) == section.sunspec:
        raise ConfigError("source modbus: needs either [[source.point]] or sunspec = true")
    address = SourceAddress.parse(section.url)
    is_serial = section.framing == "rtu" or address.scheme == "serial"
    interval, timeout = seconds(section.poll_interval), seconds(section.timeout)
    return PollingFeed(address, section.unit_id, is_serial, interval, timeout, section.point)


def _decoder(section: ModbusSection) -> Decoder:
    return lambda frame: block(frame, section.point, f"{section.unit_id}")


MODBUS = Interface("modbus", ModbusSection, _feed, _decoder)
