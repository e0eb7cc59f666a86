"""Check the entry points that an installed package offers to gridfed.

Runs the checks of the documented interface on rules, both halves of methods, attacks and sources,
then a short fleet over a real broker for each method.

  gridfed-sim conform gridfed-scaffold
  gridfed-sim conform gridfed-meamed --setting meamed.f=2 --no-fleet
"""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from functools import partial

from edge_sdk.app.cli import CommandResult
from edge_sdk.errors import OK, RUNTIME, Failure
from edge_sdk.extensions.conformance.conformance import (
    ConformanceResult,
    NotCheckedError,
    conformance,
    offered,
    require,
    settings_by_entry,
    summary,
)
from edge_sdk.protocol.contract.method import CONTRACTS, METHODS_GROUP, Up, answered
from edge_sdk.sources import GROUP as SOURCES_GROUP
from firmware_sim.attacks import GROUP as ATTACKS_GROUP
from firmware_sim.conformance import attack_checks, device_checks, source_checks
from firmware_sim.fleet.processes import command
from firmware_sim.reports.progress_display import display

MOST_SECONDS = 600  # of the checks that need no fleet
START = 60.0  # s beside the time limit in which a fleet starts and ends
FLEET = ("--devices", "3", "--rounds", "2", "--days", "14", "--in-process")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    add = parser.add_argument
    add("package", help="name of the installed package")
    words = "setting of a rule or method: NAME.KEY=VALUE"
    add("--setting", action="append", default=[], metavar="N.K=V", help=words)
    add("--no-fleet", action="store_true", help="leave out the fleet over a broker")
    add("--limit", type=float, default=120.0, help="time limit of each fleet, in seconds (120)")


def run(args: Namespace) -> CommandResult:
    """Return the result of every check; the exit code is 1 if one failed."""
    names = offered(args.package, (METHODS_GROUP, ATTACKS_GROUP, SOURCES_GROUP))
    settings = settings_by_entry(args.setting)
    results = _of_server(args.package, args.setting)
    for group, checks in (
        (METHODS_GROUP, device_checks),
        (ATTACKS_GROUP, attack_checks),
        (SOURCES_GROUP, source_checks),
    ):
        for name in names[group]:
            part = ", device" if group == METHODS_GROUP else ""
            results += conformance(f"{group} {name}{part}", checks(name))
    for name in () if args.no_fleet else names[METHODS_GROUP]:
        shown = display(is_quiet=args.json)
        shown.note(f"{name}: a fleet of 3 devices, 2 rounds, at most {args.limit:g} s")
        moves = partial(_fleet, name, settings.get(name, {}), args.limit)
        fleet = {"moves a model in a fleet": moves}
        results += conformance(f"{METHODS_GROUP} {name}, fleet", fleet)
    return summary(results)


def _of_server(package: str, settings: list[str]) -> list[ConformanceResult]:
    """Run the aggregator's own command: a simulator of devices does not import the aggregator."""
    given = [part for text in settings for part in ("--setting", text)]
    line = command("gridfed-aggregator", "conform", package, "--json", *given)
    try:
        done = _done(line, MOST_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise Failure(
            f"gridfed-aggregator conform {package}: no result within {MOST_SECONDS} s",
            hint="run that command alone, and see where it waits",
        ) from error
    if done.returncode not in (OK, RUNTIME) or not done.stdout:
        raise Failure(f"gridfed-aggregator conform {package}: {done.stderr.strip()[-2000:]}")
    return [ConformanceResult(**one) for one in json.loads(done.stdout)["results"]]


def _done(line: Sequence[str], limit: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(line, capture_output=True, text=True, timeout=limit, check=False)


def _fleet(name: str, settings: dict[str, object], limit: float) -> None:
    if answered(CONTRACTS[name])[1].up is Up.PEERS:
        raise NotCheckedError("its updates go to neighbours, which no fleet simulates yet")
    given = [part for key, value in settings.items() for part in ("--setting", f"{key}={value}")]
    line = [sys.executable, "-m", "firmware_sim", "fleet", *FLEET, "--method", name, "--json"]
    try:
        done = _done([*line, "--limit", f"{limit:g}", *given], limit + START)
    except subprocess.TimeoutExpired:
        require(condition=False, problem=f"no result within {limit + START:g} s")
        return
    said = done.stderr.strip()[-400:]
    if "time limit of" in said:
        problem = f"2 rounds did not close within {limit:g} s: does the server half close a round?"
        require(condition=False, problem=f"{problem} ({said.splitlines()[-1]})")
    require(done.returncode == OK, f"exit code {done.returncode}: {said}")
    found = json.loads(done.stdout)
    require(found["rounds"] >= 2, f"{found['rounds']} of 2 rounds")
    require(not found["refused"], f"refusals: {found['refused']}")
