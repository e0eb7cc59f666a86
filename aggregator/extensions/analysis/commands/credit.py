"""Show the weight of every device's model in the models of the others, by round.

For methods with credit attention (pfl, pfgl). Reads the database; the daemon may run. A weight of
exactly 0 means excluded.

  gridfed-aggregator credit aggregator.toml --by meter-1
  gridfed-aggregator credit aggregator.toml --out credit.svg
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from aggregator.commands.arguments import CommandError, add_config, check_run_name, require_database
from aggregator.config import AggregatorConfig
from aggregator.extensions.analysis.credit_heatmap import given, received, svg, table
from aggregator.store.opener import open_store
from edge_sdk.app.cli import CommandResult


def add_arguments(parser: ArgumentParser) -> None:
    """Add the configuration, the run, the device and the output."""
    add_config(parser)
    parser.add_argument(
        "--run", default="", metavar="NAME", help="name of the run (default: the newest run)"
    )
    parser.add_argument(
        "--by", metavar="ID", help="weights that this device gives (received weights of all)"
    )
    parser.add_argument("--out", metavar="SVG", help="write a heat map of all rounds")


def run(args: Namespace) -> CommandResult:
    """Show the credit weights of the devices' models, by round."""
    config = require_database(AggregatorConfig.load(args.config))
    with open_store(config.database, read_only=True) as store:
        begun = store.runs.latest(check_run_name(args.run, config) or None)
        closed = store.runs.versions(begun.run) if begun is not None else []
    weighed = {v.version: v.report["credit"] for v in closed if v.moved and "credit" in v.report}
    if not weighed:
        raise CommandError(
            f"{config.database}: no round has credit weights",
            hint="pfl and pfgl record them, for fleets of at most 64 devices",
        )
    try:
        heat = received(weighed) if args.by is None else given(weighed, args.by)
    except KeyError as error:
        raise CommandError(f"{args.by}: is in no round with credit weights") from error
    text = f"{heat.title}:\n{table(heat)}\nexcluded: {', '.join(heat.excluded) or 'none'}"
    data: dict[str, Any] = {"credit": weighed, "excluded": list(heat.excluded)}
    if args.out is not None:
        Path(args.out).write_text(svg(heat), encoding="utf-8")
        data["out"], text = args.out, f"{text}\nheat map: {args.out}"
    return CommandResult(data, text)
