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
  gridfed-edge enrol meter.toml --claim claim.pem --ca ca.pem
  gridfed-edge enrol meter.toml --renew
  gridfed-edge enrol meter.toml
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from edge_sdk.app.cli import CommandResult
from edge_sdk.commands.arguments import add_config
from edge_sdk.config import PARTICIPATIONS, Config
from edge_sdk.errors import ConfigError
from edge_sdk.session.certificate_enrolment import Enrolment
from edge_sdk.session.identity import (
    create_identity,
    has_identity,
    keys_for_request,
    next_key_file,
    place_of,
    succession_line,
)
from edge_sdk.store.erasure import end_wipe
from edge_sdk.wire.keys import Signer, save_public
from edge_sdk.wire.link.x509_expiry import day_of
from edge_sdk.wire.protocol.enrolment_statement import enrolment_statement


def add_arguments(parser: ArgumentParser) -> None:
    """Add the configuration, and the options of EST."""
    add_config(parser)
    add = parser.add_argument
    add("--otp", default="", metavar="WORD", help="one-time password from the operator")
    add("--claim", type=Path, metavar="PEM", help="claim certificate and key, instead of --otp")
    add("--serial", default="", help="serial number of this device (its id)")
    add("--est-url", default="", metavar="URL", help="EST server (ca.url of the configuration)")
    text = "authority of the EST server: a PEM file, or sha256: and its digest"
    add("--ca", default="", metavar="FILE|sha256:HEX", help=text)
    add("--renew", action="store_true", help="request a new certificate with the identity key")


def run(args: Namespace) -> CommandResult:
    """Create the key, and enrol the device over EST or return the operator's line."""
    config = Config.load(args.config)
    if not has_identity(config):
        end_wipe(config.state)
    if args.otp or args.claim or args.renew:
        return _over_est(args, config)
    found = enrol(config)
    further = [enrol(one) for one in config.participants()[1:]]
    made = "created a key" if found["is_new"] else "this device has a key already"
    lines = [f"{one['id']},{one['public']},{one['proof']}" for one in (found, *further)]
    key, former = keys_for_request(config)
    if former is not None:
        made = f"this device replaces its key by {next_key_file(config)}"
        lines[0] = succession_line(config, key, former)
    lines[1:] = [f"{line},device={config.id}" for line in lines[1:]]
    what = "these lines" if further else "this line"
    text = "\n".join((f"{made}: {found['key']}", f"give {what} to the operator:", *lines))
    data = found | ({PARTICIPATIONS: {one["id"]: one for one in further}} if further else {})
    return CommandResult(data, text)


def _over_est(args: Namespace, config: Config) -> CommandResult:
    """Request a certificate from the EST server, and put it in place."""
    url = args.est_url or config.ca.url
    if not url.startswith("https://"):
        raise ConfigError(f"enrol: EST server {url!r}: expected https://… in --est-url or ca.url")
    if sum(map(bool, (args.otp, args.claim, args.renew))) != 1:
        raise ConfigError("enrol: expected one of --otp, --claim and --renew")
    if config.broker.cert_file != config.broker.key_file:
        raise ConfigError("enrol: expected broker.cert_file and broker.key_file to be one file")
    found = enrol(config)
    signer, former = keys_for_request(config)
    enrolment = Enrolment(config, url, signer, former=former)
    enrolment.trust(args.ca)
    issued = enrolment.request(
        is_renewal=args.renew, password=args.otp, serial=args.serial, claim=args.claim
    )
    has_root = enrolment.fetch_root()
    enrolment.files.install()
    lines = [
        f"{enrolment.files.path}: key and certificate of {issued.name}, until {day_of(issued.until)}"
    ]
    if has_root:
        lines.append(f"{config.keys.root}: root public key of the fleet")
    if not config.ca.url:
        lines.append(f'to renew it without an operator, add: [ca] url = "{url}"')
    data = found | {"certificate": str(enrolment.files.path), "until": issued.until}
    return CommandResult(data, "\n".join(lines))


def enrol(config: Config) -> dict[str, Any]:
    """Create the device's key if there is none; return what the operator needs.

    Raises:
        ConfigError: The key file exists but is no key, or cannot be written.
    """
    key, is_new = create_identity(config)
    try:
        save_public(config.keys.device.with_suffix(".pub"), key.public)
    except OSError as error:
        raise ConfigError(str(error)) from error
    return {
        "id": config.id,
        "fleet": config.fleet,
        "key": str(config.keys.device) if config.identity.place is None else place_of(config),
        "public": key.public.hex(),
        "proof": key.sign(claim(config, key)).hex(),
        "is_new": is_new,
    }


def claim(config: Config, key: Signer) -> bytes:
    """Return the bytes that a device signs to prove its key.

    A device has no sealing key and requests no certificate: 32 zero bytes, and an empty digest.
    """
    return enrolment_statement(config.fleet, config.id, key.public)
