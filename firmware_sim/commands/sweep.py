"""Run methods, rules, attacks and seeds directly, and write records and a table.

Every run has a record with its seeds, versions, digests and machine. A sweep that was interrupted
continues in its folder: give the same options again.

  gridfed-sim sweep runs --method fedavg,fedprox --rule mean,median --attack alie,label_flip --f 1 --seeds 0 1 2
  gridfed-sim sweep runs --method fedavg,fedprox --seeds 0 1 2 --ray
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from edge_sdk.app.cli import CommandResult
from edge_sdk.app.settings import SettingsError
from firmware_sim.bench.ray_runs import LOCAL, ray_cluster
from firmware_sim.bench.report import HEAD, on_rises, summaries
from firmware_sim.bench.results import write_table
from firmware_sim.bench.sweep import CellExecutor, Sweep
from firmware_sim.commands.run_options import add_run_options, chosen_scenario
from firmware_sim.direct.fleet import refuse_unsupported
from firmware_sim.fleet.histories import check_histories
from firmware_sim.fleet.processes import stoppable
from firmware_sim.reports.progress_display import display


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    parser.add_argument("folder", type=Path, help="folder of records and table")
    add_run_options(parser)
    words = "distribute the runs with Ray: on this machine, or on the cluster at the address"
    parser.add_argument("--ray", nargs="?", const=LOCAL, metavar="ADDRESS", help=words)
    parser.add_argument(
        "--processors", type=int, help="processors that --ray uses on this machine (all)"
    )


def _executor(args: Namespace) -> AbstractContextManager[CellExecutor | None]:
    if args.ray is None:
        if args.processors is not None:
            raise SettingsError("--processors: needs --ray")
        return nullcontext()
    if args.processors is not None and args.processors < 1:
        raise SettingsError(f"--processors {args.processors}: expected at least 1")
    return ray_cluster(args.ray, args.processors)


def run(args: Namespace) -> CommandResult:
    """Run the sweep; return its table and its files."""
    chosen, samples = chosen_scenario(args)
    if chosen.run.shared == ():
        raise SettingsError("--shared none: a fleet without shared layers has no rounds")
    check_histories(chosen, samples)
    for way in (chosen.run, *chosen.comparisons):
        if way.is_among_peers:
            raise SettingsError(
                f"--method {way.method}: its devices exchange models with one another, and a sweep "
                "records the models of an aggregator",
                hint=f"gridfed-sim fleet --direct --method {way.method}",
            )
        for attack_plan in (None, *chosen.attacks):
            refuse_unsupported(way, chosen.privacy, attack_plan)
    with stoppable(), display(is_quiet=args.json) as shown, _executor(args) as executor:
        seeds = args.seeds or [args.seed]
        sweep = Sweep(
            chosen, samples, seeds, args.folder, shown, limit=args.limit, executor=executor
        )
        records = sweep.run()
    file = write_table(records, args.folder)
    found = summaries(records)
    rows = [HEAD, *(row.cells for row in found)]
    wide = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
    lines = [
        "".join(f"{cell:{size}}" for cell, size in zip(row, wide, strict=True)).rstrip()
        for row in rows
    ]
    data = {
        "runs": len(records),
        "resumed": sweep.resumed,
        "definition": records[0]["definition"],
        "files": [str(file)],
        "rows": [dict(zip(HEAD, row, strict=True)) for row in rows[1:]],
    }
    summary = f"{len(records)} runs, {sweep.resumed} of them done before; {file}"
    said = [on_rises(found), summary]
    return CommandResult(data, "\n".join([*lines, "", *filter(None, said)]))
