"""Parse the sampled values of OCPP 1.6 and 2.0.1 with measurand, unit, phase and context."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple

from edge_sdk.extensions.sources.base import Rejected, tally

REGISTER, INTERVAL = "Energy.Active.Import.Register", "Energy.Active.Import.Interval"
_READ = frozenset(
    {
        *(REGISTER, INTERVAL, "Power.Active.Import"),
        *("Energy.Active.Export.Register", "Energy.Active.Export.Interval", "Power.Active.Export"),
    }
)
BEGIN, END, CLOCK = "Transaction.Begin", "Transaction.End", "Sample.Clock"
_CONTEXTS = (
    *(CLOCK, "Sample.Periodic", END, "Trigger", "Other"),
    *("Interruption.End", "Interruption.Begin", BEGIN),
)
"""Contexts in order of preference, where one moment has several: a charger may repeat the register
of the transaction's beginning with every sample, under the time of the sample."""

LOCATIONS = ("Outlet", "Cable", "Body", "Inlet", "EV")
"""Places of a measurement, in order of preference."""

PHASES = (
    frozenset({""}),
    frozenset({"L1", "L2", "L3"}),
    frozenset({"L1-N", "L2-N", "L3-N"}),
    frozenset({"L1-L2", "L2-L3", "L3-L1"}),
)
"""Sets of phases whose values add up to the total, in order of preference."""

BASE: Mapping[str, tuple[str, float]] = MappingProxyType(
    {
        "Wh": ("Wh", 1.0),
        "kWh": ("Wh", 1e3),
        "MWh": ("Wh", 1e6),
        "W": ("W", 1.0),
        "kW": ("W", 1e3),
        "MW": ("W", 1e6),
    }
)
"""Base unit and factor of the units of energy and power."""

_NUMBER = re.compile(r"[+-]?(\d{1,15}(\.\d{0,60})?|\.\d{1,60})")
_TIME = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,60})?(Z|[+-]\d\d:?\d\d)?", re.IGNORECASE | re.ASCII
)
_MOST = 4096  # values read in one message


class MeterValue(NamedTuple):
    """One sampled value."""

    time: float  # Unix seconds: the end of the interval of an interval value
    measurand: str  # measurand
    context: str  # Occasion of the measurement
    location: str  # place of the measurement
    phase: str  # phase, or empty for the total
    value: float  # value in ``unit``
    unit: str  # unit; the base unit where it is one of energy or power


def sampled(rows: object, unused: Counter[str]) -> Iterator[tuple[float, Mapping[str, Any]]]:
    """Yield every sampled value of a list of meter values, with its time.

    A row whose time is invalid costs its own values alone.

    Args:
        rows: Field ``meterValue`` or ``transactionData`` of a message.
        unused: Counter of what is not used.
    """
    count = 0
    for row in _listed(rows):
        found = _listed(row.get("sampledValue") if isinstance(row, dict) else None)
        values = [one for one in found if isinstance(one, dict)]
        if not values:
            tally(unused, "meterValue", "no sampled values")
            continue
        try:
            at = moment(row.get("timestamp"))
        except Rejected as verdict:
            for value in values:
                tally(unused, _name(value), verdict.reason)
            continue
        for value in values:
            count += 1
            if count > _MOST:
                tally(unused, _name(value), f"beyond {_MOST} values of a message")
            else:
                yield at, value


def _listed(value: object) -> list[Any]:
    """Return a list; of one object, which some chargers send in place of a list, the list of it."""
    return value if isinstance(value, list) else [] if value is None else [value]


def parsed(at: float, value: Mapping[str, Any], unused: Counter[str]) -> MeterValue | None:
    """Return one sampled value; None if it is not used, which is counted by its name.

    >>> unused = Counter()
    >>> parsed(0.0, {"value": "0.5000000000", "unit": "kWh", "phase": "L1"}, unused)[1:]
    ('Energy.Active.Import.Register', 'Sample.Periodic', 'Outlet', 'L1', 500.0, 'Wh')
    >>> parsed(0.0, {"value": "", "measurand": "Power.Active.Import"}, unused)
    >>> parsed(0.0, {"value": "230", "measurand": "Voltage", "phase": "L1-N"}, unused)
    >>> [*unused]
    ['Power.Active.Import: bad value', 'Voltage: not mapped']
    """
    name = _name(value)
    context = str(value.get("context") or "Sample.Periodic")[:40]
    location, phase = str(value.get("location") or LOCATIONS[0]), str(value.get("phase") or "")
    if name not in _READ:
        tally(unused, name, "not mapped")
        return None
    if location not in LOCATIONS or not any(phase in phases for phases in PHASES):
        tally(unused, f"{name} {location} {phase}".strip(), "not mapped")
        return None
    try:
        unit, factor = _unit(name, value)
        number = _number(value.get("value")) * factor
    except Rejected as verdict:
        tally(unused, name, verdict.reason)
        return None
    return MeterValue(at, name, context, location, phase, number, unit)


def preferred(values: Iterable[MeterValue], unused: Counter[str]) -> list[MeterValue]:
    """Return one value for each moment, measurand, place and phase, in order of time.

    Where one moment has several, the context decides; two different ones of the same context are a
    conflict, and neither is used. Intervals of the clock and those of a session are two series.

    >>> def at(context, wh):
    ...     return MeterValue(0.0, REGISTER, context, "Outlet", "", wh, "Wh")
    >>> unused = Counter()
    >>> [one.value for one in preferred([at(BEGIN, 5.0), at("Sample.Periodic", 9.0)], unused)]
    [9.0]
    >>> preferred([at(CLOCK, 1.0), at(CLOCK, 99.0)], unused)
    []
    >>> for text, times in unused.items():
    ...     print(text, times)
    Energy.Active.Import.Register Transaction.Begin: beside Sample.Periodic 1
    Energy.Active.Import.Register Sample.Clock: conflict 2
    """
    groups: dict[tuple[object, ...], list[MeterValue]] = {}
    for one in values:
        of_clock = one.measurand.endswith(".Interval") and one.context == CLOCK
        key = (one.time, one.measurand, one.location, one.phase, of_clock)
        groups.setdefault(key, []).append(one)
    chosen = []
    for group in groups.values():
        context = min((one.context for one in group), key=_preference)
        best = [one for one in group if one.context == context]
        for one in group:
            if one.context != context:
                tally(unused, f"{one.measurand} {one.context}", f"beside {context}")
        if any(not is_same(one, best[0]) for one in best):
            for one in best:
                tally(unused, f"{one.measurand} {context}", "conflict")
            continue
        chosen.append(best[0])
    return sorted(chosen, key=lambda one: one.time)


def is_same(one: MeterValue, other: MeterValue) -> bool:
    """Return whether two values are the same, up to the digits in which registers are rounded."""
    rounding = 0.0 if one.unit != "Wh" else 10.0 if one.measurand.endswith(".Register") else 1.0
    return one.unit == other.unit and abs(one.value - other.value) <= rounding


def _preference(context: str) -> int:
    return _CONTEXTS.index(context) if context in _CONTEXTS else len(_CONTEXTS) - 2


def _name(value: Mapping[str, Any]) -> str:
    return str(value.get("measurand") or REGISTER)


def _unit(name: str, value: Mapping[str, Any]) -> tuple[str, float]:
    """Return unit and factor: 1.6 has a unit, 2.0.1 a unit and a power of ten. Default is Wh."""
    newer = value.get("unitOfMeasure")
    power = 0
    if isinstance(newer, dict):
        power = newer.get("multiplier") or 0
        if type(power) is not int or not -9 <= power <= 9:
            raise Rejected("bad multiplier")
    given = newer.get("unit") if isinstance(newer, dict) else value.get("unit")
    unit, factor = str(given or ("W" if name.startswith("Power") else "Wh")), 1.0
    unit, factor = BASE.get(unit, (unit, 1.0))
    return unit, factor * 10.0**power


def _number(value: object) -> float:
    """Parse a value: a text in 1.6, a number in 2.0.1.

    >>> _number("12.50"), _number(3)
    (12.5, 3.0)
    >>> _number("NaN")
    Traceback (most recent call last):
    edge_sdk.extensions.sources.base.Rejected: bad value
    """
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return float(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15:
        return float(value)
    raise Rejected("bad value")


def whole_wh(value: object) -> float:
    """Return a register of a transaction's begin or end, in Wh."""
    found = _number(value)
    if found < 0:
        raise Rejected("bad value")
    return found


def moment(text: object) -> float:
    """Parse a time; without an offset it is UTC, as OCPP requires.

    >>> moment("2024-05-14T14:00:00.000+02:00") - moment("2024-05-14T12:00:00Z")
    0.0
    """
    if not isinstance(text, str) or not _TIME.fullmatch(text):
        raise Rejected("bad time")
    try:
        read = datetime.fromisoformat(text.upper())
    except ValueError:
        raise Rejected("bad time") from None
    return read.replace(tzinfo=read.tzinfo or UTC).timestamp()
