"""Map an interface's names and units to canonical streams, by a table that users can extend."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.settings import SettingsError, from_table
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
    "°F": ("°C", 5 / 9),
    "K": ("°C", 1.0),
    "km/h": ("m/s", 1 / 3.6),
    "mph": ("m/s", 0.44704),
    "kn": ("m/s", 1852 / 3600),
    "W/m2": ("W/m²", 1.0),
    "1": ("1", 1.0),
}
"""Canonical unit and factor of each interface unit. Any other unit is refused, never guessed."""

ZEROS: Mapping[str, float] = {"°F": 32.0, "K": 273.15}
"""Value of an interface unit at which the canonical unit is zero, where that is not zero."""


@dataclass(frozen=True, slots=True)
class StreamName:
    """The meaning of one name of an interface."""

    stream: str  # canonical stream
    # ``register`` is cumulative, ``interval`` a sum over one, ``instant`` a momentary value
    kind: Literal["register", "interval", "instant"] = "instant"
    unit: str = ""  # unit of the values where the interface does not name one
    scale: float = 1.0  # factor in addition to the unit's

    def canonical(self, value: float, unit: str) -> float:
        """Return a value in the stream's unit.

        A unit from the interface overrides the table's; a user-defined stream accepts any unit.

        >>> StreamName("elec.import.energy").canonical(1500, "Wh")
        1.5
        >>> StreamName("weather.temperature").canonical(50, "°F")
        10.0
        >>> StreamName("elec.import.energy").canonical(1500, "W")
        Traceback (most recent call last):
        ValueError: elec.import.energy is in kWh, not in 'W'
        """
        named = unit or self.unit
        if self.stream not in STREAMS:
            return value * self.scale
        wanted = STREAMS[self.stream].unit
        own_unit, factor = UNITS.get(named, (named, 1.0)) if named else (wanted, 1.0)
        if own_unit != wanted:
            raise ValueError(f"{self.stream} is in {wanted}, not in {named!r}")
        return value * factor * self.scale - ZEROS.get(named, 0.0) * factor


def names(interface: str, more: Mapping[str, Any], where: str) -> dict[str, StreamName]:
    """Return an interface's table extended by a user's rows; ``false`` removes a row.

    A row without a kind has that of the interface's own rows of its stream; of another stream it is
    ``instant``.

    Args:
        interface: Section of ``streams.toml``.
        more: The ``map`` of a ``[[source]]``: name to stream, to a table, or to ``false``.
        where: Origin named in an error message.

    Raises:
        SettingsError: An invalid row, or one without a kind for a stream of energy, volume or another
            sum that the interface has no row of.

    >>> table = names("p1", {"1-0:1.8.0": False, "7-0:3.0.0": "gas.import.volume"}, "source")
    >>> "1-0:1.8.0" in table, table["7-0:3.0.0"].kind
    (False, 'register')
    >>> names("p1", {"7-0:3.0.0": "ev.demand.energy"}, "source")
    Traceback (most recent call last):
    edge_sdk.app.settings.SettingsError: source.map.7-0:3.0.0: ev.demand.energy is a sum: kind must \

    be "register" or "interval"
    """
    shipped = _shipped().get(interface, {})
    kinds = {row.stream: row.kind for row in reversed(shipped.values())}
    table = dict(shipped)
    for name, row in more.items():
        if row is False:
            table.pop(name, None)
            continue
        fields = {"stream": row} if isinstance(row, str) else row
        made = from_table(StreamName, fields, f"{where}.map.{name}")
        if "kind" not in fields:
            made = replace(made, kind=kinds.get(made.stream, "instant"))
        if made.kind == "instant" and made.stream in STREAMS and STREAMS[made.stream].adds:
            raise SettingsError(
                f'{where}.map.{name}: {made.stream} is a sum: kind must be "register" or "interval"'
            )
        table[name] = made
    return table


@cache
def _shipped() -> dict[str, dict[str, StreamName]]:
    tables = tomllib.loads(TABLE.read_text("utf-8"))
    return {
        interface: {
            name: made
            for pattern, row in rows.items()
            for made in (from_table(StreamName, row, TABLE.name),)
            for name in _each(pattern)
        }
        for interface, rows in tables.items()
    }


def _each(pattern: str) -> Iterator[str]:
    """Yield the names of a row: one, or one for each number of ``{1..63}``.

    >>> [*_each("1-0:1.8.{1..3}")]
    ['1-0:1.8.1', '1-0:1.8.2', '1-0:1.8.3']
    """
    head, _, rest = pattern.partition("{")
    first, dots, last = rest.removesuffix("}").partition("..")
    if not dots:
        yield pattern
        return
    for number in range(int(first), int(last) + 1):
        yield f"{head}{number}"
