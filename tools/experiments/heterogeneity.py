"""PL-FL's Table I and Figure 2 on our sets: correlation with load, and differences between buildings.

Static features are correlated with a building's mean load over buildings; weather with a
building's load over time, as a mean over buildings. ``buildings.SETS`` have floor or roof areas and
weather for some, BDG2 has years of construction; four of the paper's features are in none of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tools.experiments import buildings
from tools.experiments.buildings import Building
from tools.experiments.marked_block import replace_block
from tools.experiments.pages import table

EXPERIMENT = "loads"
MARKER = "<!-- loads -->"
STATIC: Mapping[str, str] = {
    "floor_area": "0.9591, 0.9245, 0.9245",
    "cooling_capacity": "0.9905, 0.9683, 0.9173",
    "heating_capacity": "-0.1853, 0.9374, 0.9374",
    "wall_area": "0.3702, 0.7385, 0.7385",
    "window_area": "0.2417, 0.9714, 0.9714",
    "year_built": "-0.4462, -0.2652, -0.2652",
}
VARYING: Mapping[str, str] = {
    "weather.temperature": "0.5473, 0.3789, 0.2506",
    "global_horizontal_radiation": "0.4101, 0.4870, 0.4870",
    "direct_normal_radiation": "0.3838, 0.3789, 0.3789",
    "diffuse_horizontal_radiation": "0.3446, 0.4577, 0.4577",
    "weather.wind_speed": "0.2288, 0.1396, 0.1396",
    "wind_direction": "-0.0246, 0.0787, 0.0787",
    "relative_humidity": "-0.3853, -0.2794, -0.2794",
}
"""The paper's correlations in California, Illinois and New York."""

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)


def correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Return Pearson's correlation where both are known; NaN where one is constant.

    >>> round(correlation(np.array([1.0, 2.0, np.nan]), np.array([2.0, 4.0, 9.0])), 6)
    1.0
    """
    known = np.isfinite(x) & np.isfinite(y)
    if known.sum() < 2 or np.ptp(x[known]) == 0.0 or np.ptp(y[known]) == 0.0:
        return float("nan")
    return float(np.corrcoef(x[known], y[known])[0, 1])


def of_site(houses: Sequence[Building], feature: str) -> float:
    """Return the correlation of a static feature with mean load over the buildings that have it."""
    have = [(_fact(house, feature), house) for house in houses]
    have = [(value, house) for value, house in have if value > 0.0]
    values = np.array([value for value, _ in have])
    loads = np.array([np.nanmean(house.columns[buildings.LOAD]) for _, house in have])
    return correlation(values, loads)


def _fact(house: Building, feature: str) -> float:
    """Return a static feature, 0 where it is not known."""
    value = float(house.site.get(feature, house.further.get(feature, 0.0)))
    return value if np.isfinite(value) else 0.0


def of_time(houses: Sequence[Building], stream: str) -> float:
    """Return the mean over buildings of the correlation of a stream with load; NaN without it."""
    found = [
        correlation({**house.further, **house.columns}[stream], house.columns[buildings.LOAD])
        for house in houses
        if stream in house.columns or stream in house.further
    ]
    return float(np.nanmean(found)) if found else float("nan")


def boxes(houses: Sequence[Building]) -> list[NDArray[np.float64]]:
    """Return the quantiles ``SHARES`` of every building's load, by increasing median."""
    found = [np.nanquantile(house.columns[buildings.LOAD], SHARES) for house in houses]
    return sorted(found, key=lambda row: float(row[2]))


def lines(sets: Mapping[str, Sequence[Building]]) -> list[str]:
    """Return the tables of correlations and of medians."""
    names = [name.removeprefix("building_") for name in sets]
    kinds = ((STATIC, of_site), (VARYING, of_time))
    rows = [
        [feature, *(_said(measure(x, feature)) for x in sets.values()), paper]
        for features, measure in kinds
        for feature, paper in features.items()
    ]
    out = ["Pearson's correlation with load:", ""]
    out += table(("feature", *names, "paper"), rows)
    out += ["", "The buildings' median loads (42 buildings a set; SimBench per unit):", ""]
    medians = {name: [row[2] for row in boxes(x)] for name, x in sets.items()}
    found = [
        [
            name.removeprefix("building_"),
            f"{values[0]:.4g}",
            f"{np.median(values):.4g}",
            f"{values[-1]:.4g}",
            f"{values[-1] / values[0]:.4g}" if values[0] > 0.0 else "unbounded",
        ]
        for name, values in medians.items()
    ]
    return out + table(("set", "smallest", "middle", "largest", "largest / smallest"), found)


def _said(value: float) -> str:
    return f"{value:.4f}" if np.isfinite(value) else "no data"


def main(options: argparse.Namespace) -> int:
    """Print the tables, and write them into ``experiments.md`` of a docs folder."""
    sets = {name: buildings.load(options.data, name, options.clients) for name in options.sets}
    text = "\n".join(lines(sets))
    print(text)
    if options.docs:
        replace_block(options.docs / "experiments.md", MARKER, text)
    return 0
