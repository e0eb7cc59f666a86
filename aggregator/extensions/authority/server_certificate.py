"""Issue and renew the certificate of the EST server itself, and return its TLS context."""

from __future__ import annotations

import ssl
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from aggregator.extensions.authority import folder as authority
from aggregator.extensions.authority.certificate_reader import described_server
from edge_sdk.link.tls_files import load

LIFETIME: Final = timedelta(days=90)
_NO_CHECK_TIME: Final = 0x200000
"""OpenSSL's flag that leaves the dates of a chain to its caller; Python has no name for it."""


def server_context(
    folder: Path, hosts: list[str], now: datetime, passphrase: bytes = b""
) -> ssl.SSLContext:
    """Return the server's TLS context; issue its certificate unless it has half its validity left.

    It is issued again by the authority that has replaced its own.

    Client certificates are optional, and their dates are not checked here: a member whose
    certificate has expired may renew it.
    """
    file = folder / "issued" / "_est.pem"
    names = [one.strip("[]") for one in hosts]
    held = described_server(file.read_bytes()) if file.exists() else None
    by = authority.load_folder(folder, passphrase).key_id
    if held is None or held[0] - now < LIFETIME / 2 or held[1:] != (sorted(names), by):
        authority.issue(
            folder,
            "_est",
            "est",
            now,
            LIFETIME,
            hosts=names,
            is_renewal=True,
            passphrase=passphrase,
        )
    authority.claims_authority(folder, now, passphrase)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load(context, folder / authority.CERTIFICATE, file, file.with_suffix(".key"))
    context.load_verify_locations(cafile=folder / authority.CLAIMS)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags |= _NO_CHECK_TIME
    context.num_tickets = 0  # a device comes once in weeks
    return context
