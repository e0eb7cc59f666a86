"""Agree with a witness on the seed of a mask: HPKE of RFC 9180, base mode, the secret that its context exports.

The suite is DHKEM(X25519, HKDF-SHA256), HKDF-SHA256 and ChaCha20-Poly1305. A device sends the encapsulated
key of 32 bytes, and no ciphertext: the seed is exported on both sides (RFC 9180, section 5.3). The library
has no export, so it is computed here from its X25519 and the HMAC of the standard library.
"""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.protocol.keys import raw_public

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

SEED_SIZE = 32

_KEM = b"KEM" + bytes.fromhex("0020")
_SUITE = b"HPKE" + bytes.fromhex("002000010003")
_LABEL = b"gridfed/1/sum mask"


class SeedError(ValueError):
    """An error: a public key that agrees on no secret."""


class ExchangeKey:
    """An X25519 private key in memory: of a witness, or of one message. Its ``repr`` shows the public key alone.

    >>> witness = ExchangeKey(bytes(range(32)))
    >>> enc, seed = new_seed(witness.public, info=b"one period of one device")
    >>> len(enc), witness.seed(enc, info=b"one period of one device") == seed
    (32, True)
    >>> witness.seed(enc, info=b"another period") == seed
    False
    """

    __slots__ = ("_private", "_raw", "public")

    def __init__(self, raw: bytes) -> None:
        """Wrap the 32 raw bytes of a private key."""
        self._private, self._raw = _private_key(raw), raw
        self.public = raw_public(self._private.public_key())

    @classmethod
    def generate(cls) -> ExchangeKey:
        """Draw a new key from the operating system's entropy."""
        return cls(secrets.token_bytes(32))

    @property
    def raw(self) -> bytes:
        """Return the 32 bytes of the private key, to be saved."""
        return self._raw

    def seed(self, enc: bytes, *, info: bytes) -> bytes:
        """Return the seed of an encapsulated key.

        Raises:
            SeedError: The key is of small order, or not one of 32 bytes.
        """
        return exported(self.agreed(enc), enc + self.public, info, _LABEL)

    def agreed(self, public: bytes) -> bytes:
        """Return the shared secret with a public key; raise SeedError if there is none."""
        try:
            return self._private.exchange(_public_key(public))
        except ValueError as error:
            raise SeedError(f"{public.hex()} is not an X25519 public key") from error

    def __repr__(self) -> str:
        return f"ExchangeKey({self.public.hex()})"


def new_seed(
    public: bytes, *, info: bytes, ephemeral: ExchangeKey | None = None
) -> tuple[bytes, bytes]:
    """Return a fresh encapsulated key and its seed, 32 bytes each.

    Args:
        public: Raw X25519 public key of the witness.
        info: Context; the witness must state the same.
        ephemeral: Key of this message; drawn unless given, and given by test vectors only.

    Raises:
        SeedError: The public key is of small order, or not one of 32 bytes.
    """
    one = ephemeral or ExchangeKey.generate()
    return one.public, exported(one.agreed(public), one.public + public, info, _LABEL)


def exported(agreed: bytes, context: bytes, info: bytes, label: bytes) -> bytes:
    """Return 32 bytes that a context in base mode exports (RFC 9180, sections 4.1, 5.1 and 5.3).

    Args:
        agreed: Shared secret of X25519.
        context: Encapsulated key and the recipient's public key.
        label: The exporter's context.
    """
    shared = _expand(_extract(b"", _KEM, b"eae_prk", agreed), _KEM, b"shared_secret", context)
    bound = b"\0" + b"".join(
        _extract(b"", _SUITE, name, value)
        for name, value in ((b"psk_id_hash", b""), (b"info_hash", info))
    )
    secret = _expand(_extract(shared, _SUITE, b"secret", b""), _SUITE, b"exp", bound)
    return _expand(secret, _SUITE, b"sec", label)


def mask_of(seed: bytes, length: int) -> NDArray[np.uint64]:
    """Return the mask of a seed, its stream, shape ``(length,)``.

    >>> [hex(word) for word in mask_of(bytes(32), 2).tolist()]
    ['0x903df1a0ade0b876', '0x28bd8653e56a5d40']
    """
    return np.frombuffer(stream(seed, 8 * length), "<u8").astype(np.uint64)


def stream(seed: bytes, size: int) -> bytes:
    """Return bytes of the ChaCha20 stream of a seed, which is used once."""
    from cryptography.hazmat.primitives.ciphers import (  # noqa: PLC0415 - loads with the first sum
        Cipher,
        algorithms,
    )

    cipher = Cipher(algorithms.ChaCha20(seed, bytes(16)), None)
    return cipher.encryptor().update(bytes(size))


def _extract(salt: bytes, suite: bytes, label: bytes, material: bytes) -> bytes:
    return hmac.digest(salt, b"HPKE-v1" + suite + label + material, "sha256")


def _expand(key: bytes, suite: bytes, label: bytes, info: bytes) -> bytes:
    """Return 32 bytes: the first block of HKDF-Expand."""
    labelled = SEED_SIZE.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    return hmac.digest(key, labelled + b"\x01", "sha256")


def _private_key(raw: bytes) -> X25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric import x25519  # noqa: PLC0415

    return x25519.X25519PrivateKey.from_private_bytes(raw)


def _public_key(raw: bytes) -> Any:  # noqa: ANN401 - imported when it is used
    from cryptography.hazmat.primitives.asymmetric import x25519  # noqa: PLC0415

    return x25519.X25519PublicKey.from_public_bytes(raw)
