"""Sign certificates with an authority's key in a PKCS #11 token, which it never leaves."""

from __future__ import annotations

from typing import NoReturn

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from aggregator.extensions.authority.certificate_reader import CertificateError
from edge_sdk.extensions.tokens.pkcs11_token import Pkcs11Key
from edge_sdk.extensions.tokens.pkcs11_uri import place_in
from edge_sdk.protocol.public_key import kind_of


class TokenKey(ec.EllipticCurvePrivateKey):
    """A P-256 key in a token, as the library of certificates uses one.

    Args:
        uri: URI of RFC 7512, with ``module-path`` and ``pin-source``.

    Raises:
        CertificateError: It is no such URI, or names a key of another kind.
        TokenRefused: The key cannot be used until the operator has acted.
        SignerUnavailable: The token is away.
    """

    def __init__(self, uri: str) -> None:
        try:
            self._key = Pkcs11Key(place_in(uri))
        except ValueError as error:
            raise CertificateError(str(error)) from error
        if kind_of(self._key.public) != "p256":
            raise CertificateError(f"{self._key.place}: expected a P-256 key for an authority")
        self.uri = uri

    def public_key(self) -> ec.EllipticCurvePublicKey:
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), self._key.public)

    @property
    def curve(self) -> ec.EllipticCurve:
        """Return the curve, P-256."""
        return ec.SECP256R1()

    @property
    def key_size(self) -> int:
        return 256

    def sign(
        self,
        data: bytes | bytearray | memoryview,
        signature_algorithm: ec.EllipticCurveSignatureAlgorithm,
    ) -> bytes:
        """Return the signature with SHA-256, DER.

        Raises:
            UnsupportedAlgorithm: Another digest is wanted.
            SignerUnavailable: The token is away, or refuses.
        """
        if not isinstance(signature_algorithm.algorithm, hashes.SHA256):
            raise UnsupportedAlgorithm("a key in a token signs with ECDSA and SHA-256")
        raw = self._key.sign(bytes(data))
        return encode_dss_signature(int.from_bytes(raw[:32]), int.from_bytes(raw[32:]))

    def exchange(self, algorithm: ec.ECDH, peer_public_key: ec.EllipticCurvePublicKey) -> NoReturn:  # noqa: ARG002 - as the base class
        """Refuse: the key signs alone."""
        raise UnsupportedAlgorithm("a key in a token agrees on no secret")

    def private_numbers(self) -> NoReturn:
        raise UnsupportedAlgorithm("a private key stays in its token")

    def private_bytes(self, *_: object) -> NoReturn:
        raise UnsupportedAlgorithm("a private key stays in its token")

    def __copy__(self) -> TokenKey:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> TokenKey:
        return self
