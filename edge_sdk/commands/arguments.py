"""Define the arguments that several subcommands share."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path


def add_config(parser: ArgumentParser) -> None:
    """Add the configuration file."""
    parser.add_argument("config", type=Path, metavar="CONFIG", help="the device's TOML file")


def add_log(parser: ArgumentParser) -> None:
    """Add the level of the log."""
    levels = ("debug", "info", "warning", "error")
    parser.add_argument("--log", default="info", choices=levels, help="least level logged (info)")
