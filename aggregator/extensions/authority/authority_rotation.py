"""Check that the fleet no longer needs the authority that is being replaced."""

from __future__ import annotations

import socket
import ssl
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

from aggregator.config import AggregatorConfig
from aggregator.extensions.authority.authority_replacement import next_authority
from aggregator.extensions.authority.former_certificates import devices_of_former, servers_of_former
from aggregator.extensions.authority.record import opened
from edge_sdk.errors import USAGE, Failure
from edge_sdk.link.tls_files import load

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
