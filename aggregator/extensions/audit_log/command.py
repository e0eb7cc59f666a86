"""Show, export or verify the audit log: person, act, time and reason.

Every act of an operator, of the console, of the certificate authority and of the daemon by itself is a
record, saved in the transaction of the act. Each record is signed by the aggregator and has the digest of
the one before it. To verify an export takes its file and the aggregator's public keys, and no database;
--against names earlier exports, whose records the log must still have.

  gridfed-aggregator audit-log show --since 2026-11-01 --act revoke
  gridfed-aggregator audit-log export --out acts.jsonl
  gridfed-aggregator audit-log verify                          the log in the database
  gridfed-aggregator audit-log verify acts.jsonl --public aggregator.pub --against october.jsonl
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from aggregator.commands.arguments import CommandError, add_config_option, require_database
from aggregator.config import AggregatorConfig
from aggregator.extensions.audit_log.export import (
    ExportLineError,
    Head,
    Verification,
    export_lines,
    is_signed_head,
    read_head,
    verified,
)
from aggregator.operations.signing_keys import signer
from aggregator.store.audit_record import AuditRecord
from aggregator.store.opener import open_store
from edge_sdk.app.cli import CommandResult
from edge_sdk.app.clock import SystemClock
from edge_sdk.errors import OK, RUNTIME
from edge_sdk.protocol import keys

SHOWN = 50


def add_arguments(parser: ArgumentParser) -> None:
    """Add the action and the options of each action."""
    add = parser.add_argument
    add("what", choices=("show", "export", "verify"), help="action")
    add("file", nargs="?", default="", help="verify: an export (default: the database)")
    add("--since", metavar="TIME", help="show: from this UTC date or time on, as in 2026-11-01")
    add("--until", metavar="TIME", help="show: before this UTC date or time")
    add("--actor", help="show: acts of this person, device or program")
    add("--act", help="show: acts of this name")
    add("--subject", help="show: acts on this device, run, bundle or key")
    add(
        "--last", type=int, default=SHOWN, metavar="N", help=f"show: the newest N ({SHOWN}; 0: all)"
    )
    add("--out", metavar="FILE", help="export: the new file")
    add("--public", metavar="FILE", nargs="+", default=[], help="verify: keys of the aggregator")
    add("--against", metavar="FILE", nargs="+", default=[], help="verify: earlier exports")
    add_config_option(parser)


def run(args: Namespace) -> CommandResult:
    """Execute one action; raise CommandError for a missing argument or a file that cannot be read."""
    return {"show": _show, "export": _export, "verify": _verify}[args.what](args)


def _show(args: Namespace) -> CommandResult:
    config = require_database(AggregatorConfig.load(args.config))
    since, until = _moment(args.since, "--since"), _moment(args.until, "--until")
    with open_store(config.database, read_only=True) as store:
        found = [
            one
            for one in store.audit_log.records()
            if (since is None or one.time >= since)
            and (until is None or one.time < until)
            and args.actor in (None, one.actor)
            and args.act in (None, one.act)
            and args.subject in (None, one.subject)
        ]
    shown = found[-args.last :] if args.last > 0 else found
    data = {"records": [one.fields() for one in shown], "found": len(found)}
    return CommandResult(data, _table(shown, len(found)))


def _export(args: Namespace) -> CommandResult:
    if not args.out:
        raise CommandError("audit-log export: expected --out")
    config = require_database(AggregatorConfig.load(args.config))
    now = SystemClock().wall()
    with open_store(config.database, read_only=True) as store:
        lines = list(export_lines(store, config.fleet, signer(config), now))
    keys.write_atomically(Path(args.out), "".join(f"{one}\n" for one in lines).encode(), 0o600)
    count = len(lines) - 1
    return CommandResult({"records": count, "file": args.out}, f"{args.out}: {count} records")


def _verify(args: Namespace) -> CommandResult:
    public = [keys.read_public(path) for path in args.public]
    if args.file:
        if not public:
            raise CommandError("audit-log verify: expected --public with the file of an export")
        lines = _lines(Path(args.file))
        found = verified(lines, public, list(_heads(args, public, _fleet_of(args.file, lines))))
        return _result(args.file, found)
    config = require_database(AggregatorConfig.load(args.config))
    public.append(signer(config).public)
    heads = list(_heads(args, public, config.fleet))
    found = Verification(config.fleet, public, heads)
    with open_store(config.database, read_only=True) as store:
        for record in store.audit_log.records():
            found.add(record)
        found.close()
    return _result(str(config.database), found)


def _fleet_of(name: str, lines: list[str]) -> str:
    try:
        return read_head(lines)[0]
    except ExportLineError as error:
        raise CommandError(f"{name}: no export of an audit log: {error}") from error


def _heads(args: Namespace, public: list[bytes], fleet: str) -> Iterator[Head]:
    for name in args.against:
        try:
            its_fleet, head, header = read_head(_lines(Path(name)))
        except ExportLineError as error:
            raise CommandError(f"{name}: no export of an audit log: {error}") from error
        if its_fleet != fleet or not is_signed_head(header, public):
            raise CommandError(f"{name}: the first line is not signed by a key of fleet {fleet!r}")
        yield head


def _result(where: str, found: Verification) -> CommandResult:
    faults = [{"kind": one.kind, "record": one.number, "text": one.text} for one in found.faults]
    data = {
        "fleet": found.fleet,
        "records": found.head.number,
        "head": found.head.digest.hex(),
        "against": [one.number for one in found.heads],
        "faults": faults,
    }
    lines = [f"{where}: {one.text}" for one in found.faults] or [
        (
            f"{where}: {found.head.number} records of fleet {found.fleet}: verified; "
            f"head {found.head.digest.hex()}"
        ),
        *(f"continues the export that ends with record {one.number}" for one in found.heads),
    ]
    return CommandResult(data, "\n".join(lines), RUNTIME if faults else OK)


def _table(records: list[AuditRecord], found: int) -> str:
    if not records:
        return "no records"
    rows = [("record", "time (UTC)", "via", "who", "act", "what", "why")]
    rows += [
        (
            str(one.number),
            _text(one.time),
            one.via,
            one.actor,
            one.act,
            one.subject,
            one.reason or "-",
        )
        for one in records
    ]
    wide = [max(len(row[at]) for row in rows) for at in range(6)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, wide, strict=False)), row[6]])
        for row in rows
    ]
    for number, record in enumerate(reversed(records)):
        if record.detail:
            lines.insert(len(lines) - number, f"{'':{wide[0]}}  {record.detail}")
    if found > len(records):
        lines.append(f"the newest {len(records)} of {found}; more with --last")
    return "\n".join(lines)


def _moment(text: str | None, option: str) -> int | None:
    """Return a date or time as Unix milliseconds.

    >>> _moment("2026-11-01", "--since"), _moment("2026-11-01T12:00Z", "--since"), _moment(None, "")
    (1793491200000, 1793534400000, None)
    """
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise CommandError(
            f"{option} {text!r}: expected a date or time, as in 2026-11-01"
        ) from error
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def _text(time: int) -> str:
    return f"{datetime.fromtimestamp(time / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path}: cannot be read: {error}") from error
