"""Encrypt bytes to the holder of an X25519 key: HPKE of RFC 9180, base mode, one message a context.

The suite is DHKEM(X25519, HKDF-SHA256), HKDF-SHA256 and ChaCha20-Poly1305. Newer releases of
``cryptography`` contain HPKE; with an older one, the same bytes are computed from its X25519 and
ChaCha20-Poly1305, and HMAC of the standard library. Base mode says nothing about the sender: the
envelope's signature over the encrypted body does.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from functools import cache
from typing import TYPE_CHECKING, Any

from edge_sdk.protocol.keys import raw_public

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

PUBLIC_SIZE = 32
ENC_SIZE = 32
"""Bytes of the encapsulated key, an X25519 public key."""
TAG_SIZE = 16
"""Bytes that the ciphertext is longer than the plaintext."""

_KEM = b"KEM" + bytes.fromhex("0020")
_SUITE = b"HPKE" + bytes.fromhex("002000010003")


class HpkeError(ValueError):
    """An error: a public key that agrees on no secret, or a ciphertext that was not made for this key."""


class DecryptionKey:
    """An X25519 private key in memory. Its ``repr`` shows the key id and never the key.

    >>> key = DecryptionKey(bytes(range(32)))
    >>> key
    DecryptionKey(eedd883da0a94515)
    >>> sent = encrypt(b"12 kW", key.public, info=b"for _agg")
    >>> len(sent) - len(b"12 kW"), key.decrypt(sent, info=b"for _agg")
    (48, b'12 kW')
    >>> key.decrypt(sent, info=b"for meter-1")
    Traceback (most recent call last):
    edge_sdk.extensions.encryption.hpke.HpkeError: the ciphertext was changed, or made for another key or context
    """

    __slots__ = ("_private", "_raw", "public")

    def __init__(self, raw: bytes) -> None:
        """Wrap the 32 raw bytes of a private key."""
        self._private, self._raw = _private_key(raw), raw
        self.public = raw_public(self._private.public_key())  # raw public key, 32 bytes

    @classmethod
    def generate(cls) -> DecryptionKey:
        """Draw a new key from the operating system's entropy."""
        return cls(secrets.token_bytes(32))

    @property
    def kid(self) -> bytes:
        """Return the first 8 bytes of SHA-256 of the public key."""
        return hashlib.sha256(self.public).digest()[:8]

    @property
    def raw(self) -> bytes:
        """Return the 32 bytes of the private key, to be saved."""
        return self._raw

    def decrypt(self, sent: bytes, *, info: bytes) -> bytes:
        """Decrypt a result of ``encrypt`` for this key.

        Args:
            sent: Encapsulated key and ciphertext.
            info: Context of both ends.

        Raises:
            HpkeError: The bytes were changed, or made for another key or context.
        """
        if len(sent) < ENC_SIZE + TAG_SIZE:
            raise HpkeError(f"a ciphertext of {len(sent)} bytes")
        suite = _suite()
        try:
            if suite is not None:
                return bytes(suite.decrypt(sent, self._private, info))
            enc, sealed = sent[:ENC_SIZE], sent[ENC_SIZE:]
            key, nonce = _schedule(self._agreed(enc), enc + self.public, info)
            return bytes(_aead(key).decrypt(nonce, sealed, None))
        except (ValueError, _invalid_tag()) as error:
            raise HpkeError(
                "the ciphertext was changed, or made for another key or context"
            ) from error

    def _agreed(self, public: bytes) -> bytes:
        return self._private.exchange(_public_key(public))

    def __repr__(self) -> str:
        return f"DecryptionKey({self.kid.hex()})"


def encrypt(
    plaintext: bytes, public: bytes, *, info: bytes, ephemeral: DecryptionKey | None = None
) -> bytes:
    """Encrypt to the holder of a key (RFC 9180, section 6.1, ``SealBase`` with empty aad).

    Args:
        public: Raw X25519 public key of the recipient, 32 bytes.
        info: Context; the recipient must state the same.
        ephemeral: Key of this message; drawn unless given, and given by test vectors only.

    Returns:
        The encapsulated key (32 bytes) and the ciphertext, 16 bytes longer than the plaintext.

    Raises:
        HpkeError: The public key is not one of 32 bytes, or of small order.
    """
    suite = _suite()
    try:
        if suite is not None and ephemeral is None:
            return bytes(suite.encrypt(plaintext, _public_key(public), info))
        one = ephemeral or DecryptionKey.generate()
        key, nonce = _schedule(one._agreed(public), one.public + public, info)  # noqa: SLF001 - same module
    except ValueError as error:
        raise HpkeError(f"{public.hex()} is not an X25519 public key to encrypt to") from error
    return one.public + bytes(_aead(key).encrypt(nonce, plaintext, None))


def _schedule(agreed: bytes, context: bytes, info: bytes) -> tuple[bytes, bytes]:
    """Return key and first nonce of a context in base mode (RFC 9180, sections 4.1 and 5.1)."""
    shared = _expand(_extract(b"", _KEM, b"eae_prk", agreed), _KEM, b"shared_secret", context, 32)
    hashes = (
        _extract(b"", _SUITE, b"psk_id_hash", b""),
        _extract(b"", _SUITE, b"info_hash", info),
    )
    bound = b"\0" + b"".join(hashes)
    secret = _extract(shared, _SUITE, b"secret", b"")
    return (
        _expand(secret, _SUITE, b"key", bound, 32),
        _expand(secret, _SUITE, b"base_nonce", bound, 12),
    )


def _extract(salt: bytes, suite: bytes, label: bytes, material: bytes) -> bytes:
    return hmac.digest(salt, b"HPKE-v1" + suite + label + material, "sha256")


def _expand(key: bytes, suite: bytes, label: bytes, info: bytes, size: int) -> bytes:
    """Return at most 32 bytes: the first block of HKDF-Expand."""
    labelled = size.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    return hmac.digest(key, labelled + b"\x01", "sha256")[:size]


@cache
def _suite() -> Any:  # noqa: ANN401 - absent from older releases
    try:
        from cryptography.hazmat.primitives import hpke  # noqa: PLC0415
    except ImportError:
        return None
    return hpke.Suite(hpke.KEM.X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.CHACHA20_POLY1305)


def _aead(key: bytes) -> Any:  # noqa: ANN401 - imported when it is used
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305  # noqa: PLC0415

    return ChaCha20Poly1305(key)


def _invalid_tag() -> type[Exception]:
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415

    return InvalidTag


def _private_key(raw: bytes) -> X25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric import x25519  # noqa: PLC0415

    return x25519.X25519PrivateKey.from_private_bytes(raw)


def _public_key(raw: bytes) -> Any:  # noqa: ANN401 - imported when it is used
    from cryptography.hazmat.primitives.asymmetric import x25519  # noqa: PLC0415

    return x25519.X25519PublicKey.from_public_bytes(raw)
