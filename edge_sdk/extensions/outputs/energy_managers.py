"""Write a forecast in the shapes that energy managers read.

A manager plans a day: a shorter forecast is refused, because EMHASS would hold its last value for the
rest of the day, and Predbat would take the load after it as zero.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np

from edge_sdk.forecasting.calendar_features import DAY
from edge_sdk.forecasting.forecast import IssuedForecast, moment

RECORDED: Final = 15_000
"""Most bytes of a list of forecast intervals; Home Assistant records 16,384 of all attributes."""

_OPENEMS_STEP = 300  # seconds of one value of OpenEMS' simulated predictor, which reads two days
_OPENEMS_SOURCE = "datasource0"


class NotPlannableError(ValueError):
    """The forecast cannot be planned with."""


def emhass(issued: IssuedForecast) -> dict[str, dict[str, float]]:
    """Return EMHASS's runtime parameter: mean power in W by the start of each step.

    Raises:
        NotPlannableError: The forecast is shorter than a day, incomplete, or no energy or power.
    """
    scale = 1000 / _hours(issued, "emhass")
    return {"load_power_forecast": {at: round(scale * x, 3) for at, x in _steps(issued, "emhass")}}


def evcc(issued: IssuedForecast) -> list[dict[str, Any]]:
    """Return evcc's rates; energy and power are in W, any other value is in its own unit.

    Raises:
        NotPlannableError: The forecast is shorter than a day, or incomplete.
    """
    is_power = issued.forecast.unit in _POWER
    scale = 1000 / _hours(issued, "evcc") if is_power else 1.0
    return [
        {"start": at, "end": _later(at, issued.step), "value": round(scale * x, 3)}
        for at, x in _steps(issued, "evcc")
    ]


def predbat(issued: IssuedForecast) -> dict[str, dict[str, float]]:
    """Return Predbat's cumulative energy in kWh from the start of the forecast, by time.

    Raises:
        NotPlannableError: As for ``emhass``.
    """
    hours = issued.step / 3600 / _hours(issued, "predbat")
    steps = _steps(issued, "predbat")
    total, results = 0.0, {steps[0][0]: 0.0}
    for at, value in steps:
        total += hours * value
        results[_later(at, issued.step)] = round(total, 4)
    return {"results": results}


def openems(issued: IssuedForecast) -> dict[str, Any]:
    """Return the JSON-RPC request that gives OpenEMS' simulated predictor the power in W.

    Its values begin at midnight in UTC. A slot that the forecast does not cover takes the forecast
    of the same time on another day.

    Raises:
        NotPlannableError: As for ``emhass``.
    """
    scale = 1000 / _hours(issued, "openems")
    values = [round(scale * value) for _, value in _steps(issued, "openems")]
    start = int(issued.forecast.times[0])
    end = start + len(values) * issued.step
    midnight = int(issued.issued if issued.issued is not None else start) // DAY * DAY
    lines = []
    for slot in range(midnight, midnight + 2 * DAY, _OPENEMS_STEP):
        at = slot
        while at < start:
            at += DAY
        while at >= end:
            at -= DAY
        lines.append(str(values[(at - start) // issued.step]))
    source = {"name": "source", "value": "\n".join(lines)}
    params = {"componentId": _OPENEMS_SOURCE, "properties": [source]}
    return {"method": "updateComponentConfig", "params": params}


def present(issued: IssuedForecast, now: float) -> int | None:
    """Return the number of the forecast step that contains a time, Unix seconds; None outside."""
    if not issued.is_available:
        return None
    number = int((now - int(issued.forecast.times[0])) // issued.step)
    return number if 0 <= number < len(issued.forecast.times) else None


PlanFormat = Literal["emhass", "evcc", "predbat", "openems"]
PLANS: Final[Mapping[str, Callable[[IssuedForecast], object]]] = MappingProxyType(
    {"emhass": emhass, "evcc": evcc, "predbat": predbat, "openems": openems}
)
"""Documents of the energy managers by the name of their format."""


def plan_text(name: str, issued: IssuedForecast) -> str:
    """Return a manager's document as one line of JSON.

    Raises:
        NotPlannableError: The forecast cannot be planned with.
    """
    return json.dumps(PLANS[name](issued), allow_nan=False) + "\n"


EntityFormat = Literal["home-assistant", "emhass", "predbat"]


def entity(name: EntityFormat, issued: IssuedForecast, now: float) -> dict[str, Any]:
    """Return state and attributes of a sensor of Home Assistant.

    ``home-assistant`` has the forecast of the interval that contains ``now`` as its state and every
    interval in its attribute ``forecast``. The others have the manager's document as attributes; a
    forecast that cannot be planned with has no state, and the reason in the attribute ``refused``.
    """
    if name == "home-assistant":
        return _history(issued, now)
    try:
        if name == "predbat":
            results = predbat(issued)
            return {"state": max(results["results"].values()), "attributes": results}
        powers = emhass(issued)
        values = powers["load_power_forecast"].values()
        return {"state": round(sum(values) / len(values), 1), "attributes": powers}
    except NotPlannableError as error:
        return {"state": None, "attributes": {"refused": str(error)}}


def _history(issued: IssuedForecast, now: float) -> dict[str, Any]:
    rows = [
        {
            "start": moment(start),
            "expected": _short(value),
            "low": _short(low),
            "high": _short(high),
        }
        for start, value, low, high in _expected(issued)
    ]
    number = present(issued, now)
    here: Mapping[str, Any] = {} if number is None else rows[number]
    while rows and len(json.dumps(rows)) > RECORDED:
        rows = rows[: len(rows) - 1 - len(rows) // 16]
    attributes = {
        "start": here.get("start"),
        "low": here.get("low"),
        "high": here.get("high"),
        "issued_at": moment(issued.issued),
        "coverage": issued.forecast.coverage,
        "forecast": rows,
    }
    return {"state": here.get("expected"), "attributes": attributes}


_POWER: Final = ("kWh", "kW")


def _hours(issued: IssuedForecast, name: str) -> float:
    """Return the hours by which a value is divided for a mean power in kW."""
    unit = issued.forecast.unit
    if unit not in _POWER:
        raise NotPlannableError(
            f'format "{name}" needs energy in kWh or power in kW; {issued.stream} is in {unit}'
        )
    return issued.step / 3600 if unit == "kWh" else 1.0


def _steps(issued: IssuedForecast, name: str) -> list[tuple[str, float]]:
    """Return the start of each step as ISO 8601 in UTC, with its value."""
    rows = _expected(issued) if issued.is_available else []
    if not rows:
        why = issued.forecast.missing or "no reading yet"
        raise NotPlannableError(f'format "{name}": there is no forecast yet: {why}')
    if (covered := len(rows) * issued.step) < DAY:
        steps = "1 step" if len(rows) == 1 else f"{len(rows)} steps"
        raise NotPlannableError(
            f'format "{name}" needs a forecast of a day; bundle {issued.bundle} forecasts {steps}, '
            f"{covered / 3600:g} h: use a bundle whose horizon is 24 hours or more"
        )
    known = [(str(moment(start)), value) for start, value, _, _ in rows if value is not None]
    if lacking := len(rows) - len(known):
        raise NotPlannableError(
            f'format "{name}": {lacking} of {len(rows)} steps of the forecast have no value'
        )
    return known


def _expected(
    issued: IssuedForecast,
) -> list[tuple[int, float | None, float | None, float | None]]:
    """Return the forecast's rows with expected values, where it has them: a plan adds values up."""
    expected = issued.forecast.expected
    if expected is None:
        return issued.rows()
    means = (float(x) if np.isfinite(x) else None for x in expected)
    return [(row[0], mean, *row[2:]) for row, mean in zip(issued.rows(), means, strict=True)]


def _later(at: str, seconds: int) -> str:
    later = datetime.fromisoformat(at).timestamp() + seconds
    return datetime.fromtimestamp(later, UTC).isoformat()


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
