"""Run an admission worker until SIGTERM.

Workers check updates for the daemon: size, envelope, signature, schema and the decoded vector. Any number
of them may run, on any machine, beside a daemon with admission.workers = true. They need PostgreSQL and
a broker with shared subscriptions. Each needs a name of its own and, with TLS, a certificate of its own.
A worker may end at any moment: devices send again what it had not queued.

  gridfed-aggregator worker aggregator.toml
  gridfed-aggregator worker aggregator.toml --name 2
"""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from aggregator.commands.arguments import CommandError, add_config
from aggregator.config import AggregatorConfig
from edge_sdk.app.cli import CommandResult, start_logging

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,15}")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the configuration, and the worker's name."""
    add_config(parser)
    parser.add_argument(
        "--name", default="1", help="name of this worker, in status and metrics (default: 1)"
    )


def run(args: Namespace) -> CommandResult:
    """Serve until a signal."""
    from aggregator.extensions.postgres.worker import serve  # noqa: PLC0415 - TLS

    if NAME.fullmatch(args.name) is None:
        raise CommandError(f"worker: --name: expected {NAME.pattern}, got {args.name[:80]!r}")
    config = AggregatorConfig.load(args.config)
    start_logging(config.log.level)
    counts = serve(config, args.name)
    shown = ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))
    return CommandResult(dict(counts), f"stopped: {shown or 'no updates'}")


def status_lines(workers: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a line of the status for each admission worker.

    >>> status_lines({"1": {"state": "alive", "queued": 2, "checked": 40}})
    ['worker 1: alive, queued 2, checked 40']
    """
    lines = []
    for name, one in workers.items():
        pairs = [f"{key} {value}" for key, value in one.items() if key != "state"]
        lines.append(f"worker {name}: {', '.join([one['state'], *pairs])}")
    return lines
