"""From an interface's own names and units to canonical streams: a table that users extend."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from edge_sdk.app.settings import from_table
from edge_sdk.forecasting.series import STREAMS

TABLE = Path(__file__).with_name("streams.toml")

UNITS: Mapping[str, tuple[str, float]] = {
    "Wh": ("kWh", 1e-3),
    "kWh": ("kWh", 1.0),
    "MWh": ("kWh", 1e3),
    "W": ("kW", 1e-3),
    "kW": ("kW", 1.0),
    "MW": ("kW", 1e3),
    "m3": ("m³", 1.0),
    "m³": ("m³", 1.0),
    "dm3": ("m³", 1e-3),
    "%": ("%", 1.0),
    "bit": ("Mbit", 1e-6),
    "kbit": ("Mbit", 1e-3),
    "Mbit": ("Mbit", 1.0),
    "MB": ("Mbit", 8.0),
    "kbit/s": ("Mbit/s", 1e-3),
    "Mbit/s": ("Mbit/s", 1.0),
    "1": ("1", 1.0),
}
"""Unit of an interface to ours and the factor. What is not here is refused, never guessed."""


@dataclass(frozen=True, slots=True)
class StreamName:
    """What one name of an interface means.

    Attributes:
        stream: The canonical stream.
        kind: ``register`` rises for ever, ``interval`` is a sum over one, ``instant`` a moment's.
        unit: What its values are in where the interface itself does not say.
        scale: Factor on top of the unit's.
    """

    stream: str
    kind: Literal["register", "interval", "instant"] = "instant"
    unit: str = ""
    scale: float = 1.0

    def canonical(self, value: float, unit: str) -> float:
        """Return a value in the stream's unit.

        A unit the interface names wins over the table's; a stream of the user's own has any.

        Raises:
            ValueError: A unit that does not measure this stream.

        Example:
            >>> StreamName("elec.import.energy").canonical(1500, "Wh")
            1.5
            >>> StreamName("elec.import.energy").canonical(1500, "W")
            Traceback (most recent call last):
            ValueError: elec.import.energy is in kWh, not in 'W'
        """
        said = unit or self.unit
        if self.stream not in STREAMS:
            return value * self.scale
        wanted = STREAMS[self.stream].unit
        ours, factor = UNITS.get(said, (said, 1.0)) if said else (wanted, 1.0)
        if ours != wanted:
            raise ValueError(f"{self.stream} is in {wanted}, not in {said!r}")
        return value * factor * self.scale


def names(interface: str, more: Mapping[str, Any], where: str) -> dict[str, StreamName]:
    """Return an interface's table with a user's rows on top; ``false`` takes a row away.

    Args:
        interface: Section of ``streams.toml``.
        more: The ``map`` of a ``[[source]]``: name to stream, to a table, or to ``false``.
        where: Blamed for what does not fit.

    Raises:
        SettingsError: A row that is none.

    Example:
        >>> table = names("p1", {"1-0:1.8.0": False, "7-0:3.0.0": "gas.import.volume"}, "source")
        >>> "1-0:1.8.0" in table, table["7-0:3.0.0"].kind
        (False, 'instant')
    """
    table = dict(_shipped().get(interface, {}))
    for name, row in more.items():
        if row is False:
            table.pop(name, None)
            continue
        fields = {"stream": row} if isinstance(row, str) else row
        table[name] = from_table(StreamName, fields, f"{where}.map.{name}")
    return table


@cache
def _shipped() -> dict[str, dict[str, StreamName]]:
    tables = tomllib.loads(TABLE.read_text("utf-8"))
    return {
        interface: {name: from_table(StreamName, row, TABLE.name) for name, row in rows.items()}
        for interface, rows in tables.items()
    }
