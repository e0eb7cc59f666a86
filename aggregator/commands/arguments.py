"""Define the arguments that several subcommands share."""

from __future__ import annotations

from argparse import ArgumentParser

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


def add_root_key(parser: ArgumentParser) -> None:
    """Add the path of the root key, which an operator may keep offline."""
    parser.add_argument(
        "--root-key",
        metavar="FILE",
        help="the root's private key (default: root.key in the state folder)",
    )
