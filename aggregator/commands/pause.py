"""Pause training in the whole fleet; devices keep forecasting.

The pause holds over restarts, until `resume`.

  gridfed-aggregator pause aggregator.toml
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
    """Pause the fleet."""
    return apply_orders(AggregatorConfig.load(args.config), [ControlOrder("pause", "_all")])
