"""Revoke a device: its messages are refused, and the broker shuts it out.

With `access_file`, `reload` and `folder` in [ca], its access rules become a denial, its certificates
are revoked, and the broker reads both again. A probe then measures the time until nothing is
delivered any more. Exit code 1 means that the broker does not shut devices out. Without these keys
it prints what to do by hand.

  gridfed-aggregator revoke meter-1 --why "meter replaced"
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace

from aggregator.commands.arguments import add_config_option
from aggregator.commands.orders import apply_orders
from aggregator.config import AggregatorConfig
from aggregator.extensions.authority.revocation import require_settings, shut_out
from aggregator.operations.control_queue import ControlOrder, waiting
from aggregator.store.opener import open_store
from edge_sdk.app.cli import CommandResult
from edge_sdk.errors import RUNTIME

PATIENCE = 10.0  # s in which a running daemon applies an order


def add_arguments(parser: ArgumentParser) -> None:
    """Add the device and the reason."""
    parser.add_argument("id", help="id of the device")
    parser.add_argument(
        "--why", default="", help="reason, kept with the device and in the audit log"
    )
    add_config_option(parser)


def run(args: Namespace) -> CommandResult:
    """Revoke a device."""
    config = AggregatorConfig.load(args.config)
    is_shutting = require_settings(config)
    done = apply_orders(config, [ControlOrder("revoke", args.id, why=args.why)])
    if not is_shutting:
        return CommandResult({**done.data, "broker": "serves it"}, f"{done.text}\n{_by_hand(args)}")
    path = config.section("ca").passphrase_file
    result = shut_out(config, _names(config, args.id), path.read_bytes().strip() if path else b"")
    is_applied = _is_applied(config, args.id)
    late = "" if is_applied else "; the daemon has not applied the order yet"
    data = {
        **done.data,
        "silent_after_ms": result.silent_after,
        "reconnection_refused": result.is_refused,
    }
    text = f"{done.text}\nbroker: {result.sentence()}{late}"
    return CommandResult(data, text, 0 if result.is_out or result.why else RUNTIME)


def _by_hand(args: Namespace) -> str:
    return (
        f"broker: it still serves {args.id}, whose certificate and topics stay valid: ca.access_file is "
        "not set\n"
        "  for revoke to shut it out, set access_file, reload and folder in [ca], and give it again; by "
        f"hand: gridfed-aggregator ca revoke {args.id}, gridfed-aggregator broker access --file FILE "
        f"--config {args.config}, and reload the broker"
    )


def _names(config: AggregatorConfig, device: str) -> list[str]:
    with open_store(config.database, read_only=True) as store:
        clients = store.devices.all()
    keys = {key for one in clients if one.id == device for key in one.sign}
    return [one.id for one in clients if one.id == device or keys & set(one.sign)]


def _is_applied(config: AggregatorConfig, device: str) -> bool:
    """Wait until a running daemon has applied the order."""
    end = time.monotonic() + PATIENCE
    while any(
        order is not None and (order.do, order.device) == ("revoke", device)
        for _, order in waiting(config.inbox)
    ):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
