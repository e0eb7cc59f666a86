"""Enrol a device, or all devices of a CSV file.

`gridfed-edge enrol` on the device prints its public key and a proof that it holds the private key.
A new key for an enrolled device begins a new ledger of sequence numbers. The count of its releases
continues, also when a broken device is replaced by another under its id; --spent sets it. The privacy
ledger on the device is kept. A device that was ordered to make a new key (`command ID reenrol`) signs it
with its former one: give that signature by --succession, and its ledger continues too.

  gridfed-aggregator enrol meter-1 --public meter-1.pub --proof HEX
  gridfed-aggregator enrol meter-1 --public meter-1.pub --label region=north,kind=meter
  gridfed-aggregator enrol --from-file devices.csv
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from aggregator.commands.arguments import CommandError, add_config_option, add_why, require_database
from aggregator.commands.orders import apply_orders
from aggregator.config import AggregatorConfig
from aggregator.operations.control_queue import ControlOrder
from aggregator.operations.enrolment import Claim, claim_of, former_key, read_claims, verify_claim
from aggregator.store.opener import open_store
from edge_sdk.app.cli import CommandResult
from edge_sdk.protocol.messages import RELEASES_LIMIT


def add_arguments(parser: ArgumentParser) -> None:
    """Add a device's id and key, or a file of them."""
    parser.add_argument("id", nargs="?", help="id of the device")
    parser.add_argument("--public", metavar="HEX|FILE", help="its public key")
    parser.add_argument("--proof", metavar="HEX", default="", help="its proof of possession")
    text = "signature of its former key, which the new one replaces"
    parser.add_argument("--succession", metavar="HEX", default="", help=text)
    text = "many devices: columns id, public, proof, labels, succession"
    parser.add_argument("--from-file", metavar="CSV", help=text)
    words = "its labels, by which runs choose their cohorts"
    parser.add_argument("--label", metavar="NAME=VALUE,…", default="", help=words)
    words = "count of releases at the start of the ledger (with a new key: the previous count)"
    parser.add_argument("--spent", type=int, metavar="N", help=words)
    add_config_option(parser)
    add_why(parser)


def run(args: Namespace) -> CommandResult:
    """Check one claim or a file of claims, and enrol the devices."""
    if bool(args.from_file) == bool(args.id):
        raise CommandError("enrol: give an id with --public, or --from-file")
    if args.from_file and args.label:
        raise CommandError("enrol: --label: give labels in the column labels of --from-file")
    if args.id and not args.public:
        raise CommandError("enrol: give the device's public key: --public HEX or FILE")
    config = AggregatorConfig.load(args.config)
    claims = (
        list(read_claims(Path(args.from_file)))
        if args.from_file
        else [claim_of(args.id, args.public, args.proof, args.label, args.succession)]
    )
    for claim in claims:
        verify_claim(claim, config.fleet)
    if args.spent is not None and not 0 <= args.spent <= RELEASES_LIMIT:
        raise CommandError(f"enrol: --spent: expected 0 to {RELEASES_LIMIT}, got {args.spent}")
    orders = [
        ControlOrder(
            "enrol",
            claim.device,
            public=claim.public.hex(),
            former=former,
            spent=args.spent,
            labels=claim.labels,
            why=args.why,
        )
        for claim, former in zip(claims, _former_keys(config, claims), strict=True)
    ]
    return apply_orders(config, orders)


def _former_keys(config: AggregatorConfig, claims: list[Claim]) -> list[str]:
    if not any(claim.succession for claim in claims):
        return [""] * len(claims)
    require_database(config)
    with open_store(config.database, read_only=True) as store:
        keys = {client.id: client.sign for client in store.devices.all()}
    return [former_key(one, config.fleet, keys.get(one.device, ())).hex() for one in claims]
