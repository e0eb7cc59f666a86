"""Replace this device's signing key by a new one, as the order `reenrol` does. Stop the agent first.

With [ca] url the agent requests a certificate with the new key at its next start. Without, give the printed
line to the operator, who enrols it. The former key signs the new one, and everything else until the
aggregator has welcomed the new one; the agent does the rest. Repeatable: the line stays the same.

  gridfed-edge rotate meter.toml
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from edge_sdk.app.cli import CommandResult
from edge_sdk.commands import add_config
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.extensions.key_rotation.identity_rotation import IdentityRotation
from edge_sdk.session.identity import IdentityKeys, load_signer, next_key_file
from edge_sdk.store import refuse_state
from edge_sdk.store.store import DeviceStore


def add_arguments(parser: ArgumentParser) -> None:
    add_config(parser)


def run(args: Namespace) -> CommandResult:
    """Begin the replacement, which the agent continues."""
    config = Config.load(args.config)
    if config.identity.key:
        raise ConfigError(
            "rotate: the identity key is in a token",
            hint="name another object= in identity.key, run `gridfed-edge enrol`, and enrol its line",
        )
    if config.is_alone:
        raise ConfigError(
            "rotate: the device runs alone, and nobody has enrolled its key",
            hint=f"delete {config.keys.device}; the next start makes another one",
        )
    if len(config.participants()) > 1:
        raise ConfigError(
            "rotate: further [[participation]] use the key",
            hint="wipe the device and enrol it again, or remove them first",
        )
    with DeviceStore.open(config.state) as store:  # refuses a running agent
        refuse_state(store, config.fleet)
        identity = IdentityKeys(config, store, load_signer(config))
        found = identity.replacement
        rotation = found if isinstance(found, IdentityRotation) else IdentityRotation(identity)
        try:
            line = rotation.order_here()
        except OSError as error:
            raise ConfigError(str(error)) from error
    data = {"id": config.id, "next": str(next_key_file(config)), "line": line}
    begun = f"{config.id}: {data['next']} is to replace {config.keys.device}"
    if not line:
        return CommandResult(
            data, f"{begun}; start the agent, which requests a certificate with it"
        )
    return CommandResult(
        data, f"{begun}; start the agent, and give this line to the operator:\n{line}"
    )
