"""Build certificates, requests and lists of revoked certificates (X.509, RFC 5280), without disk or clock."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import pkcs7
from cryptography.x509.oid import AttributeOID, ExtendedKeyUsageOID, NameOID

from aggregator.extensions.authority.certificate_reader import (
    CertificateError,
    certificates_in,
    key_id,
    validity,
    validity_of,
)
from aggregator.extensions.authority.record_entries import IssuedCertificate
from aggregator.extensions.authority.token_key import TokenKey
from edge_sdk.extensions.certificates.certificate_request import (
    CertificateAnswerError,
    identity_in,
    succession_in,
)
from edge_sdk.extensions.tokens.pkcs11_uri import SCHEME

Certificate = x509.Certificate
Role = Literal["device", "aggregator", "broker", "est"]
SERVERS: Final = ("broker", "est")  # roles whose certificate names hosts
PublicKey = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey
PrivateKey = ec.EllipticCurvePrivateKey

# a certificate begins this long before it is issued, for clocks that are behind
SKEW = timedelta(hours=1)
MIN_RSA_BITS = 2048

_USES = {
    "device": [ExtendedKeyUsageOID.CLIENT_AUTH],
    "aggregator": [ExtendedKeyUsageOID.CLIENT_AUTH],
    "broker": [ExtendedKeyUsageOID.SERVER_AUTH],
    "est": [ExtendedKeyUsageOID.SERVER_AUTH],
}


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority: its certificate and the private key that signs."""

    certificate: x509.Certificate
    key: PrivateKey  # its private key, on the curve P-256
    # authority that replaces it, while holders of certificates change over
    following: Authority | None = None

    @property
    def key_id(self) -> str:
        return key_id(self.certificate)


def new_key() -> PrivateKey:
    """Return a new private key on the curve P-256, which every broker in use accepts."""
    return ec.generate_private_key(ec.SECP256R1())


def new_authority(name: str, key: PrivateKey, now: datetime, lifetime: timedelta) -> Authority:
    """Return an authority that may sign certificates of ends, and no other authority.

    Args:
        name: Common name, 1 to 64 characters.
        now: Present time, with a time zone.

    Raises:
        CertificateError: The name is empty or too long.
    """
    subject = _name(name)
    public = key.public_key()
    signs = _usage(signs=True)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(signs, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def issue(
    authority: Authority,
    name: str,
    role: Role,
    key: PublicKey,
    *,
    now: datetime,
    lifetime: timedelta,
    hosts: Sequence[str] = (),
) -> x509.Certificate:
    """Return the certificate of a device, an aggregator or a broker.

    Args:
        name: Common name: a device's id, ``_agg``, or a broker's first host name.
        role: Decides what the certificate may be used for: a device's cannot serve TLS.
        now: Present time, with a time zone.
        lifetime: Time that it is valid; it ends with the authority's certificate at the latest.
        hosts: Host names and addresses of a broker or an EST server.

    Raises:
        CertificateError: A server without a host, hosts of another role, an expired authority, or a
            key that is too weak.
    """
    if (role in SERVERS) != bool(hosts):
        wanted = "at least one host name or address" if role in SERVERS else "no host names"
        raise CertificateError(f"{role} {name}: expected {wanted}, got {len(hosts)}")
    last = validity(authority.certificate)[1]
    if now >= last:
        raise CertificateError(f"the authority's certificate expired on {last:%Y-%m-%d}")
    check_key(key)
    issuer = authority.certificate
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(issuer.subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(max(now - SKEW, validity(issuer)[0]))
        .not_valid_after(min(now + lifetime, last))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(_USES[role]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(issuer_key(authority), critical=False)
    )
    if hosts:
        names = x509.SubjectAlternativeName([_host(one) for one in hosts])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(authority.key, hashes.SHA256())


def request_key(pem: bytes) -> PublicKey:
    """Return the public key of a certificate request (PKCS #10) whose signature is valid.

    The name in the request is not used: the operator names the device.

    Raises:
        CertificateError: It is no request, its signature is wrong, or its key is too weak.
    """
    try:
        request = x509.load_pem_x509_csr(pem)
        is_valid = request.is_signature_valid
        key = request.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise CertificateError(f"not a certificate request in PEM: {error}") from error
    if not is_valid:
        raise CertificateError("the request's signature is not of the key in it")
    return check_key(key)


@dataclass(frozen=True, slots=True)
class CertificateRequest:
    """A certificate request (PKCS #10) with a valid signature."""

    name: str  # common name; empty without one
    key: PublicKey  # public key, strong enough for a certificate
    spki: bytes  # the key as DER (SubjectPublicKeyInfo)
    identity: bytes = b""  # identity key of a device, raw Ed25519 or P-256; empty without one
    proof: bytes = b""  # its signature, to be verified by the caller; empty without one
    # signature of the former identity key, which this one is to replace, to be verified by the
    # caller; empty without one
    succession: bytes = b""

    @property
    def key_digest(self) -> str:
        """Return the SHA-256 of the public key, as hexadecimal digits."""
        return hashlib.sha256(self.spki).hexdigest()


def read_request(der: bytes) -> CertificateRequest:
    """Read a request in DER.

    Raises:
        CertificateError: It is no request, its signature is wrong, its key is too weak, or its
            identity has another form.
    """
    try:
        request = x509.load_der_x509_csr(der)
        is_valid = request.is_signature_valid
        key = request.public_key()
        names = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        found = [
            one.value for one in request.attributes if one.oid == AttributeOID.UNSTRUCTURED_NAME
        ]
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise CertificateError(f"not a certificate request: {error}") from error
    if not is_valid:
        raise CertificateError("the request's signature is not of the key in it")
    checked = check_key(key)
    spki = _spki(checked)
    identity = proof = succession = b""
    if found:
        try:
            (identity, proof), succession = identity_in(found[0]), succession_in(found[0])
        except CertificateAnswerError as error:
            raise CertificateError(str(error)) from error
    name = str(names[0].value) if len(names) == 1 else ""
    return CertificateRequest(name, checked, spki, identity, proof, succession)


def certs_only(certificates: Sequence[x509.Certificate]) -> bytes:
    """Return certificates as a PKCS #7 message without content and signature (RFC 5652), DER."""
    return pkcs7.serialize_certificates(list(certificates), serialization.Encoding.DER)


def certificate_of(der: bytes) -> x509.Certificate:
    return x509.load_der_x509_certificate(der)


def der_of(made: x509.Certificate) -> bytes:
    return made.public_bytes(serialization.Encoding.DER)


def fingerprint_of(made: x509.Certificate) -> str:
    """Return the SHA-256 of a certificate, as hexadecimal digits."""
    return made.fingerprint(hashes.SHA256()).hex()


def check_key(key: object) -> PublicKey:
    """Return a public key that a certificate may carry.

    Raises:
        CertificateError: Another type than RSA, P-256, P-384 or Ed25519, or RSA below 2048 bits.
    """
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < MIN_RSA_BITS:
            raise CertificateError(f"RSA of {key.key_size} bits; expected at least {MIN_RSA_BITS}")
        return key
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(
        key.curve, (ec.SECP256R1, ec.SECP384R1)
    ):
        return key
    if isinstance(key, ed25519.Ed25519PublicKey):
        return key
    raise CertificateError(f"a key of {type(key).__name__}; expected RSA, P-256, P-384 or Ed25519")


def pem_of(made: x509.Certificate | x509.CertificateRevocationList) -> bytes:
    return made.public_bytes(serialization.Encoding.PEM)


def key_pem(key: PrivateKey, passphrase: bytes = b"") -> bytes:
    """Return a private key as PEM, encrypted where a passphrase is given; the URI of one in a token."""
    if isinstance(key, TokenKey):
        return f"{key.uri}\n".encode()
    encryption: serialization.KeySerializationEncryption = (
        serialization.BestAvailableEncryption(passphrase)
        if passphrase
        else serialization.NoEncryption()
    )
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )


def load_key(key: bytes, passphrase: bytes = b"") -> PrivateKey:
    """Return the private key of an authority, from PEM or from the URI of a token.

    Raises:
        CertificateError: It cannot be read, or is of another kind.
        TokenRefused: The key in the token cannot be used until the operator has acted.
    """
    if key.startswith(SCHEME.encode()):
        return TokenKey(key.decode("utf-8", "replace").strip())
    try:
        loaded = serialization.load_pem_private_key(key, passphrase or None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CertificateError(f"the authority's files cannot be read: {error}") from error
    if not isinstance(loaded, ec.EllipticCurvePrivateKey):
        raise CertificateError("the authority's key is not on a NIST curve")
    return loaded


def load_authority(certificate: bytes, key: bytes, passphrase: bytes = b"") -> Authority:
    """Return the authority of two PEM files: of several certificates, the one of the key.

    Raises:
        CertificateError: A file is damaged, the passphrase is missing or wrong, or the key is no
            certificate's.
    """
    loaded = load_key(key, passphrase)
    spki = _spki(loaded.public_key())
    for read in certificates_in(certificate):
        if _spki(check_key(read.public_key())) == spki:
            return Authority(read, loaded)
    raise CertificateError("the authority's key is not the one of its certificate")


def _spki(key: PublicKey) -> bytes:
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _name(common: str) -> x509.Name:
    try:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
    except ValueError as error:
        raise CertificateError(f"name {common!r}: expected 1 to 64 characters") from error


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    try:
        return x509.DNSName(text)
    except ValueError as error:
        raise CertificateError(f"host {text!r}: expected an ASCII name or an address") from error


def issuer_key(authority: Authority) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


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
