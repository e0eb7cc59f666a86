"""Create, store and use signing keys.

A device's identity key is an Ed25519 or, by an extension, a P-256 key; root, aggregator and witnesses
have Ed25519 keys.
``Signer`` is an interface: any object with ``public`` and ``sign`` may seal envelopes, so a key
inside a security chip works as well as a file.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from edge_sdk.app.extensions import ExtensionIndex
from edge_sdk.errors import WireError
from edge_sdk.protocol import public_key
from edge_sdk.protocol.public_key import KeyKind, ed25519_weakness, kind_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

PUBLIC_SIZE = 32
SIGNATURE_SIZE = 64
KID_SIZE = 8

_ED25519_HEX = re.compile(r"[0-9a-fA-F]{64}")
_DEVICE_HEX = re.compile(r"[0-9a-fA-F]{64}|0[23][0-9a-fA-F]{64}")
_PEM = re.compile(rb"\s*-----BEGIN PRIVATE KEY-----\s+(\S+)\s+-----END PRIVATE KEY-----\s*")
_BEFORE_SEED = bytes.fromhex("302e020100300506032b657004220420")  # RFC 8410, section 7: all of it


class KeyFileError(WireError):
    """An error: a key file that cannot be read, or does not hold a key of the expected kind."""


class Signer(Protocol):
    """A signing key, as envelopes need it."""

    @property
    def public(self) -> bytes:
        """Return the raw public key: 32 bytes of Ed25519, or 33 of P-256."""

    def sign(self, data: bytes) -> bytes:
        """Return the 64-byte signature of ``data`` that ``verify`` accepts.

        Raises:
            SignerUnavailable: The key is in a token that is away.
        """


@runtime_checkable
class RemovableSigner(Signer, Protocol):
    """A signing key that may be temporarily absent, such as one in a token."""

    def reach(self) -> bool:
        """Return whether the key can be used now."""


class SigningKey:
    """An Ed25519 private key in memory. Its ``repr`` shows the key id and never the key.

    >>> key = SigningKey.from_seed(bytes(range(32)))
    >>> key
    SigningKey(56475aa75463474c)
    >>> verify(key.public, key.sign(b"said"), b"said"), verify(key.public, bytes(64), b"said")
    (True, False)
    """

    __slots__ = ("_private", "public", "sign")

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private, self.sign = private, private.sign  # signing is deterministic
        self.public = raw_public(private.public_key())

    @classmethod
    def generate(cls) -> SigningKey:
        """Draw a new key from the operating system's entropy."""
        return cls.from_seed(secrets.token_bytes(32))

    @classmethod
    def from_seed(cls, seed: bytes) -> SigningKey:
        """Return the key of a 32-byte seed (the raw private key of RFC 8032)."""
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415

        return cls(ed25519.Ed25519PrivateKey.from_private_bytes(seed))

    @property
    def kid(self) -> bytes:
        return kid_of(self.public)

    def pem(self) -> bytes:
        from cryptography.hazmat.primitives import serialization as to  # noqa: PLC0415

        form = to.PrivateFormat.PKCS8
        return self._private.private_bytes(to.Encoding.PEM, form, to.NoEncryption())

    def __repr__(self) -> str:
        return f"SigningKey({self.kid.hex()})"


class DeviceSigningKey(Signer, Protocol):
    """An identity key of a device, in a file."""

    @property
    def kid(self) -> bytes:
        """Return the 8 bytes by which envelopes name this key."""

    def pem(self) -> bytes:
        """Return the private key as unencrypted PEM (PKCS#8)."""


@functools.cache
def _further(kind: KeyKind) -> Any:  # noqa: ANN401 - a class of an extension
    """Return the class of keys of another kind, which has ``generate``, ``held`` and ``verify``; or None."""
    load = ExtensionIndex("edge_sdk").loaders("device_keys").get(kind)
    return None if load is None else load()


def generate_device_key(kind: KeyKind) -> DeviceSigningKey:
    """Draw a new identity key of a kind.

    Raises:
        KeyFileError: No extension offers the kind.

    >>> kind_of(generate_device_key("ed25519").public)
    'ed25519'
    """
    made = SigningKey if kind == "ed25519" else _further(kind)
    if made is None:
        raise KeyFileError(f"{kind}: the extension for keys of this kind is not installed")
    key: DeviceSigningKey = made.generate()
    return key


generate = SigningKey.generate
from_seed = SigningKey.from_seed
"""The key of a 32-byte seed: for test vectors only, never for a device."""


def kid_of(public: bytes) -> bytes:
    """Return the first 8 bytes of SHA-256 of a raw public key.

    >>> kid_of(from_seed(bytes(range(32))).public).hex()
    '56475aa75463474c'
    """
    return hashlib.sha256(public).digest()[:KID_SIZE]


def verify(public: bytes, signature: bytes, data: bytes) -> bool:
    """Return whether ``signature`` is this key's signature of ``data``.

    The key's size determines its kind: Ed25519 (32 bytes), or ECDSA on P-256 with SHA-256 (33 bytes).
    Malformed keys verify nothing, and neither do keys of small order, which accept forged
    signatures, nor the second form of an ECDSA signature, with the larger s.
    """
    if kind_of(public) == "p256":
        further = _further("p256")
        return further is not None and bool(further.verify(public, signature, data))
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415

    if ed25519_weakness(public):
        return False
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def load_signing_key(path: Path | str) -> SigningKey:
    """Read an Ed25519 private key from a PEM file.

    Raises:
        KeyFileError: No such file, not PEM, or another kind of key.
    """
    key = load_device_key(path)
    if not isinstance(key, SigningKey):
        raise KeyFileError(f"{path}: expected an Ed25519 key, got a P-256 key")
    return key


def load_device_key(path: Path | str) -> DeviceSigningKey:
    """Read a device's private key, Ed25519 or P-256, from a PEM file.

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


def _loaded(path: Path | str, data: bytes) -> DeviceSigningKey:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415

    try:
        private = serialization.load_pem_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyFileError(f"{path}: not an unencrypted PEM private key") from error
    if isinstance(private, ed25519.Ed25519PrivateKey):
        return SigningKey(private)
    further = _further("p256")
    found: DeviceSigningKey | None = None if further is None else further.held(private)
    if found is None:
        kind = type(private).__name__
        raise KeyFileError(f"{path}: expected an Ed25519 key or a P-256 key, got {kind}")
    return found


def save_signing_key(path: Path | str, key: DeviceSigningKey) -> None:
    """Write a private key as PEM, readable by its owner only, atomically."""
    write_atomically(Path(path), key.pem(), 0o600)


def save_public(path: Path | str, public: bytes) -> None:
    """Write a public key as hex digits (64, or 66 of P-256) and a line end, atomically."""
    write_atomically(Path(path), public.hex().encode() + b"\n", 0o644)


def raw_public(public: Ed25519PublicKey | X25519PublicKey) -> bytes:
    """Return the 32 bytes of a public key, also with cryptography before release 40.

    The direct call is used where it exists: the other loads the serialisers, which cost memory.
    """
    if hasattr(public, "public_bytes_raw"):
        return public.public_bytes_raw()
    from cryptography.hazmat.primitives import serialization as to  # noqa: PLC0415 - see above

    return public.public_bytes(to.Encoding.Raw, to.PublicFormat.Raw)


def read_public(where: Path | str) -> bytes:
    """Return a raw Ed25519 public key from 64 hex digits, or from a file that holds them.

    Raises:
        KeyFileError: Neither, no such file, or a key of small order, which accepts forged
            signatures.
    """
    raw = _read_hex(where, _ED25519_HEX, "64 hex digits")
    return checked_public(raw, str(where))


def read_device_public(where: Path | str) -> bytes:
    """Return a device's raw public key from 64 or 66 hex digits, or from a file that holds them.

    Raises:
        KeyFileError: Neither, no such file, or an unsafe key.
    """
    raw = _read_hex(where, _DEVICE_HEX, "64 hex digits (Ed25519) or 66 (P-256)")
    if found := public_key.weakness(raw):
        raise KeyFileError(f"{where}: the public key {raw.hex()} {found}")
    return raw


def _read_hex(where: Path | str, form: re.Pattern[str], expected: str) -> bytes:
    text = key_text(where, form, expected)
    if not form.fullmatch(text):
        raise KeyFileError(f"{where}: expected {expected}")
    return bytes.fromhex(text)


def key_text(where: Path | str, form: re.Pattern[str], expected: str) -> str:
    """Return a text of a form itself, or the content of the file that any other text names.

    Raises:
        KeyFileError: No such file, or one that is not ASCII text.
    """
    text = str(where)
    if form.fullmatch(text):
        return text
    try:
        return Path(where).read_text(encoding="ascii").strip()
    except OSError as error:
        raise KeyFileError(f"{where}: cannot read the key: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise KeyFileError(f"{where}: expected {expected}") from error


def checked_public(public: bytes, where: str) -> bytes:
    """Return a raw Ed25519 public key after checking that it is safe to trust.

    Raises:
        KeyFileError: The key is a point of small order, or not a canonical encoding.
    """
    if found := ed25519_weakness(public):
        raise KeyFileError(f"{where}: the public key {public.hex()} {found}")
    return public


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
