"""Define the error of a command that cannot be carried out as it was given."""

from __future__ import annotations

from aggregator.config import AggregatorConfig
from aggregator.store.opener import exists
from edge_sdk.app.cli import USAGE, Failure


class CommandError(Failure):
    """A command with invalid arguments."""

    exit_code = USAGE


def require_database(config: AggregatorConfig) -> AggregatorConfig:
    """Return the configuration; refuse one whose fleet was never set up."""
    if not exists(config.database):
        raise CommandError(
            f"{config.database} does not exist: this fleet is not set up",
            hint=f"gridfed-aggregator init {config.file}",
        )
    return config
