"""Replace an authority by another one in steps, each of which may be repeated after a kill.

The next authority is one file of the folder, ``next.pem``, until the replacement is complete; its presence
decides what is next. ``announced.pem`` has the authorities that the root names in its list of keys, the one that
issues first. ``ca.pem``, which broker and aggregator trust, has both meanwhile.
"""

from __future__ import annotations

import re
import socket
import ssl
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

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
from aggregator.extensions.authority.record import devices_of_former, opened, servers_of_former
from edge_sdk.errors import USAGE, Failure
from edge_sdk.link.tls_files import load
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
    """Make the next authority alone in the root's next list of keys; raise AuthorityError if none waits."""
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


SHOWN = 10  # names in a sentence
PATIENCE = 10.0  # s for the broker to answer
MQTTS_PORT = 8883


class AuthorityInUseError(Failure):
    """The authority cannot be replaced, or not yet."""

    exit_code = USAGE


def authority_folder(config: AggregatorConfig) -> Path:
    """Return the folder of the fleet's authority."""
    folder: Path | None = config.section("ca").folder
    if folder is None:
        raise AuthorityInUseError(
            f"{config.file.name}: ca.folder: missing: the authority is not here",
            hint="an authority of another program is replaced there; devices and broker need its ca.pem",
        )
    return folder


def passphrase_of(config: AggregatorConfig) -> bytes:
    """Return the passphrase of the authority's key; empty without one."""
    path = config.section("ca").passphrase_file
    return b"" if path is None else path.read_bytes().strip()


def refuse_while_needed(config: AggregatorConfig, now: datetime) -> None:
    """Refuse to take the former authority out while a device, the broker or the aggregator needs it.

    Raises:
        AuthorityInUseError: A member has no certificate of the next one, or the broker still presents its former one.
    """
    folder = authority_folder(config)
    following = next_authority(folder)
    if following is None:
        raise AuthorityInUseError("rotate ca --finish: no replacement waits to be finished")
    with opened(folder) as record:
        grace = timedelta(days=config.section("ca").grace_days)
        devices = devices_of_former(record, following.key_id, now, grace)
        servers = servers_of_former(record, following.key_id, now)
    if devices:
        more = f" and {len(devices) - SHOWN} more" if len(devices) > SHOWN else ""
        raise AuthorityInUseError(
            "rotate ca --finish: these devices have a certificate of the former authority: "
            f"{', '.join(devices[:SHOWN])}{more}",
            hint="wait until they have renewed (gridfed-aggregator ca status), or revoke those that never will",
        )
    if servers:
        names = ", ".join(one.name for one in servers)
        commands = "; ".join(_command(one.name, one.role, folder) for one in servers)
        raise AuthorityInUseError(
            f"rotate ca --finish: {names}: the certificate is of the former authority",
            hint=f"{commands}; then restart broker and daemon",
        )
    _check_broker(config, following.pem)


def _command(name: str, role: str, folder: Path) -> str:
    hosts = " --host HOST" if role == "broker" else ""
    return f"gridfed-aggregator ca issue {name} --role {role}{hosts} --renew --folder {folder}"


def _check_broker(config: AggregatorConfig, pem: bytes) -> None:
    """Refuse if the broker presents a certificate that devices will no longer accept."""
    section = config.broker
    if not section.url.startswith("mqtts:"):
        return
    parts = urlsplit(section.url)
    host = parts.hostname or ""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    load(context, cert=section.cert_file, key=section.key_file)
    context.load_verify_locations(cadata=pem.decode("ascii"))
    try:
        with (
            socket.create_connection((host, parts.port or MQTTS_PORT), PATIENCE) as raw,
            context.wrap_socket(raw, server_hostname=host),
        ):
            return
    except ssl.SSLCertVerificationError as error:
        raise AuthorityInUseError(
            f"rotate ca --finish: {section.url}: the broker presents a certificate that devices would refuse: "
            f"{error.verify_message}",
            hint="restart the broker: its new certificate is issued",
        ) from error
    except OSError as error:
        raise AuthorityInUseError(
            f"rotate ca --finish: {section.url}: {error}",
            hint="start the broker: its certificate is checked before the former authority is taken out",
        ) from error
