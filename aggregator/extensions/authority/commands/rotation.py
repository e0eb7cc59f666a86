"""Replace the certificate authority: one of the keys of ``rotate``."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from aggregator.commands.announce import load_keys, sign_announcements
from aggregator.commands.arguments import CommandError
from aggregator.config import AggregatorConfig
from aggregator.extensions.authority import authority_replacement
from aggregator.extensions.authority.authority_replacement import (
    authority_folder,
    passphrase_of,
    refuse_while_needed,
)
from aggregator.extensions.authority.certificate_reader import common_name
from aggregator.extensions.authority.certificates import fingerprint_of
from aggregator.extensions.authority.folder import CERTIFICATE, load_folder
from aggregator.operations.signing_keys import is_token_uri
from edge_sdk.app.cli import CommandResult

LIFETIME = timedelta(days=3652)  # validity of a new authority's certificate, as of `ca init`


def rotate(args: Namespace, config: AggregatorConfig) -> CommandResult:
    """Devices trust the next certificate authority beside the present one, and renew their certificates by it.
    --finish takes the former one out, once no certificate of it is in use; devices that missed it need the
    next ca.pem by hand. --next is the PKCS#11 URI of the next authority's key.

      gridfed-aggregator rotate ca --config aggregator.toml
      gridfed-aggregator rotate ca --finish
    """  # noqa: D205 - text of --help
    return _finish(args, config) if args.finish else _begin(args, config)


def _begin(args: Namespace, config: AggregatorConfig) -> CommandResult:
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


def _finish(args: Namespace, config: AggregatorConfig) -> CommandResult:
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
