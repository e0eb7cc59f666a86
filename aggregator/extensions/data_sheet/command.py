"""Write the fleet's data-protection sheet from its configuration, database and audit log.

What devices read and send, the privacy budget promised and spent, retention, keys and their expiry, who did
what, and items of NIST SP 800-226, IEC 62443-4-2 and ETSI EN 303 645 with the place where each is shown.

  gridfed-aggregator data-sheet aggregator.toml --out sheet.md
  gridfed-aggregator data-sheet aggregator.toml --json
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from aggregator.commands.arguments import add_config, require_database
from aggregator.config import AggregatorConfig, bind
from aggregator.extensions.data_sheet.data_sheet import data_sheet
from aggregator.extensions.data_sheet.data_sheet_text import markdown
from aggregator.store.opener import open_store
from edge_sdk.app.cli import CommandResult
from edge_sdk.app.clock import SystemClock
from edge_sdk.protocol.keys import write_atomically


def add_arguments(parser: ArgumentParser) -> None:
    """Add the configuration and the file to write."""
    add_config(parser)
    parser.add_argument(
        "--out", metavar="FILE", help="write Markdown there, instead of printing it"
    )


def run(args: Namespace) -> CommandResult:
    """Make the sheet."""
    config = require_database(AggregatorConfig.load(args.config))
    bound = [bind(view) for view in config.views()]
    with open_store(config.database, read_only=True) as store:
        sheet = data_sheet(config, bound, store, SystemClock().wall())
    text = markdown(sheet)
    if args.out:
        write_atomically(Path(args.out), text.encode(), 0o644)
        text = f"{args.out}: sheet of fleet {config.fleet}"
    return CommandResult(sheet, text.rstrip())
