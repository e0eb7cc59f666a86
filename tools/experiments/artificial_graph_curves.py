"""Make the graph-aware chapter's figures of curves: losses over rounds on artificial graphs and text."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from tools.experiments import language, synthetic_graph
from tools.experiments.synthetic_graph_pages import LOSS, MEAN, NAMES, ROUND
from tools.papers.curves import rounded

Record = Mapping[str, Any]
Points = Sequence[Sequence[float]]


def five(options: argparse.Namespace) -> Record:
    """Return the loss of the average model on five nodes, by the step (Fig. 10.1)."""
    panels: list[dict[str, Any]] = []
    runs = {x: _graph("10.1", x, options) for x in synthetic_graph.SPEEDS}
    for is_fading, title in ((False, "constant step of 0.1"), (True, "step of 0.1 over the root")):
        wanted = {"fading": is_fading, "linear": False, "rate": synthetic_graph.RATE}
        lines = {NAMES[x]: _part(runs[x], wanted) for x in synthetic_graph.SPEEDS}
        panels.append({"title": title, "lines": lines})
    return _record(panels, LOSS, y="loss of the average model, seed 0")


def fifty(options: argparse.Namespace) -> Record:
    """Return the loss on unseen examples of fifty nodes, on either graph (Fig. 10.3).

    Of the methods without a server that of the average model, as in the chapter's order.
    """
    panels: list[dict[str, Any]] = []
    runs = {x: _graph("10.3", x, options) for x in synthetic_graph.KINDS}
    for part, title in (("train", "training graph"), ("test", "test graph")):
        lines = {NAMES[x]: _part(runs[x], {"part": part}) for x in synthetic_graph.KINDS}
        panels.append({"title": title, "lines": lines})
    averaged = {NAMES[x] for x in ("dfl_sgd", "dfl_gt")}
    return _record(panels, LOSS, MEAN, averaged, y="loss on unseen examples, seed 0")


def text(options: argparse.Namespace) -> Record:
    """Return the loss on unseen text of every domain (Fig. 10.4, reduced)."""
    options.out.mkdir(parents=True, exist_ok=True)
    lines = {
        NAMES[x]: language.run(x, 0, options.out, quick=options.quick)["shown"]
        for x in language.KINDS
    }
    panels = [{"title": "15 parts of Python's library", "lines": lines}]
    return _record(panels, 2, y="loss on unseen text, seed 0")


def _graph(figure: str, method: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    options.out.mkdir(parents=True, exist_ok=True)
    return synthetic_graph.run((figure, method), 0, options.out, quick=options.quick)


def _part(runs: Sequence[Mapping[str, Any]], wanted: Mapping[str, Any]) -> Points:
    found: Points = next(
        x["shown"] for x in runs if all(x.get(key) == value for key, value in wanted.items())
    )
    return found


def _record(
    panels: list[dict[str, Any]],
    at: int,
    other: int = LOSS,
    others: frozenset[str] | set[str] = frozenset(),
    *,
    y: str,
) -> Record:
    """Put points on a common axis; lines in ``others`` use another column."""
    across = sorted(
        {p[ROUND] for one in panels for points in one["lines"].values() for p in points}
    )
    for one in panels:
        lines = {}
        for name, points in one["lines"].items():
            column = other if name in others else at
            values = rounded([p[column] for p in points])
            found = dict(zip((p[ROUND] for p in points), values, strict=True))
            lines[name] = [found.get(number) for number in across]
        one["lines"] = lines
    return {"x": "round", "y": y, "across": across, "panels": panels}
