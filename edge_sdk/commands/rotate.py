"""Replace this device's signing key by a new one. Stop the agent first; give it again if interrupted.

With [ca] url the EST server receives the new key with a signature of the present one, and a certificate is
issued with it in one transaction; the aggregator is told by the server. Without, give the printed line to
the operator, who enrols it, and then the command with --finish. Unsent updates are signed again.

  gridfed-edge rotate meter.toml
  gridfed-edge rotate meter.toml --finish
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path

from edge_sdk.app.cli import CommandResult
from edge_sdk.commands.arguments import add_config
from edge_sdk.commands.enrol import claim
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.session.certificate_enrolment import Enrolment
from edge_sdk.session.identity import load_signer
from edge_sdk.store.erasure import refuse_wiped
from edge_sdk.store.store import DeviceStore
from edge_sdk.wire.keys import (
    DeviceSigningKey,
    KeyFileError,
    Signer,
    generate_device_key,
    kid_of,
    load_device_key,
    save_public,
    save_signing_key,
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the configuration, and the second step of a rotation without an EST server."""
    add_config(parser)
    text = "put the new key in place, after the operator has enrolled it"
    parser.add_argument("--finish", action="store_true", help=text)


def run(args: Namespace) -> CommandResult:
    """Replace the key."""
    config = Config.load(args.config)
    path = config.keys.device
    if config.identity.key:
        raise ConfigError(
            "rotate: the identity key is in a token",
            hint="name another object= in identity.key, run `gridfed-edge enrol`, and enrol its line",
        )
    former = load_signer(config)
    with DeviceStore.open(config.state) as store:  # refuses a running agent
        refuse_wiped(store)
        beside = path.with_name(f"{path.name}.next")
        if args.finish and not beside.exists():
            raise ConfigError(
                f"{beside}: file not found: no new key waits", hint="without --finish"
            )
        following = _next_key(beside, config)
        if config.ca.url:
            _enrol(config, following, former)
        elif not args.finish:
            proof = following.sign(claim(config, following))
            line = f"{config.id},{following.public.hex()},{proof.hex()}"
            text = f"give this line to the operator, then add --finish:\n{line}"
            return CommandResult({"id": config.id, "public": following.public.hex()}, text)
        _put(beside, path)
    save_public(path.with_suffix(".pub"), following.public)
    before, after = kid_of(former.public).hex(), following.kid.hex()
    data = {"id": config.id, "former": before, "public": following.public.hex()}
    return CommandResult(data, f"{config.id}: key {before} is replaced by {after}: {path}")


def _next_key(beside: Path, config: Config) -> DeviceSigningKey:
    """Return the key that follows; it is made, and on the disk, before it is sent."""
    try:
        if not beside.exists():
            save_signing_key(beside, generate_device_key(config.identity.curve))
        return load_device_key(beside)
    except (OSError, KeyFileError) as error:
        raise ConfigError(str(error)) from error


def _enrol(config: Config, following: DeviceSigningKey, former: Signer) -> None:
    """Let the EST server replace the key, with a new certificate; repeated, it answers again."""
    enrolment = Enrolment(config, config.ca.url, following, former=former)
    if enrolment.files.received():  # of a renewal under the former key, or of this act
        enrolment.files.install()
    enrolment.request(is_renewal=True)
    enrolment.files.install()


def _put(beside: Path, path: Path) -> None:
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
