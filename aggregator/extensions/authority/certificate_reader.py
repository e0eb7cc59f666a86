"""Read certificates: holder, hosts, dates, key and issuer. Nothing here reads a disk or clock."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from edge_sdk.extensions.tokens.pkcs11_uri import SCHEME

_BLOCK: Final = re.compile(rb"-----BEGIN ([A-Z ]+)-----.+?-----END \1-----\r?\n?", re.DOTALL)


class CertificateError(ValueError):
    """A name, key, date or request that no certificate is issued for; the message says which."""


def certificates_in(pem: bytes) -> list[x509.Certificate]:
    """Return the certificates of a PEM file, in order; other blocks are skipped."""
    blocks = [found[0] for found in _BLOCK.finditer(pem) if found[1] == b"CERTIFICATE"]
    try:
        made = [x509.load_pem_x509_certificate(block) for block in blocks]
    except (ValueError, TypeError, x509.InvalidVersion) as error:
        raise CertificateError(f"a certificate cannot be read: {error}") from error
    if not made:
        raise CertificateError("no certificate in it")
    return made


def private_key_in(pem: bytes) -> bytes:
    """Return the private key's block of a PEM file, or the URI of one in a token; empty without one."""
    if pem.startswith(SCHEME.encode()):
        return pem.partition(b"\n")[0]
    blocks = (found[0] for found in _BLOCK.finditer(pem) if found[1].endswith(b"PRIVATE KEY"))
    return next(blocks, b"")


def key_id(certificate: x509.Certificate) -> str:
    return x509.SubjectKeyIdentifier.from_public_key(certificate.public_key()).digest.hex()


def issuer_id(certificate: x509.Certificate) -> str:
    """Return the identifier of the key that has signed a certificate; empty if it names none."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    except (ValueError, x509.ExtensionNotFound):
        return ""
    return (found.key_identifier or b"").hex()


def common_name(certificate: x509.Certificate) -> str:
    """Return the common name; empty without one."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


@dataclass(frozen=True, slots=True)
class PresentedCertificate:
    """The certificate of a TLS client, whose chain was verified but not its dates."""

    serial: str
    name: str  # common name; empty without one
    issuer: str  # common name of its issuer
    expires: datetime  # end of its validity


def presented(der: bytes) -> PresentedCertificate:
    """Read a TLS client's certificate."""
    try:
        found = x509.load_der_x509_certificate(der)
        names = [
            one.get_attributes_for_oid(NameOID.COMMON_NAME) for one in (found.subject, found.issuer)
        ]
    except (ValueError, TypeError, x509.InvalidVersion) as error:
        raise CertificateError(f"not a certificate: {error}") from error
    name, issuer = (str(one[0].value) if one else "" for one in names)
    return PresentedCertificate(f"{found.serial_number:x}", name, issuer, validity(found)[1])


def described_server(pem: bytes) -> tuple[datetime, list[str], str]:
    """Return end of validity, sorted host names and addresses, and issuer of a server's certificate."""
    try:
        found = x509.load_pem_x509_certificate(pem)
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, x509.ExtensionNotFound) as error:
        raise CertificateError(f"not a server's certificate: {error}") from error
    return validity(found)[1], sorted(str(one.value) for one in names), issuer_id(found)


def validity(certificate: x509.Certificate) -> tuple[datetime, datetime]:
    """Return begin and end of a certificate's validity, in UTC."""
    return validity_of(certificate, "not_valid_before", "not_valid_after")


def validity_of(dated: object, *names: str) -> tuple[datetime, datetime]:
    """Return two dates of a certificate or list in UTC, by the names of its attributes.

    Those with a time zone are of the library's version 42; Debian 12 has 38.
    """
    zone = "_utc" if hasattr(dated, f"{names[0]}_utc") else ""
    begin, end = (getattr(dated, name + zone) for name in names)
    if end is None:
        raise CertificateError("expected an end of validity, got none")
    return begin.replace(tzinfo=UTC), end.replace(tzinfo=UTC)
