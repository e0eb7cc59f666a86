"""Move a device's state to the fleet of its configuration.

Readings, the noise that was drawn for them, the privacy ledger and the count of releases are kept.
Models, unsent updates and announcements of the former fleet are erased. Stop the agent, write the new
fleet, broker, root key and bundle into the configuration, and enrol the device there. Another broker
of the same fleet needs no command: change its url.

  gridfed-edge migrate meter.toml
"""

from __future__ import annotations

from argparse import Namespace

from edge_sdk.app.cli import CommandResult
from edge_sdk.commands import add_config
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.extensions.lifecycle.erasure import leave_fleet
from edge_sdk.session.identity import next_key_file
from edge_sdk.store import fleet_of, refuse_wiped, state_folders
from edge_sdk.store.store import DeviceStore

add_arguments = add_config


def run(args: Namespace) -> CommandResult:
    """Detach the states of all participations from their former fleet."""
    config = Config.load(args.config)
    moved: list[str] = []
    for folder in state_folders(config.state):
        with DeviceStore.open(folder, read_only=True) as store:
            refuse_wiped(store)
            before = fleet_of(store)
        if before not in ("", config.fleet):
            leave_fleet(folder)
            next_key_file(config).unlink(missing_ok=True)
            moved.append(before)
    if not moved:
        raise ConfigError(
            f"{config.state}: its state belongs to no fleet other than {config.fleet!r}",
            hint="write the new fleet into the configuration first; for another broker change its url",
        )
    data = {"id": config.id, "from": moved[0], "to": config.fleet, "folders": len(moved)}
    return CommandResult(
        data,
        f"{config.id} has left fleet {moved[0]} and may join {config.fleet}: readings and privacy "
        "ledger are kept\n"
        f"at the aggregator of {moved[0]}: gridfed-aggregator revoke {config.id}\n"
        "to enrol it in the new fleet: gridfed-edge enrol",
    )
