"""Define the arguments that several subcommands share."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from edge_sdk.config import Config
from edge_sdk.errors import ConfigError


def add_config(parser: ArgumentParser) -> None:
    """Add the configuration file."""
    parser.add_argument("config", type=Path, metavar="CONFIG", help="the device's TOML file")


def add_participation(parser: ArgumentParser) -> None:
    """Add the id of one of several participations."""
    parser.add_argument(
        "--participation",
        default="",
        metavar="ID",
        help="a further run of [[participation]]; the device's own without it",
    )


def participant(config: Config, name: str) -> Config:
    """Return the configuration of one participation; of the device's own if no name is given.

    Raises:
        ConfigError: The device has no such participation.
    """
    found = {one.id: one for one in config.participants()}
    if (name or config.id) not in found:
        raise ConfigError(f"--participation: unknown {name!r}; known: {', '.join(found)}")
    return found[name or config.id]


def add_log(parser: ArgumentParser) -> None:
    """Add the level of the log."""
    levels = ("debug", "info", "warning", "error")
    parser.add_argument("--log", default="info", choices=levels, help="least level logged (info)")
