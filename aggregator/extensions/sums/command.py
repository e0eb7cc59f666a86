"""Announce contracts of sums, export devices' keys for the witness, show, write and recompute sums.

A sum is opened by a witness of another organisation, from a file:

  gridfed-aggregator sums announce                    sign the contracts of [sums] with the root key
  gridfed-aggregator sums devices --out devices.txt   for the witness: gridfed-witness enrol
  gridfed-aggregator sums list                        sets that wait for the witness, and opened sums
  gridfed-aggregator sums show feeder-history F12 --csv
  gridfed-aggregator sums audit                       compute every opened sum again

A running daemon writes a set to the folder sums of the state folder when its period is closed, and reads the
witness's answer from there.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from datetime import UTC, datetime
from pathlib import Path

from aggregator.audit_log import AuditLog, Initiator, login_name
from aggregator.commands.announce import load_keys
from aggregator.commands.arguments import (
    CommandError,
    add_config_option,
    add_root_key,
    require_database,
)
from aggregator.config import AggregatorConfig
from aggregator.extensions.sums.opened_sum import StoredSum, SumTable
from aggregator.extensions.sums.sum_collection import CONTRACTS, recomputed
from aggregator.operations.control_queue import ControlOrder, leave
from aggregator.rounds.announcements import Ends
from aggregator.store.errors import DatabaseBusyError
from aggregator.store.opener import open_store
from edge_sdk.app.cli import CommandResult
from edge_sdk.app.clock import SystemClock
from edge_sdk.app.permissions import make_private_folder
from edge_sdk.errors import OK, RUNTIME
from edge_sdk.extensions.sums.messages import SumsMessage
from edge_sdk.protocol import topics
from edge_sdk.protocol.codec import encode
from edge_sdk.protocol.envelope import ROOT
from edge_sdk.protocol.keys import write_atomically

ALOUD = (
    "aggregator and witness together can read every device: let another organisation be the witness"
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the action, the sum and the options."""
    words = ("announce", "devices", "list", "show", "audit")
    parser.add_argument("what", choices=words, help="action")
    parser.add_argument("name", nargs="?", default="", help="show: name of a contract")
    parser.add_argument("value", nargs="?", default=None, help="show: value of the cohort's label")
    parser.add_argument("--csv", action="store_true", help="show: a line for each number")
    parser.add_argument("--out", metavar="FILE", help="devices: the new file")
    add_config_option(parser)
    add_root_key(parser)


def run(args: Namespace) -> CommandResult:
    """Execute one action; raise CommandError for a missing argument."""
    config = require_database(AggregatorConfig.load(args.config))
    actions = {
        "announce": announce,
        "devices": write_devices,
        "list": show_list,
        "show": show_sums,
        "audit": audit,
    }
    return actions[args.what](args, config)


def announce(args: Namespace, config: AggregatorConfig) -> CommandResult:
    """Sign the configured contracts with the root key, and announce them."""
    contracts = config.section("sums").contracts()
    root, online = load_keys(args, config)
    message = SumsMessage(SystemClock().wall(), tuple(encode(one) for one in contracts))
    payload = Ends(config.fleet, root, also=root.also).to_all(message, ROOT)
    who = login_name()[:64]
    try:
        with open_store(config.database) as store, store.transaction():
            store.announce({topics.common(config.fleet, SumsMessage.kind): payload})
            log = AuditLog(store, config.fleet, online)
            names = ", ".join(one.name for one in contracts) or "none"
            log.record(Initiator("command", who), "sums", "sums", detail=f"contracts: {names}")
        when = "announced when the daemon starts"
    except DatabaseBusyError:
        make_private_folder(config.inbox)
        write_atomically(config.inbox / CONTRACTS, payload, 0o600)
        leave(config.inbox, ControlOrder("sums", "_all", who=who))
        when = "queued for the running daemon"
    data = {"contracts": [one.name for one in contracts], "bytes": len(payload)}
    lines = [f"{one.name}: {one.length} numbers, at least {one.least} devices" for one in contracts]
    lines += [f"{len(contracts)} contracts, {when}", ALOUD] if contracts else [when]
    return CommandResult(data, "\n".join(lines))


def write_devices(args: Namespace, config: AggregatorConfig) -> CommandResult:
    """Write the keys of the enrolled devices for the witness, a device and a key in a line.

    The witness itself, if it is enrolled for sets over the broker, is no device of a sum.
    """
    if not args.out:
        raise CommandError("sums devices: expected --out")
    with open_store(config.database, read_only=True) as store:
        every, witness = store.devices.all(), config.section("sums").witness
        enrolled = [one for one in every if one.state != "revoked" and one.id != witness]
    lines = [f"{one.id} {key.hex()}\n" for one in enrolled for key in one.sign]
    write_atomically(Path(args.out), "".join(lines).encode(), 0o644)
    text = f"{args.out}: {len(lines)} keys of fleet {config.fleet}"
    return CommandResult({"keys": len(lines), "file": args.out}, text)


def show_list(_: Namespace, config: AggregatorConfig) -> CommandResult:
    """Show the sets that wait for the witness, and the opened sums."""
    with open_store(config.database, read_only=True) as store:
        table = store.table(SumTable)
        waiting, found = [one.name for one in table.waiting()], table.opened()
    lines = [f"waits for the witness: {name}" for name in waiting]
    lines += [
        f"{one.contract} {one.value or '-'} {_iso(one.period)}: {one.members} of {one.expected} devices"
        for one in found
    ]
    data = {"waiting": waiting, "opened": [described(one) for one in found]}
    return CommandResult(data, "\n".join(lines) or "no sum was closed")


def show_sums(args: Namespace, config: AggregatorConfig) -> CommandResult:
    """Show the opened sums of a contract, or of one cohort of it."""
    with open_store(config.database, read_only=True) as store:
        found = store.table(SumTable).opened(args.name or None, args.value)
    if args.csv:
        lines = ["contract,cohort,time,value,unit,members,expected"]
        lines += [
            f"{one.contract},{one.value},{_iso(one.period + i * one.step)},{value:.10g},{one.unit},"
            f"{one.members},{one.expected}"
            for one in found
            for i, value in enumerate(one.values.tolist())
        ]
    else:
        lines = [
            f"{one.contract} {one.value or '-'} {_iso(one.period)}: {one.members} of {one.expected} "
            f"devices, mean {one.values.mean():.6g} {one.unit}, highest {one.values.max():.6g}"
            for one in found
        ]
    return CommandResult({"sums": [described(one) for one in found]}, "\n".join(lines))


def audit(_: Namespace, config: AggregatorConfig) -> CommandResult:
    """Compute every opened sum again from masked numbers and answers; exit with 1 if one differs."""
    return audited(config)


def audited(config: AggregatorConfig) -> CommandResult:
    """Return how many opened sums are equal bit for bit to those that are computed again."""
    witness = bytes.fromhex(config.section("sums").witness_sign)
    with open_store(config.database, read_only=True) as store:
        found = recomputed(store, witness)
    faults = [one for one in found if one.why]
    past = sum(one.is_past for one in found)
    lines = [f"{one.contract} {one.value or '-'} {_iso(one.period)}: {one.why}" for one in faults]
    equal = len(found) - past - len(faults)
    lines.append(f"{equal} of {len(found) - past} sums are equal bit for bit")
    if past:
        lines.append(f"{past} older sums cannot be computed: their masked numbers are deleted")
    data = {"sums": len(found), "equal": equal, "older": past, "faults": lines[: len(faults)]}
    return CommandResult(data, "\n".join(lines), RUNTIME if faults else OK)


def described(one: StoredSum) -> dict[str, object]:
    """Return an opened sum for programs."""
    return {
        "contract": one.contract,
        "source": one.source,
        "cohort": one.value,
        "period": one.period,
        "step": one.step,
        "members": one.members,
        "expected": one.expected,
        "unit": one.unit,
        "opened": one.opened,
        "values": one.values.tolist(),
    }


def _iso(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")
