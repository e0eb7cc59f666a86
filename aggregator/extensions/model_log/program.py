"""Define the command line of ``gridfed-witness``, which needs no configuration, database or broker."""

from __future__ import annotations

import fcntl
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from aggregator.extensions.model_log.cosignatures import (
    cosign,
    forks,
    notes,
    save_fork,
    save_note,
    saved_note,
)
from aggregator.extensions.model_log.log_export import VerifiedLog, verified
from edge_sdk.app.cli import CommandResult, Subcommand, subcommand
from edge_sdk.app.command_line import CommandLine
from edge_sdk.app.extensions import ExtensionIndex
from edge_sdk.errors import RUNTIME, USAGE, Failure, Reason, Refused
from edge_sdk.extensions.model_log.signed_note import NoteError, WitnessKey
from edge_sdk.protocol import keys

ABOUT = """\
Witness of a fleet that another organisation runs: of its log of models, and of its sums.

The operator of a fleet sends an export of the log, which has every model that was announced to devices. A
witness cosigns it only if it continues the log that the witness has cosigned before. An operator who gives
one device another model than the others then has two logs, of which the witness cosigns one."""

EPILOGUE = """\
once, give the printed key to those who rely on the witness:
  gridfed-witness key --key witness.key --name example.org

for each export that arrives, with the public key of the operator's aggregator:
  gridfed-witness cosign models.jsonl --public aggregator.pub --key witness.key --name example.org > models.note

the operator writes an export by: gridfed-aggregator log export --out models.jsonl

sums of masked numbers: sum-keys once, enrol for the devices' keys, open for each set

exit codes: 0 done · 1 refused or failed · 2 wrong usage
"""

COSIGN = """\
The export is verified: its models must give the root of the checkpoint that the aggregator has signed. Then
the log must continue the last note of the folder, which is replaced before the cosignature is printed. A log
that does not continue it is refused with LOG_FORK or ROLLBACK, and both notes of a fork are kept.

Keep key and folder: a witness without its last note would cosign any log."""


class WitnessError(Failure):
    """A command with invalid arguments, or a file that cannot be read."""

    exit_code = USAGE


def add_key_arguments(parser: ArgumentParser) -> None:
    """Add the private key and the name of the witness."""
    add = parser.add_argument
    text = "private key of the witness, made if it is missing (witness.key)"
    add("--key", metavar="FILE", default="witness.key", help=text)
    add("--name", required=True, help="name of the witness, as in example.org/witness")


def add_folder(parser: ArgumentParser) -> None:
    text = "folder of the last note of each log, and of forks (witness)"
    parser.add_argument("--folder", metavar="FOLDER", default="witness", help=text)


def add_cosign_arguments(parser: ArgumentParser) -> None:
    """Add the export, the aggregator's public keys, and the witness's key and state."""
    add = parser.add_argument
    add("file", metavar="FILE", help="export of the log of models")
    text = "public keys of the aggregator, received from the operator"
    add("--public", metavar="FILE", nargs="+", required=True, help=text)
    add_key_arguments(parser)
    add_folder(parser)


def show_key(args: Namespace) -> CommandResult:
    """Print the verifier key of the witness; its private key is made if there is none."""
    _, witness = _key(args)
    return CommandResult({"witness": witness.text, "key": args.key}, witness.text)


def show_notes(args: Namespace) -> CommandResult:
    """Print the last note of each log that was cosigned, and the forks that were found."""
    folder = Path(args.folder)
    found = [one.checkpoint for one in notes(folder)]
    evidence = [str(path) for path in forks(folder)]
    logs = [{"log": one.origin, "models": one.size, "root": one.root.hex()} for one in found]
    lines = [f"{one.origin}: {one.size} models, root {one.root.hex()[:16]}" for one in found]
    lines += [f"fork: {path}" for path in evidence]
    text = "\n".join(lines or [f"{folder}: no log was cosigned"])
    return CommandResult({"logs": logs, "forks": evidence}, text)


def cosign_export(args: Namespace) -> CommandResult:
    """Cosign the log of an export, or refuse it and keep the evidence.

    Raises:
        WitnessError: A file cannot be read, or the name cannot stand in a note.
    """
    key, witness = _key(args)
    try:
        public = [keys.read_public(path) for path in args.public]
        log = verified(_lines(Path(args.file)), public)
    except Refused as error:
        data = {"reason": error.reason.name, "detail": error.detail}
        return CommandResult(data, f"{args.file}: refused: {error}", RUNTIME)
    folder = Path(args.folder)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two at once could cosign two logs
        return _cosigned_alone(log, folder, key, witness)


def _cosigned_alone(
    log: VerifiedLog, folder: Path, key: keys.SigningKey, witness: WitnessKey
) -> CommandResult:
    origin = log.note.checkpoint.origin
    before = None
    try:
        before = saved_note(folder, origin)
        note = cosign(log, before, witness.name, key, int(time.time()))
    except Refused as error:
        data: dict[str, object] = {"log": origin, "reason": error.reason.name}
        text = f"{origin}: refused: {error}"
        if before is not None and error.reason is Reason.LOG_FORK:
            evidence = save_fork(folder, before, log.note)
            data["evidence"] = str(evidence)
            text += f"\nboth notes: {evidence}"
        return CommandResult(data, text, RUNTIME)
    path = save_note(folder, note)
    found = {"log": origin, "models": note.checkpoint.size, "witness": witness.text}
    return CommandResult({**found, "note": note.text, "file": str(path)}, note.text)


def _key(args: Namespace) -> tuple[keys.SigningKey, WitnessKey]:
    path = Path(args.key)
    is_made = not path.exists()
    key = keys.generate() if is_made else keys.load_signing_key(path)
    try:
        witness = WitnessKey.parse(WitnessKey(args.name, key.public).text)
    except NoteError as error:
        raise WitnessError(f"--name {args.name!r}: no spaces, no plus signs") from error
    if is_made:
        keys.save_signing_key(path, key)
    return key, witness


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WitnessError(f"{path}: cannot be read: {error}") from error


COMMANDS = {
    "key": Subcommand(
        "Print the public key by which cosignatures are verified.", show_key, add_key_arguments
    ),
    "cosign": Subcommand(
        "Cosign an export, or refuse it.", cosign_export, add_cosign_arguments, COSIGN
    ),
    "show": Subcommand("Show the logs that were cosigned, and forks.", show_notes, add_folder),
}
COMMANDS |= {
    name: subcommand(f"{entry.package}.{reference}", summary)
    for entry in ExtensionIndex("aggregator").having("witness")
    for name, (reference, summary) in entry.row["witness"].items()
}


def program() -> CommandLine:
    return CommandLine("gridfed-witness", ABOUT, COMMANDS, EPILOGUE)


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; return its exit code."""
    return program().main(argv)
