"""Define the arguments, and the refusals, that several subcommands share."""

from __future__ import annotations

from argparse import ArgumentParser

from aggregator.config import AggregatorConfig
from aggregator.store.opener import exists
from edge_sdk.errors import USAGE, Failure


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


DEFAULT = "aggregator.toml"


def add_config(parser: ArgumentParser) -> None:
    """Add the configuration file as the only positional argument."""
    parser.add_argument(
        "config", nargs="?", default=DEFAULT, help=f"configuration file (default: {DEFAULT})"
    )


def add_config_option(parser: ArgumentParser) -> None:
    """Add the configuration file as an option, for a command with other positional arguments."""
    parser.add_argument(
        "--config", default=DEFAULT, metavar="FILE", help=f"configuration file ({DEFAULT})"
    )


def add_run(parser: ArgumentParser, what: str) -> None:
    """Add the name of a run, for a configuration with several."""
    parser.add_argument("--run", default="", metavar="NAME", help=f"{what} (default: all runs)")


def add_why(parser: ArgumentParser) -> None:
    parser.add_argument("--why", default="", help="reason, kept in the audit log")


def check_run_name(name: str, config: AggregatorConfig) -> str:
    """Return the name of a run; empty for all."""
    known = [run.name for run in config.runs if run.name]
    if name and name not in known:
        listed = ", ".join(known) or "none has a name"
        raise CommandError(f"{config.file}: --run: no run {name!r}; runs: {listed}")
    return name


def add_root_key(parser: ArgumentParser) -> None:
    """Add the root's private keys, which operators may keep offline or in tokens."""
    parser.add_argument(
        "--root-key",
        metavar="FILE",
        action="append",
        default=[],
        help="the root's private key: a file or a PKCS#11 URI; repeat it where several have to "
        "sign (default: root*.key in the state folder)",
    )
