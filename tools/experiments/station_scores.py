"""Collect E1's kept scores by station, for the page of PFGL's Tables II to IV."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from tools.experiments import ev, graphs
from tools.experiments.charging import Arm
from tools.papers import stations


def station_scores(options: argparse.Namespace) -> dict[str, Any] | None:
    """Return the record of every set and horizon of which all seven rows are kept.

    What the record has already of the same length stays where ``--out`` has no such rows; None
    where there is nothing at all.
    """
    length = {"rounds": options.turns, "steps": options.pace}
    before = stations.read()
    is_same = all(before.get(key) == value for key, value in length.items())
    known: Mapping[str, Any] = before["stations"] if is_same else {}
    found = {}
    for horizon in sorted(graphs.HORIZONS):
        for dataset in ev.SETS:
            title = f"{ev.TITLES[dataset]} p={horizon}"
            rows = _rows(dataset, horizon, options) or known.get(title)
            if rows:
                found[title] = rows
    return {**length, "stations": found} if found else None


def _rows(dataset: str, horizon: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the scores of all seven rows; nothing if one is missing."""
    rows = {}
    for name in graphs.PAPERS:
        arm = Arm("e1", dataset, horizon, name, 0, options.turns, options.pace)
        path = options.out / arm.file
        if not path.is_file():
            return {}
        scores = json.loads(path.read_text("utf-8"))["stations"]
        rows[name] = {
            x: {kind: float(f"{score[kind]:.4g}") for kind in stations.KINDS}
            for x, score in scores.items()
        }
    return rows
