"""Exit with 0 if the agent of a configuration runs, else with 1: for containers and monitors.

The agent records every five seconds that its main loop turns, also while it trains. Nothing of the
store is read.

  gridfed-edge health meter.toml
  gridfed-edge health meter.toml --max-age 2m
"""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace

from edge_sdk.app.cli import CommandResult
from edge_sdk.app.settings import seconds
from edge_sdk.commands import add_config
from edge_sdk.config import Config
from edge_sdk.errors import OK, RUNTIME
from edge_sdk.extensions.health.heartbeat import age, path_of


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    add_config(parser)
    parser.add_argument(
        "--max-age",
        type=_seconds,
        default=600.0,
        metavar="TIME",
        help="oldest heartbeat of a live agent (10m)",
    )


def run(args: Namespace) -> CommandResult:
    """Return whether the agent runs, and the age of its heartbeat."""
    config = Config.load(args.config)
    path = path_of(config)
    found = age(path)
    is_alive = found is not None and found <= args.max_age
    data = {"alive": is_alive, "seconds": None if found is None else round(found, 1)}
    if found is None:
        text = f"not running: no heartbeat in {path}"
    elif is_alive:
        text = f"running: heartbeat {found:.0f} s ago"
    else:
        text = f"not running: the last heartbeat is {found:.0f} s old, at most {args.max_age:g} s"
    return CommandResult({**data, "file": str(path)}, text, OK if is_alive else RUNTIME)


def _seconds(text: str) -> float:
    try:
        return seconds(text)
    except AttributeError as error:
        raise ArgumentTypeError(f"{text!r} is not a duration, such as 90s or 10m") from error
