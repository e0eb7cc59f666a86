"""Check configuration, keys, bundle and sources; print every setting and its origin.

Nothing is written, and nothing is sent. --broker also connects to the broker, for ten seconds at
most, and exits with 75 if that fails.

  gridfed-edge check meter.toml
  gridfed-edge check meter.toml --broker
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace

from edge_sdk.app.cli import CommandResult
from edge_sdk.commands import check
from edge_sdk.config import Config, load_with_origins
from edge_sdk.errors import OK, TEMPORARY, ConfigError
from edge_sdk.extensions.setup.memory_trial import memory_finding
from edge_sdk.link.transport import LinkDown, LinkUp
from edge_sdk.protocol import topics
from edge_sdk.training import bootstrap

_PATIENCE = 10.0  # seconds to reach a broker


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    check.add_arguments(parser)
    parser.add_argument(
        "--broker", action="store_true", help="also connect to the broker, for ten seconds at most"
    )


def run(args: Namespace) -> CommandResult:
    """Return the settings in force and the findings."""
    loaded = load_with_origins(args.config)
    found = check.check_device(loaded.value)
    found["memory"] = memory_finding(loaded.value, args.config)
    code = OK
    if args.broker:
        found["broker"], is_there = reach_broker(loaded.value)
        code = OK if is_there else TEMPORARY
    return check.result_of(loaded, found, code)


def reach_broker(config: Config) -> tuple[str, bool]:
    """Try to reach the configured broker; return the result as text, and whether it accepted."""
    if config.is_alone:
        raise ConfigError(
            "--broker: the device runs alone",
            hint="to join a fleet, add [broker] and keys.root to the configuration",
        )
    nothing = topics.status(config.fleet, config.id), b"", False
    link = bootstrap.connect(config, lambda: nothing, is_trial=True)
    link.open()
    why, end = "no answer", time.monotonic() + _PATIENCE
    try:
        while time.monotonic() < end:
            for event in link.poll(0.2):
                if isinstance(event, LinkUp):
                    return "reached", True
                if isinstance(event, LinkDown):
                    why = event.why
        return f"not reached: {why}", False
    finally:
        link.close()
