"""Resume a paused or halted run.

gridfed-aggregator resume aggregator.toml
"""

from __future__ import annotations

from argparse import Namespace

from aggregator.commands.arguments import add_config
from aggregator.commands.orders import apply_orders
from aggregator.config import AggregatorConfig
from aggregator.operations.control_queue import ControlOrder
from edge_sdk.app.cli import CommandResult

add_arguments = add_config


def run(args: Namespace) -> CommandResult:
    """Resume a paused fleet."""
    return apply_orders(AggregatorConfig.load(args.config), [ControlOrder("resume", "_all")])
