"""Remove what a device has contributed to the model, exactly.

Only for methods that keep contributions apart (analytic), and only while the daemon runs. The sums
over the other devices are taken again, to the same bits as if the device had never sent anything;
the weights inside them were computed under models that knew it, which a further run renews. Revoke
a device that must not contribute again. The journal keeps its updates until retention deletes them.

  gridfed-aggregator unlearn meter-1
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from aggregator.commands.arguments import add_config_option, add_run, add_why, check_run_name
from aggregator.commands.orders import apply_orders
from aggregator.config import AggregatorConfig
from aggregator.operations.control_queue import ControlOrder
from aggregator.operations.unlearning import refuse_unlearning
from edge_sdk.app.cli import CommandResult


def add_arguments(parser: ArgumentParser) -> None:
    """Add the device and the run."""
    parser.add_argument("id", help="id of the device")
    add_config_option(parser)
    add_run(parser, "remove it from the model of this run alone")
    add_why(parser)


def run(args: Namespace) -> CommandResult:
    """Remove a device's contribution."""
    config = AggregatorConfig.load(args.config)
    name = check_run_name(args.run, config)
    named = [run for run in config.runs if run.name == name]
    if name or len(config.runs) == 1:  # of several runs the daemon knows those of the device
        refuse_unlearning((named or config.runs)[0].method)
    return apply_orders(config, [ControlOrder("unlearn", args.id, run=name, why=args.why)])
