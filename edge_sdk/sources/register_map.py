"""Describe the layout and coding of a device's registers; pure functions."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from edge_sdk.forecasting.series import Flag
from edge_sdk.sources.base import RawFrame, Rejected, SourceSample
from edge_sdk.sources.normaliser import NO_CLOCK_BEFORE
from edge_sdk.wire.schema import Between

Table = Literal["holding", "input"]

_MOST = 120  # registers per request at most
_SPARE = 8  # unneeded registers read along to save a request
_ABSENT = {
    "u16": 0xFFFF,
    "i16": -0x8000,
    "u32": 0xFFFFFFFF,
    "i32": -0x80000000,
    "u64": 0xFFFFFFFFFFFFFFFF,
    "i64": -0x8000000000000000,
}
"""Values that mean "not available", by coding."""

_FORMS = {"u16": ">H", "i16": ">h", "u32": ">I", "i32": ">i", "u64": ">Q", "i64": ">q"}
_FORMS |= {"f32": ">f", "f64": ">d"}


@dataclass(frozen=True, slots=True)
class RegisterPoint:
    """One value in a device's registers.

    Attributes:
        name: Key in the table of names.
        address: Address of its first register, from 0.
        data_type: Coding of the value.
        table: Register table: ``holding`` (function 3) or ``input`` (4).
        word_order: Word order: ``big`` or ``little`` end first.
        unit: Unit of the scaled value.
        scale: Factor.
        scale_address: Register with an additional power of ten, which may change at run time.
        zero_is_absent: True if 0 means that nothing is counted (SunSpec's accumulators).
    """

    name: str
    address: Annotated[int, Between(0, 65535)]
    data_type: Literal["u16", "i16", "u32", "i32", "u64", "i64", "f32", "f64"] = "u16"
    table: Table = "holding"
    word_order: Literal["big", "little"] = "big"
    unit: str = ""
    scale: float = 1.0
    scale_address: Annotated[int, Between(0, 65535)] | None = None
    zero_is_absent: bool = False

    @property
    def length(self) -> int:
        """Number of registers that it occupies."""
        return struct.calcsize(_FORMS[self.data_type]) // 2

    def read(self, registers: Mapping[int, int]) -> float | None:
        """Return its value; None if the device marks it as not available.

        Raises:
            LookupError: A register that was not read.

        Example:
            >>> energy = RegisterPoint("import.energy", 10, "u32", word_order="little", unit="Wh")
            >>> energy.read({10: 0x0001, 11: 0x0002})
            131073.0
            >>> print(energy.read({10: 0xFFFF, 11: 0xFFFF}))
            None
        """
        words = [registers[self.address + offset] for offset in range(self.length)]
        if self.word_order == "little":
            words.reverse()
        value = struct.unpack(_FORMS[self.data_type], struct.pack(f">{len(words)}H", *words))[0]
        if value == _ABSENT.get(self.data_type) or (self.zero_is_absent and not value):
            return None
        factor = self.scale
        if self.scale_address is not None:
            power = registers[self.scale_address]
            power -= (power & 0x8000) << 1
            if not -10 <= power <= 10:
                return None
            factor *= 10.0**power
        return float(value) * factor


def spans(points: Iterable[RegisterPoint]) -> list[tuple[Table, int, int]]:
    """Return the requests that cover all points: table, first register, count.

    >>> spans([RegisterPoint("a", 0, "u32"), RegisterPoint("b", 6), RegisterPoint("c", 300)])
    [('holding', 0, 7), ('holding', 300, 1)]
    """
    wanted: set[tuple[Table, int, int]] = set()
    for point in points:
        wanted.add((point.table, point.address, point.address + point.length))
        if point.scale_address is not None:
            wanted.add((point.table, point.scale_address, point.scale_address + 1))
    merged: list[tuple[Table, int, int]] = []
    for table, start, end in sorted(wanted):
        if merged:
            table_before, first, last = merged[-1]
            if table == table_before and start <= last + _SPARE and end - first <= _MOST:
                merged[-1] = (table, first, max(last, end))
                continue
        merged.append((table, start, end))
    return [(table, start, end - start) for table, start, end in merged]


def block(
    frame: RawFrame, points: tuple[RegisterPoint, ...], device: str = ""
) -> list[SourceSample]:
    """Decode the registers of one poll.

    Args:
        frame: Lines ``table address hex``.
        points: Points to decode; discovered points are contained in the frame.
        device: Device name of the samples.

    Raises:
        Rejected: Lines in another format.

    Example:
        >>> frame = RawFrame(b"holding 10 00020001", 1.7e9)
        >>> [s.value for s in block(frame, (RegisterPoint("import.energy", 10, "u32", unit="Wh"),))]
        [131073.0]
    """
    registers: dict[str, dict[int, int]] = {"holding": {}, "input": {}}
    discovered: list[RegisterPoint] = []
    for line in frame.payload.decode("ascii").splitlines():
        match line.split():
            case ["point", *words]:
                discovered.append(_point(words))
            case [("holding" | "input") as table, at, text] if len(text) % 4 == 0:
                read = [int(text[i : i + 4], 16) for i in range(0, len(text), 4)]
                registers[table] |= {int(at) + i: word for i, word in enumerate(read)}
            case _:
                raise Rejected("not registers")
    flags = Flag.CLOCK_UNSYNCED if frame.at < NO_CLOCK_BEFORE else Flag.NONE
    samples = []
    for point in points or discovered:
        held = registers[point.table]
        if point.address not in held:
            continue
        value = point.read(held)
        if value is not None and math.isfinite(value):
            samples.append(
                SourceSample(point.name, frame.at, value, point.unit, device, int(flags))
            )
    if not samples:
        raise Rejected("nothing measured")
    return samples


def described(point: RegisterPoint) -> str:
    """Format a discovered point as a line of the recording."""
    scale = "-" if point.scale_address is None else point.scale_address
    return f"point {point.name} {point.address} {point.data_type} {point.unit} {scale} {point.zero_is_absent:d}"


def _point(words: list[str]) -> RegisterPoint:
    name, address, data_type, unit, scale_address, zero = words
    if data_type not in _FORMS:
        raise Rejected("not registers")
    scale = None if scale_address == "-" else int(scale_address)
    kind: Any = data_type
    is_absent = zero == "1"
    return RegisterPoint(
        name, int(address), kind, unit=unit, scale_address=scale, zero_is_absent=is_absent
    )
