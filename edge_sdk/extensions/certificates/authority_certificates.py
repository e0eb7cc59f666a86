"""Read the certificates of authorities, as a file of them or a list of keys has them."""

from __future__ import annotations

import hashlib
import re
import ssl
from typing import TYPE_CHECKING, Final

from edge_sdk.extensions.certificates.certificate_request import CertificateAnswerError

if TYPE_CHECKING:
    from cryptography import x509

_BLOCK: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def certificates_of(pem: bytes) -> list[bytes]:
    """Return the certificates of a PEM file as DER, in order, each once; other blocks are skipped.

    Raises:
        CertificateAnswerError: A block is not base64.
    """
    try:
        found = [ssl.PEM_cert_to_DER_cert(block.decode("ascii")) for block in _BLOCK.findall(pem)]
    except ValueError as error:
        raise CertificateAnswerError(f"no certificate: {error}") from error
    return list(dict.fromkeys(found))


def pem_of(certificates: list[bytes]) -> bytes:
    return "".join(ssl.DER_cert_to_PEM_cert(der) for der in certificates).encode()


def digest_of(der: bytes) -> str:
    """Return the SHA-256 of a certificate as hexadecimal digits.

    >>> digest_of(b"")[:16]
    'e3b0c44298fc1c14'
    """
    return hashlib.sha256(der).hexdigest()


def authority_key(der: bytes) -> str:
    """Return the identifier of an authority's key, as hexadecimal digits.

    Raises:
        CertificateAnswerError: The bytes are no certificate, or one that may not issue others.

    >>> authority_key(b"no certificate")
    Traceback (most recent call last):
    edge_sdk.extensions.certificates.certificate_request.CertificateAnswerError: no certificate of an authority
    """
    from cryptography import x509  # noqa: PLC0415 - only where an authority is replaced

    try:
        found = x509.load_der_x509_certificate(der)
        may_issue = found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        key = x509.SubjectKeyIdentifier.from_public_key(_checked(found).public_key())
    except Exception as error:  # the library raises its own errors, of several kinds
        raise CertificateAnswerError("no certificate of an authority") from error
    if not may_issue:
        raise CertificateAnswerError("the certificate may not issue others")
    return key.digest.hex()


def issuer_key(pem: bytes) -> str:
    """Return the identifier of the key that has signed a PEM file's first certificate.

    Empty where the certificate does not name it, or there is none.
    """
    from cryptography import x509  # noqa: PLC0415 - as above

    try:
        found = x509.load_der_x509_certificate(certificates_of(pem)[0])
        named = found.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    except Exception:  # noqa: BLE001 - as above
        return ""
    return (named.key_identifier or b"").hex()


def _checked(certificate: x509.Certificate) -> x509.Certificate:
    if certificate.issuer != certificate.subject:
        raise ValueError("not a certificate of its own")
    return certificate
