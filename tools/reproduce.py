"""Repeat the papers' experiments on real data and report which claims hold.

    python tools/reproduce.py e5 e6 --data DATA --out runs
    python tools/reproduce.py e1 e2 e3 e4 --data DATA --out runs/ev
    python tools/reproduce.py e9 e10 e11 e12 e13 e14 --data DATA --out runs
    python tools/reproduce.py e7 e8 --data DATA --out runs/graph           # made up; Milan if there
    python tools/reproduce.py e13 --quick                                   # a corner, without data
    python tools/reproduce.py e6 --data DATA --rounds 2000 --seeds 5        # the paper's length
    python tools/reproduce.py e6 --data DATA --anchors ANCHORS              # beside other methods
    python tools/reproduce.py accuracy --data DATA --anchors ANCHORS        # beside the marks
    python tools/reproduce.py days --data DATA --anchors ANCHORS            # tomorrow, by the day bundles
    python tools/reproduce.py loads --data DATA           # PL-FL's Table I and Figure 2
    python tools/reproduce.py personalisation --data DATA # own models and personal layers, three sets
    python tools/reproduce.py e15 --data DATA             # the papers together
    python tools/reproduce.py figures --data DATA --out runs  # the papers' figures of curves
    python tools/reproduce.py list                       # every table and figure of the papers
    python tools/reproduce.py list --docs docs           # and their pages and pictures

One JSON per arm and seed is kept in --out; an interrupted call continues where it stopped. Tables
are printed and written to RESULTS.md and RESULTS.html there (all but e5 and e6: one of each
an experiment).
Numbers of the paper stand beside ours and are never asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def name_missing_package(kind: type[BaseException], error: BaseException, trace: Any) -> None:  # noqa: ANN401
    """Print which package is not installed; leave any other error to the interpreter."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if not isinstance(error, ModuleNotFoundError) or package in {"", "tools"}:
        sys.__excepthook__(kind, error, trace)
        return
    hint = "torch and onnx: pip install '.[train]'; all others: pip install '.[dev]'"
    print(f"reproduce: the package {package} is not installed\n  hint: {hint}", file=sys.stderr)


if __name__ == "__main__":
    sys.excepthook = name_missing_package
    if sys.argv[1:2] == ["list"]:  # the list needs none of the experiments' packages
        from tools.papers.pages import main as list_exhibits

        sys.exit(list_exhibits(sys.argv[2:]))

import numpy as np
from rich.console import Console
from rich.progress import Progress

from tools.experiments import (
    buildings,
    claims,
    combined,
    figures,
    graphs,
    heterogeneity,
    pages,
    personalisation,
    plfl,
    related_methods_pages,
    robust,
    traffic,
)
from tools.experiments.marks import command as accuracy
from tools.experiments.marks import days
from tools.experiments.plfl import Arm
from tools.papers import pages as papers

EXPERIMENTS = (
    *graphs.EXPERIMENTS,
    "e5",
    "e6",
    *related_methods_pages.EXPERIMENTS,
    *robust.EXPERIMENTS,
    accuracy.EXPERIMENT,
    days.EXPERIMENT,
    heterogeneity.EXPERIMENT,
    personalisation.EXPERIMENT,
    combined.EXPERIMENT,
    figures.EXPERIMENT,
)
LIST = "list"
E6_PAPER = ("No-FL", "pooled", "FL", "cfg 1", "cfg 2", "cfg 3")
E6_WEEK = ("local long", "FL", "cfg 1")


def arms(options: argparse.Namespace) -> list[Arm]:
    """List every cell of the tables that were asked for."""
    out = []
    for seed in range(options.seeds):
        for dataset in options.sets:
            common = {"dataset": dataset, "seed": seed, "rounds": options.rounds, "steps": 4}
            if "e5" in options.experiments:
                out += [Arm("e5", name=x, form="paper", clients=3, **common) for x in plfl.SERVERS]
            if "e6" in options.experiments:
                n = options.clients
                out += [Arm("e6", name=x, form="paper", clients=n, **common) for x in E6_PAPER]
                firm = {**common, "rounds": max(1, options.rounds // 4), "steps": 10}
                out += [Arm("e6", name=x, form="week", clients=n, **firm) for x in E6_WEEK]
    return sorted(out, key=_turn)


def _turn(arm: Arm) -> float:
    return float(arm.seed) if arm.form == "paper" else 0.5 + 10.0 * arm.seed


def one(arm: Arm, folder: Path, out: Path) -> list[Path]:
    """Run an arm unless its result is there; files appear whole, the arm's own last."""
    path = out / arm.file
    tuned = out / replace(arm, name=f"{arm.name} tuned").file
    if not path.exists():
        resume = path.with_suffix(".resume")
        for result in reversed(plfl.run(arm, folder, resume=resume)):
            target = out / Arm(**result["arm"]).file
            draft = target.with_suffix(".part")
            draft.write_text(json.dumps(result))
            draft.replace(target)
    return [x for x in (path, tuned) if x.exists()]


def run_all(todo: Sequence[Arm], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run arms side by side with one bar, in worker processes."""
    options.out.mkdir(parents=True, exist_ok=True)
    paths = []
    with (
        Progress(console=Console(stderr=True)) as bar,
        ProcessPoolExecutor(options.workers) as pool,
    ):
        task = bar.add_task("arms", total=len(todo))
        jobs = [pool.submit(one, arm, options.data, options.out) for arm in todo]
        for job in as_completed(jobs):
            paths += job.result()
            bar.advance(task)
    return [json.loads(path.read_text()) for path in sorted(paths)]


def kept(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Read the finished results of the requested tables."""
    found = []
    for arm in arms(options):
        tuned = replace(arm, name=f"{arm.name} tuned")
        paths = [options.out / x.file for x in (arm, tuned)]
        found += [json.loads(path.read_text()) for path in paths if path.exists()]
    return found


def table(results: claims.Results, paper: Mapping[str, Mapping[str, tuple[float, float]]]) -> str:
    """Return mean ± std over seeds, the paper's three states in the last columns (MAE / MASE)."""
    errors, scaled = claims.cells(results, "MAE"), claims.cells(results, "MASE")
    sets = sorted({dataset for dataset, _ in errors})
    names = list(dict.fromkeys(r["arm"]["name"] for r in results))
    head = ["arm", *(x.removeprefix("building_") for x in sets), *(f"paper {x}" for x in paper)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name in names:
        ours = [_cell(errors.get((x, name)), scaled.get((x, name))) for x in sets]
        theirs = [_pair(paper[state].get(name)) for state in paper]
        lines.append("| " + " | ".join([name, *ours, *theirs]) + " |")
    return "\n".join(lines)


def _cell(mae: Sequence[float] | None, mase: Sequence[float] | None) -> str:
    if not mae or not mase:
        return ""
    if len(mae) == 1:
        return f"{mae[0]:.4g} / {mase[0]:.3f} (1 seed)"
    spread = f"{np.mean(mae):.4g} ± {np.std(mae):.2g} / {np.mean(mase):.3f} ± {np.std(mase):.2g}"
    return f"{spread}{pages.unusual(len(mae))}"


def _pair(value: tuple[float, float] | None) -> str:
    return "" if value is None else f"{value[0]:.4f} / {value[1]:.4f}"


def judged(found: Iterable[claims.Claim]) -> str:
    rows = [f"| {x.text} | **{x.verdict}** | {x.detail} |" for x in found]
    return "\n".join(["| claim | on our data | by |", "|---|---|---|", *rows])


def beside_anchors(results: claims.Results, options: argparse.Namespace) -> str:
    """Score our forecasts with the anchors' own scorer, on their windows, beside their methods.

    Where a lag was never measured our model has no window; the product's fall-back answers there.
    One table a set, the best first.
    """
    scorer = options.anchors / "score.py"
    parts = []
    for dataset in sorted({r["arm"]["dataset"] for r in results}):
        rows: dict[str, str] = {}
        head: list[str] = []
        for result in results:
            arm = result["arm"]
            if (arm["dataset"], arm["form"], arm["seed"]) == (dataset, "week", 0):
                lines = _narrow(_score(scorer, result, options)).splitlines()
                head, found = lines[:2], lines[2:]
                rows |= {x: x for x in found if "this file" not in x}
                ours = next((x for x in found if "this file" in x), "")
                rows[arm["name"]] = ours.replace("this file", f"ours, {arm['name']}")
        ranked = sorted(filter(None, rows.values()), key=_mase)
        parts += [f"#### {dataset.removeprefix('building_')}", "", *head, *ranked, ""]
    return "\n".join(parts)


def _narrow(text: str) -> str:
    r"""Return the scorer's table without its columns of medians; another text as it is.

    >>> _narrow("| a | MAE_median | b |\n|---|---|---|\n| 1 | 2 | 3 |")
    '| a | b |\n|---|---|\n| 1 | 3 |'
    """
    if not text.startswith("|"):
        return text
    rows = [line.strip("|").split("|") for line in text.splitlines()]
    kept = [i for i, name in enumerate(rows[0]) if "median" not in name]
    return "\n".join("|" + "|".join(row[i] for i in kept) + "|" for row in rows)


def _mase(line: str) -> float:
    return float(line.split("|")[3])


def _score(scorer: Path, result: Mapping[str, Any], options: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "forecast.csv"
        with path.open("w") as out:
            out.write("station,target_index,step,point\n")
            arm = result["arm"]
            for house in buildings.load(options.data, arm["dataset"], arm["clients"]):
                for row, value in plfl.completed(result["forecasts"][house.name], house).items():
                    out.write(f"{house.name},{row},1,{value}\n")
        command = [sys.executable, scorer, "--data", options.data, "--forecast", path, "--markdown"]
        command += [
            "--task",
            result["arm"]["dataset"] + ":1",
            "--anchors",
            scorer.parent / "results",
        ]
        done = subprocess.run(
            [str(x) for x in command], capture_output=True, text=True, check=False, timeout=600
        )
    return done.stdout.strip() if done.returncode == 0 else f"not scored: {done.stderr.strip()}"


def report(results: claims.Results, options: argparse.Namespace) -> str:
    """Return all results as one Markdown page."""
    page = ["# PL-FL on real buildings", "", _preamble(options)]
    for experiment, title in (
        ("e5", "E5: server algorithms"),
        ("e6", "E6: personalisation layers"),
    ):
        mine = [r for r in results if r["arm"]["experiment"] == experiment]
        if not mine:
            continue
        paper = [r for r in mine if r["arm"]["form"] == "paper"]
        theirs = plfl.PAPER_E5 if experiment == "e5" else plfl.PAPER_E6
        page += [
            "",
            f"## {title}",
            "",
            "MAE / MASE, mean ± std over seeds.",
            "",
        ]
        page += [table(paper, theirs), ""]
        page += [judged(claims.of_e5(paper) if experiment == "e5" else claims.of_e6(paper))]
        if week := [r for r in mine if r["arm"]["form"] == "week"]:
            page += [
                "",
                "### The named option: change from the last value, Huber, a week of lags",
                "",
            ]
            page += [table(week, {}), "", judged(claims.gains(week))]
            if options.anchors:
                page += ["", "### Beside other methods on the same windows (seed 0)", ""]
                page += [beside_anchors(mine, options)]
    if "e6" in options.experiments and not options.no_traffic:
        page += ["", "## Table V: traffic, from the links' own counters", "", traffic.table()]
    return "\n".join(page) + "\n"


def _preamble(options: argparse.Namespace) -> str:
    return (
        f"K = {options.rounds} rounds of 4 local steps, batch 64, 3 seeds unless a cell says otherwise "
        f"(named option: {max(1, options.rounds // 4)} rounds of 10); E5 with 3 and E6 with "
        f"{options.clients} clients. The paper: K = 2000, simulated ComStock buildings of three "
        "states. A claim on E5 holds when it holds in every seed of every set that it names; those on "
        "E6 are judged on averages over seeds, because the paper has one number a cell."
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiments", nargs="+", choices=(*EXPERIMENTS, LIST))
    parser.add_argument("--data", type=Path, help="folder of data sets (tools/fetch.py)")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--rounds", type=int, default=300, help="e5, e6: server rounds K (2000)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=buildings.CLIENTS)
    parser.add_argument("--sets", nargs="+", default=buildings.SETS, choices=buildings.SETS)
    parser.add_argument("--kept", action="store_true", help="only report what is finished in --out")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--anchors", type=Path, help="folder with score.py and results/ to set beside ours"
    )
    parser.add_argument(
        "--no-traffic", action="store_true", help="leave out the federation that counts bytes"
    )
    robust.add_options(parser)
    graphs.add_options(parser)
    accuracy.add_options(parser)
    days.add_options(parser)
    figures.add_options(parser)
    options = parser.parse_args(arguments)
    if LIST in options.experiments and len(options.experiments) > 1:
        parser.error(f"{LIST} stands alone")
    if options.data is None and set(options.experiments) - {"e7", "e8", "e13", LIST}:
        parser.error("--data is needed for all experiments but e7, e8 and e13")
    needing = {accuracy.EXPERIMENT, days.EXPERIMENT} & set(options.experiments)
    if needing and options.anchors is None:
        parser.error(
            f"{min(needing)} needs --anchors, the folder with datasets.py, metrics.py and results/"
        )
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested experiments; print and write the pages."""
    options = parse(arguments)
    if options.experiments == [LIST]:
        return papers.main(["--docs", str(options.docs)] if options.docs else [])
    code = graphs.main(options) if set(options.experiments) & set(graphs.EXPERIMENTS) else 0
    if not code and set(options.experiments) & set(related_methods_pages.EXPERIMENTS):
        code = related_methods_pages.main(options)
    if not code and set(options.experiments) & set(robust.EXPERIMENTS):
        code = robust.main(options)
    if not code and accuracy.EXPERIMENT in options.experiments:
        code = accuracy.main(options)
    if not code and days.EXPERIMENT in options.experiments:
        code = days.main(options)
    if not code and heterogeneity.EXPERIMENT in options.experiments:
        code = heterogeneity.main(options)
    if not code and personalisation.EXPERIMENT in options.experiments:
        code = personalisation.main(options)
    if not code and combined.EXPERIMENT in options.experiments:
        code = combined.main(options)
    if not code and figures.EXPERIMENT in options.experiments:
        code = figures.main(options)
    return code or (_buildings(options) if set(options.experiments) & {"e5", "e6"} else 0)


def _buildings(options: argparse.Namespace) -> int:
    """Run E5 and E6."""
    missing = [x for x in options.sets if not (options.data / x).is_dir()]
    if missing:
        print(
            f"reproduce: {options.data} has no {', '.join(missing)}; see docs/data.md",
            file=sys.stderr,
        )
        return 2
    results = kept(options) if options.kept else run_all(arms(options), options)
    if not results:
        print(f"reproduce: nothing is finished in {options.out}", file=sys.stderr)
        return 2
    page = report(results, options)
    (options.out / "RESULTS.md").write_text(page)
    (options.out / "RESULTS.html").write_text(pages.as_html(page))
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
