"""Untrained forecasts, and strong methods by others, on the same windows."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping

from tools.experiments import cellular_setup
from tools.experiments.cellular_setup import Arm
from tools.experiments.pages import called

HORIZONS = (1, 24)
ANCHORS = ("lgbm", "gru", "dlinear", "ridge")
"""Prefixes of the names of methods that ours are compared with."""

Marks = Mapping[str, Mapping[str, str]]
"""Task to forecast to its RMSE / MAE."""


def marks(options: argparse.Namespace) -> Marks:
    """Score untrained forecasts, and read the anchors' scores on the same windows."""
    out: dict[str, dict[str, str]] = {}
    for dataset in options.cellular:
        for horizon in HORIZONS:
            arm = Arm("e9", dataset, horizon, "plain", "mlp", None, 0, 0, clients=options.cells)
            scores = cellular_setup.plain(arm, cellular_setup.ground(arm, options.data))
            rows = {x: f"{s['RMSE']:.4g} / {s['MAE']:.4g}" for x, s in scores.items()}
            out[called((dataset, horizon))] = rows | _anchors(options, dataset, horizon)
    return out


def _anchors(options: argparse.Namespace, dataset: str, horizon: int) -> dict[str, str]:
    """Return the anchors' nets and trees; they are scored on all cells, so only then comparable."""
    if options.anchors is None or options.cells is not None:
        return {}
    path = options.anchors / "results" / f"{dataset}_p{horizon}.json"
    if not path.exists():
        return {}
    out = {}
    for name, seeds in json.loads(path.read_text()).items():
        if name.startswith(ANCHORS):
            means = [x["mean"] for x in seeds.values()]
            rmse, mae = (
                sum(m[k] for m in means) / len(means) for k in ("RMSE_pooled", "MAE_pooled")
            )
            out[f"anchor {name}"] = f"{rmse:.4g} / {mae:.4g}"
    return out
