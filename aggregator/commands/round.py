"""Open the next round now, before the start that the schedule gives it.

The rounds after it begin at the times of the schedule.

  gridfed-aggregator round now aggregator.toml
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from aggregator.commands.arguments import add_config, add_run, add_why, check_run_name
from aggregator.commands.orders import apply_orders
from aggregator.config import AggregatorConfig
from aggregator.operations.control_queue import ControlOrder
from edge_sdk.app.cli import CommandResult


def add_arguments(parser: ArgumentParser) -> None:
    """Add the time, the configuration and the run."""
    parser.add_argument("when", choices=("now",), help="now")
    add_config(parser)
    add_run(parser, "open the next round of this run alone")
    add_why(parser)


def run(args: Namespace) -> CommandResult:
    """Open the next round."""
    config = AggregatorConfig.load(args.config)
    order = ControlOrder("round", "_all", run=check_run_name(args.run, config), why=args.why)
    return apply_orders(config, [order])
