"""Make keys, begin a run, and sign what devices must trust.

A configuration that does not exist yet is written first: with the values of the options, of the
person at the terminal, or with defaults.

Copy root.pub to every device. Then move root.key offline: the daemon does not need it. Run
again, it keeps every existing file.

  gridfed-aggregator init aggregator.toml
  gridfed-aggregator init aggregator.toml --kind charger --fleet east --yes
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from aggregator.commands import announce
from aggregator.commands.announce import sign_announcements
from aggregator.commands.new_config import add_new_config_arguments, is_wanted, write_config
from aggregator.config import AggregatorConfig
from edge_sdk.app.cli import CommandResult
from edge_sdk.app.permissions import make_private_folder


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``announce``, and the values of a new configuration."""
    announce.add_arguments(parser)
    add_new_config_arguments(parser)


def run(args: Namespace) -> CommandResult:
    """Create missing files, begin the run, and report what devices need."""
    path = Path(args.config)
    if not path.exists() and is_wanted(args):
        write_config(path, args)
    config = AggregatorConfig.load(args.config)
    make_private_folder(config.state)
    return sign_announcements(args, config)
