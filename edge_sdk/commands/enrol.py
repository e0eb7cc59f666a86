"""Create this device's signing key, and enrol it: over EST, or with a line for the operator.

With a one-time password the device requests its TLS certificate from the operator's EST server, and
is enrolled with it; no file is carried by hand. Without one, the printed line has the id, the public
key, and a proof that this device holds the private key. Private keys never leave this machine; with
identity.key the key is made in a PKCS #11 token, and never leaves that. An existing key is kept; while
it is being replaced (`gridfed-edge rotate`, `gridfed-aggregator command ID reenrol`), the line is that of
the new key, with a signature by the former one. A wiped device begins again under a new key. Each further
[[participation]] has a line of its own, with the same key and a label that names the device. Every step
may be repeated after a power cut.

  gridfed-edge enrol meter.toml --otp WORD --ca sha256:DIGEST
  gridfed-edge enrol meter.toml --renew
  gridfed-edge enrol meter.toml
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any, Protocol

from edge_sdk.app.cli import CommandResult
from edge_sdk.commands import add_config
from edge_sdk.config import PARTICIPATIONS, Config
from edge_sdk.errors import ConfigError
from edge_sdk.protocol.keys import Signer, save_public
from edge_sdk.protocol.statements import enrolment_statement
from edge_sdk.session import identity
from edge_sdk.store import end_wipe


class EnrolmentWay(Protocol):
    """Enrolment procedure of an extension."""

    @staticmethod
    def add_arguments(parser: ArgumentParser) -> None:
        """Add the options of this way."""

    @staticmethod
    def is_wanted(args: Namespace) -> bool:
        """Return whether the arguments ask for this way."""

    @staticmethod
    def run(args: Namespace, config: Config) -> CommandResult:
        """Enrol the device."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the configuration, and the options of other ways to enrol."""
    add_config(parser)
    for way in _other_ways():
        way.add_arguments(parser)


def run(args: Namespace) -> CommandResult:
    """Create the key, and enrol the device over EST or return the operator's line."""
    config = Config.load(args.config)
    if not identity.has_identity(config):
        end_wipe(config.state)
    for way in _other_ways():
        if way.is_wanted(args):
            return way.run(args, config)
    found = enrol(config)
    further = [enrol(one) for one in config.participants()[1:]]
    made = "created a key" if found["is_new"] else "this device has a key already"
    lines = [f"{one['id']},{one['public']},{one['proof']}" for one in (found, *further)]
    key, former = identity.keys_for_request(config)
    if former is not None:
        made = f"this device replaces its key by {identity.next_key_file(config)}"
        lines[0] = identity.succession_line(config, key, former)
    lines[1:] = [f"{line},device={config.id}" for line in lines[1:]]
    what = "these lines" if further else "this line"
    text = "\n".join((f"{made}: {found['key']}", f"give {what} to the operator:", *lines))
    data = found | ({PARTICIPATIONS: {one["id"]: one for one in further}} if further else {})
    return CommandResult(data, text)


def _other_ways() -> list[type[EnrolmentWay]]:
    return [entry.load("enrolment") for entry in Config.index.having("enrolment")]


def enrol(config: Config) -> dict[str, Any]:
    """Create the device's key if there is none; return the data that the operator needs.

    Raises:
        ConfigError: The key file exists but is no key, or cannot be written.
    """
    key, is_new = identity.create_identity(config)
    try:
        save_public(config.keys.device.with_suffix(".pub"), key.public)
    except OSError as error:
        raise ConfigError(str(error)) from error
    return {
        "id": config.id,
        "fleet": config.fleet,
        "key": str(config.keys.device)
        if config.identity.place is None
        else identity.place_of(config),
        "public": key.public.hex(),
        "proof": key.sign(claim(config, key)).hex(),
        "is_new": is_new,
    }


def claim(config: Config, key: Signer) -> bytes:
    """Return the bytes that a device signs to prove its key.

    A device has no sealing key and requests no certificate: 32 zero bytes, and an empty digest.
    """
    return enrolment_statement(config.fleet, config.id, key.public)
