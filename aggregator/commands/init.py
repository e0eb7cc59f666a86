"""Make keys, begin a run, and sign what devices must trust.

Copy root.pub to every device. Then move root.key offline: the daemon does not need it. Run
again, it keeps every existing file.

  gridfed-aggregator init aggregator.toml
"""

from __future__ import annotations

from argparse import Namespace

from aggregator.commands.announce import add_arguments, sign_announcements
from aggregator.config import AggregatorConfig
from edge_sdk.app.cli import CommandResult
from edge_sdk.app.permissions import make_private_folder

__all__ = ["add_arguments", "run"]


def run(args: Namespace) -> CommandResult:
    """Create missing files, begin the run, and report what devices need."""
    config = AggregatorConfig.load(args.config)
    make_private_folder(config.state)
    return sign_announcements(args, config)
