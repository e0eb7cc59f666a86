"""Run E1 to E4 from a command line: their arms, order, files and reports."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from tools.experiments import chargers, ev, graph_pages
from tools.experiments.charging import FIELD, Arm
from tools.experiments.graph_baselines import marks
from tools.experiments.pages import Page
from tools.experiments.robust import told, written

EXPERIMENTS = ("e1", "e2", "e3", "e4")
HORIZONS = (6, 1)
PAPERS = ("No_FL", "LSTM-FedAvg", "LSTM-CNN-FedAvg", "LSTM-PFL", "LSTM-CNN-PFL", "CNFGNN", "PFGL")
OURS = ("week, federated", "week, alone", "week, pooled")
LONGER = ("No_FL converged", "pooled", "pooled, tuned")

LENGTH, UTMOST = 4, 40
"""Factors of the number of rounds in the longer runs of E1, and in the longest run on the smallest set."""

LONG = ("PFGL", "PFGL, residual", "No_FL")
FRUGAL = ("PFGL, float16", "PFGL, alternating")

LIES = ("flipping", "gaussian", "scaling")
CROWDS = (1, 4)
ALL = 8
"""Number of Byzantine stations in the paper's Table V: all of the first attacked set."""

ATTACKED = ("PFGL", "LSTM-FedAvg", "LSTM-CNN-FedAvg", "LSTM-PFL", "LSTM-CNN-PFL", "CNFGNN")
"""Every row of the paper's Table V."""

SPARED = ("PFGL, residual", "PFGL, unmasked")
"""Rows without the server's guard, which removes stations from the graph that most others exclude."""

BESIEGED = (ev.BOULDER, ev.CALTECH)
"""Sets of eight stations that are attacked."""

BEYOND = (
    ("alie", 2),
    ("ipm:epsilon=2", 2),
    ("near_copy", 1),
    ("signal_flip@encode", 1),
    ("signal_scale:factor=1e6@decode", 1),
)
"""Attacks that the paper did not try, each with the number of Byzantine stations."""

CREDITS = (0.6, 0.8, 0.9, 0.95)
FEWER = (2, 4)
"""Numbers of stations in E4, besides all of them."""


def arms(options: argparse.Namespace) -> list[Arm]:
    """List every run of the experiments that were asked for, each once, seed by seed."""
    makers = {"e1": _e1, "e2": _e2, "e3": _e3, "e4": _e4}
    found: dict[Arm, None] = {}
    for seed in range(options.seeds):
        for name in options.experiments:
            if name in makers:
                found |= dict.fromkeys(makers[name](options, seed))
    if options.rows:  # these alone, at the given length alone
        return [x for x in found if x.name in options.rows and x.rounds in {0, options.turns}]
    return list(found)


def _arm(
    options: argparse.Namespace,
    seed: int,
    name: str,
    *,
    experiment: str = "e1",
    dataset: str = ev.BOULDER,
    horizon: int = 6,
    **more: Any,  # noqa: ANN401 - as above
) -> Arm:
    is_paced = FIELD[name].way in {"federated", "alone"}
    rounds, steps = (options.turns, options.pace) if is_paced else (0, 0)
    return Arm(experiment, dataset, horizon, name, seed, rounds, steps, **more)


def _e1(options: argparse.Namespace, seed: int) -> Iterator[Arm]:
    yield from _longer(options, seed)
    if ev.BOULDER in options.sites:
        yield from (_arm(options, seed, name) for name in FRUGAL)
    for names in (OURS[:1], PAPERS, OURS[1:], LONGER):
        for dataset in options.sites:
            for horizon in HORIZONS:
                for name in names:
                    yield _arm(options, seed, name, dataset=dataset, horizon=horizon)


def _longer(options: argparse.Namespace, seed: int) -> Iterator[Arm]:
    for dataset in options.sites:
        for horizon in HORIZONS:
            for name in LONG:
                arm = _arm(options, seed, name, dataset=dataset, horizon=horizon)
                yield replace(arm, rounds=LENGTH * options.turns)
    if ev.PALO_ALTO in options.sites:
        for name in LONG:
            arm = _arm(options, seed, name, dataset=ev.PALO_ALTO)
            yield replace(arm, rounds=UTMOST * options.turns)


def _e2(options: argparse.Namespace, seed: int) -> Iterator[Arm]:
    """Yield E2's arms, six steps ahead; those without an attack are E1's.

    What has a residual path also on the set where neighbours help.
    """
    for dataset in (x for x in BESIEGED if x in options.sites):
        at: dict[str, Any] = {"dataset": dataset}
        names = ("No_FL", *ATTACKED, *SPARED) if dataset == ev.BOULDER else ("No_FL", SPARED[0])
        yield from (_arm(options, seed, name, **at) for name in names)
        for name in names[1:]:
            for attack in LIES if name in ATTACKED else LIES[:2]:
                is_papers = dataset == ev.BOULDER and name in ATTACKED
                for crowd in (*CROWDS, ALL) if is_papers else CROWDS:
                    lie: dict[str, Any] = {"experiment": "e2", "attack": attack, "liars": crowd}
                    yield _arm(options, seed, name, **at, **lie)
    for attack, crowd in BEYOND:
        yield _arm(options, seed, "PFGL", experiment="e2", attack=attack, liars=crowd)


def _e3(options: argparse.Namespace, seed: int) -> Iterator[Arm]:
    for credit in CREDITS:
        more: dict[str, Any] = {"attack": "flipping", "liars": 1, "credit": credit}
        yield _arm(options, seed, "PFGL", experiment="e3", **more)


def _e4(options: argparse.Namespace, seed: int) -> Iterator[Arm]:
    yield from (_arm(options, seed, name) for name in ("PFGL", "PFGL, LSTM encoder"))
    for count in FEWER:
        yield _arm(options, seed, "PFGL", experiment="e4", stations=count)


def one(arm: Arm, folder: Path, out: Path) -> Path:
    """Run an arm unless its result is there; a result appears whole."""
    path = out / arm.file
    if not path.exists():
        draft = path.with_suffix(".part")
        draft.write_text(json.dumps(chargers.run(arm, folder, path.with_suffix(".resume"))))
        draft.replace(path)
    return path


def run_all(options: argparse.Namespace) -> None:
    """Run missing results, with one progress bar, in worker processes."""
    options.out.mkdir(parents=True, exist_ok=True)
    todo = [x for x in arms(options) if not (options.out / x.file).exists()]
    with (
        Progress(console=Console(stderr=True)) as bar,
        ProcessPoolExecutor(options.workers) as pool,
    ):
        task = bar.add_task("runs", total=len(todo))
        started = [pool.submit(one, arm, options.data, options.out) for arm in todo]
        for job in as_completed(started):
            job.result()
            bar.advance(task)


def kept(options: argparse.Namespace) -> list[dict[str, Any]]:
    paths = (options.out / arm.file for arm in arms(options))
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of E1 to E4."""
    group = parser.add_argument_group("e1 to e4")
    group.add_argument("--turns", type=int, default=12, help="rounds of a federated run (100)")
    group.add_argument("--rows", nargs="+", choices=FIELD, help="e1: these rows, at one length")
    group.add_argument("--pace", type=int, default=20, help="iterations of a round (656)")
    group.add_argument("--sites", nargs="+", default=list(ev.SETS), choices=ev.SETS)


def main(options: argparse.Namespace) -> int:
    """Run the requested experiments; print and write a page for each."""
    there, missing = ev.present(options.data, options.sites)
    options.sites = there
    if ev.BOULDER not in there and (not there or set(options.experiments) & {"e2", "e3", "e4"}):
        print(f"reproduce: {options.data} has no {ev.BOULDER}; see docs/data.md", file=sys.stderr)
        return 2
    if not options.kept:
        run_all(options)
    found = kept(options)
    wanted = [x for x in options.experiments if x in EXPERIMENTS]
    made = {x: page(x, mine, options, missing) for x in wanted if (mine := of(x, found))}
    for name, one_page in made.items():
        written(name, one_page, options)
        if not options.json:
            print(one_page.markdown())
    if options.json:
        print(json.dumps({name: told(x) for name, x in made.items()}, indent=1))
    if not made:
        print(f"reproduce: nothing is finished in {options.out}", file=sys.stderr)
    return 0 if made else 2


def of(name: str, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the results of a page; runs without an attack on the main set are E1's.

    A page whose own runs are all missing is made of nothing.
    """
    if name == "e1":
        return [r for r in found if r["arm"]["experiment"] == "e1"]
    sets = BESIEGED if name == "e2" else (ev.BOULDER,)
    main = [r for r in found if r["arm"]["dataset"] in sets and r["arm"]["horizon"] == 6]
    own = [r for r in main if r["arm"]["experiment"] == name]
    shared = {"e2": ("No_FL", *ATTACKED, *SPARED), "e4": ("PFGL", "PFGL, LSTM encoder")}.get(
        name, ()
    )
    plain = [r for r in main if r["arm"]["experiment"] == "e1" and r["arm"]["name"] in shared]
    is_begun = bool(own) or any(r["arm"]["name"] == "PFGL, LSTM encoder" for r in plain)
    return [*plain, *own] if is_begun else []


def page(
    name: str, found: list[dict[str, Any]], options: argparse.Namespace, missing: list[str]
) -> Page:
    """Return the report of one experiment."""
    if name == "e1":
        return graph_pages.e1(found, marks(options.anchors), missing)
    return {"e2": graph_pages.e2, "e3": graph_pages.e3, "e4": graph_pages.e4}[name](found)
