"""Revoke a device: its messages are refused from now on.

Also remove it from the broker's access rules (`gridfed-aggregator broker access`).

  gridfed-aggregator revoke meter-1 --why "meter replaced"
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from aggregator.commands.arguments import add_config_option
from aggregator.commands.orders import apply_orders
from aggregator.config import AggregatorConfig
from aggregator.operations.control_queue import ControlOrder
from edge_sdk.app.cli import CommandResult


def add_arguments(parser: ArgumentParser) -> None:
    """Add the device and the reason."""
    parser.add_argument("id", help="id of the device")
    parser.add_argument("--why", default="", help="reason, kept with the device")
    add_config_option(parser)


def run(args: Namespace) -> CommandResult:
    """Revoke a device."""
    return apply_orders(
        AggregatorConfig.load(args.config), [ControlOrder("revoke", args.id, why=args.why)]
    )
