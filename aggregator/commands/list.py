"""List the devices with state and count of releases.

gridfed-aggregator list aggregator.toml --json
"""

from __future__ import annotations

from argparse import Namespace

from aggregator.commands.arguments import add_config
from aggregator.commands.errors import require_database
from aggregator.config import AggregatorConfig
from aggregator.store.opener import open_store
from edge_sdk.app.cli import CommandResult

add_arguments = add_config


def run(args: Namespace) -> CommandResult:
    """List the devices and their state."""
    config = require_database(AggregatorConfig.load(args.config))
    with open_store(config.database, read_only=True) as store:
        unusable = store.unusable()
        rows = [
            {
                "id": client.id,
                "state": client.state,
                "generation": client.generation,
                "why": client.why,
                "life": store.ledger(client.id).cur,
                "spent": store.ledger(client.id).spent,
                "unusable": unusable.get(client.id, []),
            }
            for client in store.clients()
        ]
    text = "\n".join(
        f"{r['id']:<24} {r['state']:<12} releases {r['spent']}  {r['why']}".rstrip() for r in rows
    )
    if unusable:
        text += "\n" + "\n".join(
            f"warning: {device}: stored numbers out of bounds: {', '.join(names)}; "
            "enrol it with a new key"
            for device, names in unusable.items()
        )
    return CommandResult({"devices": rows}, text or "no device is enrolled")
