"""Real devices with a real graph: Milan's squares and Boulder's charging sites.

Each set says who is near whom, what a device learns from, and how its forecasts are scored: cells
by the RMSE of all, charging sites by the pinball loss of what is served. ``choose`` is the part
that steps are chosen by; it comes before the test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.papers.graph import Site
from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.extensions.evaluation.forecast_metrics import QUANTILES
from edge_sdk.forecasting.forecast import fan, rolling
from edge_sdk.forecasting.windows import ChannelFrame, Drawable
from edge_sdk.protocol.contract.parameter_layout import Vector
from tools.experiments import cells, ev
from tools.experiments.related_methods import Links
from tools.experiments.synthetic_graph import nearest

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Part = Literal["learn", "choose", "train", "test"]
"""``learn`` comes before ``choose``; ``train`` is both, where what is tested may know both."""

MILAN, BOULDER = "milan", "boulder"
FOLDERS: Final[Mapping[str, str]] = {
    MILAN: cells.MILAN,
    BOULDER: ev.BOULDER,
}
CLOSE = 2
"""Number of nearest neighbours of a charging site."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A real fleet."""

    title: str
    said: str  # what is learned by whom, in words
    bundle: Bundle
    frames: Mapping[str, ChannelFrame]  # channels by device
    links: Links  # pairs of neighbours
    score: str  # what ``judged`` calls the score that methods are compared by
    origins: Callable[[str, Part], Ints]  # the windows of a device in a part
    # from forecasts and truth by device to scores; lower is better
    judged: Callable[[Mapping[str, Floats], Mapping[str, Floats]], dict[str, float]]

    def windows(self, part: Part) -> dict[str, Drawable]:
        return {x: Drawable(frame, self.origins(x, part)) for x, frame in self.frames.items()}

    def errors(self, vectors: Mapping[str, Vector], part: Part) -> dict[str, float]:
        """Score each device's forecasts of a part with its own vector; infinite if not finite."""
        told, truth = {}, {}
        for name, frame in self.frames.items():
            rows = self.origins(name, part)
            with np.errstate(over="ignore", invalid="ignore"):
                told[name] = self._told(vectors[name], frame, rows)
            truth[name] = frame.truth(rows)
        if not all(np.isfinite(x).all() for x in told.values()):
            return {self.score: math.inf, "MAE": math.inf}
        return self.judged(told, truth)

    def _told(self, p: Vector, frame: ChannelFrame, rows: Ints) -> Floats:
        if self.bundle.manifest.target.output == "quantiles":
            return fan(self.bundle.forecast, p, frame, rows, QUANTILES)
        return rolling(self.bundle.forecast, p, frame, rows)


def milan(folder: Path) -> Place:
    """Read 25 squares, traffic one hour ahead; neighbours have a common side.

    >>> beside("cell_4142", "cell_4143"), beside("cell_4142", "cell_4242")
    (True, True)
    >>> beside("cell_4142", "cell_4243")
    False
    """
    found = {x.name: x for x in cells.load(folder, cells.MILAN)}
    names = sorted(found)
    pairs = ((a, b) for i, a in enumerate(names) for b in names[i + 1 :] if beside(a, b))
    bundle = Bundle.open("cells-mlp-1", trust=TrustedKeys())
    frames = {x: cells.frame(cell, bundle.manifest) for x, cell in found.items()}
    return Place(
        "Milan's squares",
        f"{len(names)} squares, traffic one hour ahead, neighbours have a common side; the test is "
        "the last week, the week before it chose steps. Scores are of all squares at once.",
        bundle,
        frames,
        frozenset(pairs),
        "RMSE",
        lambda name, part: cells.origins(found[name], frames[name], part),
        cells.scored,
    )


def beside(one: str, other: str) -> bool:
    """Return whether two squares of the grid, a hundred to a row, have a common side."""
    (up, right), (down, left) = (divmod(int(x.removeprefix("cell_")), 100) for x in (one, other))
    return abs(up - down) + abs(right - left) == 1


def boulder(folder: Path) -> Place:
    """Read eight public charging sites, half an hour ahead; neighbours are the nearest.

    The test is the last fifth; steps are chosen by the fifth before it, which nobody learns from.
    """
    found = {x.name: x for x in ev.load(folder, ev.BOULDER)}
    names = list(found)
    bundle = Bundle.open("chargers-1", trust=TrustedKeys())
    frames = {x: ev.frame(station, bundle.manifest) for x, station in found.items()}
    sites = [station.site for station in found.values() if station.site is not None]
    parts: Mapping[Part, ev.Part] = {"choose": "choose", "test": "test"}

    def judged(told: Mapping[str, Floats], truth: Mapping[str, Floats]) -> dict[str, float]:
        rows = {x: ev.scored(truth[x], ev.served(told[x])) for x in names}
        return ev.mean_of(rows)

    return Place(
        "Boulder's chargers",
        f"{len(names)} charging sites, demand half an hour ahead, neighbours are the {CLOSE} "
        "nearest; the test is the last fifth, the fifth before it chose steps. Scores are means "
        "over sites of what is served; QS is the sum of the pinball losses at 0.1, 0.5 and 0.9.",
        bundle,
        frames,
        nearest(names, on_the_globe(sites), CLOSE),
        "QS",
        lambda name, part: ev.origins(found[name], frames[name], parts.get(part, "learn")),
        judged,
    )


def on_the_globe(sites: Sequence[Site]) -> Floats:
    """Turn coordinates into points of the unit sphere, ``(N, 3)``: near points stay near.

    >>> on_the_globe([Site(0.0, 0.0), Site(0.0, 90.0), Site(90.0, 0.0)]).round(12).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    at = np.radians([(site.latitude, site.longitude) for site in sites])
    north, east = at[:, 0], at[:, 1]
    flat = np.cos(north)
    return np.stack([flat * np.cos(east), flat * np.sin(east), np.sin(north)], axis=1)


PLACES: Final[Mapping[str, Callable[[Path], Place]]] = {
    MILAN: milan,
    BOULDER: boulder,
}


def there(folder: Path | None) -> list[str]:
    """Return the names of the sets in a folder.

    >>> there(None)
    []
    """
    return [x for x, name in FOLDERS.items() if folder is not None and (folder / name).is_dir()]
