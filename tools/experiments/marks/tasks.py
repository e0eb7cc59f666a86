"""The tasks with their marks, read by the anchors' own code so that windows and scores are theirs."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Mark:
    """Errors with which that of a task is compared."""

    title: str  # name of the set and the step
    # error of a local net trained to convergence, or of what needs no training if lower
    must: float
    mark: float  # least error found with the same window
    stretch: float  # least error found with a week of lags; cells: 5 % below the mark
    page: str
    # the anchors' method that learns from all readings in one place
    central: str = "lgbm_pooled_week"

    @property
    def levels(self) -> tuple[float, float, float]:
        """The three marks, the easiest first."""
        return self.must, self.mark, self.stretch


MARKS: Mapping[str, Mark] = {
    "building_bdg2_fl_az_ca:1": Mark("BDG2", 0.768, 0.737, 0.697, "buildings"),
    "building_resstock_ca_alameda:1": Mark("ResStock", 0.800, 0.783, 0.761, "buildings"),
    "building_simbench_15min:1": Mark("SimBench", 0.774, 0.653, 0.649, "buildings"),
    "building_fontana_ca:1": Mark("Fontana", 0.871, 0.838, 0.796, "buildings"),
    "cellular_milan:1": Mark("Milan, 1 hour", 113.0, 106.0, 100.7, "cells", "lgbm_pooled"),
    "cellular_milan:24": Mark("Milan, 24 hours", 153.0, 148.0, 140.6, "cells", "lgbm_pooled"),
    "cellular_barcelona_lte:1": Mark("Barcelona", 160.0, 155.0, 147.3, "cells", "lgbm_pooled"),
    "ev_boulder:1": Mark("Boulder, p = 1", 0.218, 0.207, 0.207, "charging-demand"),
    "ev_boulder:6": Mark("Boulder, p = 6", 0.414, 0.412, 0.397, "charging-demand"),
    "ev_perth_kinross:1": Mark("Perth, p = 1", 1.699, 1.679, 1.659, "charging-demand"),
    "ev_perth_kinross:6": Mark("Perth, p = 6", 2.015, 2.014, 1.978, "charging-demand"),
    "ev_palo_alto_2011_2013:1": Mark("Palo Alto, p = 1", 0.367, 0.366, 0.364, "charging-demand"),
    "ev_palo_alto_2011_2013:6": Mark("Palo Alto, p = 6", 0.629, 0.609, 0.582, "charging-demand"),
    "ev_acn_caltech:1": Mark("Caltech, p = 1", 0.197, 0.192, 0.187, "charging-demand"),
    "ev_acn_caltech:6": Mark("Caltech, p = 6", 0.393, 0.383, 0.365, "charging-demand"),
}
"""Tasks in the order of the tables."""

KEYS = {"building": "MASE", "cell": "MAE", "ev": "QS"}
"""The score of a domain: the mean over devices."""


def read(data: Path, name: str) -> Any:  # noqa: ANN401 - the anchors' own type
    """Return a task of the anchors; a profile without a reading has no scale and is left out."""
    task = importlib.import_module("datasets").load(data, name)
    task.series = [s for s in task.series if np.isfinite(s.value[: s.train_end]).any()]
    return task


def scored(task: Any, forecasts: Mapping[str, Any]) -> tuple[float, dict[str, float]]:  # noqa: ANN401
    """Return the task's score and every device's, by the anchors' own scorer."""
    found = importlib.import_module("metrics").evaluate(task, forecasts)
    key = KEYS[task.domain]
    own = "QS" if task.domain == "ev" else "MAE"
    return found["mean"][key], {n: float(v[own]) for n, v in found["per_station"].items()}


def use(anchors: Path) -> None:
    """Let the anchors' modules be imported."""
    path = str(anchors.resolve())
    if path not in sys.path:
        sys.path.insert(0, path)


def theirs(anchors: Path, name: str) -> float | None:
    """Return the score of the anchors' centralised method on a task; None if it was not run."""
    path = anchors / "results" / f"{name.replace(':', '_p')}.json"
    if not path.exists():
        return None
    seeds = json.loads(path.read_text("utf-8")).get(MARKS[name].central)
    key = KEYS[
        "ev"
        if name.startswith("ev")
        else name.split("_", maxsplit=1)[0].replace("cellular", "cell")
    ]
    return None if not seeds else float(np.mean([one["mean"][key] for one in seeds.values()]))
