"""Replace a key while the fleet goes on. Give the command again if it was interrupted.

Stop the daemon first, and start it afterwards: it publishes what was signed. The root and the next root sign
together until --finish; devices follow the next one when they receive the list of keys. The former key
of the aggregator stays valid for --overlap days.

  gridfed-aggregator rotate aggregator --config aggregator.toml
  gridfed-aggregator rotate root --next a.key --next b.key --next c.key --threshold 2
  gridfed-aggregator rotate root --finish

Devices trust the next certificate authority beside the present one, and renew their certificates by it.
--finish takes the former one out, once no certificate of it is in use.

  gridfed-aggregator rotate ca --config aggregator.toml
  gridfed-aggregator rotate ca --finish

A device replaces its own key: gridfed-edge rotate.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from aggregator.authority import authority_replacement
from aggregator.authority.certificate_reader import common_name
from aggregator.authority.certificates import fingerprint_of
from aggregator.authority.folder import CERTIFICATE, load_folder
from aggregator.commands.announce import load_keys, sign_announcements
from aggregator.commands.arguments import add_config_option, add_root_key, add_why
from aggregator.commands.errors import CommandError, require_database
from aggregator.config import AggregatorConfig
from aggregator.operations import key_rotation
from aggregator.operations.authority_rotation import (
    authority_folder,
    passphrase_of,
    refuse_while_needed,
)
from aggregator.operations.key_rotation import RootRotation
from aggregator.operations.key_store import is_token_uri
from aggregator.operations.signing_keys import signer
from edge_sdk.app.cli import CommandResult
from edge_sdk.app.clock import DAY, SystemClock

LONGEST_OVERLAP = 400
"""Longest validity of a former key, days: as long as the list of keys itself."""


LIFETIME = timedelta(days=3652)
"""Validity of a new authority's certificate, as of `ca init`."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the key to replace, and its options."""
    add = parser.add_argument
    add("what", choices=["root", "aggregator", "ca"], help="key to replace")
    add_config_option(parser)
    add_root_key(parser)
    text = (
        "private key of the next root, a file or a PKCS#11 URI; a missing file is made; repeat it; ca: "
        "PKCS#11 URI of the next authority's key"
    )
    add("--next", action="append", default=[], metavar="FILE", help=text)
    text = "keys of the next root that have to sign (default: 1)"
    add("--threshold", type=int, default=1, metavar="N", help=text)
    text = "end the overlap; devices that missed it need the next root.pub, or ca.pem, by hand"
    add("--finish", action="store_true", help=text)
    text = "days for which the aggregator's former key stays valid (default: 7; 0 if it was stolen)"
    add("--overlap", type=int, default=7, metavar="DAYS", help=text)
    add_why(parser)


def run(args: Namespace) -> CommandResult:
    """Replace a key."""
    args.fresh = False
    config = require_database(AggregatorConfig.load(args.config))
    if args.what == "aggregator":
        return _rotate_aggregator(args, config)
    if args.what == "ca":
        return _finish_ca(args, config) if args.finish else _rotate_ca(args, config)
    return _finish(args, config) if args.finish else _rotate_root(args, config)


def _rotate_aggregator(args: Namespace, config: AggregatorConfig) -> CommandResult:
    if not 0 <= args.overlap <= LONGEST_OVERLAP:
        raise CommandError(f"--overlap: expected 0 to {LONGEST_OVERLAP} days, got {args.overlap}")
    path = config.signing_key
    former, (root, _) = signer(config), load_keys(args, config)
    online = key_rotation.next_online_key(path)
    also = {former.public: SystemClock().wall() + args.overlap * DAY} if args.overlap else {}
    detail = f"aggregator key {former.public.hex()} to {online.public.hex()}"
    done = sign_announcements(
        args, config, subject="aggregator", detail=detail, signers=(root, online), also=also
    )
    key_rotation.put_online_key(path)
    text = (
        f"aggregator: key {former.kid.hex()} is replaced by {online.kid.hex()}; the former one is "
        f"valid for {args.overlap} days"
    )
    return replace(done, text=f"{text}\n{done.text}")


def _rotate_root(args: Namespace, config: AggregatorConfig) -> CommandResult:
    rotation = RootRotation.begin(config, args.root_key, args.next, args.threshold)
    detail = f"{rotation.former.name} to {rotation.root.name}"
    done = sign_announcements(
        args, config, subject="root", detail=detail, signers=(rotation.signers, signer(config))
    )
    rotation.complete()
    text = (
        f"root: {rotation.former.name} is replaced by {rotation.root.name}\n"
        f"new devices need: {config.root_public}\n"
        "both roots sign until: gridfed-aggregator rotate root --finish"
    )
    return replace(done, text=f"{text}\n{done.text}")


def _finish(args: Namespace, config: AggregatorConfig) -> CommandResult:
    root = key_rotation.last_signers(config, args.root_key)
    done = sign_announcements(
        args,
        config,
        subject="root",
        detail=f"finished: {root.root.name} signs alone",
        signers=(root, signer(config)),
    )
    key_rotation.forget_former_root(config)
    text = f"root: {root.root.name} signs alone; delete the private keys of the former root"
    return replace(done, text=f"{text}\n{done.text}")


def _rotate_ca(args: Namespace, config: AggregatorConfig) -> CommandResult:
    if len(args.next) > 1 or not all(map(is_token_uri, args.next)):
        raise CommandError(
            "rotate ca: --next: expected one PKCS#11 URI, or none for a key in a file"
        )
    folder, signers = authority_folder(config), load_keys(args, config)
    former = load_folder(folder, passphrase_of(config)).certificate
    token = args.next[0] if args.next else ""
    begun = authority_replacement.begin(folder, _now(), LIFETIME, passphrase_of(config), token)
    made = begun.certificate
    detail = f"authority {fingerprint_of(former)} to {fingerprint_of(made)}"
    done = sign_announcements(args, config, subject="ca", detail=detail, signers=signers)
    trusted = folder / CERTIFICATE
    text = (
        f"ca: {common_name(former)!r} is being replaced by {common_name(made)!r}, sha256:{fingerprint_of(made)}\n"
        f"{trusted}: both; copy it to the broker's cafile, and restart the broker before the daemon\n"
        "devices renew by the new one within a tenth of their certificates' validity: gridfed-aggregator ca status\n"
        "both are trusted until: gridfed-aggregator rotate ca --finish"
    )
    return replace(done, text=f"{text}\n{done.text}")


def _finish_ca(args: Namespace, config: AggregatorConfig) -> CommandResult:
    folder, signers = authority_folder(config), load_keys(args, config)
    refuse_while_needed(config, _now())
    made = authority_replacement.announce_alone(folder, passphrase_of(config)).certificate
    detail = f"finished: authority {fingerprint_of(made)} alone"
    done = sign_announcements(args, config, subject="ca", detail=detail, signers=signers)
    authority_replacement.complete(folder, _now(), passphrase_of(config))
    text = (
        f"ca: {common_name(made)!r} alone issues and is trusted, sha256:{fingerprint_of(made)}\n"
        f"{folder / CERTIFICATE}: copy it to the broker's cafile, and restart the broker; the former key is deleted"
    )
    return replace(done, text=f"{text}\n{done.text}")


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
