"""Run the daemon until SIGTERM.

SIGTERM or SIGINT ends it after the current message; a second signal ends it at once. SIGHUP
reloads the configuration. After a crash the next start continues from the last commit. With
PostgreSQL a second process waits as a standby and takes over when the first one ends.

  gridfed-aggregator run aggregator.toml
  gridfed-aggregator run aggregator.toml --log debug --exit-when-done
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace

from aggregator.commands.arguments import CommandError, add_config
from aggregator.config import PREFIX, AggregatorConfig
from edge_sdk.app.cli import CommandResult, start_logging


def add_arguments(parser: ArgumentParser) -> None:
    """Add the configuration, and options of a run."""
    add_config(parser)
    parser.add_argument(
        "--exit-when-done", action="store_true", help="exit with 0 after round run.rounds"
    )
    words = "log level; overrides log.level of the file"
    parser.add_argument("--log", choices=("debug", "info", "warning", "error"), help=words)


def run(args: Namespace) -> CommandResult:
    """Serve until a signal, or until the last round if requested."""
    try:
        from aggregator.daemon import serve  # noqa: PLC0415 - metrics, TLS
    except ModuleNotFoundError as error:
        if error.name != "prometheus_client":
            raise
        raise CommandError(
            "run needs prometheus-client, which is not installed",
            hint="pip install 'gridfed[aggregator]'",
        ) from error
    environ = dict(os.environ)  # also used by a reload: --log always overrides the file
    if args.log is not None:
        environ[f"{PREFIX}LOG__LEVEL"] = args.log
    config = AggregatorConfig.load(args.config, environ)
    start_logging(config.log.level)
    outcome = serve(config, exit_when_done=args.exit_when_done, environ=environ)
    if not outcome:
        return CommandResult(outcome, "stopped as a standby")
    return CommandResult(
        outcome, f"stopped after round {outcome['round']}, version {outcome['version']}"
    )
