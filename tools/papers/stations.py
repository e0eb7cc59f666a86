"""Make the page of PFGL's Tables II to IV by station, from the scores that E1 kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

NAME = "pfgl-stations"
FOLDER = Path(__file__).parent
KINDS: Mapping[str, str] = {
    "QS": "Table II, quantile score, kWh",
    "MIL": "Table III, mean interval length, kWh",
    "ICP": "Table IV, interval coverage",
}
BETTER: Mapping[str, str] = {"QS": "lower", "MIL": "shorter", "ICP": "closer to 0.8"}
"""Scores, and when one is better."""

ALONE, COVERAGE = "No_FL", 0.8

Scores = Mapping[str, Mapping[str, float]]
"""One score by method and station."""

PAGE = """\
# PFGL's tables by station

Tables II to IV of [PFGL](pfgl.md) on our sets, six steps ahead. The record `tools/papers/pfgl-stations.json` has
the stations one step ahead, too.

Every row has {rounds} rounds of {steps} iterations at a rate of 2e-3, seed 0 (the paper: 100 of 656, at 5e-4
or 1e-3), without the epoch of tuning on each device that ends Algorithm 1. These are observations of short
runs, not a ranking. `improved` is the share of stations that are better than alone,
`best at` counts the stations where the row is the best of the seven.

```console
$ .venv/bin/python tools/reproduce.py e1 --data data --out runs/ev --seeds 1 --rows {rows}
$ .venv/bin/python tools/reproduce.py figures --data data --out runs/ev --only {name}
```

In the paper PFGL's improved rates are 100 and 100 % in QS, 87.5 and 100 % in MIL, and 75 and 62.5 % in
ICP, one and six steps ahead; it has the lowest QS at 5 and 6 of 8 stations. Here PFGL is better than
alone, and the best of the seven, at so many stations:

{summary}

{tables}
"""


@dataclass(frozen=True, slots=True)
class StationTable:
    """The scores of a set and a horizon."""

    title: str  # name of the set, and the steps ahead
    scores: Mapping[str, Mapping[str, Mapping[str, float]]]  # by method, station and kind of score

    def of(self, kind: str) -> Scores:
        """Return one kind of score."""
        return {
            name: {x: score[kind] for x, score in row.items()} for name, row in self.scores.items()
        }


def read() -> dict[str, Any]:
    """Return the record; without tables where there is none."""
    path = FOLDER / f"{NAME}.json"
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return found


def tables_of(record: Mapping[str, Any]) -> list[StationTable]:
    return [StationTable(title, scores) for title, scores in record["stations"].items()]


def page(record: Mapping[str, Any]) -> str:
    """Return the page."""
    tables = tables_of(record)
    rows = " ".join(next(iter(record["stations"].values())))
    parts = [
        line
        for one in tables
        for kind, what in KINDS.items()
        if one.title.endswith("p=6")
        for line in (f"## {one.title}: {what}", "", *_lines(one.of(kind), kind), "")
    ]
    return PAGE.format(
        rounds=record["rounds"],
        steps=record["steps"],
        rows=rows,
        name=NAME,
        summary="\n".join(_summary(tables)),
        tables="\n".join(parts).rstrip(),
    )


def better(scores: Scores, kind: str, name: str = "PFGL") -> int:
    """Return the number of stations at which a method is better than training alone.

    >>> better({"No_FL": {"A": 1.0, "B": 0.9}, "PFGL": {"A": 0.7, "B": 0.6}}, "ICP")
    1
    """
    row, alone = scores[name], scores[ALONE]
    return sum(_badness(row[x], kind) < _badness(alone[x], kind) for x in alone)


def best(scores: Scores, kind: str) -> dict[str, int]:
    """Return the number of stations at which each method is the best; the first of equal ones.

    >>> best({"No_FL": {"A": 1.0, "B": 2.0}, "PFGL": {"A": 3.0, "B": 1.0}}, "QS")
    {'No_FL': 1, 'PFGL': 1}
    """
    count = dict.fromkeys(scores, 0)
    for station in scores[ALONE]:
        count[min(scores, key=lambda name: _badness(scores[name][station], kind))] += 1
    return count


def _badness(value: float, kind: str) -> float:
    return round(abs(value - COVERAGE), 9) if kind == "ICP" else value


def _summary(tables: Sequence[StationTable]) -> list[str]:
    head = ["set", "stations"]
    for kind, is_better in BETTER.items():
        head += [f"{kind} {is_better}", f"{kind} the best"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for one in tables:
        cells = [one.title, str(len(one.scores[ALONE]))]
        for kind in KINDS:
            scores = one.of(kind)
            cells += [str(better(scores, kind)), str(best(scores, kind)["PFGL"])]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _lines(scores: Scores, kind: str) -> list[str]:
    stations, most = list(scores[ALONE]), best(scores, kind)
    head = ["method", *stations, "mean", "improved", "best at"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, row in scores.items():
        values = [
            f"{value:.4g}" for value in (*(row[x] for x in stations), np.mean([*row.values()]))
        ]
        share = "" if name == ALONE else f"{better(scores, kind, name) / len(stations):.0%}"
        lines.append("| " + " | ".join([name, *values, share, str(most[name])]) + " |")
    return lines
