"""What is where in a device's registers, and how it is coded; pure."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from edge_sdk.forecasting.series import Flag
from edge_sdk.sources.base import RawFrame, Rejected, SourceSample
from edge_sdk.sources.normaliser import NO_CLOCK_BEFORE
from edge_sdk.wire.schema import Between

Table = Literal["holding", "input"]

_MOST = 120  # registers one request may ask for
_SPARE = 8  # unwanted registers read along rather than ask twice
_ABSENT = {
    "u16": 0xFFFF,
    "i16": -0x8000,
    "u32": 0xFFFFFFFF,
    "i32": -0x80000000,
    "u64": 0xFFFFFFFFFFFFFFFF,
    "i64": -0x8000000000000000,
}
"""What a device says where it has nothing to say."""

_FORMS = {"u16": ">H", "i16": ">h", "u32": ">I", "i32": ">i", "u64": ">Q", "i64": ">q"}
_FORMS |= {"f32": ">f", "f64": ">d"}


@dataclass(frozen=True, slots=True)
class RegisterPoint:
    """One value in a device's registers.

    Attributes:
        name: Looked up in the table of names.
        at: Address of its first register, from 0.
        form: How it is coded.
        table: Which registers: ``holding`` (function 3) or ``input`` (4).
        words: Which of its registers comes first: the ``big`` end, or the ``little`` one.
        unit: Of the value, scaled.
        scale: Factor.
        scale_at: Register with a power of ten on top of it; devices change it as they run.
        zero_is_absent: Whether 0 means that nothing is counted (SunSpec's accumulators).
    """

    name: str
    at: Annotated[int, Between(0, 65535)]
    form: Literal["u16", "i16", "u32", "i32", "u64", "i64", "f32", "f64"] = "u16"
    table: Table = "holding"
    words: Literal["big", "little"] = "big"
    unit: str = ""
    scale: float = 1.0
    scale_at: Annotated[int, Between(0, 65535)] | None = None
    zero_is_absent: bool = False

    @property
    def length(self) -> int:
        """How many registers it takes."""
        return struct.calcsize(_FORMS[self.form]) // 2

    def read(self, registers: Mapping[int, int]) -> float | None:
        """Return its value; None where the device has none.

        Raises:
            LookupError: A register that was not read.

        Example:
            >>> energy = RegisterPoint("import.energy", 10, "u32", words="little", unit="Wh")
            >>> energy.read({10: 0x0001, 11: 0x0002})
            131073.0
            >>> print(energy.read({10: 0xFFFF, 11: 0xFFFF}))
            None
        """
        words = [registers[self.at + offset] for offset in range(self.length)]
        if self.words == "little":
            words.reverse()
        value = struct.unpack(_FORMS[self.form], struct.pack(f">{len(words)}H", *words))[0]
        if value == _ABSENT.get(self.form) or (self.zero_is_absent and not value):
            return None
        factor = self.scale
        if self.scale_at is not None:
            power = registers[self.scale_at]
            power -= (power & 0x8000) << 1
            if not -10 <= power <= 10:
                return None
            factor *= 10.0**power
        return float(value) * factor


def spans(points: Iterable[RegisterPoint]) -> list[tuple[Table, int, int]]:
    """Return the requests that cover all points: table, first register, how many.

    >>> spans([RegisterPoint("a", 0, "u32"), RegisterPoint("b", 6), RegisterPoint("c", 300)])
    [('holding', 0, 7), ('holding', 300, 1)]
    """
    wanted: set[tuple[Table, int, int]] = set()
    for point in points:
        wanted.add((point.table, point.at, point.at + point.length))
        if point.scale_at is not None:
            wanted.add((point.table, point.scale_at, point.scale_at + 1))
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
    """Decode what one round of questions brought.

    Args:
        frame: Lines ``table address hex``.
        points: What to look for; those that the device told of itself come in the frame.
        device: Name for its registers.

    Raises:
        Rejected: Not such lines.

    Example:
        >>> frame = RawFrame(b"holding 10 00020001", 1.7e9)
        >>> [s.value for s in block(frame, (RegisterPoint("import.energy", 10, "u32", unit="Wh"),))]
        [131073.0]
    """
    registers: dict[str, dict[int, int]] = {"holding": {}, "input": {}}
    told: list[RegisterPoint] = []
    for line in frame.payload.decode("ascii").splitlines():
        match line.split():
            case ["point", *words]:
                told.append(_point(words))
            case [("holding" | "input") as table, at, text] if len(text) % 4 == 0:
                read = [int(text[i : i + 4], 16) for i in range(0, len(text), 4)]
                registers[table] |= {int(at) + i: word for i, word in enumerate(read)}
            case _:
                raise Rejected("not registers")
    flags = Flag.CLOCK_UNSYNCED if frame.at < NO_CLOCK_BEFORE else Flag.NONE
    samples = []
    for point in points or told:
        held = registers[point.table]
        if point.at not in held:
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
    """Write down a point that the device told of itself, for whoever reads a recording of it."""
    scale = "-" if point.scale_at is None else point.scale_at
    return (
        f"point {point.name} {point.at} {point.form} {point.unit} {scale} {point.zero_is_absent:d}"
    )


def _point(words: list[str]) -> RegisterPoint:
    name, at, form, unit, scale_at, zero = words
    if form not in _FORMS:
        raise Rejected("not registers")
    scale = None if scale_at == "-" else int(scale_at)
    return RegisterPoint(name, int(at), form, unit=unit, scale_at=scale, zero_is_absent=zero == "1")  # type: ignore[arg-type]
