"""Export the log of models, or verify an export.

An export is a file of JSON lines. To verify it takes the aggregator's public key and no database. With
--against, checkpoints of devices are compared with the log: each file has a note, as the value of note in
gridfed-edge status --json.

  gridfed-aggregator log export --config aggregator.toml --out models.jsonl
  gridfed-aggregator log verify models.jsonl --public aggregator.pub
  gridfed-aggregator log verify models.jsonl --public aggregator.pub --against meter-1.note meter-2.note

Another organisation cosigns an export by gridfed-witness.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from aggregator.commands.arguments import CommandError, add_config_option, require_database
from aggregator.config import AggregatorConfig
from aggregator.extensions.model_log.log_export import VerifiedLog, export_lines, verified
from aggregator.extensions.model_log.model_log import ModelLeaves
from aggregator.operations.signing_keys import signer
from aggregator.store.opener import open_store
from edge_sdk.app.cli import CommandResult
from edge_sdk.errors import OK, RUNTIME, Reason, Refused
from edge_sdk.extensions.model_log.signed_note import NoteError, SignedCheckpoint, read_note
from edge_sdk.protocol import keys


def add_arguments(parser: ArgumentParser) -> None:
    """Add the action and the options of each action."""
    parser.add_argument("what", choices=("export", "verify"), help="action")
    parser.add_argument("file", nargs="?", default="", help="verify: the export")
    parser.add_argument("--out", metavar="FILE", help="export: the new file")
    parser.add_argument(
        "--run", type=int, metavar="N", help="export: number of the run (the newest)"
    )
    parser.add_argument(
        "--public", metavar="FILE", nargs="+", default=[], help="public keys of the aggregator"
    )
    parser.add_argument(
        "--against", metavar="FILE", nargs="+", default=[], help="verify: notes of devices"
    )
    add_config_option(parser)


def run(args: Namespace) -> CommandResult:
    """Execute one action; raise CommandError for a missing argument or a file that cannot be read."""
    if args.what == "export":
        return _export(args)
    if not args.file or not args.public:
        raise CommandError("log verify: expected the file of an export, and --public")
    try:
        log = _log(args)
    except Refused as error:
        data = {"reason": error.reason.name, "detail": error.detail}
        return CommandResult(data, f"{args.file}: refused: {error}", RUNTIME)
    return _compared(args, log)


def _export(args: Namespace) -> CommandResult:
    if not args.out:
        raise CommandError("log export: expected --out")
    config = require_database(AggregatorConfig.load(args.config))
    with open_store(config.database, read_only=True) as store:
        number = args.run or max((record.run for record in store.runs.records()), default=0)
        if not store.table(ModelLeaves).size(number):
            raise CommandError(f"run {number} has no log: no model was announced in it")
        lines = list(export_lines(store, config.fleet, number, signer(config)))
    data = "".join(f"{line}\n" for line in lines).encode()
    keys.write_atomically(Path(args.out), data, 0o644)
    text = f"{args.out}: {len(lines) - 1} models of run {number}"
    return CommandResult({"run": number, "models": len(lines) - 1, "file": args.out}, text)


def _log(args: Namespace) -> VerifiedLog:
    public = [keys.read_public(path) for path in args.public]
    return verified(_text(Path(args.file)).splitlines(), public)


def _compared(args: Namespace, log: VerifiedLog) -> CommandResult:
    """Compare notes with a log; exit with 1 if it does not continue one of them."""
    said = log.note.checkpoint
    rows: list[dict[str, object]] = []
    for name in args.against:
        refusal = _refusal(log, name)
        rows.append({"note": name, "reason": refusal.reason.name if refusal else ""})
    data = {"log": said.origin, "models": said.size, "root": said.root.hex(), "notes": rows}
    lines = [f"{said.origin}: {said.size} models, root {said.root.hex()[:16]}: verified"]
    lines += [f"{row['note']}: {row['reason'] or 'is of this log'}" for row in rows]
    is_one_refused = any(row["reason"] for row in rows)
    return CommandResult(data, "\n".join(lines), RUNTIME if is_one_refused else OK)


def _refusal(log: VerifiedLog, name: str) -> Refused | None:
    try:
        log.require_continues(_note(Path(name)))
    except Refused as error:
        return error
    return None


def _note(path: Path) -> SignedCheckpoint:
    try:
        return read_note(_text(path))
    except NoteError as error:
        raise Refused(Reason.MALFORMED, f"{path}: {error}") from error


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path}: cannot be read: {error}") from error
