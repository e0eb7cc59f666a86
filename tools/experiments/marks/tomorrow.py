"""Set tomorrow's errors beside the marks: after a year, and in the first days.

It reads what ``days`` and ``first_days`` have left in a folder; the command ``accuracy`` prints it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tools.experiments.marks.days import ARMS, SETS

STRETCH = 0.96
"""What the stretch is of a mark."""
FIRST_DAY = 0.95
"""Stretch of the first day of every set, over the mean profile."""
FIRST_STRETCH = 0.95
"""What the stretch of a later day is of its mark."""


@dataclass(frozen=True, slots=True)
class DayMark:
    """Errors of tomorrow over last week's same slot, means over devices, as ``scores`` has them."""

    must: float  # best of a ridge or LightGBM of each device, and of five days' median
    mark: float  # best of the anchors
    pinball: float


MARKS: Mapping[str, DayMark] = {
    "building_bdg2_fl_az_ca": DayMark(0.701, 0.684, 0.456),
    "building_resstock_ca_alameda": DayMark(0.700, 0.655, 0.444),
    "building_fontana_ca": DayMark(0.719, 0.700, 0.466),
    "building_simbench_15min": DayMark(0.788, 0.780, 0.533),
    "cellular_milan": DayMark(0.826, 0.815, 0.605),
    "ev_boulder": DayMark(0.715, 0.703, 0.478),
}

FIRST: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "building_bdg2_fl_az_ca": {"3": (0.90, 0.878), "7": (0.85, 0.814), "14": (0.80, 0.773)},
    "building_resstock_ca_alameda": {"3": (0.90, 0.874), "7": (0.89, 0.876), "14": (0.87, 0.850)},
}
"""Must and mark by known days, over the mean profile."""


def reached(error: float, levels: Sequence[float]) -> str:
    """Return the farthest level that an error reaches.

    Args:
        levels: Must, mark and stretch.

    >>> [reached(x, (0.7, 0.68, 0.65)) for x in (0.71, 0.7, 0.66, 0.6)]
    ['missed', 'must', 'mark', 'stretch']
    """
    return ("missed", "must", "mark", "stretch")[sum(error <= level for level in levels)]


def report(out: Path) -> str:
    """Return both tables as Markdown, of the sets that are finished in a folder; empty without any."""
    parts = [_after_a_year(out), _first_days(out)]
    return "\n".join(part for part in parts if part)


def _after_a_year(out: Path) -> str:
    heads = ("set", "arm", "error", "must", "mark", "stretch", "reached", "pinball", "its mark")
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    for name, mark in MARKS.items():
        for arm in ARMS:
            found = _read(out / f"days-{name}-{arm}.json")
            if found:
                levels = (mark.must, mark.mark, STRETCH * mark.mark)
                cells = [SETS[name][0], arm, f"{found['error']:.3f}"]
                cells += [f"{level:.3f}" for level in levels]
                cells += [reached(found["error"], levels)]
                cells += [f"{found['pinball']:.3f}", f"{mark.pinball:.3f}"]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n" if len(lines) > 2 else ""


def _first_days(out: Path) -> str:
    heads = ("set", "days", "method", "error over the mean profile", "must", "mark", "reached")
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    for name in SETS:
        found = _read(out / f"first-days-{name}.json")
        for days, errors in found.get("errors", {}).items():
            marks = FIRST.get(name, {}).get(days)
            if not marks and days != "1":
                continue
            base = np.array(errors["profile"])
            good = base > 1e-9
            for method in (arm for arm in ARMS if arm in errors):
                error = float((np.array(errors[method])[good] / base[good]).mean())
                text = "stretch" if error <= FIRST_DAY else "no stretch"
                if marks:
                    text = reached(error, (*marks, FIRST_STRETCH * marks[1]))
                cells = [SETS[name][0], days, method, f"{error:.3f}"]
                cells += [f"{m:.3f}" for m in marks] if marks else ["", ""]
                lines.append(f"| {' | '.join([*cells, text])} |")
    return "\n".join(lines) + "\n" if len(lines) > 2 else ""


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8")) if path.exists() else {}
