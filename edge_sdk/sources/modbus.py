"""Read Modbus registers of meters, rectifiers and inverters over TCP or a serial line.

Only functions 3 and 4 are implemented; no code here writes to a device. One poll is one frame of
lines ``table address hex``, so that a recording replays without a device. SunSpec devices describe
themselves: their chain of models is walked once, and the meter is read.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from edge_sdk.sources.base import RawFrame, Rejected
from edge_sdk.sources.byte_links import ByteLink, SourceAddress
from edge_sdk.sources.register_map import RegisterPoint, Table, described, spans

_FUNCTION: Mapping[str, int] = MappingProxyType({"holding": 3, "input": 4})
_MBAP = struct.Struct(">HHHB")
_BASES = (40_000, 50_000, 0)  # possible starts of a SunSpec chain


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
    """A client for one device on one link, with one request at a time.

    Attributes:
        link: Open link.
        unit: Unit identifier of the device.
        is_serial: True for serial framing (RTU), False for TCP framing.
        patience: Longest wait for a reply, in seconds.
    """

    link: ByteLink
    unit: int
    is_serial: bool
    patience: float
    _number: int = 0
    _kept: bytearray = field(default_factory=bytearray)

    def read(self, table: Table, at: int, count: int) -> list[int]:
        """Return the values of consecutive registers.

        Raises:
            Rejected: The device refuses the request; others may succeed.
            OSError: No reply, or an invalid one: the link must be opened again.
        """
        function = _FUNCTION[table]
        body = struct.pack(">BHH", function, at, count)
        answer = self._serial(body) if self.is_serial else self._tcp(body)
        if answer[0] == function | 0x80:
            raise Rejected("refused by the device")
        if answer[0] != function or len(answer) != 2 + 2 * count or answer[1] != 2 * count:
            raise ConnectionError("a reply with another transaction or unit id")
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
        if number != self._number or unit != self.unit:
            raise ConnectionError("a reply with another transaction or unit id")
        return answer

    def _serial(self, body: bytes) -> bytes:
        message = bytes([self.unit]) + body
        self.link.write(message + crc16(message).to_bytes(2, "little"))
        end = time.monotonic() + self.patience
        head = self._take(3, end)
        rest = self._take(2 if head[1] & 0x80 else head[2] + 2, end)
        answer = head + rest
        if crc16(answer[:-2]).to_bytes(2, "little") != answer[-2:] or answer[0] != self.unit:
            raise ConnectionError("a reply with a wrong checksum")
        return answer[1:-2]

    def _take(self, count: int, end: float) -> bytes:
        data, self._kept = self._kept, bytearray()
        while len(data) < count:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError("no answer")
            data += self.link.read(left)
        self._kept = data[count:]
        return bytes(data[:count])


def sunspec(read: Callable[[Table, int, int], list[int]]) -> list[RegisterPoint]:
    """Walk a device's chain of SunSpec models; return the points of its meter.

    Args:
        read: Function that reads registers.

    Raises:
        Rejected: There is no chain, or no integer meter model (201 to 204) in it.
    """
    for base in _BASES:
        try:
            if read("holding", base, 2) != [0x5375, 0x6E53]:
                continue
        except Rejected:
            continue
        at = base + 2
        for _ in range(64):
            model, length = read("holding", at, 2)
            if 201 <= model <= 204:
                return _meter(at)
            if model == 0xFFFF or at + length + 4 > 65_535:
                break
            at += 2 + length
    raise Rejected("no SunSpec meter")


def _meter(at: int) -> list[RegisterPoint]:
    """Return the points of a meter model that begins at a register."""
    energy = {"data_type": "u32", "unit": "Wh", "scale_address": at + 54, "zero_is_absent": True}
    return [
        RegisterPoint("export.energy", at + 38, **energy),  # type: ignore[arg-type]
        RegisterPoint("import.energy", at + 46, **energy),  # type: ignore[arg-type]
        RegisterPoint("power", at + 18, "i16", unit="W", scale_address=at + 22),
    ]


@dataclass(slots=True)
class PollingFeed:
    """A feed that polls all points at an interval.

    Attributes:
        address: Address of the device.
        unit: Unit identifier.
        is_serial: True for serial framing.
        every: Seconds between two polls.
        patience: Longest wait for a reply, in seconds.
        points: Points to read; empty discovers them (SunSpec).
        rejected: Refused requests, by reason.
    """

    address: SourceAddress
    unit: int
    is_serial: bool
    every: float
    patience: float
    points: tuple[RegisterPoint, ...]
    rejected: Counter[str] = field(default_factory=Counter)
    _master: ModbusClient | None = None
    _asked: tuple[RegisterPoint, ...] = ()
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
        master = self._master
        self._next = time.monotonic() + self.every
        try:
            self._asked = self._asked or self.points or tuple(sunspec(master.read))
        except Rejected as verdict:
            self.rejected[verdict.reason] += 1
            return []
        lines = list(self._lines(master))
        return [RawFrame("\n".join(lines).encode(), time.time())] if lines else []

    def _lines(self, master: ModbusClient) -> Iterator[str]:
        if not self.points:  # a recording must contain the discovered points
            yield from map(described, self._asked)
        for table, at, count in spans(self._asked):
            try:
                words = master.read(table, at, count)
            except Rejected as verdict:
                self.rejected[verdict.reason] += 1
                continue
            yield f"{table} {at} {''.join(f'{word:04x}' for word in words)}"

    def close(self) -> None:
        """Close the link; the points are discovered again after it reopens."""
        self._asked = ()
        if self._master is not None:
            self._master.link.close()
            self._master = None
