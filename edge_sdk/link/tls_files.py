"""Load the files of a TLS link, and name the two ends of one."""

from __future__ import annotations

import re
import ssl
from os import PathLike
from pathlib import Path
from typing import TypeVar

from edge_sdk.protocol.topics import AGGREGATOR, is_device_id, is_fleet_id

Context = TypeVar("Context", bound=ssl.SSLContext)
Name = str | PathLike[str]


def load(
    context: Context, ca: Name | None = None, cert: Name | None = None, key: Name | None = None
) -> Context:
    """Require TLS 1.2 or later in a context, and load PEM files into it; return the context.

    Args:
        context: Context of a client or of a server.
        ca: File of the authority to trust.
        key: File of its private key; None where the certificate's file has it.

    Raises:
        OSError: A file cannot be read or is invalid; the message names the files.
    """
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if ca is not None:
            context.load_verify_locations(cafile=ca)
        if cert is not None:
            context.load_cert_chain(cert, key)
    except OSError as error:
        named = ", ".join(str(file) for file in (ca, cert, key) if file)
        raise OSError(f"cannot use the TLS files {named}: {error}") from error
    return context


def mark_of(path: Path) -> object:
    """Return a value that changes when a file is written or replaced; None while there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


NAME_LIMIT = 64
"""Characters of a certificate's common name (X.509, ``ub-common-name``)."""

_CERTIFICATE = re.compile(
    rb"-----BEGIN (X509 )?CERTIFICATE-----.*?-----END \1?CERTIFICATE-----", re.DOTALL
)


def qualified(fleet: str, name: str) -> str:
    """Return the name of a device or aggregator on a broker that several fleets share.

    Raises:
        ValueError: The name is longer than a certificate's common name may be.

    >>> qualified("north", "meter-1"), qualified("north", "_agg")
    ('north.meter-1', 'north._agg')
    """
    text = f"{fleet}.{name}"
    if len(text) > NAME_LIMIT:
        raise ValueError(
            f"{text!r} has {len(text)} characters; a certificate's name has at most {NAME_LIMIT}: "
            "choose a shorter fleet or device id"
        )
    return text


def unqualified(name: str) -> tuple[str, str]:
    """Return fleet and device of a name; the fleet is empty if the name is not qualified.

    >>> unqualified("north.meter-1"), unqualified("meter-1"), unqualified("north.a.b")
    (('north', 'meter-1'), ('', 'meter-1'), ('', 'north.a.b'))
    """
    fleet, _, device = name.partition(".")
    is_known = device == AGGREGATOR or is_device_id(device)
    return (fleet, device) if is_fleet_id(fleet) and is_known else ("", name)


def client_id_of(fleet: str, name: str, certificate: str | PathLike[str] | None) -> str:
    """Return the MQTT client id: the certificate's common name, or the qualified name without one.

    Mosquitto takes the client id from the certificate anyway (``use_username_as_clientid``), and a
    certificate from before fleets were qualified keeps its session. A file without a readable
    certificate gives the qualified name; the link then refuses the file by name.
    """
    found = "" if certificate is None else _common_name(Path(certificate))
    return found or f"{fleet}.{name}"


def _common_name(path: Path) -> str:
    """Return the common name of a PEM file's first certificate; empty if it has none."""
    from cryptography import x509  # noqa: PLC0415 - only where a link has a certificate

    try:
        block = _CERTIFICATE.search(path.read_bytes())
        if block is None:
            return ""
        subject = x509.load_pem_x509_certificate(block[0]).subject
        names = subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    except (OSError, ValueError, TypeError, x509.InvalidVersion):
        return ""
    return str(names[0].value) if names else ""
