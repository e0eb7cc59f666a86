"""Run E7 and E8 from a command line, and write their reports."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from tools.experiments import language, located_devices, real_graphs, synthetic_graph
from tools.experiments.pages import Page, counted, table, unusual
from tools.experiments.pictures import curves
from tools.experiments.robust import written
from tools.experiments.synthetic_graph_pages import NAMES, Run, ordered, spread, synthetic_graphs

EXPERIMENTS: Final = ("e7", "e8")


def main(options: argparse.Namespace) -> int:
    """Run missing results unless only kept ones are requested; print and write the pages."""
    options.out.mkdir(parents=True, exist_ok=True)
    pages = {}
    if "e7" in options.experiments:
        pages["e7"] = synthetic_graphs(_synthetic_runs(options))
        for place in located_devices.there(options.data):
            pages[f"e7-{place}"] = real(_real_runs(options, place))
    if "e8" in options.experiments:
        pages["e8"] = language_models(_language_runs(options))
    made = {name: page for name, page in pages.items() if page.lines}
    for name, page in made.items():
        written(name, page, options)
        print(page.markdown())
    if not made:
        print(f"reproduce: nothing is finished in {options.out}", file=sys.stderr)
    return 0 if made else 2


def _synthetic_runs(options: argparse.Namespace) -> list[Run]:
    found: list[Run] = []
    for seed in range(options.seeds):
        paths = [
            options.out / synthetic_graph.file(*part, seed, quick=options.quick)
            for part in synthetic_graph.parts()
        ]
        if options.kept and not all(path.exists() for path in paths):
            continue
        for part in synthetic_graph.parts():
            found += synthetic_graph.run(part, seed, options.out, quick=options.quick)
        print(f"e7: seed {seed} is there", file=sys.stderr)
    return found


def _real_runs(options: argparse.Namespace, place: str) -> list[Run]:
    found: list[Run] = []
    rounds = 5 if options.quick else real_graphs.ROUNDS
    for seed in range(options.seeds):
        for name in real_graphs.KINDS:
            path = options.out / real_graphs.file(place, name, seed, rounds)
            if not options.kept or path.exists():
                one = real_graphs.run(place, name, seed, options.data, options.out, rounds=rounds)
                found.append(one)
    return found


def _language_runs(options: argparse.Namespace) -> list[Run]:
    found: list[Run] = []
    for seed in range(options.seeds):
        names = [language.file(x, seed, quick=options.quick) for x in language.KINDS]
        if not options.kept or all((options.out / name).exists() for name in names):
            found += [
                language.run(x, seed, options.out, quick=options.quick) for x in language.KINDS
            ]
    return found


# --- text -----------------------------------------------------------------------------------------


def language_models(runs: Sequence[Run]) -> Page:
    """Judge figure 10.4 on a reduced task, and show its curves."""
    title = "E8, reduced: a language model for many domains"
    if not runs:
        return Page(title, (), ())
    seeds = sorted({x["seed"] for x in runs})
    ends = {
        name: [x["shown"][-1][2] for s in seeds for x in runs if _is(x, name, s)]
        for name in language.KINDS
    }
    claims = [
        ordered("BiG-FL at or below FeSEM", ends, [("bigfl", "fesem")]),
        ordered("FeSEM at or below FedAvg", ends, [("fesem", "fedavg")]),
        ordered("own target: BiG-FL below learning alone", ends, [("bigfl", "local")]),
    ]
    text = (
        f"{counted(len(seeds))}. {runs[0]['domains']} domains are parts of Python's standard "
        f"library, {runs[0]['size']} numbers, {runs[0]['shown'][-1][0]} rounds of "
        f"{language.STEPS} steps. Losses are on text that no device has trained on. The paper's "
        "sixteen domains of reviews, its 63 144 words and its map of all of them are not repeated."
    )
    rows = [[NAMES[x], spread(values)] for x, values in ends.items()]
    first = {x["method"]: x["shown"] for x in runs if x["seed"] == seeds[0]}
    lines = {NAMES[x]: [(p[0], p[2]) for p in points] for x, points in first.items()}
    return Page(
        title,
        claims,
        [text, "", *table(("", "loss"), rows), "", curves(lines, x="round", y="loss", title="E8")],
    )


def _is(run: Run, method: str, seed: int) -> bool:
    return (run["method"], run["seed"]) == (method, seed)


# --- real data ------------------------------------------------------------------------------------


def real(runs: Sequence[Run]) -> Page:
    """Compare every method with local training, FedAvg and PL-FL."""
    if not runs:
        return Page("The same methods on real devices", (), ())
    title, score = f"The same methods on {runs[0]['title']}", runs[0]["score"]
    ends = {
        name: {x["seed"]: x["shown"][-1] for x in runs if x["name"] == name}
        for name in real_graphs.KINDS
    }
    ends = {name: found for name, found in ends.items() if found}
    rows = [_row(name, found, ends, runs) for name, found in ends.items()]
    head = ("", score, "MAE", "step", "MB a device", *(f"better than {x}" for x in MARKS))
    text = (
        f"{runs[0]['said']} {runs[0]['shown'][-1]['round']} rounds of {real_graphs.STEPS} steps. "
        f"Better means: in {score}, in every seed."
    )
    lines = [
        text,
        "",
        *table(head, rows),
        "",
        curves(_curves(runs, "round"), x="round", y=score, title=title, is_log=True),
        curves(_curves(runs, "said"), x="MB sent and received by a device", y=score, is_log=True),
    ]
    return Page(title, (), lines)


MARKS: Final = ("local", "FedAvg", "PL-FL")
Ends = Mapping[str, Mapping[int, Mapping[str, float]]]


def _is_better(
    found: Mapping[int, Mapping[str, float]],
    mark: Mapping[int, Mapping[str, float]],
    score: str,
) -> bool:
    common = found.keys() & mark.keys()
    return bool(common) and all(found[s][score] < mark[s][score] for s in common)


def _row(
    name: str, found: Mapping[int, Mapping[str, float]], ends: Ends, runs: Sequence[Run]
) -> list[str]:
    score = runs[0]["score"]
    rates = sorted({x["rate"] for x in runs if x["name"] == name})
    megabytes = np.mean([x["said"] for x in found.values()]) / 1e6
    marks = []
    for mark in MARKS:
        is_judged = mark != name and found.keys() & ends.get(mark, {}).keys()
        better = "yes" if _is_better(found, ends.get(mark, {}), score) else "**no**"
        marks.append(better if is_judged else "")
    return [
        f"{name}{unusual(len(found))}",
        spread([x[score] for x in found.values()]),
        spread([x["MAE"] for x in found.values()]),
        ", ".join(f"{rate:g}" for rate in rates),
        f"{megabytes:.3g}",
        *marks,
    ]


def _curves(runs: Sequence[Run], along: str) -> dict[str, list[tuple[float, float]]]:
    unit, score = 1e6 if along == "said" else 1.0, runs[0]["score"]
    first = [x for x in runs if x["seed"] == min(y["seed"] for y in runs)]
    lines = {
        x["name"]: [(p[along] / unit, p[score]) for p in x["shown"] if np.isfinite(p[score])]
        for x in first
    }
    return {name: points for name, points in lines.items() if points and points[-1][0] > 0} or {
        "no bytes": []
    }
