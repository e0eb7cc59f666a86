"""Copy the database while the daemon runs.

gridfed-aggregator backup backup.db --config aggregator.toml
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from aggregator.commands.arguments import add_config_option
from aggregator.commands.errors import require_database
from aggregator.config import AggregatorConfig
from aggregator.store.opener import open_store
from edge_sdk.app.cli import CommandResult


def add_arguments(parser: ArgumentParser) -> None:
    """Add the target and the configuration."""
    parser.add_argument("file", help="target file; must not exist")
    add_config_option(parser)


def run(args: Namespace) -> CommandResult:
    """Copy the database while the daemon runs."""
    config = require_database(AggregatorConfig.load(args.config))
    target = Path(args.file)
    with open_store(config.database, read_only=True) as store:
        store.backup(target)
        begun = store.run()
        after = store.closed_by(begun.run, store.first(begun.run).upto) if begun else 0
    size = target.stat().st_size
    result = f"{target}: {size} bytes" + (f"; audit after round {after}" if after else "")
    return CommandResult({"file": str(target), "bytes": size, "audit after": after}, result)
