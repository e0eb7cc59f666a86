"""Replace an authority by another one in steps, each of which may be repeated after a kill.

The next authority is one file of the folder, ``next.pem``, until the replacement is complete; its presence
decides what is next. ``announced.pem`` has the authorities that the root names in its list of keys, the one that
issues first. ``ca.pem``, which broker and aggregator trust, has both meanwhile.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from aggregator.config import AggregatorConfig
from aggregator.extensions.authority import certificates as x509
from aggregator.extensions.authority.certificate_reader import (
    CertificateError,
    certificates_in,
    common_name,
    key_id,
)
from aggregator.extensions.authority.certificates import Authority, Certificate, PrivateKey
from aggregator.extensions.authority.folder import (
    CERTIFICATE,
    KEY,
    NEXT,
    AuthorityError,
    load_folder,
    load_next,
    locked,
    publish,
    write_issued,
)
from aggregator.extensions.authority.record import opened
from edge_sdk.protocol.messages import CA_SIZE

ANNOUNCED: Final = "announced.pem"
LIST_DAYS: Final = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class NextAuthority:
    """Certificate of the authority that replaces the present one."""

    key_id: str  # identifier of its key, as hexadecimal digits
    name: str
    pem: bytes


def next_authority(folder: Path) -> NextAuthority | None:
    """Return the next authority without its key, which may have a passphrase; None while there is none."""
    path = folder / NEXT
    if not path.exists():
        return None
    found = certificates_in(path.read_bytes())[0]
    return NextAuthority(key_id(found), common_name(found), x509.pem_of(found))


def announced_authorities(config: AggregatorConfig) -> tuple[bytes, ...]:
    """Return the authorities in the root's list of keys, as DER, the issuing one first.

    Empty until the first replacement: devices then keep the authority that the operator gave them.
    """
    folder = config.section("ca").folder
    if folder is None or not (folder / ANNOUNCED).exists():
        return ()
    return tuple(x509.der_of(one) for one in certificates_in((folder / ANNOUNCED).read_bytes()))


def begin(
    folder: Path, now: datetime, lifetime: timedelta, passphrase: bytes = b"", token: str = ""
) -> Authority:
    """Make the next authority, or continue with the one that was made; return it.

    Its key is made in the folder, or is the one in a token that the URI ``token`` names.

    Raises:
        AuthorityError: There is no authority in the folder, or the replacement is being finished already.
    """
    with locked(folder):
        present = load_folder(folder, passphrase)
        following = load_next(folder, passphrase)
        if following is None:
            key = _next_key(token)
            following = _make_next(folder, present, key, passphrase, now=now, lifetime=lifetime)
        if following.key_id == present.key_id:
            raise AuthorityError(
                "rotate ca: the former authority is being taken out",
                hint="complete it: gridfed-aggregator rotate ca --finish",
            )
        both = [following.certificate, present.certificate]
        trusted = certificates_in((folder / CERTIFICATE).read_bytes())
        _write(folder / CERTIFICATE, [*trusted, following.certificate])
        with opened(folder) as record:
            publish(folder, record, replace(present, following=following), now, LIST_DAYS)
        _write(folder / ANNOUNCED, both)
    return following


def announce_alone(folder: Path, passphrase: bytes = b"") -> Authority:
    """Make the next authority the only one in the root's next list of keys; return it.

    Raises:
        AuthorityError: No replacement waits to be finished.
    """
    with locked(folder):
        following = load_next(folder, passphrase)
        if following is None:
            raise AuthorityError("rotate ca --finish: no replacement waits to be finished")
        _write(folder / ANNOUNCED, [following.certificate])
    return following


def complete(folder: Path, now: datetime, passphrase: bytes = b"") -> None:
    """Install the next authority once the root names only it, and delete the former key."""
    with locked(folder):
        following = load_next(folder, passphrase)
        if following is None:
            return
        gone = {key_id(one) for one in certificates_in((folder / NEXT).read_bytes())[1:]}
        write_issued(folder / KEY, x509.key_pem(following.key, passphrase), is_private=True)
        trusted = certificates_in((folder / CERTIFICATE).read_bytes())
        kept = [one for one in trusted if key_id(one) not in gone]
        _write(folder / CERTIFICATE, [following.certificate, *kept])
        with opened(folder) as record:
            publish(folder, record, following, now, LIST_DAYS)
        (folder / NEXT).unlink()


def _next_key(token: str) -> PrivateKey:
    try:
        return x509.load_key(token.encode()) if token else x509.new_key()
    except CertificateError as error:
        raise AuthorityError(f"rotate ca: {error}") from error


def _make_next(
    folder: Path,
    present: Authority,
    key: PrivateKey,
    passphrase: bytes,
    *,
    now: datetime,
    lifetime: timedelta,
) -> Authority:
    name = _next_name(common_name(present.certificate))
    made = x509.new_authority(name, key, now, lifetime)
    if len(x509.der_of(present.certificate)) > CA_SIZE:
        raise AuthorityError(f"{folder}: the authority's certificate has more than {CA_SIZE} bytes")
    certificates = map(x509.pem_of, (made.certificate, present.certificate))
    content = x509.key_pem(made.key, passphrase) + b"".join(certificates)
    write_issued(folder / NEXT, content, is_private=True)
    return made


def _next_name(name: str) -> str:
    """Return a name that differs, so that certificates name their issuer.

    >>> _next_name("North grid"), _next_name("North grid 2")
    ('North grid 2', 'North grid 3')
    >>> len(_next_name("x" * 64))
    64
    """
    found = re.fullmatch(r"(.*) (\d{1,9})", name)
    base, number = (found[1], int(found[2]) + 1) if found else (name, 2)
    end = f" {number}"
    return f"{base[: 64 - len(end)]}{end}"


def _write(path: Path, certificates: list[Certificate]) -> None:
    lines = dict.fromkeys(x509.pem_of(one) for one in certificates)
    write_issued(path, b"".join(lines))
