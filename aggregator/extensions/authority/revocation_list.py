"""Build and read lists of revoked certificates (RFC 5280). Nothing here reads a disk or clock."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from aggregator.extensions.authority.certificate_reader import CertificateError, validity_of
from aggregator.extensions.authority.certificates import SKEW, Authority, issuer_key
from aggregator.extensions.authority.issued_certificate import IssuedCertificate


def revocations(issued: Iterable[IssuedCertificate], now: datetime) -> list[tuple[int, datetime]]:
    """Return serial number and time of revocation of each certificate that a list has to name.

    What expired more than a day ago is left out: no server accepts those certificates.
    """
    return [
        (int(one.serial, 16), datetime.fromisoformat(one.revoked))
        for one in issued
        if one.revoked and now < datetime.fromisoformat(one.expires) + timedelta(days=1)
    ]


def revocation_list(
    authority: Authority,
    revoked: Iterable[tuple[int, datetime]],
    number: int,
    now: datetime,
    lifetime: timedelta,
) -> x509.CertificateRevocationList:
    """Return the list of revoked certificates.

    Args:
        revoked: Serial numbers, each with the time of its revocation.
        number: Number of the list; rises with every one.
        now: Present time, with a time zone.
        lifetime: Time until the next list is due; a broker refuses every client after that.
    """
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.certificate.subject)
        .last_update(now - SKEW)
        .next_update(now + lifetime)
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(issuer_key(authority), critical=False)
    )
    for serial, at in revoked:
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(at).build()
        builder = builder.add_revoked_certificate(entry)
    return builder.sign(authority.key, hashes.SHA256())


def list_validity(pem: bytes) -> tuple[datetime, datetime]:
    """Return begin and end of a revocation list's validity, in UTC."""
    try:
        found = x509.load_pem_x509_crl(pem)
    except (ValueError, TypeError) as error:
        raise CertificateError(f"not a revocation list: {error}") from error
    return validity_of(found, "last_update", "next_update")
