"""Describe the layout and coding of a device's registers; pure functions."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from edge_sdk.app.schema import Between
from edge_sdk.extensions.sources.base import RawFrame, Rejected, SourceSample
from edge_sdk.extensions.sources.normaliser import NO_CLOCK_BEFORE
from edge_sdk.forecasting.series import Flag

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
    """One value in a device's registers."""

    name: str  # key in the table of names
    address: Annotated[int, Between(0, 65535)]  # address of its first register, from 0
    # Coding of the value
    data_type: Literal["u16", "i16", "u32", "i32", "u64", "i64", "f32", "f64"] = "u16"
    table: Table = "holding"  # register table: ``holding`` (function 3) or ``input`` (4)
    word_order: Literal["big", "little"] = "big"  # word order: ``big`` or ``little`` end first
    unit: str = ""  # unit of the scaled value
    scale: float = 1.0  # factor
    # register with an additional power of ten, which may change at run time
    scale_address: Annotated[int, Between(0, 65535)] | None = None
    zero_is_absent: bool = False  # true if 0 means that nothing is counted (SunSpec's accumulators)

    @property
    def length(self) -> int:
        return struct.calcsize(_FORMS[self.data_type]) // 2

    def read(self, registers: Mapping[int, int]) -> float | None:
        """Return its value; None if the device marks it as not available.

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


class RegisterRequest(NamedTuple):
    """One request: the registers of some points, and unneeded ones between them."""

    table: Table
    # first register, end and name of each point or scale, ascending
    parts: tuple[tuple[int, int, str], ...]

    @property
    def first(self) -> int:
        return self.parts[0][0]

    @property
    def end(self) -> int:
        """Return the number after the last register."""
        return max(end for _, end, _ in self.parts)

    def halves(self) -> tuple[RegisterRequest, ...]:
        """Return two requests for the same registers, or none if it is for one point alone.

        >>> (whole,) = requests([RegisterPoint("a", 0, "u32"), RegisterPoint("b", 6)])
        >>> [(half.first, half.end) for half in whole.halves()]
        [(0, 2), (6, 7)]
        """
        middle = len(self.parts) // 2
        return (self._of(self.parts[:middle]), self._of(self.parts[middle:])) if middle else ()

    def _of(self, parts: tuple[tuple[int, int, str], ...]) -> RegisterRequest:
        return self._replace(parts=parts)


def requests(points: Iterable[RegisterPoint]) -> list[RegisterRequest]:
    """Return the requests that cover all points.

    >>> points = [RegisterPoint("a", 0, "u32"), RegisterPoint("b", 6), RegisterPoint("c", 300)]
    >>> [(one.table, one.first, one.end) for one in requests(points)]
    [('holding', 0, 7), ('holding', 300, 301)]
    """
    wanted: dict[tuple[Table, int, int], str] = {}
    for point in points:
        wanted[point.table, point.address, point.address + point.length] = point.name
        if point.scale_address is not None:
            scale = (point.table, point.scale_address, point.scale_address + 1)
            wanted.setdefault(scale, f"{point.name} (scale)")
    merged: list[RegisterRequest] = []
    for (table, start, end), name in sorted(wanted.items()):
        new = RegisterRequest(table, ((start, end, name),))
        if merged:
            last = merged[-1]
            is_near = table == last.table and start <= last.end + _SPARE
            if is_near and max(end, last.end) - last.first <= _MOST:
                merged[-1] = RegisterRequest(table, (*last.parts, *new.parts))
                continue
        merged.append(new)
    return merged


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

    Returns:
        The values of the points whose registers were read; one that the device marks as not
        available has its reason in place of a value.

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
    flags = int(Flag.CLOCK_UNSYNCED if frame.at < NO_CLOCK_BEFORE else Flag.NONE)
    samples = []
    for point in points or discovered:
        try:
            value = point.read(registers[point.table])
        except LookupError:  # the device refused its registers, or those of its scale
            continue
        is_there = value is not None and math.isfinite(value)
        samples.append(
            SourceSample(
                point.name,
                frame.at,
                value if value is not None and is_there else math.nan,
                point.unit,
                device,
                flags,
                fault="" if is_there else "not available",
            )
        )
    if not samples:
        raise Rejected("nothing measured")
    return samples


def described(point: RegisterPoint) -> str:
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
