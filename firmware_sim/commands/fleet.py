"""Run N devices, and print the cost of a device and of a round.

With --attack, or with several methods or rules, every method is run without and with every attack,
and a table compares the forecasts of the honest devices. Devices without a server (dfl_sgd, dfl_gt) always
give that table, with the disagreement of their models.

  gridfed-sim fleet --devices 200 --in-process --rounds 20
  gridfed-sim fleet --direct --devices 1000 --method fedasync --repeat 3
  gridfed-sim fleet --direct --devices 5000 --method fedbuff --arrivals spread=1 --arrivals loss=0.05
  gridfed-sim fleet --method dfl_sgd,dfl_gt --graph torus --rounds 20
  gridfed-sim fleet --byzantine 0.2 --attack alie --rule mean,trimmed_mean
  gridfed-sim fleet --method fedavg,fedprox --setting fedprox.prox=0.1 --seeds 0 1 2 --csv runs.csv
"""

from __future__ import annotations

import csv
import math
import os
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from edge_sdk.app.cli import CommandResult
from edge_sdk.app.schema import SchemaError, build
from edge_sdk.app.settings import SettingsError
from edge_sdk.errors import Failure
from firmware_sim.commands.fleet_run import MOST_PROCESSES, FleetRun
from firmware_sim.commands.options import add_broker_kind, pairs, value_of
from firmware_sim.commands.run_options import add_run_options, chosen_scenario, is_trial
from firmware_sim.commands.trial import Trial, TrialRow, table, verdicts
from firmware_sim.fleet.histories import check_histories
from firmware_sim.fleet.power_failures import a_minute
from firmware_sim.fleet.processes import stoppable
from firmware_sim.reports.progress_display import display
from firmware_sim.samples import SEED, SampleSet
from firmware_sim.scenario import Scenario

_PROCESSES_HINT = "--processes, and at most 16 devices or so"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    add_run_options(parser)
    add = parser.add_argument
    words = "write a table with a row for each run, seed and device, as CSV"
    add("--csv", type=Path, metavar="FILE", help=words)
    words = "brownouts=N: kill -9 and restart a random device's process N times a minute"
    add("--fault", action="append", default=[], metavar="K=V", help=words)
    where = parser.add_mutually_exclusive_group()
    inside: dict[str, Any] = {"action": "store_const", "dest": "is_inside"}
    where.add_argument(
        "--processes", const=False, help="one process per device (up to 16)", **inside
    )
    where.add_argument(
        "--in-process", const=True, help="all devices in this process (above 16)", **inside
    )
    words = "halves of devices and aggregator in this process: no broker, signatures or disk"
    where.add_argument("--direct", action="store_true", help=words)
    words = "with --direct: run N times with the same seeds, and compare every bit"
    add("--repeat", type=int, default=1, metavar="N", help=words)
    words = "with --direct, of one run: seeded speeds, sleeps and losses, in medians of an answer's time:"
    words += " spread, sleep, nap, loss, again (docs/scale.md)"
    add("--arrivals", action="append", default=[], metavar="K=V", help=words)
    words = "with --direct: processes that train the devices (default: one a core from 100 devices"
    words += " on); 0 trains them in the one that runs the aggregator's half. The bits are the same"
    add("--workers", type=int, metavar="N", help=words)
    add("--broker", default="", metavar="URL", help="URL of a running broker; default: start one")
    add_broker_kind(parser, "--kind")
    words = "configuration of a running aggregator to join"
    add("--aggregator", type=Path, metavar="CONFIG", help=words)
    words = "folder to keep every file in (default: in memory, then deleted)"
    add("--out", type=Path, metavar="FOLDER", help=words)


def run(args: Namespace) -> CommandResult:
    """Run the fleet, or every comparison; return the cost, or the table."""
    chosen, samples = chosen_scenario(args)
    if chosen.run.shared == ():
        raise SettingsError(
            "--shared none: a fleet without shared layers has no rounds",
            hint="gridfed-sim demo compares local training with shared layers",
        )
    _check_direct(args)
    lacking = check_histories(chosen, samples) if args.aggregator is None else []
    is_among_peers = any(one.is_among_peers for one in (chosen.run, *chosen.comparisons))
    is_compared = is_trial(chosen) or is_among_peers or args.seeds or args.csv
    if args.arrivals and (is_compared or not args.direct):
        raise SettingsError("--arrivals: only a direct simulation of one run has them")
    if is_compared:
        return _trial(args, chosen, samples)
    if args.direct:
        return _direct(args, chosen, samples)
    inside = chosen.devices > MOST_PROCESSES if args.is_inside is None else args.is_inside
    outages = a_minute({k: value_of(v) for k, v in pairs(args.fault, "--fault").items()})
    if outages and inside:
        raise SettingsError(
            "--fault brownouts: only a process can lose its power", hint=_PROCESSES_HINT
        )
    with tempfile.TemporaryDirectory(prefix="gridfed-sim-", dir=_memory()) as scratch:
        out = args.out or Path(scratch)
        with stoppable(), display(is_quiet=args.json) as shown:
            for one in lacking:
                shown.note(f"{one.device} has no window and cannot train: {one.reason}")
            fleet_run = FleetRun(
                chosen,
                samples,
                out,
                shown,
                inside,
                broker=args.broker,
                kind=args.kind,
                aggregator=args.aggregator,
                limit=args.limit,
                seed=args.seed,
                outages=outages,
            )
            cost = fleet_run.run()
    data: dict[str, Any] = {
        "devices": cost.devices,
        "rounds": cost.rounds,
        "in_process": inside,
        "brownouts": fleet_run.power_failures,
        "seconds": cost.wall,
        "per_device_and_round": cost.each,
        "device_process": fleet_run.device_process,
        "own_process": asdict(own) if (own := fleet_run.own_process) else {},
        "refused": fleet_run.refused,
        "served": dict(fleet_run.served),
    }
    served = ", ".join(f"{name} on {count}" for name, count in fleet_run.served.most_common())
    lines = [
        cost.text(),
        own.text() if own else "",
        f"forecasts served: {served}" if served else "",
    ]
    return CommandResult(data, "\n".join(line for line in lines if line))


def _check_direct(args: Namespace) -> None:
    """Refuse options that a direct simulation does not have, and one that nothing else has."""
    if args.repeat < 1:
        raise SettingsError(f"--repeat {args.repeat}: expected at least 1")
    if args.workers is not None and not 0 <= args.workers <= MOST_PROCESSES:
        raise SettingsError(f"--workers {args.workers}: expected 0 to {MOST_PROCESSES}")
    if args.workers is not None and not args.direct:
        raise SettingsError("--workers: only direct simulations have workers", hint="add --direct")
    if args.direct and (args.aggregator or args.broker or args.fault):
        raise SettingsError(
            "--direct: there is no broker, aggregator or process",
            hint="leave --broker, --aggregator and --fault out, or --direct",
        )
    if args.repeat > 1 and not args.direct:
        raise SettingsError(
            "--repeat: arrivals over a broker have no fixed order", hint="add --direct"
        )


def _direct(args: Namespace, chosen: Scenario, samples: SampleSet) -> CommandResult:
    from firmware_sim.direct.run import DirectRun  # noqa: PLC0415 - loads the aggregator
    from firmware_sim.direct.simulation import ArrivalPlan  # noqa: PLC0415 - as above
    from firmware_sim.direct.trainers import default_workers, has_workers  # noqa: PLC0415 - as above

    drawn = {key: value_of(text) for key, text in pairs(args.arrivals, "--arrivals").items()}
    try:
        arrivals = build(ArrivalPlan, drawn)
    except SchemaError as error:
        raise SettingsError(f"--arrivals {error}") from error
    workers = default_workers(chosen.devices) if args.workers is None else args.workers
    if workers and not has_workers():
        raise SettingsError(
            f"--workers {workers}: this system cannot copy a process", hint="--workers 0"
        )
    with stoppable(), display(is_quiet=args.json) as shown:
        run_ = DirectRun(
            chosen,
            samples,
            shown,
            limit=args.limit,
            seed=args.seed,
            workers=workers,
            arrivals=arrivals,
        )
        results = list(run_.repeat(args.repeat))
    first = results[0]
    different = [
        number
        for number, one in enumerate(results, 1)
        if (one.digest, one.rounds) != (first.digest, first.rounds)
    ]
    if different:
        raise Failure(
            f"--repeat {args.repeat}: run {different[0]} gave other bits than run 1",
            hint="report it: equal seeds give equal bits",
        )
    data: dict[str, Any] = {
        "devices": first.devices,
        "rounds": first.version,
        "updates": first.updates,
        "seconds": [one.seconds for one in results],
        "updates_per_second": max(one.rate for one in results),
        "setup_seconds": first.setup,
        "memory_bytes": first.memory,
        "virtual_seconds": first.virtual,
        "bytes": {"up": first.up, "down": first.down},
        "state": first.digest,
        "model": first.model,
        "refused": first.refused,
        "repeated": args.repeat,
        "workers": workers,
    }
    text = first.text()
    if args.repeat > 1:
        text += f"\n{args.repeat} runs gave the same bits in each of {len(first.rounds)} rounds"
    return CommandResult(data, text)


def _trial(args: Namespace, chosen: Scenario, samples: SampleSet) -> CommandResult:
    """Run every scenario without and with every attack."""
    if args.workers:
        raise SettingsError(
            "--workers: the runs of a comparison train their devices in one process",
            hint="leave it out, or --attack, --csv, --seeds and the further methods and rules",
        )
    if args.is_inside is False or args.aggregator:
        raise SettingsError(
            "--processes, --aggregator: the devices of an attacked run, or of one without a server, share "
            "one process, and every run starts its own aggregator",
            hint="leave both out",
        )
    if args.csv is not None and not args.csv.parent.is_dir():
        raise SettingsError(f"--csv {args.csv}: no folder {args.csv.parent}", hint="make it first")
    seeds: list[int] = args.seeds or [args.seed]
    rows: dict[int, list[TrialRow]] = {}
    with tempfile.TemporaryDirectory(prefix="gridfed-sim-", dir=_memory()) as scratch:
        out = args.out or Path(scratch)
        with stoppable(), display(is_quiet=args.json) as shown:
            for seed in seeds:
                trial = Trial(
                    chosen.with_seed(seed) if args.seeds else chosen,
                    samples.with_seed(seed) if args.seeds else samples,
                    out / f"seed-{seed}" if len(seeds) > 1 else out,
                    shown,
                    broker=args.broker,
                    kind=args.kind,
                    limit=args.limit,
                    seed=seed,
                    is_direct=args.direct,
                )
                rows[seed] = trial.run()
                if args.csv is not None:  # also what a later seed could not finish
                    write_csv(rows, args.csv)
    data = {
        "devices": chosen.devices,
        "evaluated": list(trial.evaluated),
        "unit": samples.unit,
        "seeds": seeds,
        "runs": [row.as_json() | {"seed": seed} for seed, some in rows.items() for row in some],
        "verdicts": verdicts(next(iter(rows.values()))),
    }
    parts = [
        (f"seed {seed}\n" if len(seeds) > 1 else "") + table(some, samples.unit)
        for seed, some in rows.items()
    ]
    if len(seeds) > 1:
        parts.append(over_seeds(rows))
    if args.csv is not None:
        parts.append(f"table: {args.csv}")
        data["csv"] = str(args.csv)
    return CommandResult(data, "\n\n".join(parts))


def _memory() -> str | None:
    shared = Path("/dev/shm")  # noqa: S108 - a private folder is made below it
    return str(shared) if shared.is_dir() and os.access(shared, os.W_OK) else None


# columns of the table; ``settings`` are ``key=value`` with semicolons, ``attack`` may be none
COLUMNS = (
    *("seed", "method", "rule", "encoding", "settings", "attack"),
    *("device", "mae", "rmse", "windows"),
)


def write_csv(rows: Mapping[int, Sequence[TrialRow]], path: Path) -> None:
    """Write the table of the runs by seed; a device that is not evaluated has no row."""
    with path.open("w", encoding="utf-8", newline="") as out:
        table = csv.writer(out, lineterminator="\n")
        table.writerow(COLUMNS)
        for seed, some in rows.items():
            for row in some:
                run = row.run
                settings = ";".join(f"{key}={value}" for key, value in run.settings.items())
                attack = row.attack_plan.attack if row.attack_plan else "none"
                head = (seed, run.method, run.rule_name, run.encoding, settings, attack)
                for device, error in row.errors.each.items():
                    name = device.removesuffix(f"{SEED}{seed}")
                    table.writerow((*head, name, error.mae, error.rmse, error.windows))


def over_seeds(rows: Mapping[int, Sequence[TrialRow]]) -> str:
    """Return the mean and the standard deviation of each run's errors over the seeds, as text."""
    lines = [f"{'over ' + str(len(rows)) + ' seeds':44}{'MAE':>22}{'RMSE':>22}"]
    for some in zip(*rows.values(), strict=True):
        first = some[0]
        attack = first.attack_plan.attack if first.attack_plan else "none"
        run = first.run
        name = f"{run.method} {run.rule_name} {run.encoding}, attack {attack}"
        spread = [
            _spread([row.errors.mae for row in some]),
            _spread([row.errors.rmse for row in some]),
        ]
        lines.append(f"{name:44}{spread[0]:>22}{spread[1]:>22}")
    return "\n".join(lines)


def _spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation as text.

    >>> _spread([1.0, 3.0]), _spread([1.0, float("nan")])
    ('2 +- 1.4', 'not evaluated')
    """
    if not all(map(math.isfinite, values)):
        return "not evaluated"
    return f"{fmean(values):.4g} +- {stdev(values):.2g}"
