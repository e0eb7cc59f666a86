"""Encrypt and decrypt the bodies of messages by an extension, which is imported when one needs it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Protocol

from edge_sdk.config import Config
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol.envelope import Sealed
from edge_sdk.store.store import DeviceStore

Ends = tuple[str, str, str, str]
"""Fleet, kind, sender and recipient of a message, to which its encryption is bound."""

KeyOfKind = Callable[[str], bytes | None]
"""Kind of a message to the key that it must be encrypted to, or None. It may raise ``Refused``."""


class BodyEncryption(Protocol):
    """The encryption of bodies, as an extension gives it."""

    @property
    def announced(self) -> bytes:
        """Raw public key of this device, which a hello states."""

    def encrypted(self, body: bytes, ends: Ends, public: bytes | None) -> bytes:
        """Encrypt a clear body to a key; without one, to the key of the recipient, if there is one."""

    def decrypted(self, body: bytes, ends: Ends) -> bytes:
        """Return the clear body of an encrypted one, or raise ``Refused``."""

    def refuse_clear(self, proved: Sealed) -> None:
        """Refuse a verified message to this device alone that should be encrypted."""

    def is_hello_due(self, now: float) -> bool:
        """Return whether to announce the encryption key again."""


class Bodies:
    """The bodies of one device's messages: clear, except those that must be encrypted.

    Args:
        make: Makes the codec, when a body first needs it; None if there is none.
        is_required: True to announce a key, and to refuse clear messages to this device alone.
    """

    def __init__(
        self, make: Callable[[], BodyEncryption] | None = None, *, is_required: bool = False
    ) -> None:
        self._make, self.is_required = make, is_required
        self._key_of: KeyOfKind = _no_key

    @classmethod
    def of(cls, config: Config, store: DeviceStore) -> Bodies:
        found = config.index.having("bodies")
        make = (lambda: found[0].load("bodies")(config, store)) if found else None
        return cls(make, is_required=config.encryption.required)

    @cached_property
    def codec(self) -> BodyEncryption:
        if self._make is None:
            raise Refused(Reason.CANNOT_OPEN, "no extension for encrypted bodies is installed")
        return self._make()

    def encrypt_by(self, key_of: KeyOfKind) -> None:
        """Set the function that returns the encryption key for a kind of message, or None."""
        self._key_of = key_of

    @property
    def announced(self) -> bytes:
        """Raw public key that a hello states; empty if none is required."""
        return self.codec.announced if self.is_required else b""

    def is_hello_due(self, now: float) -> bool:
        return self.is_required and self.codec.is_hello_due(now)

    def encryption(self, ends: Ends) -> Callable[[bytes], bytes]:
        """Return the function from a clear body to the one that the aggregator is sent.

        Raises:
            Refused: CANNOT_OPEN: it must be encrypted, and no key to encrypt to is known.
        """
        public = self._key_of(ends[1])
        if public is None:
            return bytes
        codec = self.codec
        return lambda body: codec.encrypted(body, ends, public)


def _no_key(_kind: str) -> None:
    return None
