"""Keep an authority in a folder: its key, its certificate, its record of certificates, and its revocation list.

An entry is committed to the record before a certificate or a list is written. A certificate that
exists is therefore always in the record; after a power cut the list is written again from it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar

from aggregator.extensions.authority import certificates as x509
from aggregator.extensions.authority.certificate_reader import (
    CertificateError,
    certificates_in,
    issuer_id,
    key_id,
    private_key_in,
    validity,
)
from aggregator.extensions.authority.certificates import (
    Authority,
    Role,
    list_validity,
    revocation_list,
    revocations,
)
from aggregator.extensions.authority.record import GRACE, Record, devices_of_former, opened
from aggregator.extensions.authority.record_entries import IssuedCertificate
from edge_sdk.app.permissions import make_private_folder, open_private, require_private
from edge_sdk.errors import USAGE, Failure

CERTIFICATE, KEY, REVOKED = "ca.pem", "ca.key", "revoked.pem"
# while the authority is replaced: key and certificate of the next one, then the former certificate
NEXT = "next.pem"
# validity of a list of revoked certificates, unless the operator chooses another one
LIST_LIFETIME = timedelta(days=30)


class AuthorityError(Failure):
    """Error of an authority's folder; nothing was issued or revoked."""

    exit_code: ClassVar[int] = USAGE


def create(
    folder: Path,
    name: str,
    now: datetime,
    lifetime: timedelta,
    passphrase: bytes = b"",
    *,
    who: str = "",
    token: str = "",
) -> Path:
    """Make an authority in a folder, with an empty list of revoked certificates.

    The key is made in the folder, or is the one in a token that the URI ``token`` names.

    An act of an operator, whose name is ``who``, is kept for the audit log; so in ``issue`` and ``revoke``.

    Returns:
        Path of its certificate.

    Raises:
        AuthorityError: There is one already, or the name does not fit.
    """
    if (folder / CERTIFICATE).exists() or (folder / KEY).exists():
        raise AuthorityError(
            f"{folder}: there is an authority here already", hint="choose another folder"
        )
    try:
        key = x509.load_key(token.encode()) if token else x509.new_key()
        authority = x509.new_authority(name, key, now, lifetime)
    except CertificateError as error:
        raise AuthorityError(f"ca init: {error}") from error
    make_private_folder(folder)
    with locked(folder):
        _write(folder / KEY, x509.key_pem(key, passphrase), is_private=True)
        _write(folder / CERTIFICATE, x509.pem_of(authority.certificate))
        with opened(folder) as record:
            digest = x509.fingerprint_of(authority.certificate)
            record.add_act(text_of(now), who, "make authority", name, f"SHA-256 {digest}")
            publish(folder, record, authority, now, LIST_LIFETIME)
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
    who: str = "",
    grace: timedelta = GRACE,
) -> tuple[Path, Path | None]:
    """Issue a certificate; without a request also make its private key.

    While the authority is replaced, the next one issues those of clients, and those of a broker once no device
    waits that may not trust it yet; ``grace`` is the time after which an expired device does not count.

    Returns:
        Paths of the certificate and of the key; None where the holder has the key.

    Raises:
        AuthorityError: The name has a valid certificate and this is no renewal, a file would be
            overwritten, or the request, key or host is refused.
    """
    with locked(folder), opened_authority(folder, passphrase) as (authority, record):
        before = [one for one in record.certificates(name) if one.is_valid(now)]
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
        by = _issuer_of(authority, record, role, now, grace)
        try:
            public = private.public_key() if private else x509.request_key(request or b"")
            made = x509.issue(by, name, role, public, now=now, lifetime=lifetime, hosts=hosts)
        except CertificateError as error:
            raise AuthorityError(f"ca issue {name}: {error}") from error
        with record.transaction():
            record.add(entry := entry_of(made, name, role, now))
            if who:
                detail = f"{role}, serial {entry.serial}, until {entry.expires}"
                record.add_act(text_of(now), who, "issue certificate", name, detail)
        target.mkdir(parents=True, exist_ok=True)
        if private is not None:
            _write(files[1], x509.key_pem(private), is_private=True)
        _write(files[0], x509.pem_of(made))
    return files[0], files[1] if private is not None else None


def _issuer_of(
    authority: Authority, record: Record, role: Role, now: datetime, grace: timedelta
) -> Authority:
    following = authority.following
    if following is None or role == "est":  # of which a device may have learned nothing yet
        return authority
    if role == "broker" and devices_of_former(record, following.key_id, now, grace):
        return authority
    return following


def entry_of(made: x509.Certificate, name: str, role: str, now: datetime) -> IssuedCertificate:
    serial, until = f"{made.serial_number:x}", text_of(validity(made)[1])
    return IssuedCertificate(serial, name, role, text_of(now), until, issuer=issuer_id(made))


def revoke(
    folder: Path,
    name: str,
    now: datetime,
    lifetime: timedelta,
    passphrase: bytes = b"",
    *,
    who: str = "",
) -> list[IssuedCertificate]:
    """Revoke all valid certificates of a name, write the list, and return them."""
    with locked(folder), opened_authority(folder, passphrase) as (authority, record):
        found = [one for one in record.certificates(name) if one.is_valid(now)]
        member = record.member(name)
        if not found and (member is None or member.state == "revoked"):
            known = sorted({one.name for one in record.certificates() if one.is_valid(now)})
            listed = ", ".join(known[:10]) or "none"
            raise AuthorityError(
                f"{name}: has no valid certificate of this authority; valid: {listed}"
            )
        shut_out(record, name, now, who)
        publish(folder, record, authority, now, lifetime)
    return found


def revoke_all(
    folder: Path,
    names: Sequence[str],
    now: datetime,
    lifetime: timedelta,
    passphrase: bytes = b"",
    *,
    who: str = "",
) -> None:
    """Revoke the certificates of several names, those without any included, and write the list."""
    with locked(folder), opened_authority(folder, passphrase) as (authority, record):
        for name in names:
            shut_out(record, name, now, who)
        publish(folder, record, authority, now, lifetime)


def shut_out(record: Record, name: str, now: datetime, who: str = "") -> None:
    """Revoke every valid certificate of a name, its unused password, and its membership."""
    with record.transaction():
        valid = [one for one in record.certificates(name) if one.is_valid(now)]
        for one in valid:
            record.revoke(one.serial, text_of(now))
        if who and valid:
            serials = ", ".join(one.serial for one in valid)
            record.add_act(text_of(now), who, "revoke certificates", name, f"serials {serials}")
        if member := record.member(name):
            record.put_member(replace(member, state="revoked", pending="", approved=""))
        for listed in record.all_listed():
            if listed.name == name and not listed.used:
                record.use(listed.serial, text_of(now), "revoked")


def renew_list(folder: Path, now: datetime, lifetime: timedelta, passphrase: bytes = b"") -> Path:
    """Write the list of revoked certificates again, valid from now."""
    with locked(folder), opened_authority(folder, passphrase) as (authority, record):
        publish(folder, record, authority, now, lifetime)
    return folder / REVOKED


def renew_list_in_time(folder: Path, now: datetime, passphrase: bytes = b"") -> bool:
    """Write the list of revoked certificates again if half of its validity is over, or it is missing.

    Its validity stays what it was. Returns whether it was written.
    """
    span = None
    with suppress(FileNotFoundError, CertificateError):
        span = list_validity((folder / REVOKED).read_bytes())
    lifetime = LIST_LIFETIME if span is None else span[1] - span[0] - x509.SKEW
    if span is not None and span[1] - now > lifetime / 2:
        return False
    renew_list(folder, now, lifetime, passphrase)
    return True


def issued(folder: Path) -> list[IssuedCertificate]:
    """Return the issued certificates, oldest first, with revocations applied."""
    require_authority(folder)
    with opened(folder) as record:
        return record.certificates()


def publish(
    folder: Path, record: Record, authority: Authority, now: datetime, lifetime: timedelta
) -> None:
    """Write the list of revoked certificates, signed by the authority and by the one that replaces it."""
    revoked, number = revocations(record.certificates(), now), int(now.timestamp() * 1000)
    signers = [one for one in (authority, authority.following) if one is not None]
    lists = [revocation_list(one, revoked, number, now, lifetime) for one in signers]
    _write(folder / REVOKED, b"".join(map(x509.pem_of, lists)))


@contextmanager
def opened_authority(folder: Path, passphrase: bytes = b"") -> Iterator[tuple[Authority, Record]]:
    """Load the authority of a folder, and open its record for the duration of a block."""
    authority = load_folder(folder, passphrase)
    with opened(folder) as record:
        yield authority, record


def write_issued(path: Path, content: bytes, *, is_private: bool = False) -> None:
    """Replace a file at once, durably; a private one is readable by its owner only."""
    _write(path, content, is_private=is_private)


def load_folder(folder: Path, passphrase: bytes = b"") -> Authority:
    """Return the authority of a folder, with the one that replaces it once it is trusted too."""
    found = _loaded(folder, CERTIFICATE, KEY, passphrase)
    following = load_next(folder, passphrase)
    if following is None or following.key_id == found.key_id:
        return found
    trusted = map(key_id, certificates_in((folder / CERTIFICATE).read_bytes()))
    return replace(found, following=following) if following.key_id in trusted else found


def load_next(folder: Path, passphrase: bytes = b"") -> Authority | None:
    """Return the authority that replaces the present one; None while none does."""
    path = folder / NEXT
    if not path.exists():
        return None
    require_private(path)
    content = path.read_bytes()
    try:
        return x509.load_authority(content, private_key_in(content), passphrase)
    except CertificateError as error:
        raise AuthorityError(
            f"{path}: {error}", hint="a key with a passphrase needs --passphrase-file"
        ) from error


def require_authority(folder: Path) -> None:
    """Refuse a folder without an authority."""
    if not (folder / CERTIFICATE).exists():
        raise AuthorityError(
            f"{folder}: there is no authority here", hint=f"gridfed-aggregator ca init {folder}"
        )


def _loaded(folder: Path, file: str, key_file: str, passphrase: bytes) -> Authority:
    try:
        require_private(folder / key_file)
        certificate, key = (folder / file).read_bytes(), (folder / key_file).read_bytes()
        return x509.load_authority(certificate, key, passphrase)
    except FileNotFoundError:
        raise AuthorityError(
            f"{folder}: there is no authority here", hint=f"gridfed-aggregator ca init {folder}"
        ) from None
    except CertificateError as error:
        raise AuthorityError(
            f"{folder}: {error}", hint="a key with a passphrase needs --passphrase-file"
        ) from error


def _write(path: Path, content: bytes, *, is_private: bool = False) -> None:
    """Replace a file at once: a broker may read it at any time."""
    part = path.with_name(f"{path.name}.part")
    with open_private(part, "wb") if is_private else part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if not is_private:
        part.chmod(0o644)
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time issue and revoke."""
    if not folder.is_dir():
        raise AuthorityError(
            f"{folder}: there is no authority here", hint=f"gridfed-aggregator ca init {folder}"
        )
    with open_private(folder / "lock", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def text_of(moment: datetime) -> str:
    """Return a time as the record has it: ISO 8601 in UTC, in seconds."""
    return moment.astimezone(UTC).isoformat(timespec="seconds")
