"""Compute the numbers of a period from readings and a forecast."""

from __future__ import annotations

import numpy as np

from edge_sdk.extensions.sums.masked_sum import Floats
from edge_sdk.extensions.sums.messages import SumContract
from edge_sdk.forecasting.forecast import Forecast
from edge_sdk.forecasting.series import STREAMS, Series


def numbers_of(
    terms: SumContract, period: int, series: Series, forecast: Forecast | None
) -> Floats | None:
    """Return the numbers of a period, shape ``(length,)``; None while one of them is unknown.

    What was measured counts before what is forecast. Without a forecast the whole period was measured.

    Args:
        period: Begin, Unix milliseconds.
        forecast: Expected values after the newest reading; None for the readings alone.

    >>> from edge_sdk.forecasting.series import SeriesColumn
    >>> series = Series(3600, ["elec.import.power"])
    >>> hours = np.arange(23)
    >>> series.load_columns([SeriesColumn("elec.import.power", hours, 1.0 * hours)])
    >>> terms = SumContract("one", "tomorrow", "elec.import.power", "kW", 4, 0.0, 9.0, 0.1,
    ...                     86_400_000, 90_000_000, 8, bytes(32))
    >>> numbers_of(terms, 0, series, None) is None
    True
    >>> last = Forecast(np.array([23 * 3600]), np.array([5.0]), "kW", "model")
    >>> numbers_of(terms, 0, series, last)
    array([ 2.5,  8.5, 14.5, 17.5])
    """
    step = series.step
    parts = terms.step // (1000 * step)
    slots = period // (1000 * step) + np.arange(parts * terms.length)
    values = np.full(len(slots), np.nan)
    if period % (1000 * step) or not len(series):
        return None
    sources = [] if forecast is None else [(forecast.times // step, forecast.values)]
    for known, numbers in (*sources, (series.times() // step, series.values(terms.stream))):
        _, at, there = np.intersect1d(slots, known, assume_unique=True, return_indices=True)
        is_known = np.isfinite(numbers[there])
        values[at[is_known]] = numbers[there][is_known]
    if not np.isfinite(values).all():
        return None
    table = values.reshape(terms.length, parts)
    adds = terms.stream in STREAMS and STREAMS[terms.stream].adds
    whole: Floats = table.sum(axis=1) if adds else table.mean(axis=1)
    return whole
