"""List the devices with state, count of releases and labels.

gridfed-aggregator list aggregator.toml --json
gridfed-aggregator list aggregator.toml --label region=north,kind=meter
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from aggregator.commands.arguments import add_config
from aggregator.commands.errors import require_database
from aggregator.config import AggregatorConfig
from aggregator.operations.labels import label_text, parse_labels
from aggregator.store.opener import open_store
from edge_sdk.app.cli import CommandResult


def add_arguments(parser: ArgumentParser) -> None:
    """Add the configuration, and labels that a listed device must have."""
    add_config(parser)
    parser.add_argument(
        "--label", metavar="NAME=VALUE,…", default="", help="list only devices with these labels"
    )


def run(args: Namespace) -> CommandResult:
    """List the devices and their state."""
    config, wanted = require_database(AggregatorConfig.load(args.config)), parse_labels(args.label)
    with open_store(config.database, read_only=True) as store:
        unusable = store.unusable()
        rows: list[dict[str, Any]] = [
            {
                "id": client.id,
                "state": client.state,
                "generation": client.generation,
                "why": client.why,
                "labels": dict(client.labels),
                "life": store.ledger(client.id).cur,
                "spent": store.ledger(client.id).spent,
                "unusable": unusable.get(client.id, []),
            }
            for client in store.clients()
            if wanted.items() <= dict(client.labels).items()
        ]
    text = "\n".join(
        f"{r['id']:<24} {r['state']:<12} releases {r['spent']}  "
        f"{label_text(r['labels'].items())}  {r['why']}".rstrip()
        for r in rows
    )
    if unusable:
        text += "\n" + "\n".join(
            f"warning: {device}: stored numbers out of bounds: {', '.join(names)}; "
            "enrol it with a new key"
            for device, names in unusable.items()
        )
    nothing = f"no device has {args.label}" if wanted else "no device is enrolled"
    return CommandResult({"devices": rows}, text or nothing)
