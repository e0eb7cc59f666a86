"""Make BAFDP's figures of curves: forecasts, budgets, waiting, and attackers."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from edge_sdk.forecasting.forecast import rolling
from tools.experiments import bafdp, cells, cellular_setup, robust
from tools.experiments.cellular_setup import Arm
from tools.papers.curves import rounded

Record = Mapping[str, Any]
Path = Sequence[Mapping[str, float]]

DAY = 24
FORECAST, COMPARED = 2, (cells.MILAN, cells.BARCELONA)
"""Number of cells of the figure of forecasts; data sets of the other figures."""


def _arm(options: argparse.Namespace, **more: Any) -> Arm:  # noqa: ANN401 - fields of an arm
    plain = {"experiment": "e9", "dataset": cells.MILAN, "horizon": 1, "name": "BAFDP"}
    common = {"net": "mlp", "budget": None, "work": options.work, "seed": 0}
    return Arm(**{**plain, **common, "clients": options.cells or 10, **more})


def forecasts(options: argparse.Namespace) -> Record | None:
    """Return forecasts of two cells over the test week, an hour and a day ahead (Fig. 2)."""
    if not (options.data / cells.MILAN).is_dir():
        return None
    panels, across = [], []
    for horizon, title in ((1, "an hour ahead"), (DAY, "a day ahead")):
        arm = _arm(options, horizon=horizon)
        base = cellular_setup.ground(arm, options.data)
        vectors, _ = bafdp.trained(arm, base)
        for name in sorted(base.cells)[:FORECAST]:
            cut = base.served[name]
            rows = cells.origins(base.cells[name], cut, "test")
            last = horizon - 1
            told = rolling(base.bundle.forecast, vectors[name], cut, rows)[:, last]
            start = DAY - horizon  # the first hour that both have a forecast of
            lines = {"measured": rounded(cut.truth(rows)[start:, last])}
            lines["forecast"] = rounded(told[start:])
            panels.append({"title": f"{name}, {title}", "lines": lines})
            across = [float(DAY + i) for i in range(len(rows) - start)]
    return {"x": "hour of the test week", "y": "traffic", "across": across, "panels": panels}


def budgets(options: argparse.Namespace) -> Record | None:
    """Return the mean budget epsilon of the devices over the firings, by its cap (Fig. 3)."""
    there, _ = cells.present(options.data, COMPARED)
    if cells.MILAN not in there:
        return None
    paths = {
        (dataset, cap): _path(_arm(options, experiment="e10", dataset=dataset, budget=cap), options)
        for dataset in there
        for cap in (30.0, 50.0)
    }
    panels = []
    across = sorted({x["firing"] for path in paths.values() for x in path})
    for (dataset, cap), path in paths.items():
        lines = {"epsilon": _at(across, path, "firing", "epsilon")}
        panels.append({"title": f"{cells.TITLES[dataset]}, a={cap:g}", "lines": lines})
    return {"x": "firing", "y": "mean epsilon", "across": across, "panels": panels}


def waiting(options: argparse.Namespace) -> Record | None:
    """Return loss and errors over simulated time, with and without waiting (Figs. 4 to 6)."""
    there, _ = cells.present(options.data, COMPARED)
    if cells.MILAN not in there:
        return None
    names = ("BAFDP", "BSFDP")
    more = {"experiment": "e11", "clock": "straggler", "clients": options.cells}
    paths = {
        (dataset, name): _path(_arm(options, dataset=dataset, name=name, **more), options)
        for dataset in there
        for name in names
    }
    across = sorted({x["time"] for path in paths.values() for x in path})
    panels = []
    for dataset in there:
        for kind, title in (("loss", "training loss"), ("RMSE", "RMSE"), ("MAE", "MAE")):
            lines = {x: _at(across, paths[dataset, x], "time", kind) for x in names}
            panels.append({"title": f"{cells.TITLES[dataset]}: {title}", "lines": lines})
    return {"x": "simulated seconds", "y": "seed 0", "across": across, "panels": panels}


def attackers(options: argparse.Namespace) -> Record | None:
    """Return the training loss over the firings, by the share that flips its models (Fig. 8)."""
    if not (options.data / cells.MILAN).is_dir():
        return None
    few = min(options.cells or robust.ROUND, robust.ROUND)
    lines, across = {}, []
    for ratio in (0.0, *robust.FIGURE_8):
        attack = "flipping" if ratio else ""
        arm = _arm(options, experiment="e12", attack=attack, ratio=ratio, clients=few)
        path = _path(arm, options)
        across = [x["firing"] for x in path]
        lines[f"{ratio:.0%}"] = rounded([math.log10(x["loss"]) for x in path])
    panels = [{"title": "log10 of the training loss", "lines": lines}]
    return {"x": "firing", "y": "share that flips", "across": across, "panels": panels}


def _path(arm: Arm, options: argparse.Namespace) -> Path:
    """Return the record along a run; make it unless its result is kept."""
    options.out.mkdir(parents=True, exist_ok=True)
    kept = robust.one(arm, options.data, options.out)
    path: Path = json.loads(kept.read_text())["path"]
    return path


def _at(across: Sequence[float], path: Path, x: str, y: str) -> list[float | None]:
    found = dict(zip((p[x] for p in path), rounded([p[y] for p in path]), strict=True))
    return [found.get(at) for at in across]
