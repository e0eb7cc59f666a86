"""Make a device's TLS key and certificate request (PKCS #10), and parse the answer of an EST server.

The request proves the device's identity: its attribute ``unstructuredName`` (RFC 2985, section 5.4.3)
contains the identity key and its signature over the request's public key. A server that expects
something else there ignores it, and no certificate contains it.
"""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import WireError
from edge_sdk.link.tls_files import qualified
from edge_sdk.protocol.keys import SIGNATURE_SIZE, Signer
from edge_sdk.protocol.public_key import SIZES
from edge_sdk.protocol.statements import enrolment_statement, succession_statement

if TYPE_CHECKING:
    from cryptography import x509

PROOF_PREFIX: Final = b"gridfed-identity:"
"""Begin of the attribute; the identity key and its signature follow in base64url.

The signature of the former identity key may follow, after a full stop.
"""

_SEPARATOR: Final = b"."


class CertificateAnswerError(WireError):
    """An error: bytes that are no key, certificate or answer of an EST server."""


def new_tls_key() -> bytes:
    """Return a new private key on the curve P-256, as unencrypted PEM (PKCS #8)."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - only to renew
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - as above

    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def certificate_request(
    key: bytes,
    fleet: str,
    device: str,
    signer: Signer,
    *,
    former: Signer | None = None,
    is_shared: bool = False,
) -> bytes:
    """Return a request for a device's certificate, signed by its TLS key and by its identity key.

    Args:
        key: Private TLS key, PEM.
        device: Id of the device, the common name.
        former: Identity key that ``signer`` is to replace; None without one.
        is_shared: The common name is ``FLEET.DEVICE``, for a broker that fleets share.

    Returns:
        DER bytes.

    Raises:
        ValueError: The name is too long.
    """
    from cryptography import x509  # noqa: PLC0415 - only to renew
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415 - as above

    private = _private(key)
    spki = private.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    proof = signer.sign(enrolment_statement(fleet, device, signer.public, request=spki))
    identity = PROOF_PREFIX + base64.urlsafe_b64encode(signer.public + proof)
    if former is not None:
        succession = succession_statement(fleet, device, signer.public, request=spki)
        identity += _SEPARATOR + base64.urlsafe_b64encode(former.sign(succession))
    name = qualified(fleet, device) if is_shared else device
    return (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
        .add_attribute(x509.oid.AttributeOID.UNSTRUCTURED_NAME, identity)
        .sign(private, hashes.SHA256())
        .public_bytes(serialization.Encoding.DER)
    )


def identity_in(value: bytes) -> tuple[bytes, bytes]:
    """Return identity key and signature of the attribute's value; both empty if it has neither.

    Raises:
        CertificateAnswerError: The value begins as a proof does and has another form.

    >>> [len(part) for part in identity_in(PROOF_PREFIX + 128 * b"A")]
    [32, 64]
    >>> identity_in(b"router-7.example")
    (b'', b'')
    >>> [len(part) for part in identity_in(PROOF_PREFIX + base64.urlsafe_b64encode(bytes(97)))]
    [33, 64]
    """
    if not value.startswith(PROOF_PREFIX):
        return b"", b""
    sizes = [size + SIGNATURE_SIZE for size in SIZES]
    raw = _decoded(value.removeprefix(PROOF_PREFIX).partition(_SEPARATOR)[0])
    if len(raw) not in sizes:
        text = " or ".join(map(str, sizes))
        raise CertificateAnswerError(f"expected {text} bytes in base64url as proof of identity")
    return raw[:-SIGNATURE_SIZE], raw[-SIGNATURE_SIZE:]


def succession_in(value: bytes) -> bytes:
    """Return the signature of the former identity key in the attribute's value; empty without one.

    Raises:
        CertificateAnswerError: The value begins as a proof does, and has another signature.

    >>> proof = PROOF_PREFIX + 128 * b"A"
    >>> succession_in(proof), len(succession_in(proof + b"." + base64.urlsafe_b64encode(bytes(64))))
    (b'', 64)
    """
    _, separator, given = value.partition(_SEPARATOR)
    if not value.startswith(PROOF_PREFIX) or not separator:
        return b""
    raw = _decoded(given)
    if len(raw) != SIGNATURE_SIZE:
        raise CertificateAnswerError(
            f"expected {SIGNATURE_SIZE} bytes in base64url as signature of the former identity"
        )
    return raw


def _decoded(text: bytes) -> bytes:
    """Return the bytes of a base64url text; empty if it is none."""
    try:
        return base64.b64decode(text, b"-_", validate=True)
    except ValueError:
        return b""


@dataclass(frozen=True, slots=True)
class IssuedToDevice:
    """A certificate that an EST server answered."""

    pem: bytes
    name: str  # common name; empty without one
    since: float  # start of its validity, Unix seconds
    until: float  # end of its validity, Unix seconds


def certificates_in(pkcs7: bytes) -> list[bytes]:
    """Return the certificates of a certs-only PKCS #7 answer, each as PEM."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - only to renew
    from cryptography.hazmat.primitives.serialization import pkcs7 as form  # noqa: PLC0415

    try:
        found = form.load_der_pkcs7_certificates(pkcs7)
    except Exception as error:  # the library raises its own errors, of several kinds
        raise CertificateAnswerError(
            f"the answer is no PKCS #7 of certificates: {error}"
        ) from error
    return [one.public_bytes(serialization.Encoding.PEM) for one in found]


def issued_for(key: bytes, certificates: list[bytes], name: str) -> IssuedToDevice:
    """Return the certificate of a key among those of an answer.

    Raises:
        CertificateAnswerError: None is of this key, or it names another device.
    """
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - only to renew

    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    wanted = _private(key).public_key().public_bytes(serialization.Encoding.DER, spki)
    for pem in certificates:
        found = _certificate(pem)
        if found.public_key().public_bytes(serialization.Encoding.DER, spki) == wanted:
            issued = described(pem)
            if issued.name != name:
                raise CertificateAnswerError(
                    f"the certificate names {issued.name!r}, expected {name!r}"
                )
            return issued
    raise CertificateAnswerError("the answer has no certificate of this device's key")


def described(pem: bytes) -> IssuedToDevice:
    """Return name and validity of a PEM file's first certificate."""
    from cryptography import x509  # noqa: PLC0415 - only to renew

    found = _certificate(pem)
    names = found.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    name = str(names[0].value) if names else ""
    return IssuedToDevice(
        pem, name, _moment(found, "not_valid_before"), _moment(found, "not_valid_after")
    )


def fingerprint(pem: bytes) -> str:
    """Return the SHA-256 of a certificate, as hexadecimal digits."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - only to renew

    return hashlib.sha256(_certificate(pem).public_bytes(serialization.Encoding.DER)).hexdigest()


def _certificate(pem: bytes) -> x509.Certificate:
    from cryptography import x509  # noqa: PLC0415 - only to renew

    try:
        return x509.load_pem_x509_certificate(pem)
    except (ValueError, TypeError, x509.InvalidVersion) as error:
        raise CertificateAnswerError(f"no certificate: {error}") from error


def _private(key: bytes) -> Any:  # noqa: ANN401 - a private key of cryptography
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - only to renew
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - as above

    try:
        return serialization.load_pem_private_key(key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CertificateAnswerError(f"no private key: {error}") from error


def _moment(certificate: Any, name: str) -> float:  # noqa: ANN401 - old and new names of a date
    aware = f"{name}_utc"
    date: datetime = getattr(certificate, aware if hasattr(certificate, aware) else name)
    return date.replace(tzinfo=UTC).timestamp()
