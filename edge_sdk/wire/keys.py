"""Create, store and use Ed25519 keys; the only importer of a cryptography library for signatures.

``Signer`` is an interface: any object with ``public`` and ``sign`` may seal envelopes, so a key
inside a security chip works as well as a file.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from edge_sdk.wire.errors import WireError
from edge_sdk.wire.small_order import weakness

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

PUBLIC_SIZE = 32
SIGNATURE_SIZE = 64
KID_SIZE = 8

_PEM = re.compile(rb"\s*-----BEGIN PRIVATE KEY-----\s+(\S+)\s+-----END PRIVATE KEY-----\s*")
_BEFORE_SEED = bytes.fromhex("302e020100300506032b657004220420")  # RFC 8410, section 7: all of it


class KeyFileError(WireError):
    """An error: a key file that cannot be read, or does not hold an Ed25519 key."""


class Signer(Protocol):
    """A signing key, as envelopes need it."""

    @property
    def public(self) -> bytes:
        """Return the raw 32-byte public key."""

    def sign(self, data: bytes) -> bytes:
        """Return the 64-byte Ed25519 signature of ``data``."""


class SigningKey:
    """An Ed25519 private key in memory. Its ``repr`` shows the key id and never the key.

    Example:
        >>> key = SigningKey.from_seed(bytes(range(32)))
        >>> key
        SigningKey(56475aa75463474c)
        >>> verify(key.public, key.sign(b"said"), b"said"), verify(key.public, bytes(64), b"said")
        (True, False)
    """

    __slots__ = ("_private", "public")

    def __init__(self, private: Ed25519PrivateKey) -> None:
        """Wrap a private key and store its public half."""
        self._private = private
        self.public = _raw(private.public_key())

    @classmethod
    def generate(cls) -> SigningKey:
        """Draw a new key from the operating system's entropy."""
        return cls.from_seed(secrets.token_bytes(32))

    @classmethod
    def from_seed(cls, seed: bytes) -> SigningKey:
        """Return the key of a 32-byte seed (the raw private key of RFC 8032)."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
            Ed25519PrivateKey,
        )

        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @property
    def kid(self) -> bytes:
        """Return the 8 bytes by which envelopes name this key."""
        return kid_of(self.public)

    def sign(self, data: bytes) -> bytes:
        """Return the 64-byte signature of ``data``; signing is deterministic."""
        return self._private.sign(data)

    def pem(self) -> bytes:
        """Return the private key as unencrypted PEM (PKCS#8)."""
        from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
            Encoding,
            NoEncryption,
            PrivateFormat,
        )

        return self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def __repr__(self) -> str:
        """Return the class name and the key id."""
        return f"SigningKey({self.kid.hex()})"


def generate() -> SigningKey:
    """Draw a new signing key from the operating system's entropy."""
    return SigningKey.generate()


def from_seed(seed: bytes) -> SigningKey:
    """Return the key of a 32-byte seed: for test vectors only, never for a device."""
    return SigningKey.from_seed(seed)


def kid_of(public: bytes) -> bytes:
    """Return the first 8 bytes of SHA-256 of a raw public key.

    >>> kid_of(from_seed(bytes(range(32))).public).hex()
    '56475aa75463474c'
    """
    return hashlib.sha256(public).digest()[:KID_SIZE]


def verify(public: bytes, signature: bytes, data: bytes) -> bool:
    """Return whether ``signature`` is this key's signature of ``data``.

    Malformed keys verify nothing, and neither do keys of small order, which accept forged
    signatures.
    """
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
        Ed25519PublicKey,
    )

    if weakness(public):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def load_signing_key(path: Path | str) -> SigningKey:
    """Read a private key from a PEM file.

    Raises:
        KeyFileError: No such file, not PEM, or another kind of key.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise KeyFileError(f"{path}: cannot read the key: {error.strerror}") from error
    seed = _plain_seed(data)
    return _loaded(path, data) if seed is None else SigningKey.from_seed(seed)


def _plain_seed(data: bytes) -> bytes | None:
    """Return the seed of a key written by ``SigningKey.pem``, or None for any other form.

    This form needs no parser, which saves a small device 1.2 MB and 20 ms.

    >>> _plain_seed(from_seed(bytes(range(32))).pem()) == bytes(range(32))
    True
    """
    found = _PEM.fullmatch(data)
    if found is None:
        return None
    try:
        raw = base64.b64decode(found[1], validate=True)
    except ValueError:
        return None
    before, seed = raw[:-PUBLIC_SIZE], raw[-PUBLIC_SIZE:]
    return seed if before == _BEFORE_SEED else None


def _loaded(path: Path | str, data: bytes) -> SigningKey:
    """Read any other form with the cryptography library's parser."""
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
        Ed25519PrivateKey,
    )
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
        load_pem_private_key,
    )

    try:
        private = load_pem_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyFileError(f"{path}: not an unencrypted PEM private key") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise KeyFileError(f"{path}: expected an Ed25519 key, got {type(private).__name__}")
    return SigningKey(private)


def save_signing_key(path: Path | str, key: SigningKey) -> None:
    """Write a private key as PEM, readable by its owner only, atomically."""
    write_atomically(Path(path), key.pem(), 0o600)


def save_public(path: Path | str, public: bytes) -> None:
    """Write a public key as 64 hex digits and a line end, atomically."""
    write_atomically(Path(path), public.hex().encode() + b"\n", 0o644)


def _raw(public: Ed25519PublicKey) -> bytes:
    """Return the 32 bytes of a public key, also with cryptography before release 40.

    The direct call is used where it exists: the other loads the serialisers, which cost memory.
    """
    if hasattr(public, "public_bytes_raw"):
        return public.public_bytes_raw()
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415 - see above
        Encoding,
        PublicFormat,
    )

    return public.public_bytes(Encoding.Raw, PublicFormat.Raw)


def read_public(where: Path | str) -> bytes:
    """Return a raw public key from 64 hex digits, or from a file that holds them.

    Raises:
        KeyFileError: Neither, no such file, or a key of small order, which accepts forged
            signatures.
    """
    text = str(where)
    if not _is_hex_key(text):
        try:
            text = Path(where).read_text(encoding="ascii").strip()
        except OSError as error:
            raise KeyFileError(f"{where}: cannot read the key: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise KeyFileError(f"{where}: expected 64 hex digits") from error
    if not _is_hex_key(text):
        raise KeyFileError(f"{where}: expected 64 hex digits")
    return checked_public(bytes.fromhex(text), str(where))


def checked_public(public: bytes, where: str) -> bytes:
    """Return a raw public key after checking that it is safe to trust.

    Raises:
        KeyFileError: The key is a point of small order, or not a canonical encoding.
    """
    if found := weakness(public):
        raise KeyFileError(f"{where}: the public key {public.hex()} {found}")
    return public


def _is_hex_key(text: str) -> bool:
    return re.fullmatch(r"[0-9a-fA-F]{64}", text) is not None


def write_atomically(path: Path, data: bytes, mode: int) -> None:
    """Write a temporary file, flush it to the disk, then rename it: atomic under power loss."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:  # noqa: PTH123 - pathlib cannot set the mode at creation
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
