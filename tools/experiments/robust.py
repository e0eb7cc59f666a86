"""Run E9 to E14 from a command line: their arms, order, files and reports."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from tools.experiments import accuracy, bafdp, cells, matrix, papers, resilience, wire
from tools.experiments.baselines import HORIZONS, marks
from tools.experiments.cellular_setup import Arm
from tools.experiments.matrix import Square
from tools.experiments.method_rows import FIELD
from tools.experiments.pages import Page, pasted
from tools.experiments.verdicts import NINE

EXPERIMENTS = ("e9", "e10", "e11", "e12", "e13", "e14")
CONTROLS = ("FedAvg", "local long", "pooled")
PAPER_A = {1: 30.0, 24: 40.0}
"""The budgets of the paper's table on Milan; its own sweep has better ones, chosen on the test."""

BUDGETS = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0)
WEAK = (150.0, 300.0)
"""Budgets above the paper's, at which the noise is small enough for learning."""

MOST, LEAST = 0.3, 0.1
LIES = ("flipping", "scaling", "gaussian", "alie", "constant")
TABLE_IV = ("BAFDP", "RSA", "DP-RSA", "FedAvg")
FIGURE_8 = (0.2, 0.4, 0.6, 0.8)
ROUND = 20
"""Number of cells for a Byzantine share of 0.3; 25 cells have no whole number of that share."""

ONE = 0.05
"""Byzantine share of one cell in 20."""

WORK = 240
QUICK = {"work": 24, "clients": 5, "rounds": 3}


def arms(options: argparse.Namespace) -> list[Arm]:
    """List every run of the experiments that were asked for, each once, seed by seed."""
    makers = {"e9": _e9, "e10": _e10, "e11": _e11, "e12": _e12, "e14": _e14}
    found: dict[Arm, None] = {}
    for seed in range(options.seeds):
        for name in options.experiments:
            if name in makers:
                for arm in makers[name](options, seed):
                    found.setdefault(arm)
    return [x for x in found if x.name in FIELD or x.name in {"local long", "pooled"}]


def _arm(options: argparse.Namespace, experiment: str, seed: int, **more: Any) -> Arm:  # noqa: ANN401 - fields of an arm
    plain = {"dataset": cells.MILAN, "horizon": 1, "net": "mlp", "budget": None}
    common = {"work": options.work, "clients": options.cells}
    return Arm(experiment=experiment, seed=seed, **{**plain, **common, **more})


def _e9(options: argparse.Namespace, seed: int) -> list[Arm]:
    """Yield E9's arms: as in the paper; one net for all; one net and one noise for all."""
    out = []
    for dataset in options.cellular:
        for horizon in HORIZONS:
            make = partial(_arm, options, "e9", seed, dataset=dataset, horizon=horizon)
            noise = PAPER_A[horizon]
            out += [make(name=x, net=FIELD[x].net) for x in NINE if x in FIELD and x != "BAFDP"]
            out += [make(name=x) for x in (*NINE, *CONTROLS)]
            out += [make(name=x, budget=noise) for x in (*NINE, *CONTROLS)]
            if dataset == cells.MILAN and horizon == 1:
                out.append(make(name="FedDA, traffic"))
    return out


def _e10(options: argparse.Namespace, seed: int) -> list[Arm]:
    levels: dict[str, tuple[float | None, ...]] = {cells.MILAN: (*BUDGETS, *WEAK, None)}
    if cells.TRENTO in options.cellular:
        levels[cells.TRENTO] = (*papers.TABLE_III, None)
    return [
        _arm(options, "e10", seed, name="BAFDP", dataset=dataset, horizon=h, budget=a)
        for dataset, budgets in levels.items()
        for h in HORIZONS
        for a in budgets
    ]


def _e11(options: argparse.Namespace, seed: int) -> list[Arm]:
    make = partial(_arm, options, "e11", seed, clock="straggler")
    return [make(name=x) for x in ("BAFDP", "BSFDP")]


def _e12(options: argparse.Namespace, seed: int) -> list[Arm]:
    few = min(options.cells or ROUND, ROUND)
    make = partial(_arm, options, "e12", seed, clients=few)
    out = [make(name=x) for x in TABLE_IV]
    out += [make(name=x, attack=a, ratio=MOST) for a in LIES for x in TABLE_IV]
    out += [make(name=x, attack="flipping", ratio=LEAST) for x in TABLE_IV]
    huge = ("constant:value=1e3", "constant:value=1e30")
    out += [make(name="BAFDP", attack=x, ratio=ONE) for x in huge]
    far = [("", 0.0), ("flipping", LEAST), ("flipping", MOST)]
    out += [make(name=x, horizon=24, attack=a, ratio=r) for a, r in far for x in TABLE_IV]
    if seed == 0:
        out += [make(name="BAFDP", attack="flipping", ratio=r) for r in FIGURE_8]
    return out


def _e14(options: argparse.Namespace, seed: int) -> list[Arm]:
    """Yield the parts of BAFDP one by one and together, and FedAvg where it has them.

    A day ahead its defaults alone.
    """
    few = min(options.cells or ROUND, ROUND)
    make = partial(_arm, options, "e14", seed, clients=few)
    out = []
    for budget in (None, PAPER_A[1]):
        for attack, ratio in (("", 0.0), ("flipping", MOST)):
            common = {"budget": budget, "attack": attack, "ratio": ratio}
            out += [make(name="BAFDP, defaults", clock=x, **common) for x in ("even", "straggler")]
            out.append(make(name="FedAvg", **common))
    far = {"name": "BAFDP, defaults", "horizon": 24}
    return [*out, make(**far), make(**far, attack="flipping", ratio=MOST)]


def squares(options: argparse.Namespace) -> list[Square]:
    """List the squares of the matrix, a part of it with ``--quick``."""
    if "e13" not in options.experiments:
        return []
    if options.quick:
        return matrix.squares(
            1, QUICK["rounds"], ("mean", "median", "krum"), ("", "flipping", "alie"), ("", "nnm")
        )
    return matrix.squares(options.seeds)


def one(job: Arm | Square, folder: Path | None, out: Path) -> Path:
    """Run an arm or a square unless its result is there; a result appears whole."""
    path = out / job.file
    if not path.exists():
        if isinstance(job, Square):
            result = matrix.run(job)
        else:
            assert folder is not None
            result = bafdp.run(job, folder)
        draft = path.with_suffix(".part")
        draft.write_text(json.dumps(result))
        draft.replace(path)
    return path


def run_all(options: argparse.Namespace) -> None:
    """Run missing results, with one progress bar, in worker processes."""
    jobs: list[Arm | Square] = [*arms(options), *squares(options)]
    todo = [x for x in jobs if not (options.out / x.file).exists()]
    options.out.mkdir(parents=True, exist_ok=True)
    with (
        Progress(console=Console(stderr=True)) as bar,
        ProcessPoolExecutor(options.workers) as pool,
    ):
        task = bar.add_task("runs", total=len(todo))
        started = [pool.submit(one, job, options.data, options.out) for job in todo]
        for job in as_completed(started):
            job.result()
            bar.advance(task)


def kept(options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Read the finished results, by experiment."""
    out: dict[str, list[dict[str, Any]]] = {}
    jobs: list[Arm | Square] = [*arms(options), *squares(options)]
    for job in jobs:
        path = options.out / job.file
        if path.exists():
            name = "e13" if isinstance(job, Square) else job.experiment
            out.setdefault(name, []).append(json.loads(path.read_text()))
    return out


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of E9 to E14."""
    group = parser.add_argument_group("e9 to e14")
    group.add_argument("--work", type=int, default=WORK, help="gradient steps of an average device")
    group.add_argument("--cells", type=int, help="at most so many cells of a set")
    group.add_argument("--cellular", nargs="+", default=list(cells.SETS), choices=cells.SETS)
    group.add_argument("--quick", action="store_true", help="few cells, few steps, one seed")
    group.add_argument(
        "--docs", type=Path, help="folder whose pages have marks for the results, e.g. docs"
    )
    group.add_argument("--json", action="store_true", help="print claims as JSON, not the pages")


def main(options: argparse.Namespace) -> int:
    """Run the requested experiments; print and write a page for each."""
    if options.quick:
        options.work, options.cells, options.seeds = QUICK["work"], QUICK["clients"], 1
    wanted = [x for x in options.experiments if x in EXPERIMENTS]
    there, missing = cells.present(options.data, options.cellular) if options.data else ([], [])
    options.cellular = there
    if cells.MILAN not in there and set(wanted) - {"e13"}:
        print(f"reproduce: {options.data} has no {cells.MILAN}; see docs/data.md", file=sys.stderr)
        return 2
    if not options.kept:
        run_all(options)
    found = kept(options)
    made = {x: page(x, found[x], options, missing) for x in wanted if x in found}
    for name, one in made.items():
        written(name, one, options)
        if not options.json:
            print(one.markdown())
    if options.json:
        print(json.dumps({name: told(one) for name, one in made.items()}, indent=1))
    if not made:
        print(f"reproduce: nothing is finished in {options.out}", file=sys.stderr)
    return 0 if made else 2


def written(name: str, one: Page, options: argparse.Namespace) -> None:
    """Write a page to the output folder, and between its markers in the documentation, if any."""
    (options.out / f"{name.upper()}.md").write_text(one.markdown())
    (options.out / f"{name.upper()}.html").write_text(one.html())
    for path in sorted(options.docs.glob("*.md")) if options.docs else ():
        text = path.read_text()
        if (fresh := pasted(text, name, one.markdown())) != text:
            path.write_text(fresh)


def told(one: Page) -> list[dict[str, Any]]:
    return [{"claim": x.text, "holds": x.holds, "by": x.detail} for x in one.claims]


def page(
    name: str,
    results: list[dict[str, Any]],
    options: argparse.Namespace,
    missing: Sequence[str],
) -> Page:
    """Return the report of one experiment."""
    if name == "e9":
        return accuracy.e9(results, marks=marks(options), missing=missing)
    if name == "e10":
        return accuracy.e10(results, missing)
    if name == "e12":
        found = {} if options.no_traffic else wire.measured(options)
        return resilience.e12(results, found)
    makers = {"e11": accuracy.e11, "e13": resilience.e13}
    makers["e14"] = resilience.e14
    return makers[name](results)
