"""Copy the database file into the PostgreSQL database of ``store.url``.

Stop the daemon, set store.url, run this, start the daemon. Every row is copied and compared with the
file; an interrupted copy continues when the command runs again. The file is not changed. Afterwards
``audit`` recomputes every round from the new database.

  gridfed-aggregator migrate aggregator.toml
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from aggregator.commands.arguments import CommandError, add_config
from aggregator.config import AggregatorConfig
from aggregator.store.dialect import DatabaseUrl
from edge_sdk.app.cli import CommandResult


def add_arguments(parser: ArgumentParser) -> None:
    add_config(parser)


def run(args: Namespace) -> CommandResult:
    """Copy every table, and compare it."""
    config = AggregatorConfig.load(args.config)
    file, place = config.file_database, config.database
    if not isinstance(place, DatabaseUrl):
        raise CommandError(
            f"{config.file} has no store.url",
            hint='[store] url = "postgresql://user@host/database"',
        )
    if not file.exists():
        raise CommandError(f"{file} does not exist: there is nothing to migrate")
    from aggregator.extensions.postgres.engine import migrate  # noqa: PLC0415 - extra

    lines: list[str] = []
    migrate(file, place, lines.append)
    summary = f"{file} is in {place}; check it: gridfed-aggregator audit {config.file}"
    return CommandResult(
        {"tables": lines, "from": str(file), "to": str(place)}, "\n".join([*lines, summary])
    )
