"""Replace a key while the fleet continues. Give the command again if it was interrupted.

Stop the daemon first, and start it afterwards: it publishes what was signed. The root and the next root sign
together until --finish; devices follow the next one when they receive the list of keys. The former key
of the aggregator stays valid for --overlap days.

  gridfed-aggregator rotate aggregator --config aggregator.toml
  gridfed-aggregator rotate root --next a.key --next b.key --next c.key --threshold 2
  gridfed-aggregator rotate root --finish

A device replaces its own key: gridfed-edge rotate.
"""

from __future__ import annotations

import inspect
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import replace

from aggregator.commands import arguments
from aggregator.commands.announce import load_keys, sign_announcements
from aggregator.config import AggregatorConfig
from aggregator.extensions.key_rotation import key_rotation
from aggregator.extensions.key_rotation.key_rotation import RootRotation
from aggregator.operations.signing_keys import signer
from edge_sdk.app.cli import CommandResult
from edge_sdk.app.clock import DAY, SystemClock
from edge_sdk.app.extensions import ExtensionIndex

LONGEST_OVERLAP = 400  # longest validity of a former key, days: as long as the list of keys itself
KEYS = ("root", "aggregator")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the key to replace, and its options."""
    add = parser.add_argument
    rotations = _rotations()
    for entry in rotations.values():
        text = inspect.getdoc(entry) or ""
        parser.description = f"{parser.description}\n\n{text}"
    add("what", choices=[*KEYS, *rotations], help="key to replace")
    arguments.add_config_option(parser)
    arguments.add_root_key(parser)
    text = (
        "private key of the next root, a file or a PKCS#11 URI; a missing file is made; repeat it"
    )
    add("--next", action="append", default=[], metavar="FILE", help=text)
    text = "keys of the next root that have to sign (default: 1)"
    add("--threshold", type=int, default=1, metavar="N", help=text)
    text = "end the overlap; devices that missed it need the next root.pub by hand"
    add("--finish", action="store_true", help=text)
    text = "days for which the aggregator's former key stays valid (default: 7; 0 if it was stolen)"
    add("--overlap", type=int, default=7, metavar="DAYS", help=text)
    arguments.add_why(parser)


def run(args: Namespace) -> CommandResult:
    """Replace a key."""
    args.fresh = False
    config = arguments.require_database(AggregatorConfig.load(args.config))
    if args.what == "aggregator":
        return _rotate_aggregator(args, config)
    if args.what != "root":
        result: CommandResult = _rotations()[args.what](args, config)
        return result
    return _finish(args, config) if args.finish else _rotate_root(args, config)


def _rotate_aggregator(args: Namespace, config: AggregatorConfig) -> CommandResult:
    if not 0 <= args.overlap <= LONGEST_OVERLAP:
        raise arguments.CommandError(
            f"--overlap: expected 0 to {LONGEST_OVERLAP} days, got {args.overlap}"
        )
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


def _rotations() -> dict[str, Callable[[Namespace, AggregatorConfig], CommandResult]]:
    index = ExtensionIndex("aggregator")
    return {name: load() for name, load in index.loaders("rotations").items()}
