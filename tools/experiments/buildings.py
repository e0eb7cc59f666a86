"""Real building loads as the device SDK's own series, one client a building.

The folders are those that ``tools/fetch.py`` makes: one per set, parquet files inside. Windows are
the product's (``edge_sdk.forecasting.windows``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from edge_sdk.forecasting.series import Series, SeriesRow
from edge_sdk.forecasting.windows import ChannelFrame, Scale, Span
from edge_sdk.protocol.contract.manifest import Feature, Manifest, Target, Window

LOAD = "elec.import.energy"
WEATHER = ("weather.temperature", "weather.wind_speed")
FURTHER: Mapping[str, str] = {
    "direct_normal_radiation": "direct_normal_wm2",
    "diffuse_horizontal_radiation": "diffuse_horiz_wm2",
    "wind_direction": "wind_dir_deg",
    "relative_humidity": "rel_humidity_pct",
}
"""Weather of ResStock that no model reads, and its columns."""

SETS = ("building_bdg2_fl_az_ca", "building_resstock_ca_alameda", "building_simbench_15min")
CLIENTS = 42
PARTS: Mapping[str, Span] = {"train": (0.0, 0.8), "test": (0.8, 0.9), "validation": (0.9, 1.0)}
"""Chronological parts of a series; in the order of the paper, the *middle* tenth is the test."""


@dataclass(frozen=True, slots=True)
class Building:
    """One client's year."""

    name: str  # as in the data file
    step: int  # seconds a row
    start: int  # Unix seconds of the first row; local time is used as if it were UTC
    # stream to values, NaN where missing, each of shape ``(T,)``
    columns: Mapping[str, NDArray[np.float64]]
    site: Mapping[str, float]  # static features by name
    # weather and static features that no model reads, by name: a series, or one number
    further: Mapping[str, Any] = field(default_factory=dict)

    def series(self) -> Series:
        """Return the readings on the SDK's grid."""
        length = len(self.columns[LOAD])
        series = Series(self.step, self.columns, capacity=length)
        first = self.start // self.step
        for stream, values in self.columns.items():
            series.load(SeriesRow(stream, first + i, float(v)) for i, v in enumerate(values))
        return series


def load(folder: Path, name: str, clients: int = CLIENTS) -> list[Building]:
    """Read the first ``clients`` buildings of a set.

    Raises:
        FileNotFoundError: The set's folder is not there.
        KeyError: A set this file does not know.
    """
    rows = READERS[name](folder / name)
    return [building for building, _ in zip(rows, range(clients), strict=False)]


def _bdg2(folder: Path) -> Iterator[Building]:
    table = pd.read_parquet(folder / "electricity_hourly_kwh.parquet")
    table = table[table.ts_local >= "2017-01-01"].reset_index(drop=True)
    known = pd.read_csv(folder / "buildings.csv").set_index("building_id")
    for name in table.columns.drop("ts_local"):
        site = {"floor_area": float(known["sqm"].get(name, 0.0) or 0.0)}
        load = {LOAD: table[name].to_numpy(float)}
        further = {}
        if "yearbuilt" in known.columns:
            further["year_built"] = np.float64(known["yearbuilt"].get(name, np.nan))
        yield Building(name, 3600, _start(table), load, site, further)


def _resstock(folder: Path) -> Iterator[Building]:
    table = pd.read_parquet(folder / "load_hourly.parquet")
    weather = pd.read_csv(folder / "weather_hourly.csv.gz")
    roofs = pd.read_csv(folder / "buildings.csv").set_index("building_id")["roof_area_m2"]
    outside = {
        WEATHER[0]: weather["dry_bulb_c"].to_numpy(float),
        WEATHER[1]: weather["wind_speed_ms"].to_numpy(float),
    }
    further = {
        name: weather[column].to_numpy(float)
        for name, column in FURTHER.items()
        if column in weather.columns
    }
    for number, rows in table.groupby("building_id", observed=True):
        columns = {LOAD: rows.load_kwh.to_numpy(float), **outside}
        site = {"floor_area": float(roofs[int(str(number))])}
        yield Building(f"B{number}", 3600, _start(rows), columns, site, further)


def _simbench(folder: Path) -> Iterator[Building]:
    table = pd.read_parquet(folder / "load_15min_pu.parquet")
    for name in table.columns.drop("ts_local"):
        values = table[name].to_numpy(float)
        if np.isfinite(values).any():
            yield Building(name, 900, _start(table), {LOAD: values}, {})


def _start(table: pd.DataFrame) -> int:
    return int(pd.Timestamp(table.ts_local.iloc[0]).timestamp())


READERS: Mapping[str, Callable[[Path], Iterator[Building]]] = {
    SETS[0]: _bdg2,
    SETS[1]: _resstock,
    SETS[2]: _simbench,
}


def paper_form(base: Manifest, buildings: list[Building]) -> Manifest:
    """PL-FL's eight channels, level output, one min-max scale for all clients (as its authors did).

    A channel that a set does not have is a constant: the network keeps its 42,181 parameters, and
    the set keeps what it is.
    """
    building = buildings[0]
    low, high = _extremes(buildings)
    slots = 86_400 // building.step
    streams = [
        Feature("dry_bulb", "stream", "°C", -20.0, 45.0, stream=WEATHER[0]),
        Feature("wind_speed", "stream", "m/s", 0.0, 20.0, stream=WEATHER[1]),
    ]
    features = [
        Feature("load", "target", "kWh"),
        Feature("slot", "calendar", "slot", 0.0, float(slots - 1), what="slot_of_day"),
        Feature("day", "calendar", "day", 0.0, 6.0, what="day_of_week"),
        *(x if x.stream in building.columns else _constant(x.name) for x in streams),
        Feature("floor_area", "static", "m²", 0.0, 20_000.0),
        _constant("wall_area"),
        _constant("window_area"),
    ]
    target = Target(LOAD, "kWh", "level", "fixed", low=low, high=high)
    return _as(base, building.step, features, target)


def week_form(base: Manifest, buildings: list[Building]) -> Manifest:
    """The named option: change from the last value, own scale, the same hour a week ago."""
    building = buildings[0]
    day = 86_400 // building.step
    weather = [
        Feature("temperature", "stream", "°C", -20.0, 45.0, stream=WEATHER[0]),
        Feature("wind_speed", "stream", "m/s", 0.0, 20.0, stream=WEATHER[1]),
    ]
    spare = [
        Feature("dow_sin", "calendar", "1", -1.0, 1.0, what="dow_sin"),
        Feature("dow_cos", "calendar", "1", -1.0, 1.0, what="dow_cos"),
    ]
    features = [
        Feature("load", "target", "kWh"),
        Feature("hour_sin", "calendar", "1", -1.0, 1.0, what="hour_sin"),
        Feature("hour_cos", "calendar", "1", -1.0, 1.0, what="hour_cos"),
        Feature("weekend", "calendar", "1", 0.0, 1.0, what="weekend"),
        *(x if x.stream in building.columns else y for x, y in zip(weather, spare, strict=True)),
        Feature("load_day", "lag", "kWh", lag_steps=day),
        Feature("load_week", "lag", "kWh", lag_steps=7 * day),
    ]
    return _as(base, building.step, features, Target(LOAD, "kWh", "change", "device"))


def frames(buildings: list[Building], manifest: Manifest) -> dict[str, ChannelFrame]:
    """Cut every building's channels as the device would."""
    site = {"wall_area": 0.0, "window_area": 0.0, "floor_area": 0.0}
    site |= {x.name: 0.0 for x in manifest.features if x.kind == "static"}
    return {
        building.name: ChannelFrame.of(
            building.series(), manifest, site={**site, **building.site}, span=PARTS["train"]
        )
        for building in buildings
    }


def _as(base: Manifest, step: int, features: list[Feature], target: Target) -> Manifest:
    window = Window(base.window.lookback, base.window.horizon, step)
    return replace(base, features=tuple(features), target=target, window=window)


def _constant(name: str) -> Feature:
    return Feature(name, "static", "1", 0.0, 1.0)


def _extremes(buildings: list[Building]) -> tuple[float, float]:
    trains = [x.columns[LOAD][: int(0.8 * len(x.columns[LOAD]))] for x in buildings]
    scale = Scale.of(np.concatenate(trains))
    return scale.low, scale.high
