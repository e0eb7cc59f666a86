"""Implement the subcommands of ``gridfed-edge`` that every device needs, and define their shared arguments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edge_sdk.errors import ConfigError

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from edge_sdk.config import Config


def add_config(parser: ArgumentParser) -> None:
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
    """Return the configuration of one participation; of the device's own if no name is given."""
    found = {one.id: one for one in config.participants()}
    if (name or config.id) not in found:
        raise ConfigError(f"--participation: unknown {name!r}; known: {', '.join(found)}")
    return found[name or config.id]


def add_log(parser: ArgumentParser) -> None:
    levels = ("debug", "info", "warning", "error")
    parser.add_argument("--log", default="info", choices=levels, help="least level logged (info)")
