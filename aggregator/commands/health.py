"""Exit with 0 if the daemon is ready, else with 1.

For a container's health check. Names the missing conditions.

  gridfed-aggregator health aggregator.toml
"""

from __future__ import annotations

from argparse import Namespace

from aggregator.commands.arguments import add_config
from aggregator.commands.status import read_page
from aggregator.config import AggregatorConfig
from edge_sdk.app.cli import RUNTIME, CommandResult

add_arguments = add_config


def run(args: Namespace) -> CommandResult:
    """Report whether the daemon is alive and ready."""
    document = read_page(AggregatorConfig.load(args.config))
    if document is None:
        return CommandResult({"ready": False, "running": False}, "not running", RUNTIME)
    code = 0 if document["ready"] else RUNTIME
    missing = [name for name, ok in document["checks"].items() if not ok]
    state = "ready" if document["ready"] else f"not ready: {', '.join(missing) or 'starting'}"
    return CommandResult(
        {"ready": document["ready"], "running": True, "missing": missing}, state, code
    )
