"""Record readings, train, share updates and forecast until SIGTERM.

The first SIGTERM or SIGINT finishes the present work; a second one stops at once. While the broker is
away the device keeps trying to connect, and keeps forecasting. Without [broker] and keys.root it runs
alone.

  gridfed-edge run meter.toml
  gridfed-edge run meter.toml --until-done --log warning
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from edge_sdk import agent
from edge_sdk.app.cli import CommandResult, start_logging
from edge_sdk.commands import add_config, add_log
from edge_sdk.config import Config


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    add_config(parser)
    parser.add_argument(
        "--until-done",
        action="store_true",
        help="exit when the fleet's run is complete; alone, once the device has learned",
    )
    add_log(parser)


def run(args: Namespace) -> CommandResult:
    start_logging(args.log)
    return CommandResult(agent.run(Config.load(args.config), until_done=args.until_done))
