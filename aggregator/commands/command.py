"""Send a signed command to one device.

Operations: stop, resume, reenrol, report, budget, hello, wipe. The command is repeated after
every hello until the device confirms it.

  gridfed-aggregator command meter-1 report
  gridfed-aggregator command meter-1 budget --releases 500
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from aggregator.commands.arguments import add_config_option, add_why
from aggregator.commands.errors import CommandError
from aggregator.commands.orders import apply_orders
from aggregator.config import AggregatorConfig
from aggregator.operations.control_queue import ControlOrder, check_args
from edge_sdk.app.cli import CommandResult
from edge_sdk.wire.protocol.messages import RELEASES_LIMIT


def add_arguments(parser: ArgumentParser) -> None:
    """Add the device, the operation and its arguments."""
    parser.add_argument("id", help="id of the device")
    parser.add_argument("op", help="stop, resume, reenrol, report, budget, hello or wipe")
    parser.add_argument("--releases", type=int, help="budget: total number of updates allowed")
    add_config_option(parser)
    add_why(parser)


def run(args: Namespace) -> CommandResult:
    """Send a command to one device."""
    numbers: dict[str, float] = {}
    if args.releases is not None:
        if not 0 <= args.releases <= RELEASES_LIMIT:
            raise CommandError(
                f"command: --releases: expected 0 to {RELEASES_LIMIT}, got {_brief(args.releases)}"
            )
        numbers["releases"] = float(args.releases)
    check_args(args.op, numbers)
    order = ControlOrder("command", args.id, op=args.op, args=numbers, why=args.why)
    return apply_orders(AggregatorConfig.load(args.config), [order])


def _brief(number: int) -> str:
    """Format a number that may have thousands of digits."""
    return str(number) if abs(number) < 10**30 else f"a number of {number.bit_length()} bits"
