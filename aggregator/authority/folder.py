"""Keep an authority in a folder: its key, its certificate, the record of what it issued, and its list.

``issued.jsonl`` is the record: a line is appended and synced before a certificate or a list is
written. A certificate that exists is therefore always in the record; after a power cut the list is
written again from it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

from aggregator.authority import certificates as x509
from aggregator.authority.certificates import Authority, CertificateError, Role
from edge_sdk.app.cli import RUNTIME, USAGE, Failure
from edge_sdk.app.permissions import make_private_folder, open_private, require_private

CERTIFICATE, KEY, RECORD, REVOKED = "ca.pem", "ca.key", "issued.jsonl", "revoked.pem"


class AuthorityError(Failure):
    """An authority's folder cannot do what was asked; nothing was issued or revoked."""

    exit_code: ClassVar[int] = USAGE


class RecordError(Failure):
    """The record of issued certificates is damaged."""

    exit_code: ClassVar[int] = RUNTIME


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """An entry of the record.

    Attributes:
        serial: Serial number, hexadecimal.
        name: Common name.
        role: ``device``, ``aggregator`` or ``broker``.
        issued: Time of issue, ISO 8601 in UTC.
        expires: End of its validity, likewise.
        revoked: Time of its revocation, likewise; empty if it is not revoked.
    """

    serial: str
    name: str
    role: str
    issued: str
    expires: str
    revoked: str = ""

    def is_valid(self, now: datetime) -> bool:
        """Return True if it is neither revoked nor expired."""
        return not self.revoked and now < datetime.fromisoformat(self.expires)


def create(
    folder: Path, name: str, now: datetime, lifetime: timedelta, passphrase: bytes = b""
) -> Path:
    """Make an authority in a folder, with an empty list of revoked certificates.

    Returns:
        Path of its certificate.

    Raises:
        AuthorityError: There is one already, or the name does not fit.
    """
    if (folder / CERTIFICATE).exists() or (folder / KEY).exists():
        raise AuthorityError(
            f"{folder}: there is an authority here already", hint="choose another folder"
        )
    key = x509.new_key()
    try:
        authority = x509.new_authority(name, key, now, lifetime)
    except CertificateError as error:
        raise AuthorityError(f"ca init: {error}") from error
    make_private_folder(folder)
    with _locked(folder):
        _write(folder / KEY, x509.key_pem(key, passphrase), is_private=True)
        _write(folder / CERTIFICATE, x509.pem_of(authority.certificate))
        _write(folder / RECORD, b"", is_private=True)
        _publish(folder, authority, now, timedelta(days=30))
    return folder / CERTIFICATE


def issue(
    folder: Path,
    name: str,
    role: Role,
    now: datetime,
    lifetime: timedelta,
    *,
    hosts: Sequence[str] = (),
    request: bytes | None = None,
    out: Path | None = None,
    is_renewal: bool = False,
    passphrase: bytes = b"",
) -> tuple[Path, Path | None]:
    """Issue a certificate; without a request also make its private key.

    Returns:
        Paths of the certificate and of the key; None where the holder has the key.

    Raises:
        AuthorityError: The name has a valid certificate and this is no renewal, a file would be
            overwritten, or the request, key or host is refused.
    """
    with _locked(folder):
        authority = _load(folder, passphrase)
        before = [one for one in issued(folder) if one.name == name and one.is_valid(now)]
        if before and not is_renewal:
            raise AuthorityError(
                f"{name}: has a certificate already, valid until {before[-1].expires[:10]}",
                hint="add --renew for a second one, or revoke it first",
            )
        target = out or folder / "issued"
        files = target / f"{name}.pem", target / f"{name}.key"
        taken = [file for file in files if file.exists() and not is_renewal]
        if taken:
            raise AuthorityError(f"{taken[0]}: exists already", hint="choose another --out")
        private = x509.new_key() if request is None else None
        try:
            public = private.public_key() if private else x509.request_key(request or b"")
            made = x509.issue(
                authority, name, role, public, now=now, lifetime=lifetime, hosts=hosts
            )
        except CertificateError as error:
            raise AuthorityError(f"ca issue {name}: {error}") from error
        entry = IssuedCertificate(
            f"{made.serial_number:x}", name, role, _text(now), _text(made.not_valid_after_utc)
        )
        _append(folder, asdict(entry))
        target.mkdir(parents=True, exist_ok=True)
        if private is not None:
            _write(files[1], x509.key_pem(private), is_private=True)
        _write(files[0], x509.pem_of(made))
    return files[0], files[1] if private is not None else None


def revoke(
    folder: Path, name: str, now: datetime, lifetime: timedelta, passphrase: bytes = b""
) -> list[IssuedCertificate]:
    """Revoke all valid certificates of a name, and write the list.

    Returns:
        The revoked certificates.

    Raises:
        AuthorityError: The name has no valid certificate.
    """
    with _locked(folder):
        authority = _load(folder, passphrase)
        found = [one for one in issued(folder) if one.name == name and one.is_valid(now)]
        if not found:
            known = sorted({one.name for one in issued(folder) if one.is_valid(now)})
            listed = ", ".join(known[:10]) or "none"
            raise AuthorityError(
                f"{name}: has no valid certificate of this authority; valid: {listed}"
            )
        for one in found:
            _append(folder, {"revoked": one.serial, "at": _text(now)})
        _publish(folder, authority, now, lifetime)
    return found


def renew_list(folder: Path, now: datetime, lifetime: timedelta, passphrase: bytes = b"") -> Path:
    """Write the list of revoked certificates again, valid from now.

    Raises:
        AuthorityError: There is no authority in the folder.
    """
    with _locked(folder):
        _publish(folder, _load(folder, passphrase), now, lifetime)
    return folder / REVOKED


def issued(folder: Path) -> list[IssuedCertificate]:
    """Return everything that was issued, oldest first, with revocations applied.

    A last line without its end was cut off by a power failure, before any file was written; it is
    skipped.

    Raises:
        RecordError: Another line is damaged.
    """
    try:
        text = (folder / RECORD).read_text("utf-8")
    except FileNotFoundError:
        raise AuthorityError(
            f"{folder}: there is no authority here", hint=f"gridfed-aggregator ca init {folder}"
        ) from None
    found: dict[str, dict[str, Any]] = {}
    lines = text.split("\n")
    for number, line in enumerate(lines[:-1], 1):
        try:
            entry: Mapping[str, Any] = json.loads(line)
            if "revoked" in entry and "at" in entry:
                found[entry["revoked"]]["revoked"] = entry["at"]
            else:
                found[entry["serial"]] = asdict(IssuedCertificate(**entry))
        except (ValueError, KeyError, TypeError) as error:
            raise RecordError(
                f"{folder / RECORD}, line {number}: damaged: {error!r}",
                hint="restore the folder from a backup",
            ) from error
    return [IssuedCertificate(**entry) for entry in found.values()]


def _publish(folder: Path, authority: Authority, now: datetime, lifetime: timedelta) -> None:
    gone = [one for one in issued(folder) if one.revoked]
    number = int(now.timestamp() * 1000)
    revoked = [(int(one.serial, 16), datetime.fromisoformat(one.revoked)) for one in gone]
    made = x509.revocation_list(authority, revoked, number, now, lifetime)
    _write(folder / REVOKED, x509.pem_of(made))


def _load(folder: Path, passphrase: bytes) -> Authority:
    try:
        require_private(folder / KEY)
        certificate, key = (folder / CERTIFICATE).read_bytes(), (folder / KEY).read_bytes()
        return x509.load_authority(certificate, key, passphrase)
    except FileNotFoundError:
        raise AuthorityError(
            f"{folder}: there is no authority here", hint=f"gridfed-aggregator ca init {folder}"
        ) from None
    except CertificateError as error:
        raise AuthorityError(
            f"{folder}: {error}", hint="a key with a passphrase needs --passphrase-file"
        ) from error


def _append(folder: Path, entry: Mapping[str, Any]) -> None:
    """Add a line durably; first remove an unfinished one, which names nothing that exists."""
    path = folder / RECORD
    with path.open("rb+") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        file.truncate(whole)
        file.seek(whole)
        file.write(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _write(path: Path, content: bytes, *, is_private: bool = False) -> None:
    """Replace a file at once: a broker may read it at any time."""
    part = path.with_name(f"{path.name}.part")
    if is_private:
        with open_private(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    else:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.chmod(0o644)
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time issue and revoke."""
    if not folder.is_dir():
        raise AuthorityError(
            f"{folder}: there is no authority here", hint=f"gridfed-aggregator ca init {folder}"
        )
    with open_private(folder / "lock", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")
