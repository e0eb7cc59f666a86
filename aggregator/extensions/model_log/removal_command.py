"""Remove a device's contribution to the model, and certify it; or verify a certificate.

The first call removes it, as unlearn does; give the command again, with --out, when the model without it
is announced. The certificate is a line of JSON for each run. To verify it takes the aggregator's public
key and no database; with --log, an export of the run's log must continue the certificate's.

  gridfed-aggregator forget meter-1 --config aggregator.toml --out meter-1.removal
  gridfed-aggregator forget meter-1 --verify meter-1.removal --public aggregator.pub --log models.jsonl
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path

from aggregator.commands import arguments
from aggregator.commands.arguments import CommandError
from aggregator.commands.orders import Unlearn
from aggregator.config import AggregatorConfig
from aggregator.extensions.model_log import log_export
from aggregator.extensions.model_log.removal import Removal, certificate, verified
from aggregator.operations.signing_keys import signer
from aggregator.store.opener import open_store
from edge_sdk.app.cli import CommandResult
from edge_sdk.errors import RUNTIME, Refused
from edge_sdk.protocol import keys
from edge_sdk.protocol.contract.method import Unlearned


def add_arguments(parser: ArgumentParser) -> None:
    """Add the device, the certificate and how to verify it."""
    parser.add_argument("id", help="id of the device")
    parser.add_argument("--out", metavar="FILE", help="the new certificate")
    parser.add_argument("--verify", metavar="FILE", help="verify this certificate, and do nothing")
    parser.add_argument(
        "--public", metavar="FILE", nargs="+", default=[], help="verify: keys of the aggregator"
    )
    parser.add_argument("--log", metavar="FILE", help="verify: an export of the run's log")
    arguments.add_config_option(parser)
    arguments.add_run(parser, "remove it from the model of this run alone")
    arguments.add_why(parser)


def run(args: Namespace) -> CommandResult:
    """Remove a device, certify its removal, or verify a certificate."""
    if args.verify:
        return _verified(args)
    config = arguments.require_database(AggregatorConfig.load(args.config))
    runs = _removed_from(config, args)
    if not runs:
        done = Unlearn.run(args)
        return CommandResult(done.data, f"{done.text}\nthen: the same command with --out FILE")
    if not args.out:
        raise CommandError(
            f"forget: {args.id} is removed already: expected --out for a certificate"
        )
    with open_store(config.database, read_only=True) as store:
        lines = [certificate(store, config.fleet, one, args.id, signer(config)) for one in runs]
    keys.write_atomically(Path(args.out), "".join(f"{one}\n" for one in lines).encode(), 0o644)
    named = ", ".join(map(str, runs))
    data = {"device": args.id, "runs": runs, "file": args.out}
    return CommandResult(data, f"{args.out}: {args.id} is removed from the model of run {named}")


def _removed_from(config: AggregatorConfig, args: Namespace) -> list[int]:
    """Return the numbers of the present runs from which a device was removed."""
    with open_store(config.database, read_only=True) as store:
        names = [view.run.name for view in config.views() if args.run in ("", view.run.name)]
        records = [one for one in map(store.runs.latest, names) if one is not None]
        return sorted(
            one.run
            for one in records
            if any(entry.event == Unlearned(args.id) for entry in store.journal.entries(one.run))
        )


def _verified(args: Namespace) -> CommandResult:
    if not args.public:
        raise CommandError("forget: --verify: expected --public")
    public = [keys.read_public(path) for path in args.public]
    try:
        log = log_export.verified(_lines(args.log), public) if args.log else None
        found = [verified(line, public, log) for line in _lines(args.verify)]
        if not found or any(one.device != args.id for one in found):
            raise CommandError(f"{args.verify}: no certificate of {args.id!r}")
    except Refused as error:
        data = {"reason": error.reason.name, "detail": error.detail}
        return CommandResult(data, f"{args.verify}: refused: {error}", RUNTIME)
    return CommandResult(
        {"removals": [_data(one) for one in found]}, "\n".join(map(_sentence, found))
    )


def _data(one: Removal) -> dict[str, object]:
    return {**asdict(one), "model": one.model.digest.hex(), "version": one.model.version}


def _sentence(one: Removal) -> str:
    return (
        f"{one.device} was removed from run {one.run} of {one.fleet} by event {one.event}; the first model "
        f"without it is version {one.model.version}, leaf {one.leaf}, {one.model.digest.hex()[:16]}: verified"
    )


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path}: cannot be read: {error}") from error
