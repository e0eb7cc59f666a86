"""Sign with a P-256 key and verify its signatures: r || s of ECDSA with SHA-256, the smaller s."""

from __future__ import annotations

import functools

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as to
from cryptography.hazmat.primitives.asymmetric import ec, utils

from edge_sdk.protocol.keys import kid_of
from edge_sdk.protocol.public_key import is_canonical_p256, p256_signature


class P256SigningKey:
    """A P-256 private key in memory.

    Nonces are those of RFC 6979 where the cryptography library has them, else random.

    >>> key = P256SigningKey.generate()
    >>> signature = key.sign(b"said")
    >>> len(key.public), len(signature), P256SigningKey.verify(key.public, signature, b"said")
    (33, 64, True)
    """

    __slots__ = ("_private", "public")

    def __init__(self, private: ec.EllipticCurvePrivateKey) -> None:
        self._private, form = private, to.PublicFormat.CompressedPoint
        self.public = private.public_key().public_bytes(to.Encoding.X962, form)

    @classmethod
    def generate(cls) -> P256SigningKey:
        return cls(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def held(cls, private: object) -> P256SigningKey | None:
        """Return the key of a private key of the library; None of another kind or curve."""
        if isinstance(private, ec.EllipticCurvePrivateKey) and private.curve.name == "secp256r1":
            return cls(private)
        return None

    @staticmethod
    def verify(public: bytes, signature: bytes, data: bytes) -> bool:
        """Return whether a signature is valid, and the canonical one of its two forms."""
        if not is_canonical_p256(signature):
            return False
        r, s = (int.from_bytes(part, "big") for part in (signature[:32], signature[32:]))
        try:
            key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), public)
            key.verify(utils.encode_dss_signature(r, s), data, _ecdsa())
        except (InvalidSignature, ValueError):
            return False
        return True

    @property
    def kid(self) -> bytes:
        return kid_of(self.public)

    def sign(self, data: bytes) -> bytes:
        signature = self._private.sign(data, _ecdsa())
        return p256_signature(*utils.decode_dss_signature(signature))

    def pem(self) -> bytes:
        form = to.PrivateFormat.PKCS8
        return self._private.private_bytes(to.Encoding.PEM, form, to.NoEncryption())

    def __repr__(self) -> str:
        return f"P256SigningKey({self.kid.hex()})"


@functools.cache
def _ecdsa() -> ec.ECDSA:
    """Return ECDSA with SHA-256, with the nonces of RFC 6979 where the library has them."""
    try:
        return ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
    except (TypeError, UnsupportedAlgorithm):  # cryptography before 43, or OpenSSL before 3.2
        return ec.ECDSA(hashes.SHA256())
