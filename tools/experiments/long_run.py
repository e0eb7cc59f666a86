"""Score the saved middles of PFGL's longest run: its learning curve beside the short runs.

The run is E1's ``PFGL`` on Palo Alto at p=6, 100 rounds of 656 iterations, as in the paper. It keeps
its newest middle as ``NAME.resume`` and continues from it. Copies of that file beside it, named
``NAME-*.resume``, are earlier points of the curve.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tools.experiments import chargers, charging, ev
from tools.experiments.resumable import Checkpoint
from tools.papers.curves import FOLDER

ARM = charging.Arm("e1", ev.PALO_ALTO, 6, "PFGL", 0, 100, 656)
NAME = "pfgl-lengths"
SHORT: Mapping[int, tuple[float, float]] = {
    240: (0.7130, 0.7028),
    960: (0.7141, 0.6913),
    9600: (0.8388, 0.7751),
}
"""QS on the test part of shorter runs, alone and with PFGL, by iterations of a station."""

ALONE, RUNS, LONG = "alone, runs of this length", "PFGL, runs of this length", "PFGL, one long run"


@dataclass(frozen=True, slots=True)
class LengthPoint:
    """Scores of a round's models."""

    held_back: float  # mean over stations on the choosing part, in standard deviations of training
    test: float  # QS on the test part, kWh


def lengths(options: argparse.Namespace) -> dict[str, Any] | None:
    """Return the record with a point for every kept middle; None without data or middles."""
    middles = sorted(options.out.glob(f"{Path(ARM.file).stem}*.resume"))
    if not middles or not (options.data / ARM.dataset).is_dir():
        return None
    known = points_of(json.loads((FOLDER / f"{NAME}.json").read_text("utf-8")))
    return record(known | dict(_scored(middles, options.data, known)))


def _scored(
    middles: Iterable[Path], data: Path, known: Mapping[int, LengthPoint]
) -> Iterable[tuple[int, LengthPoint]]:
    base = charging.ground(ARM, data)
    for path in middles:
        before = Checkpoint(path).load()
        if before["done"] in known:
            continue
        stage = chargers.stage_at(ARM, base, before["stage"])
        learnt = chargers.learnt_now(ARM, base, stage)
        held_back = float(np.mean([*charging.chosen_by(base, learnt).values()]))
        test = ev.mean_of(charging.judged(base, charging.told(base, learnt, "test")))
        yield before["done"], LengthPoint(round(held_back, 4), round(float(test["QS"]), 4))


def points_of(record: Mapping[str, Any]) -> dict[int, LengthPoint]:
    """Return the points of the long run in a record, by round; the inverse of ``record``."""
    test, held_back = (panel["lines"][LONG] for panel in record["panels"])
    rows = zip(record["across"], test, held_back, strict=True)
    return {round(1000.0 * x / ARM.steps): LengthPoint(z, y) for x, y, z in rows if y is not None}


def record(points: Mapping[int, LengthPoint]) -> dict[str, Any]:
    """Return the picture's record: both panels over thousands of iterations.

    >>> made = record({2: LengthPoint(0.6277, 0.7147)})
    >>> made["across"], points_of(made)
    ([0.24, 0.96, 1.312, 9.6], {2: LengthPoint(held_back=0.6277, test=0.7147)})
    """
    by_iterations = {ARM.steps * number: point for number, point in sorted(points.items())}
    across = sorted({*SHORT, *by_iterations})
    alone = [SHORT[x][0] if x in SHORT else None for x in across]
    runs = [SHORT[x][1] if x in SHORT else None for x in across]
    test = [by_iterations[x].test if x in by_iterations else None for x in across]
    held_back = [by_iterations[x].held_back if x in by_iterations else None for x in across]
    panels = [
        {"title": "test part: QS, kWh", "lines": {ALONE: alone, RUNS: runs, LONG: test}},
        {"title": "held-back part: QS, standard deviations", "lines": {LONG: held_back}},
    ]
    return {
        "x": "thousands of iterations (the paper has 65.6)",
        "y": "Palo Alto 2011-2013, p=6",
        "across": [x / 1000.0 for x in across],
        "panels": panels,
    }
