"""Change the labels of devices. A run takes the devices whose labels fit its cohort.

An empty value removes a label. A connected device learns its runs at once.

  gridfed-aggregator label region=south meter-1 meter-2
  gridfed-aggregator label region=north,kind= meter-1
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from aggregator.commands.arguments import add_config_option, add_why
from aggregator.commands.errors import CommandError
from aggregator.commands.orders import apply_orders
from aggregator.config import AggregatorConfig
from aggregator.operations.control_queue import ControlOrder
from aggregator.operations.labels import label_text, parse_labels
from edge_sdk.app.cli import CommandResult


def add_arguments(parser: ArgumentParser) -> None:
    """Add the labels and the devices."""
    parser.add_argument("labels", metavar="NAME=VALUE,…", help="labels to set; NAME= removes one")
    parser.add_argument("id", nargs="+", help="ids of the devices")
    add_config_option(parser)
    add_why(parser)


def run(args: Namespace) -> CommandResult:
    """Change the labels."""
    changes = parse_labels(args.labels)
    if not changes:
        raise CommandError("label: expected NAME=VALUE, as in region=north")
    text = label_text(changes.items())
    orders = [ControlOrder("label", device, labels=text, why=args.why) for device in args.id]
    return apply_orders(AggregatorConfig.load(args.config), orders)
