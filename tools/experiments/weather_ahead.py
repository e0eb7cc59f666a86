"""Measure the value of the weather of the target's hour, on simulated homes with recorded weather.

The first eight tenths of each year train, the next tenth is forecast an hour ahead. Nets are trained on
the windows of all homes together, closed forms on each home alone. Training has the recorded weather of
the target's hour; the tested announcements are exact, wrong by a normal error, or missing.

  python -m tools.experiments.weather_ahead --data DATA --docs docs
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.authoring.closed_form import WEATHER_AHEAD, AnalyticRecipe, made
from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.extensions.analytic.bundle_functions import AnalyticModel
from edge_sdk.extensions.evaluation.forecast_metrics import Floats
from edge_sdk.forecasting.windows import ChannelFrame, Drawable, filled
from edge_sdk.protocol.contract.manifest import Manifest
from tools.experiments.buildings import LOAD, PARTS, WEATHER, Building, load
from tools.experiments.marked_block import replace_block

SET = "building_resstock_ca_alameda"
AHEAD = f"{WEATHER[0]}+1"
NETS = ("load-week-1", "load-week-weather-1", "load-week-weather-ahead-1")
ROWS = ("no weather", "weather of the newest hour", "weather of the target's hour, exact")
ERRORS = (1.0, 2.0)
"""Standard deviations of the tested errors of announcements, in °C."""

Vector = NDArray[np.float32]
Forecaster = Callable[[ChannelFrame], Floats]


def announced(building: Building, error: float | None, rng: np.random.Generator) -> Building:
    """Return a building whose test part has announced temperatures.

    Args:
        building: Building with recorded weather.
        error: Standard deviation of the announcements in °C; None: none arrive.
        rng: Source of the errors.
    """
    warm = building.columns[WEATHER[0]]
    first = int(PARTS["test"][0] * len(warm)) - 1
    later = np.append(warm[1:], np.nan) + (error or 0.0) * rng.normal(size=len(warm))
    told = np.where(np.arange(len(warm)) < first, np.nan, warm if error is None else later)
    return replace(building, columns={**building.columns, AHEAD: told})


def cut(building: Building, manifest: Manifest) -> ChannelFrame:
    return ChannelFrame.of(building.series(), manifest, span=PARTS["train"])


def error_of(frame: ChannelFrame, forecast: Forecaster) -> float:
    """Return the mean absolute error over the test part, as a share of the mean load."""
    origins = frame.origins(PARTS["test"])
    truth = frame.truth(origins)
    return float(np.abs(forecast(frame) - truth).mean() / np.nanmean(filled(frame.raw)))


def medians(graph: Any, p: Vector, frame: ChannelFrame) -> Floats:  # noqa: ANN401 - a loaded graph
    """Return the median forecasts of the test part, ``(n, 1)``."""
    origins = frame.origins(PARTS["test"])
    (yhat,) = graph(p=p, x=frame.inputs(origins))
    return frame.restore(np.asarray(yhat)[:, :, 1], origins)


def trained(bundle: Bundle, frames: Sequence[ChannelFrame], steps: int, seed: int) -> Vector:
    """Return a net after Adam over minibatches of all homes, at a rate that falls to zero."""
    rng, p = np.random.default_rng(seed), bundle.initial.astype(np.float64)
    drawn = [Drawable(frame, frame.origins(PARTS["train"])) for frame in frames]
    first, second = np.zeros_like(p), np.zeros_like(p)
    for step in range(1, steps + 1):
        batches = [drawn[rng.integers(len(drawn))].draw(rng, 32) for _ in range(4)]
        x, y = (np.concatenate([getattr(one, side) for one in batches]) for side in ("x", "y"))
        g = bundle.graphs["gradient"](p=p.astype(np.float32), x=x, y=y)[1].astype(np.float64)
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
        rate = 2e-3 * (1.0 - step / steps)
        p -= rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    return p.astype(np.float32)


def solved(model: AnalyticModel, initial: Vector, frame: ChannelFrame) -> Vector:
    """Return a closed form's vector from the training part of one home."""
    windows = Drawable(frame, frame.origins(PARTS["train"])).select(frame.origins(PARTS["train"]))
    count, p = len(model.section.features), initial.copy()
    (design,) = model.design(p, windows.x)
    features = design[:, 0, :count]
    p[:count], spread = features.mean(axis=0), features.std(axis=0)
    p[count : 2 * count] = np.where(spread > 1e-9, spread, 0.0)
    (design,) = model.design(p, windows.x)
    return np.asarray(model.personal(p, design, windows.y)[0], np.float32)


def nets(buildings: Sequence[Building], steps: int, seeds: int) -> dict[str, float]:
    """Return the error of each net, and of the third under each kind of announcement."""
    found: dict[str, list[float]] = {}
    for name, row in zip(NETS, ROWS, strict=True):
        bundle = Bundle.open(name, trust=TrustedKeys())
        frames = [cut(one, bundle.manifest) for one in buildings]
        tests = _tests(buildings, bundle.manifest) if name == NETS[2] else {row: frames}
        for seed in range(seeds):
            p = trained(bundle, frames, steps, seed)
            graph = bundle.graphs["forecast"]
            for kind, cuts in tests.items():
                errors = [error_of(one, partial(medians, graph, p)) for one in cuts]
                found.setdefault(kind, []).append(float(np.mean(errors)))
    return {kind: float(np.mean(errors)) for kind, errors in found.items()}


def closed(buildings: Sequence[Building]) -> dict[str, float]:
    """Return the error of closed forms fitted to each home alone, by the same rows."""
    found: dict[str, float] = {}
    for count, row in zip((0, 2, 4), ROWS, strict=True):
        recipe = AnalyticRecipe(exogenous=WEATHER_AHEAD[:count])
        manifest, initial = made(recipe, name="load-analytic", version=1)
        model, start = AnalyticModel(manifest), np.frombuffer(initial, "<f4").copy()
        frames = [cut(one, manifest) for one in buildings]
        fitted, graph = [solved(model, start, one) for one in frames], model.functions()["forecast"]
        for kind, cuts in (_tests(buildings, manifest) if count == 4 else {row: frames}).items():
            pairs = zip(cuts, fitted, strict=True)
            errors = [error_of(one, partial(medians, graph, p)) for one, p in pairs]
            found[kind] = float(np.mean(errors))
    return found


def _tests(buildings: Sequence[Building], manifest: Manifest) -> dict[str, list[ChannelFrame]]:
    kinds: dict[str, float | None] = {ROWS[2]: 0.0}
    kinds |= {f"the same, wrong by {error:g} °C": error for error in ERRORS}
    kinds["the same, not announced"] = None
    return {
        kind: [
            cut(announced(one, error, np.random.default_rng(number)), manifest)
            for number, one in enumerate(buildings)
        ]
        for kind, error in kinds.items()
    }


def table(columns: Mapping[str, Mapping[str, float]]) -> str:
    """Return the errors in per cent of the mean load as a Markdown table."""
    lines = ["| announced weather | " + " | ".join(columns) + " |"]
    lines.append("| --- |" + " ---: |" * len(columns))
    for row in next(iter(columns.values())):
        cells = [f"{100 * column[row]:.2f}" for column in columns.values()]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the sets")
    parser.add_argument("--docs", type=Path, help="folder of the pages, to write the table")
    parser.add_argument("--clients", type=int, default=42, help="homes (42)")
    parser.add_argument("--steps", type=int, default=4000, help="minibatches of a net (4000)")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of a net (3)")
    args = parser.parse_args()
    buildings = load(args.data, SET, args.clients)
    assert all(LOAD in one.columns for one in buildings)
    found = {
        "closed form, each home alone": closed(buildings),
        "net of all homes": nets(buildings, args.steps, args.seeds),
    }
    print(table(found), flush=True)
    if args.docs:
        replace_block(args.docs / "measurements.md", "<!-- weather ahead -->", table(found))


if __name__ == "__main__":
    main()
