"""Run every task, arm and seed that was asked for; keep each result, print one table.

    python tools/reproduce.py accuracy --data DATA --anchors ANCHORS --out runs
    python tools/reproduce.py accuracy --data DATA --anchors ANCHORS --history 7 14 28 --docs docs

One process for each task and seed, one after the other; an interrupted call continues where it
stopped, and --kept only reports what is finished. Tomorrow's tables stand below, of what ``days``
and ``first_days`` have left in --out.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from tools.experiments.marks import charging, days, new_sites, points, tables, tomorrow
from tools.experiments.marks.tasks import MARKS, read, use

EXPERIMENT = "accuracy"


@dataclass(frozen=True, slots=True)
class Job:
    """One task, one seed; with a history, new devices only."""

    task: str
    seed: int
    history: int = 0

    @property
    def file(self) -> str:
        new = f"-h{self.history}" if self.history else ""
        return f"accuracy-{self.task.replace(':', '_p')}{new}-s{self.seed}.json"

    @property
    def is_charging(self) -> bool:
        return self.task.startswith("ev_")


def jobs(options: argparse.Namespace) -> list[Job]:
    """List the requested jobs, one seed of each first; histories with the first seed only."""
    tasks = [t for t in MARKS if not options.tasks or t in options.tasks]
    found = [Job(t, seed) for seed in range(options.seeds) for t in tasks]
    new = [Job(t, 0, h) for h in options.history for t in tasks]
    return found + new


def one(job: Job, options: argparse.Namespace) -> None:
    """Run a job unless its result is there; the file appears whole."""
    path = options.out / job.file
    if path.exists():
        return
    use(options.anchors)
    task = read(options.data, job.task)
    if job.is_charging and job.history:
        result = new_sites.run(task, options.data, options.out, seed=job.seed, history=job.history)
    elif job.is_charging:
        result = charging.run(
            task, charging.ChargingForm(), options.data, options.out, seed=job.seed
        )
    else:
        form = points.new_form_of(task) if job.history else points.form_of(task)
        result = points.run(task, form, seed=job.seed, history=job.history, data=options.data)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    whole = {"task": job.task, "seed": job.seed, "history": job.history, "peak": round(peak)}
    draft = path.with_suffix(".part")
    draft.write_text(json.dumps(whole | result), "utf-8")
    draft.replace(path)


def kept(todo: Iterable[Job], out: Path) -> list[dict[str, Any]]:
    paths = [out / job.file for job in todo]
    return [json.loads(path.read_text("utf-8")) for path in paths if path.exists()]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this experiment that no other one has."""
    some = parser.add_argument_group("accuracy")
    some.add_argument("--tasks", nargs="+", choices=MARKS, default=[], help="some tasks only")
    some.add_argument("--history", nargs="*", type=int, default=[], help="days of a new device")


def main(options: argparse.Namespace) -> int:
    """Run, print, write."""
    options.out.mkdir(parents=True, exist_ok=True)
    todo = [j for j in jobs(options) if (options.data / j.task.split(":")[0]).is_dir()]
    with Progress(console=Console(stderr=True)) as bar:
        row = bar.add_task("tasks", total=len(todo))
        for job in todo if not options.kept else ():
            _apart(job, options)
            bar.advance(row)
    results = kept(todo, options.out)
    beside = days.table(options.out, options.anchors, list(days.SETS), days.ARMS)
    ahead = "\n".join(filter(None, (beside, tomorrow.report(options.out))))
    if not results and not ahead:
        print(f"reproduce: nothing is finished in {options.out}")
        return 2
    page = tables.report(results, options.anchors) if results else ""
    page += f"\n## Tomorrow\n\n{ahead}" if ahead else ""
    (options.out / "ACCURACY.md").write_text(page, "utf-8")
    if options.docs and results:
        tables.write(results, options.anchors, options.docs)
    print(page)
    return 0


def _apart(job: Job, options: argparse.Namespace) -> None:
    """Run a job in a process of its own, so that its peak memory is its own."""
    if (options.out / job.file).exists():
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        pool.submit(one, job, options).result()


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read a command line of this experiment alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--anchors", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--kept", action="store_true")
    parser.add_argument("--docs", type=Path)
    add_options(parser)
    return parser.parse_args(arguments)
