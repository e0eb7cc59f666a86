"""Check everything that an installed package offers to gridfed.

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
from functools import partial

from edge_sdk.app.cli import OK, RUNTIME, CommandResult, Failure
from edge_sdk.app.conformance import (
    ConformanceResult,
    conformance,
    offered,
    require,
    settings_by_entry,
    summary,
)
from edge_sdk.sources import GROUP as SOURCES_GROUP
from edge_sdk.wire.contract.method import METHODS_GROUP
from firmware_sim.attacks import GROUP as ATTACKS_GROUP
from firmware_sim.conformance import attack_checks, device_checks, source_checks
from firmware_sim.fleet.processes import command

MOST_SECONDS = 600


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    add = parser.add_argument
    add("package", help="name of the installed package")
    words = "setting of a rule or method: NAME.KEY=VALUE"
    add("--setting", action="append", default=[], metavar="N.K=V", help=words)
    add("--no-fleet", action="store_true", help="leave out the fleet over a broker")


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
        fleet = {"moves a model in a fleet": partial(_fleet, name, settings.get(name, {}))}
        results += conformance(f"{METHODS_GROUP} {name}, fleet", fleet)
    return summary(results)


def _of_server(package: str, settings: list[str]) -> list[ConformanceResult]:
    """Run the aggregator's own command: a simulator of devices does not import the aggregator."""
    given = [part for text in settings for part in ("--setting", text)]
    done = subprocess.run(
        command("gridfed-aggregator", "conform", package, "--json", *given),
        capture_output=True,
        text=True,
        timeout=MOST_SECONDS,
        check=False,
    )
    if done.returncode not in (OK, RUNTIME) or not done.stdout:
        raise Failure(f"gridfed-aggregator conform {package}: {done.stderr.strip()[-2000:]}")
    return [ConformanceResult(**one) for one in json.loads(done.stdout)["results"]]


def _fleet(name: str, settings: dict[str, object]) -> None:
    given = [part for key, value in settings.items() for part in ("--setting", f"{key}={value}")]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "firmware_sim", "fleet", "--devices", "3", "--rounds", "2"),
            *("--days", "14", "--in-process", "--method", name, "--json", *given),
        ],
        capture_output=True,
        text=True,
        timeout=MOST_SECONDS,
        check=False,
    )
    require(done.returncode == OK, f"exit code {done.returncode}: {done.stderr.strip()[-400:]}")
    found = json.loads(done.stdout)
    require(found["rounds"] >= 2, f"{found['rounds']} of 2 rounds")
    require(not found["refused"], f"refusals: {found['refused']}")
