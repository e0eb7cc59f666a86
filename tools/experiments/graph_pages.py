"""The reports of E1 to E4: claims first, then tables, then pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tools.experiments import ev, graph_claims, pictures
from tools.experiments.charging import FIELD
from tools.experiments.claims import Results
from tools.experiments.graph_baselines import TABLE_V, TABLES, Marks
from tools.experiments.graph_claims import OURS, called, qs, tasks
from tools.experiments.pages import Page, counted, table
from tools.experiments.rankings import where

COVERAGE = 0.8
"""Nominal coverage of the interval between the quantiles 0.1 and 0.9."""

_HINDSIGHT = (
    "Worst stations, as served; before: as forecast. MIL equal is that of the forecast intervals, "
    "each end moved outwards by a multiple known in hindsight, until they miss no more."
)

_OWN_MODEL = (
    "QS at p=6 over all eight stations; each is scored with its **own** model, a Byzantine station "
    "with its honest one. In brackets the rise, that of the honest stations, and the paper's."
)


def e1(results: Results, marks: Marks, missing: Sequence[str] = ()) -> Page:
    """Return the report of E1: accuracy, the paper's and ours."""
    results, *lengths = parted(results)
    claims = [
        *graph_claims.of_e1(results),
        *graph_claims.of_marks(results, marks),
        *graph_claims.of_intervals(results),
    ]
    lines = [_states(results), *(f"{ev.TITLES[x]} is not there and was not run." for x in missing)]
    for horizon in (1, 6):
        if here := [r for r in results if r["arm"]["horizon"] == horizon]:
            lines += ["", f"### p={horizon}: QS / MIL / ICP", "", *_rows(here, horizon)]
    lines += ["", "### PFGL's gain in QS, fairly counted", "", *_gains(results)]
    for longer in lengths:
        claims += graph_claims.of_longer(longer, results)
        title = f"### Longer runs, of {longer[0]['arm']['rounds']} rounds: QS / MIL / ICP"
        lines += ["", title, "", _states(longer), ""]
        for horizon in sorted({r["arm"]["horizon"] for r in longer}):
            here = [r for r in longer if r["arm"]["horizon"] == horizon]
            lines += [f"p={horizon}", "", *_rows(here, horizon), ""]
    if marks:
        lines += ["", "### Beside others, on the same windows: QS", "", *_marked(results, marks)]
    if any("served" in r for r in results):
        lines += ["", "### Served intervals: calibrated on the device", "", *_served(results)]
    lines += ["", *by_station(results)]
    lines += _fans(results)
    return Page("E1: PFGL on real charging sites", claims, lines)


def parted(results: Results) -> list[Results]:
    """Part runs by length: first the table's, with those that have no rounds, then the longer."""
    lengths = sorted({r["arm"]["rounds"] for r in results if r["arm"]["rounds"]})
    first, *longer = lengths or [0]
    short = [r for r in results if r["arm"]["rounds"] <= first]
    return [short, *([r for r in results if r["arm"]["rounds"] == n] for n in longer)]


FORM = (
    "Rate 2e-3 (the paper: 5e-4, LSTM-FedAvg and LSTM-PFL 1e-3); without the epoch of tuning on each "
    "device that ends Algorithm 1."
)
"""Settings of every row of PFGL's tables that differ from the paper, besides the length."""


def _states(results: Results) -> str:
    arms = [r["arm"] for r in results]
    seeds = counted(len({a["seed"] for a in arms}))
    paces = sorted({(a["rounds"], a["steps"]) for a in arms if a["rounds"]})
    text = ", ".join(f"{k} rounds of {n} iterations" for k, n in paces)
    return f"{seeds} at most; federated rows {text} (the paper: 100 of 656). {FORM}"


def _rows(results: Results, horizon: int) -> list[str]:
    sets = [d for d, h in tasks(results) if h == horizon]
    body = []
    for name in FIELD:
        cells = [_cell(where(results, name=name, dataset=d)) for d in sets]
        if any(cells):
            body.append([name, *cells, _paper(name, horizon)])
    return table(("", *(ev.TITLES[x] for x in sets), "paper"), body)


def _cell(results: Results) -> str:
    if not results:
        return ""
    mean = {k: np.mean([r["mean"][k] for r in results]) for k in ("QS", "MIL", "ICP")}
    spread = f" ± {np.std([qs(r) for r in results]):.2g}" if len(results) > 1 else ""
    count = f" ({len(results)} seeds)" if len(results) == 2 else ""
    return f"{mean['QS']:.4g}{spread} / {mean['MIL']:.3g} / {mean['ICP']:.2f}{count}"


def _paper(name: str, horizon: int) -> str:
    if name not in TABLES:
        return ""
    at = 0 if horizon == 1 else 1
    score, length, coverage = (TABLES[name][i + at] for i in (0, 2, 4))
    return f"{score:.4f} / {length:.4f} / {coverage:.4f}"


def _gains(results: Results) -> list[str]:
    controls = ("No_FL", "No_FL converged", "pooled", "pooled, tuned", OURS)
    body = []
    for task in tasks(results):
        gaps = [graph_claims.paired(results, "PFGL", other, task) for other in controls]
        alone = _without_graph(results, task)
        parts = [f"{np.mean(g):+.1%}" if g else "" for g in gaps]
        if any(parts):
            body.append([called(task), *parts, alone])
    paper = "paper: -5.7 % at p=1, -12.8 % at p=6"
    head = ("against", f"No_FL, as brief ({paper})", *controls[1:], "its own, without the graph")
    return table(head, body)


def _without_graph(results: Results, task: tuple[str, int]) -> str:
    found = where(results, name="PFGL", dataset=task[0], horizon=task[1])
    gaps = [qs(r) / r["without graph"]["QS"] - 1.0 for r in found if "without graph" in r]
    return f"{np.mean(gaps):+.1%}" if gaps else ""


def _marked(results: Results, marks: Marks) -> list[str]:
    body = []
    for task in tasks(results):
        found = where(results, name=OURS, dataset=task[0], horizon=task[1])
        if not found or task not in marks:
            continue
        forecast = float(np.mean([qs(r) for r in found]))
        served = float(np.mean([r.get("served", r["mean"])["QS"] for r in found]))
        parts = [f"{marks[task][k][1]:.4g} ({marks[task][k][0]})" for k in marks[task]]
        body.append([called(task), f"{forecast:.4g}", f"{served:.4g}", *parts])
    head = (
        "",
        f"{OURS}: as forecast",
        "as served",
        "must beat",
        "same window",
        "with a week of lags",
    )
    return table(head, body)


def _served(results: Results) -> list[str]:
    body = []
    for task in tasks(results):
        found = where(results, name=OURS, dataset=task[0], horizon=task[1])
        if found := [r for r in found if "served" in r]:
            body.append([called(task), *_misses(found)])
    head = (
        OURS,
        "below, worst",
        "above, worst",
        "before",
        "ICP",
        "MIL",
        "MIL forecast",
        "MIL equal",
    )
    return [
        _HINDSIGHT,
        "",
        *table(head, body),
    ]


def _misses(found: Results) -> list[str]:
    def worst(kind: str, side: str) -> float:
        return max(float(row[side]) for r in found for row in r[kind].values())

    before = f"{worst('stations', 'below'):.3f}, {worst('stations', 'above'):.3f}"
    means = [float(np.mean([r["served"][k] for r in found])) for k in ("ICP", "MIL", "MIL equal")]
    forecast = float(np.mean([r["mean"]["MIL"] for r in found]))
    ends = [f"{worst('calibrated', side):.3f}" for side in ("below", "above")]
    return [
        *ends,
        before,
        f"{means[0]:.3f}",
        f"{means[1]:.4g}",
        f"{forecast:.4g}",
        f"{means[2]:.4g}",
    ]


def by_station(results: Results) -> list[str]:
    """Return the paper's Tables II to IV of every task that has all of its rows, seed 0.

    The improved rate is the share of stations that are better than without a federation: a lower
    QS, a shorter interval, a coverage closer to 0.8.
    """
    lines = []
    for dataset, horizon in tasks(results):
        at = {"dataset": dataset, "horizon": horizon, "seed": 0, "attack": "", "stations": None}
        found = {name: where(results, name=name, **at) for name in TABLES}
        if not all(found.values()):
            continue
        for kind in ("QS", "MIL", "ICP"):
            rows = {x: {k: v[kind] for k, v in r[0]["stations"].items()} for x, r in found.items()}
            lines += [f"#### {called((dataset, horizon))}: {kind} by station, seed 0", ""]
            lines += [*_improved(rows, kind), ""]
    return lines


def _improved(rows: Mapping[str, Mapping[str, float]], kind: str) -> list[str]:
    alone = rows["No_FL"]
    body = []
    for name, row in rows.items():
        better = [_badness(row[x], kind) < _badness(alone[x], kind) for x in alone]
        cells = [f"{value:.4g}" for value in (*(row[x] for x in alone), np.mean([*row.values()]))]
        body.append([name, *cells, f"{np.mean(better):.0%}" if name != "No_FL" else ""])
    return table(("", *alone, "mean", "improved rate"), body)


def _badness(value: float, kind: str) -> float:
    return round(abs(value - COVERAGE), 9) if kind == "ICP" else value


def _fans(results: Results) -> list[str]:
    out = []
    for r in where(results, name=OURS, seed=0):
        if "fan" in r:
            seen, task = r["fan"], (r["arm"]["dataset"], r["arm"]["horizon"])
            title = f"{called(task)}: {seen['station']}"
            out.append(pictures.fan(seen["truth"], seen["fan"], x="hours", y="kWh", title=title))
    return out


def e2(results: Results) -> Page:
    """Return the report of E2: attacks."""
    hit = [r for r in results if r["arm"]["experiment"] == "e2"]
    lines = [_states(results), "", _OWN_MODEL]
    for dataset in dict.fromkeys(r["arm"]["dataset"] for r in hit):
        lines += ["", f"### {ev.TITLES[dataset]}", "", *_attacked(where(results, dataset=dataset))]
    claims = graph_claims.merged(graph_claims.of_e2(results))
    return Page("E2: PFGL under attack", claims, lines)


def _attacked(results: Results) -> list[str]:
    hit = [r for r in results if r["arm"]["experiment"] == "e2"]
    kinds = sorted({(r["arm"]["attack"], r["arm"]["liars"]) for r in hit})
    names = [x for x in FIELD if any(r["arm"]["name"] == x for r in hit)]
    body = [["none", "", *(_calm(results, x) for x in ("No_FL", *names))]]
    for attack, crowd in kinds:
        cells = [_hit(results, x, attack, crowd) for x in names]
        body.append([attack, str(crowd), "", *cells])
    return table(("attack", "Byzantine", "No_FL", *names), body)


def _calm(results: Results, name: str) -> str:
    found = where(results, name=name, attack="", horizon=6, stations=None)
    if not found:
        return ""
    theirs = TABLE_V["", 0].get(name)
    text = f"{np.mean([qs(r) for r in found]):.4f}"
    return f"{text} (paper {theirs})" if theirs else text


def _hit(results: Results, name: str, attack: str, crowd: int) -> str:
    found = where(results, name=name, attack=attack, liars=crowd, experiment="e2")
    if not found:
        return ""
    rise = graph_claims.rises(results, name, attack, crowd)
    text = f"{np.mean([qs(r) for r in found]):.4f}"
    kind = graph_claims.rises(results, name, attack, crowd, honest=True)
    spared = f", honest {np.mean(kind):+.1%}" if kind else ""
    ours = f"{np.mean(rise):+.1%}{spared}" if rise else ""
    paper = TABLE_V.get((attack, crowd), {}).get(name)
    theirs = f", paper {paper / TABLE_V['', 0][name] - 1.0:+.1%}" if paper else ""
    return f"{text} ({ours}{theirs})"


def e3(results: Results) -> Page:
    """Return the report of E3: credit."""
    rows = sorted(where(results, experiment="e3"), key=lambda r: float(r["arm"]["credit"]))
    lines = [_states(rows), ""] if rows else []
    body, images = [], []
    for r in rows:
        honest = next(x for x in r["stations"] if x not in r["liars"])
        last = r["credits"][-1][honest]
        cells = [f"{last.get(x, 0.0):.3f}" for x in r["stations"]]
        body.append([f"{r['arm']['credit']:g}", str(len(last)), *cells, f"{qs(r):.4f}"])
        images += _curves(r, honest)
    if rows:
        names = [x + (" (Byzantine)" if x in rows[0]["liars"] else "") for x in rows[0]["stations"]]
        first = next(iter(rows[0]["stations"]))
        lines += [f"What {first} makes of each other in the last round.", ""]
        lines += table(("sigma", "let in", *names, "QS"), body)
    return Page("E3: what the credit lets in", graph_claims.of_e3(results), [*lines, "", *images])


def _curves(r: Mapping[str, Any], honest: str) -> list[str]:
    sigma, names = r["arm"]["credit"], list(r["stations"])
    lines = {
        x: [(float(i), c[honest].get(x, 0.0)) for i, c in enumerate(r["credits"], 1)] for x in names
    }
    title = f"{honest}, sigma {sigma:g}; {', '.join(r['liars'])} Byzantine"
    last = {(a, b): w for a, row in r["credits"][-1].items() for b, w in row.items()}
    return [
        pictures.curves(lines, x="round", y="weight", title=title),
        pictures.heat(names, names, last, title=f"last round, sigma {sigma:g}"),
    ]


def e4(results: Results) -> Page:
    """Return the report of E4: encoders and the number of stations."""
    body = []
    for r in results:
        arm = r["arm"]
        count = str(len(r["stations"]))
        mean = r["mean"]
        first = list(r["stations"])[:2]
        two = np.mean([r["stations"][x]["QS"] for x in first])
        cells = [f"{mean[k]:.4g}" for k in ("QS", "MIL", "ICP")]
        body.append(
            [arm["name"], count, str(arm["seed"]), *cells, f"{two:.4g}", f"{r['seconds']:.0f}"]
        )
    head = ("", "stations", "seed", "QS", "MIL", "ICP", "QS of the first two", "seconds")
    lines = [_states(results), "", *table(head, body)]
    return Page("E4: encoder and number of stations", graph_claims.of_e4(results), lines)
