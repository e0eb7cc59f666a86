"""Erase readings, models, unsent updates and the private key of this device.

A key in a PKCS #11 token is destroyed in the token. The privacy ledger and the count of releases are
kept: a device that begins again has no new budget. Stop the agent first. Give --yes, because nothing
brings the readings back. Files that outputs have written and the configuration are not touched.

  gridfed-edge wipe meter.toml --yes
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from edge_sdk.app.cli import CommandResult
from edge_sdk.commands import add_config
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.extensions.lifecycle.erasure import erase_device
from edge_sdk.store import state_folders


def add_arguments(parser: ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--yes", action="store_true", help="erase, without a further question")


def run(args: Namespace) -> CommandResult:
    """Erase the states of all participations and the key."""
    config = Config.load(args.config)
    folders = state_folders(config.state)
    if not args.yes:
        raise ConfigError(
            f"wipe erases the readings, models and the key of {config.id!r} in {config.state}",
            hint="to do it: gridfed-edge wipe CONFIG --yes",
        )
    erase_device(config)
    data = {"id": config.id, "state": str(config.state), "folders": len(folders)}
    return CommandResult(
        data,
        f"{config.id} is wiped: readings, models and key are erased; the privacy ledger is kept\n"
        f"at the aggregator: gridfed-aggregator revoke {config.id} --why wiped\n"
        "to begin again under a new key: gridfed-edge enrol",
    )
