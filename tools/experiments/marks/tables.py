"""The tables of the accuracy experiment: one of all tasks, one of short histories, one page a domain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tools.experiments.marked_block import replace_block
from tools.experiments.marks.tasks import MARKS, theirs

MARKER = "<!-- accuracy -->"
WORSE = 1.01
"""Error of the served forecast over that alone from which a device counts as worse off."""

UNROUNDED = "Computed from unrounded errors, means over the seeds:"

PAGES = ("buildings", "cells", "charging-demand")
Results = Sequence[Mapping[str, Any]]


def report(results: Results, anchors: Path) -> str:
    """Return the report as one Markdown page."""
    whole = [r for r in results if not r["history"]]
    parts = ["# Forecasts beside the marks", "", summary(whole), "", table(whole, anchors), ""]
    parts += [differences(whole)]
    if new := cold_start(results):
        parts += ["", "## A new device", "", new]
    return "\n".join(parts) + "\n"


def summary(results: Results) -> str:
    """State the numbers of tasks at or below each mark, and of devices with a loss.

    >>> arms = {"served": {"score": 0.7, "by device": {"a": 1.0}}, "alone": {"by device": {"a": 1.0}}}
    >>> results = [{"task": "building_bdg2_fl_az_ca:1", "seed": 0, **arms}]
    >>> summary(results)  # doctest: +ELLIPSIS
    'Of 1 tasks, 1 are at or below "must", 1 at or below "mark", 0 at or below "stretch". ...'
    """
    grouped = _by_task(results)
    passed = [
        sum(_mean(seeds, "served") <= MARKS[name].levels[place] for name, seeds in grouped.items())
        for place in range(3)
    ]
    worse = sum(_worse(seeds) for seeds in grouped.values())
    devices = sum(len(seeds[0]["served"]["by device"]) for seeds in grouped.values())
    said = ", ".join(
        f'{count} {"are " if not place else ""}at or below "{level}"'
        for place, (count, level) in enumerate(
            zip(passed, ("must", "mark", "stretch"), strict=True)
        )
    )
    return f"Of {len(grouped)} tasks, {said}. {worse} of {devices} devices are more than 1 % worse than alone."


def differences(results: Results) -> str:
    """List, from unrounded errors, the effect of the fleet and the miss of each level.

    >>> arms = {a: {"score": s} for a, s in (("served", 0.99), ("alone", 1.0))}
    >>> print(differences([{"task": "ev_boulder:1", "seed": 0, **arms}]))
    - *Served* against *alone*: Boulder, p = 1 -1.00 %.
    - Above "must": Boulder, p = 1 +354.13 %.
    - Above "mark": Boulder, p = 1 +378.26 %.
    - Above "stretch": Boulder, p = 1 +378.26 %.
    """
    served = {name: _mean(seeds, "served") for name, seeds in _by_task(results).items()}
    alone = {name: _mean(seeds, "alone") for name, seeds in _by_task(results).items()}
    lines = [("*Served* against *alone*", {n: served[n] / alone[n] for n in served})]
    for place, level in enumerate(("must", "mark", "stretch")):
        above = {n: served[n] / MARKS[n].levels[place] for n in served}
        lines.append((f'Above "{level}"', {n: x for n, x in above.items() if x > 1.0}))
    parts = {
        title: "; ".join(f"{MARKS[n].title} {100.0 * (x - 1.0):+.2f} %" for n, x in some.items())
        for title, some in lines
    }
    return "\n".join(f"- {title}: {text}." for title, text in parts.items() if text)


def table(results: Results, anchors: Path | None = None, pages: Sequence[str] = PAGES) -> str:
    """Return one row a task: arms, marks, costs."""
    head = ["task", "devices", "fleet", "alone", "**served**", "must", "mark", "stretch"]
    head += ["centralised", "LightGBM, centralised", "worse than alone", "seeds"]
    head += ["kB up", "kB down", "CPU seconds a device", "peak MiB"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name, seeds in _by_task(results).items():
        mark = MARKS[name]
        if mark.page not in pages:
            continue
        served, first = _mean(seeds, "served"), seeds[0]
        cells = [mark.title, str(first["devices"]), *(_said(seeds, a) for a in ("fleet", "alone"))]
        cells += [f"**{_said(seeds, 'served')}**"]
        cells += [f"{_number(m)} {'✓' if served <= m else ''}".strip() for m in mark.levels]
        other = theirs(anchors, name) if anchors else None
        cells += [_said(seeds, "centralised"), "" if other is None else _number(other)]
        cells += [str(_worse(seeds)), str(len(seeds))]
        cells += [f"{np.mean([s[way] for s in seeds]) / 1000:,.0f}" for way in ("sent", "received")]
        cells += [f"{np.mean([s['seconds'] for s in seeds]) / first['devices']:.1f}"]
        cells += [f"{max(s['peak'] for s in seeds)}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cold_start(results: Results, pages: Sequence[str] = PAGES) -> str:
    """Return the errors of devices with short histories, with the fleet's prior and alone."""
    found = {
        (r["task"], r["history"]): r
        for r in results
        if r["history"] and MARKS[r["task"]].page in pages
    }
    days = sorted({h for _, h in found})
    names = [t for t in MARKS if any((t, h) in found for h in days)]
    if not names:
        return ""
    columns = ("fleet", "alone", "**served**", "worse than alone")
    lines = [_said_of_new(found, names, d) for d in days]
    lines += ["", "| task | " + " | ".join(f"{d} days: {c}" for d in days for c in columns) + " |"]
    lines += ["|" + "---|" * (1 + len(columns) * len(days))]
    for name in names:
        cells: list[str] = []
        for d in days:
            one = found.get((name, d))
            if one is None:
                cells += [""] * len(columns)
                continue
            fleet, alone, served = (_number(one[a]["score"]) for a in ("fleet", "alone", "served"))
            cells += [fleet, alone, f"**{served}**", f"{_worse([one])} of {one['devices']}"]
        lines.append("| " + " | ".join([MARKS[name].title, *cells]) + " |")
    return "\n".join(lines)


def _said_of_new(
    found: Mapping[tuple[str, int], Mapping[str, Any]], names: Sequence[str], days: int
) -> str:
    some = [found[name, days] for name in names if (name, days) in found]
    changes = [100.0 * (r["served"]["score"] / r["alone"]["score"] - 1.0) for r in some]
    worse, devices = sum(_worse([r]) for r in some), sum(r["devices"] for r in some)
    return (
        f"- After {days} days the error is {_change(min(changes))} to {_change(max(changes))} against alone; "
        f"{worse} of {devices} devices are more than 1 % worse."
    )


def _change(value: float) -> str:
    """Return a change in per cent.

    >>> _change(-3.456), _change(0.21)
    ('-3.5 %', '+0.2 %')
    """
    return f"{value:+.1f} %"


def write(results: Results, anchors: Path | None, docs: Path) -> None:
    """Write each domain's tables between the marks of its page."""
    whole = [r for r in results if not r["history"]]
    for page in PAGES:
        mine = [r for r in whole if MARKS[r["task"]].page == page]
        if not mine:
            continue
        parts = [summary(mine), "", table(mine, anchors, (page,)), "", UNROUNDED, ""]
        parts += [differences(mine)]
        if new := cold_start(results, (page,)):
            parts += ["", "### A new device", "", new]
        path = docs / "domains" / f"{page}.md"
        replace_block(path, MARKER, "\n".join(parts))


def _by_task(results: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    found = defaultdict(list)
    for one in results:
        found[one["task"]].append(one)
    return {name: found[name] for name in MARKS if name in found}


def _mean(seeds: Results, arm: str) -> float:
    return float(np.mean([s[arm]["score"] for s in seeds]))


def _worse(seeds: Results) -> int:
    names = seeds[0]["served"]["by device"]
    mean = {
        arm: {n: np.mean([s[arm]["by device"][n] for s in seeds]) for n in names}
        for arm in ("served", "alone")
    }
    return sum(bool(mean["served"][n] > WORSE * mean["alone"][n]) for n in names)


def _said(seeds: Results, arm: str) -> str:
    scores = [s[arm]["score"] for s in seeds if arm in s]
    if not scores:
        return ""
    spread = f" ± {np.std(scores):.2g}" if len(scores) > 1 else ""
    return _number(float(np.mean(scores))) + spread


def _number(value: float) -> str:
    """Return a number as the tables have it.

    >>> _number(0.68134), _number(108.84)
    ('0.681', '108.8')
    """
    return f"{value:.3f}" if value < 10.0 else f"{value:.1f}"
