"""Open sums as a witness: its keys, the devices' keys as it received them, and the masks of a set.

The witness never has a number of a device: a set names digests of masked vectors, and the answer is the sum
of the masks. Keep key files and record: a witness without its record could open a device in two sets.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from aggregator.commands.arguments import CommandError
from aggregator.extensions.sums.witness_record import LEAST, WitnessKeys, WitnessRecord
from edge_sdk.app.cli import CommandResult
from edge_sdk.errors import OK, RUNTIME, Refused
from edge_sdk.extensions.sums.seed import ExchangeKey
from edge_sdk.protocol import keys


def add_keys(parser: ArgumentParser) -> None:
    """Add the two key files."""
    add = parser.add_argument
    text = "private key that signs, made if it is missing (witness.key)"
    add("--key", metavar="FILE", default="witness.key", help=text)
    text = "private key that opens, made if it is missing (witness-open.key)"
    add("--open-key", metavar="FILE", default="witness-open.key", help=text)


def add_record(parser: ArgumentParser) -> None:
    """Add the record of the witness."""
    text = "record of devices and opened sets (witness/sums.db)"
    parser.add_argument("--record", metavar="FILE", default="witness/sums.db", help=text)


def add_least(parser: ArgumentParser) -> None:
    """Add the least number of members."""
    text = f"members below which no set is opened, whatever its contract says ({LEAST})"
    parser.add_argument("--least", type=int, default=LEAST, metavar="N", help=text)


def add_open_arguments(parser: ArgumentParser) -> None:
    """Add the sets, the least number of members, keys and record."""
    add = parser.add_argument
    add("file", metavar="FILE", nargs="+", help="sets; each answer is written beside its set")
    add_least(parser)
    add_keys(parser)
    add_record(parser)


def add_enrol_arguments(parser: ArgumentParser) -> None:
    """Add the list of devices, their fleet and the record."""
    parser.add_argument("file", metavar="FILE", help="a device and its public key in each line")
    parser.add_argument("--fleet", required=True, help="fleet of the devices")
    add_record(parser)


def show_keys(args: Namespace) -> CommandResult:
    """Print the public keys of the witness, as the section [sums] of the aggregator has them."""
    found = read_keys(args)
    data = {
        "witness_open": found.open.public.hex(),
        "witness_sign": found.sign.public.hex(),
    }
    return CommandResult(data, "\n".join(f'{key} = "{value}"' for key, value in data.items()))


def enrol(args: Namespace) -> CommandResult:
    """Add keys of devices to the record.

    Raises:
        CommandError: The file cannot be read, or a line is no device and key.
    """
    found = []
    for number, line in enumerate(
        _read(Path(args.file)).decode("utf-8", "replace").splitlines(), 1
    ):
        device, _, key = line.partition(" ")
        try:
            found.append((device, keys.checked_public(bytes.fromhex(key), device)))
        except (ValueError, keys.KeyFileError) as error:
            raise CommandError(f"{args.file}: line {number}: no device and public key") from error
    with WitnessRecord(Path(args.record)) as record:
        try:
            new = record.enrol(args.fleet, found)
        except Refused as error:
            return CommandResult({"reason": error.reason.name}, f"refused: {error}", RUNTIME)
    return CommandResult({"new": new, "keys": len(found)}, f"{new} new of {len(found)} keys")


def open_sets(args: Namespace) -> CommandResult:
    """Open sets, and write each answer beside its set; exit with 1 if one is refused."""
    if args.least < 2:
        raise CommandError("--least: expected 2 or more")
    rows: list[dict[str, object]] = []
    lines, code, own = [], OK, read_keys(args)
    with WitnessRecord(Path(args.record), args.least) as record:
        for name in args.file:
            path = Path(name)
            try:
                answer = record.open(_read(path), own)
            except Refused as error:
                rows.append({"set": name, "reason": error.reason.name, "detail": error.detail})
                lines.append(f"{name}: refused: {error}")
                code = RUNTIME
                continue
            keys.write_atomically(path.with_suffix(".opened"), answer, 0o644)
            rows.append({"set": name, "answer": str(path.with_suffix(".opened"))})
            lines.append(f"{path.with_suffix('.opened')}")
    return CommandResult({"sets": rows}, "\n".join(lines), code)


def show_sums(args: Namespace) -> CommandResult:
    """Print the opened sums."""
    with WitnessRecord(Path(args.record)) as record:
        found = record.sums()
    names = ("fleet", "contract", "period", "cohort", "members")
    data = [dict(zip(names, row, strict=True)) for row in found]
    lines = [f"{a} {b} {c} {d or '-'}: {e} devices" for a, b, c, d, e in found]
    return CommandResult({"sums": data}, "\n".join(lines) or "no set was opened")


def read_keys(args: Namespace) -> WitnessKeys:
    """Read the keys of the witness; make those that are missing."""
    path, opening = Path(args.key), Path(args.open_key)
    if not path.exists():
        keys.save_signing_key(path, keys.generate())
    if not opening.exists():
        keys.write_atomically(opening, f"{ExchangeKey.generate().raw.hex()}\n".encode(), 0o600)
    try:
        found = ExchangeKey(bytes.fromhex(_read(opening).decode()))
    except ValueError as error:
        raise CommandError(f"{opening}: no private key of 64 hex digits") from error
    return WitnessKeys(keys.load_signing_key(path), found)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandError(f"{path}: cannot be read: {error}") from error


class SumKeys:
    """Print the public keys by which sums are opened, as the section [sums] of the aggregator has them."""

    add_arguments, run = staticmethod(add_keys), staticmethod(show_keys)


class Enrol:
    """Add keys of devices to the record; a set with another device is refused.

    Compare the list with what is known of the devices from elsewhere: an operator who invents devices
    learns what is left of a sum without them.
    """

    add_arguments, run = staticmethod(add_enrol_arguments), staticmethod(enrol)


class Open:
    """Open sets: verify their devices, and write the sum of their masks beside each set.

    Refused are sets with few devices, with one that is not in the record or has not signed, and with one
    that is in another set of the same contract and period. The record is saved before an answer is
    written. Keep key files and record: a witness without its record could open a device in two sets.
    """

    add_arguments, run = staticmethod(add_open_arguments), staticmethod(open_sets)


class Opened:
    """Show the sums that were opened."""

    add_arguments, run = staticmethod(add_record), staticmethod(show_sums)
