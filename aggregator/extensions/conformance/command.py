"""Check the rules and methods that an installed package offers.

Runs the checks of the documented interface on every rule and server half of the package. gridfed-sim
conform runs these too, and those of device halves, attacks and sources.

  gridfed-aggregator conform gridfed-scaffold
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from aggregator.extensions.conformance.checks import method_checks, rule_checks
from aggregator.rules import GROUP as RULES_GROUP
from edge_sdk.app.cli import CommandResult
from edge_sdk.extensions.conformance.conformance import (
    conformance,
    offered,
    settings_by_entry,
    summary,
)
from edge_sdk.protocol.contract.method import METHODS_GROUP


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    parser.add_argument("package", help="name of the installed package")
    words = "setting of an entry: NAME.KEY=VALUE"
    parser.add_argument("--setting", action="append", default=[], metavar="N.K=V", help=words)


def run(args: Namespace) -> CommandResult:
    """Return the result of every check; the exit code is 1 if one failed."""
    names = offered(args.package, (RULES_GROUP, METHODS_GROUP))
    settings = settings_by_entry(args.setting)
    results = []
    for group, checks in ((RULES_GROUP, rule_checks), (METHODS_GROUP, method_checks)):
        for name in names[group]:
            given = settings.get(name, {})
            results += conformance(f"{group} {name}, server", checks(name, given))
    return summary(results)
