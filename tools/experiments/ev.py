"""Real charging demand as the device SDK's own series, one client a site; its windows and scores.

The folders are those that ``tools/fetch.py`` makes. Splits are those of the accuracy anchors and of
PFGL: the first 60 % of a series to learn from, the next 20 % to choose and calibrate by, the last
20 % are the test. A window counts where all its targets lie in a part and its demand was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from aggregator.extensions.papers.graph import Site
from edge_sdk.extensions.evaluation.forecast_metrics import (
    QUANTILES,
    coverage,
    interval_length,
    mae,
    pinball,
)
from edge_sdk.forecasting.series import Series, SeriesRow
from edge_sdk.forecasting.windows import ChannelFrame, Scale
from edge_sdk.protocol.contract.manifest import Manifest

BOULDER, PERTH = "ev_boulder", "ev_perth_kinross"
PALO_ALTO, CALTECH = "ev_palo_alto_2011_2013", "ev_acn_caltech"
ZONES = {
    BOULDER: "America/Denver",
    PERTH: "Europe/London",
    PALO_ALTO: "America/Los_Angeles",
    CALTECH: "America/Los_Angeles",
}
SETS = tuple(ZONES)
TITLES = {
    BOULDER: "Boulder",
    PERTH: "Perth & Kinross",
    PALO_ALTO: "Palo Alto 2011-2013",
    CALTECH: "ACN Caltech",
}
STEP = 1800
DAY = 48

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Part = Literal["learn", "choose", "test"]
SHARES: Mapping[Part, tuple[float, float]] = {
    "learn": (0.0, 0.6),
    "choose": (0.6, 0.8),
    "test": (0.8, 1.0),
}


@dataclass(frozen=True, slots=True)
class Station:
    """One client's demand."""

    name: str  # as in the data file
    start: int  # Unix seconds of the first half-hour, UTC
    zone: str  # where its wall clock hangs
    demand: Floats  # kWh a half-hour, shape ``(T,)``
    site: Site | None  # public coordinates; None where all stations stand in one place

    def rows(self, part: Part) -> tuple[int, int]:
        """Return first row and end of a part.

        >>> some = Station("a", 0, "UTC", np.zeros(99), None)
        >>> [some.rows(x) for x in ("learn", "choose", "test")]
        [(0, 59), (59, 79), (79, 99)]
        """
        start, end = SHARES[part]
        return int(len(self.demand) * start), int(len(self.demand) * end)

    @property
    def scale(self) -> Scale:
        return Scale.of(self.demand[: self.rows("learn")[1]])

    def series(self, stream: str) -> Series:
        """Return the readings on the SDK's grid."""
        series = Series(STEP, [stream], capacity=len(self.demand))
        first = self.start // STEP
        series.load(SeriesRow(stream, first + i, float(v)) for i, v in enumerate(self.demand))
        return series


def load(folder: Path, name: str, count: int | None = None) -> list[Station]:
    """Read the first ``count`` stations of a set; all of them unless said.

    Raises:
        KeyError: A set this file does not know.
    """
    zone = ZONES[name]
    table = pd.read_parquet(folder / name / "demand_30min.parquet")
    places = pd.read_csv(folder / name / "stations.csv").set_index("station")
    start = int(pd.Timestamp(table.ts_utc.iloc[0]).timestamp())
    names = list(table.columns.drop(["ts_utc", "ts_local"]))[:count]
    return [Station(x, start, zone, table[x].to_numpy(float), _site(places, x)) for x in names]


def _site(places: pd.DataFrame, name: str) -> Site | None:
    if "Latitude" not in places.columns:
        return None
    return Site(float(places.Latitude[name]), float(places.Longitude[name]))


def present(folder: Path, names: tuple[str, ...] | list[str] = SETS) -> tuple[list[str], list[str]]:
    there = [x for x in names if (folder / x).is_dir()]
    return there, [x for x in names if x not in there]


def form(base: Manifest) -> Manifest:
    """Return a bundle's manifest on half-hours: a lag keeps its days, whatever the step.

    The bundles lag by whole days less what makes the newest row line up with the last target.
    """
    step = base.window.step_seconds
    if step == STEP:
        return base
    day = 86_400 // step
    features = tuple(
        x if x.lag_steps is None else replace(x, lag_steps=_lag(x.lag_steps, day))
        for x in base.features
    )
    return replace(base, window=replace(base.window, step_seconds=STEP), features=features)


def _lag(steps: int, day: int) -> int:
    """Stretch the whole days of a lag.

    >>> _lag(24 - 6 + 1, 24), _lag(168, 24)
    (43, 336)
    """
    days = -(-steps // day)
    return days * DAY - (days * day - steps)


def frame(station: Station, base: Manifest) -> ChannelFrame:
    """Cut a station's channels as the device would."""
    manifest = form(base)
    series = station.series(manifest.target.stream)
    zone = ZoneInfo(station.zone)
    return ChannelFrame.of(series, manifest, zone=zone, scale=station.scale)


def origins(station: Station, cut: ChannelFrame, part: Part) -> Ints:
    """List the origins whose targets all lie in a part; inputs may reach back, never forward."""
    start, stop = station.rows(part)
    every = cut.origins(observed=part != "test")
    return every[(every + 1 >= start) & (every + cut.window.horizon < stop)]


def served(told: Floats) -> Floats:
    """Return quantiles as they are served: not negative, and in order.

    Neither makes a pinball loss of demand larger.

    >>> served(np.array([[-0.5, 2.0, 1.0]])).tolist()
    [[0.0, 1.0, 2.0]]
    """
    return np.sort(np.maximum(told, 0.0), axis=-1)


def scored(y: Floats, told: Floats, tolerance: float = 0.0) -> dict[str, float]:
    """Score quantiles (0.1, 0.5, 0.9) of one station.

    Args:
        y: What came, ``(n, horizon)``.
        told: Quantiles, ``(n, horizon, 3)``.
        tolerance: In the unit of ``y``: what counts as a miss must miss by more.

    Returns:
        ``QS`` (the sum over levels), ``MIL``, ``ICP``, the one-sided misses ``below`` and
        ``above``, and ``MAE`` of the median.

    >>> y = np.array([[1.0], [2.0], [3.0]])
    >>> told = np.array([[[0.5, 1.0, 2.0]], [[1.0, 2.5, 3.0]], [[2.5, 2.5, 2.8]]])
    >>> {name: round(value, 4) for name, value in scored(y, told).items()}
    {'QS': 0.36, 'MIL': 1.2667, 'ICP': 0.6667, 'below': 0.0, 'above': 0.3333, 'MAE': 0.3333}
    """
    low, mid, high = told[..., 0], told[..., 1], told[..., 2]
    levels = zip(QUANTILES, (low, mid, high), strict=True)
    return {
        "QS": float(sum(pinball(y, f, q).mean() for q, f in levels)),
        "MIL": interval_length(low, high),
        "ICP": coverage(y, low, high),
        "below": float((y < low - tolerance).mean()),
        "above": float((y > high + tolerance).mean()),
        "MAE": mae(y, mid),
    }


def mean_of(rows: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Average scores over stations, each counting the same."""
    first = next(iter(rows.values()))
    return {key: float(np.mean([row[key] for row in rows.values()])) for key in first}
