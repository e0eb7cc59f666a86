"""Enrol devices, and manage the keys of the root, the aggregator and the devices.

A claim contains nothing secret, but must prove that the device has the private key of the
public key it names, for this fleet and under this id.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from aggregator.operations.commands import LabelError, parse_labels
from aggregator.operations.signing_keys import RootSigners, private_keys, root_signers
from edge_sdk.app.permissions import make_private_folder, require_private
from edge_sdk.errors import USAGE, Failure
from edge_sdk.protocol import keys as key_files
from edge_sdk.protocol.public_key import weakness
from edge_sdk.protocol.root_keys import RootKeys
from edge_sdk.protocol.statements import NO_KEY, enrolment_statement, succession_statement
from edge_sdk.protocol.topics import is_device_id

COLUMNS = ("id", "public", "proof", "labels", "succession")
"""Columns of a CSV file of claims; of the line that ``gridfed-edge enrol`` prints, the first three.

A device that replaces its key prints all five.
"""


class EnrolError(Failure):
    """A claim with an invalid proof, id or key."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim of a device to join the fleet."""

    device: str  # the requested id: certificate name, user name, topic and sender at once
    public: bytes  # raw public key: Ed25519 (32 bytes) or P-256 (33 bytes)
    # signature of ``statement`` by that key; empty if the operator vouches for the key
    proof: bytes = b""
    labels: str = ""  # labels of the device, ``name=value`` between commas
    # signature of ``succession_statement`` by the key that this one replaces; empty without one
    succession: bytes = b""


def statement(
    fleet: str, device: str, public: bytes, open_: bytes = NO_KEY, csr: bytes = b""
) -> bytes:
    """Return the bytes that a device signs to prove possession of its key.

    The arguments are those of ``enrolment_statement``.

    >>> key = key_files.SigningKey.from_seed(bytes(32))
    >>> mine = key.sign(statement("north", "meter-1", key.public))
    >>> key_files.verify(key.public, mine, statement("north", "meter-2", key.public))
    False
    """
    return enrolment_statement(fleet, device, public, open_, csr)


def verify_claim(claim: Claim, fleet: str, *, where: str = "enrol") -> Claim:
    """Return the claim if it is valid.

    Raises:
        EnrolError: The id is malformed, the key is of the wrong size or of small order, or the
            proof is by another key.
    """
    if not is_device_id(claim.device):
        raise EnrolError(
            f"{where}: {claim.device!r} is not a valid device id",
            hint="letters, digits, - and _; at most 64; starting with a letter or a digit",
        )
    if found := weakness(claim.public):
        raise EnrolError(
            f"{where}: {claim.device}: the public key {claim.public.hex()} {found}",
            hint="create the key on the device: gridfed-edge enrol",
        )
    signed = statement(fleet, claim.device, claim.public)
    if claim.proof and not key_files.verify(claim.public, claim.proof, signed):
        raise EnrolError(
            f"{where}: {claim.device}: the proof does not match this key, id and fleet",
            hint="check the fleet and the id in the device's configuration",
        )
    return claim


def former_key(claim: Claim, fleet: str, keys: Iterable[bytes], *, where: str = "enrol") -> bytes:
    """Return the enrolled key that signed a claim, which the claim replaces; empty without one."""
    if not claim.succession:
        return b""
    signed = succession_statement(fleet, claim.device, claim.public)
    for key in keys:
        if key_files.verify(key, claim.succession, signed):
            return key
    raise EnrolError(
        f"{where}: {claim.device}: the succession is signed by no key that this device has here",
        hint="to enrol it with a new ledger, leave the succession out",
    )


def claim_of(
    device: str,
    public: str,
    proof: str = "",
    labels: str = "",
    succession: str = "",
    *,
    where: str = "enrol",
) -> Claim:
    """Parse a claim: the key as 64 or 66 hex digits or a file, signatures as 128 hex digits or nothing."""
    try:
        raw = key_files.read_device_public(public)
    except key_files.KeyFileError as error:
        raise EnrolError(f"{where}: {device}: {error}") from error
    signatures = [
        _signature(text, f"{where}: {device}: expected a {name} of 128 hex digits")
        for name, text in (("proof", proof), ("succession", succession))
    ]
    try:
        parse_labels(labels)
    except LabelError as error:
        raise EnrolError(f"{where}: {device}: {error}") from error
    return Claim(device, raw, signatures[0], labels, signatures[1])


def _signature(text: str, expected: str) -> bytes:
    try:
        signature = bytes.fromhex(text)
    except ValueError as error:
        raise EnrolError(expected) from error
    if signature and len(signature) != key_files.SIGNATURE_SIZE:
        raise EnrolError(f"{expected}, got {len(text)}")
    return signature


def read_claims(path: Path) -> Iterator[Claim]:
    """Read a CSV file with the columns ``id``, ``public`` and, optionally, the other ``COLUMNS``.

    Without a first line that names them, the columns are in this order: the lines that devices print.

    Raises:
        EnrolError: The file or a column is missing, or a line, given by number, cannot be parsed.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if _is_claim(rows.fieldnames or ()):
                file.seek(0)
                rows = csv.DictReader(file, fieldnames=COLUMNS)
            if not {"id", "public"} <= set(rows.fieldnames or ()):
                raise EnrolError(f"{path}: expected the columns id and public in the first line")
            for row in rows:
                where = f"{path}, line {rows.line_num}"
                given = [row.get(name) or "" for name in COLUMNS]
                yield claim_of(*(text.strip() for text in given), where=where)
    except OSError as error:
        raise EnrolError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise EnrolError(f"{path}: not UTF-8 text") from error


def _is_claim(row: Sequence[str]) -> bool:
    """Return whether a first line is a device's own, and no line of names.

    >>> _is_claim(["meter-1", "ab" * 32]), _is_claim(["id", "public", "proof"]), _is_claim([])
    (True, False, False)
    """
    form = r"[0-9a-fA-F]{64}|0[23][0-9a-fA-F]{64}"
    return len(row) > 1 and re.fullmatch(form, row[1].strip()) is not None


def keys_of(
    folder: Path, online: Path, public: Path, root_keys: Sequence[str] = ()
) -> tuple[RootSigners, key_files.SigningKey]:
    """Create the keys of a fleet, or load the existing ones.

    Args:
        folder: The state folder, in which a new root key is created.
        online: Path of the aggregator's private key; created if missing.
        public: Path of the root's public key; written if missing.
        root_keys: Private keys of the root, if they were moved away: files or PKCS#11 URIs.

    Returns:
        The root's and the aggregator's key.

    Raises:
        RootKeyError: Private keys of the root are needed and are missing or differ; a second root
            is never created.
    """
    make_private_folder(folder)
    if not public.exists():
        if not root_keys:
            _made(folder / "root.key")
        first = private_keys(folder, root_keys)
        key_files.write_atomically(
            public, RootKeys(tuple(key.public for key in first)).text.encode(), 0o644
        )
    root = root_signers(folder, public, root_keys)
    signer = _made(online)
    key_files.save_public(online.with_suffix(".pub"), signer.public)
    return root, signer


def _made(path: Path) -> key_files.SigningKey:
    if path.exists():
        require_private(path)
        return key_files.load_signing_key(path)
    key = key_files.SigningKey.generate()
    key_files.save_signing_key(path, key)
    return key
