"""Resume a paused or halted run.

gridfed-aggregator resume aggregator.toml
gridfed-aggregator resume aggregator.toml --run meters
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from aggregator.commands.arguments import add_config, add_run, add_why, check_run_name
from aggregator.commands.orders import apply_orders
from aggregator.config import AggregatorConfig
from aggregator.operations.control_queue import ControlOrder
from edge_sdk.app.cli import CommandResult


def add_arguments(parser: ArgumentParser) -> None:
    """Add the configuration and the run."""
    add_config(parser)
    add_run(parser, "resume this run alone")
    add_why(parser)


def run(args: Namespace) -> CommandResult:
    """Resume a paused fleet, or one run."""
    config = AggregatorConfig.load(args.config)
    order = ControlOrder("resume", "_all", run=check_run_name(args.run, config), why=args.why)
    return apply_orders(config, [order])
