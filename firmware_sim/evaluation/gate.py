"""Choose each device's forecast on its held-back days, by the device's own rule."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edge_sdk.extensions.choice.combination import (
    CANDIDATES,
    LAST_DAY,
    LAST_WEEK,
    MEAN,
    OWN,
    HeldBackErrors,
    blended,
)
from edge_sdk.extensions.choice.forecast_choice import choose
from edge_sdk.forecasting.forecast import FLEET
from firmware_sim.evaluation.windows import Floats, Ints


def served(
    ways: Mapping[str, str],
    held: Mapping[str, Floats],
    truth: Floats,
    days: Ints,
    test: Mapping[str, Floats],
) -> tuple[Floats, str]:
    """Return the forecasts that a device would serve on its test days, and its choices.

    Args:
        ways: Way of forecasting by candidate, as ``candidates_of`` returns.
        held: Forecasts of the held-back readings by way, shape ``(k,)`` each.
        truth: These readings, shape ``(k,)``.
        days: Their days since 1970, shape ``(k,)``.
        test: Forecasts of the test readings by way, shape ``(m,)`` each.
    """
    table = HeldBackErrors.empty()
    if len(truth):
        table = table.extended(_stacked(ways, held), truth[:, None], days[:, None])
    choice = choose(table, FLEET, {*ways, MEAN})
    return blended(choice.weights, _stacked(ways, test))[:, 0, 0], choice.name


def candidates_of(fleet: str, own: str) -> dict[str, str]:
    return {FLEET: fleet, OWN: own, LAST_DAY: "yesterday", LAST_WEEK: "last week"}


def _stacked(ways: Mapping[str, str], forecasts: Mapping[str, Floats]) -> Floats:
    """Return the candidates' forecasts, shape ``(candidates, m, 1, 1)``; NaN for none."""
    length = len(next(iter(forecasts.values())))
    found = np.full((len(CANDIDATES), length, 1, 1), np.nan)
    for name, way in ways.items():
        found[CANDIDATES.index(name), :, 0, 0] = forecasts[way]
    return found
