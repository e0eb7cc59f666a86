"""Hold the key to which messages to this device are encrypted, and refuse clear ones.

The key is drawn once, saved in the device's store, and announced in every hello, whose signature
binds it to the device's identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from edge_sdk.config import Config
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.encryption.encrypted_body import (
    BodyContext,
    decrypted_body,
    encrypted_body,
)
from edge_sdk.extensions.encryption.hpke import DecryptionKey
from edge_sdk.protocol.envelope import AGGREGATOR, Sealed
from edge_sdk.session.bodies import Ends
from edge_sdk.store.store import DeviceStore

PAPER = "decryption key"
_EXEMPT = frozenset(("floor", "refusal"))
_AGAIN = 60.0  # s between two hellos that announce the key again


class BodyKeys:
    """The decryption key of one device.

    Args:
        key: The key; None if the device has none.
        is_required: True to announce the key and to refuse clear messages.

    >>> BodyKeys().announced, len(BodyKeys(DecryptionKey.generate(), is_required=True).announced)
    (b'', 32)
    """

    def __init__(self, key: DecryptionKey | None = None, *, is_required: bool = False) -> None:
        self._key, self.is_required = key, is_required
        self._of_peers: Mapping[str, bytes] = {}
        self._is_unread = False
        self._again_at = float("-inf")

    @classmethod
    def of(cls, store: DeviceStore, *, is_required: bool) -> Self:
        """Return the key of a store; one is made and saved if it is required and missing.

        A key that is not required any more still reads what was encrypted to it before.
        """
        saved = store.paper(PAPER)
        if saved is not None and len(saved) == 32:
            return cls(DecryptionKey(saved), is_required=is_required)
        if not is_required:
            return cls()
        key = DecryptionKey.generate()
        store.file_paper(PAPER, key.raw)
        return cls(key, is_required=True)

    @classmethod
    def saved(cls, store: DeviceStore) -> bytes:
        """Return the raw public key of a store; empty if it has none."""
        return cls.of(store, is_required=True).announced if store.paper(PAPER) else b""

    @property
    def announced(self) -> bytes:
        """Return the raw public key that a hello announces; empty if none is required."""
        return self._key.public if self._key is not None and self.is_required else b""

    def encrypted(self, body: bytes, ends: Ends, public: bytes | None) -> bytes:
        """Encrypt a clear body to a key; without one, to the key of the peer, if the peer has one.

        Raises:
            Refused: CANNOT_OPEN: the key of a peer is unknown, or a key agrees on no secret.
        """
        if public is None:
            public = self.of_peer(ends[3])
        return body if public is None else encrypted_body(body, public, BodyContext(*ends))

    def decrypted(self, body: bytes, ends: Ends) -> bytes:
        return self.decrypt(body, BodyContext(*ends))

    def decrypt(self, body: bytes, context: BodyContext) -> bytes:
        """Return the clear body of an encrypted one.

        Raises:
            Refused: CANNOT_OPEN or MALFORMED, as ``decrypted_body``.
        """
        try:
            return decrypted_body(body, self._key_of, context)
        except Refused:
            self._is_unread |= context.sender == AGGREGATOR
            raise

    def refuse_clear(self, proved: Sealed) -> None:
        """Refuse a verified message to this device alone that should be encrypted.

        A floor and a refusal may be clear: they have no content but a number, a reason and references, and
        an aggregator without this device's key has nothing else to send.

        Raises:
            Refused: PLAIN_REFUSED.
        """
        if self.is_required and proved.clear is None and proved.kind not in _EXEMPT:
            self._is_unread |= proved.sender == AGGREGATOR
            raise Refused(Reason.PLAIN_REFUSED, f"{proved.sender}: a clear {proved.kind}")

    def refuse_peer(self, proved: Sealed) -> None:
        """Refuse a clear message of a peer where encryption is required, and every message of a peer without a key.

        A link counts at both ends or at neither, so no message is read from a peer to which none can be
        sent.

        Raises:
            Refused: PLAIN_REFUSED; CANNOT_OPEN.
        """
        self.refuse_clear(proved)
        self.of_peer(proved.sender)

    def of_peer(self, name: str) -> bytes | None:
        """Return the key to which messages to a peer are encrypted; None: they are sent clear.

        Raises:
            Refused: CANNOT_OPEN: this device requires encryption, and the peer's key is unknown.
        """
        public = self._of_peers.get(name)
        if public is None and self.is_required:
            raise Refused(Reason.CANNOT_OPEN, f"no key to encrypt to the neighbour {name}")
        return public

    def accept_peers(self, keys: Mapping[str, bytes]) -> None:
        """Replace the keys of the peers: raw X25519 keys by id, of the peers that have one."""
        self._of_peers = keys

    def is_hello_due(self, now: float) -> bool:
        """Return whether to announce the key again: a message could not be decrypted.

        It is announced at most once a minute: an aggregator that was restored from a backup has lost
        it.

        Args:
            now: Seconds of the monotonic clock.
        """
        is_due = self._is_unread and self.is_required and now >= self._again_at
        if is_due:
            self._again_at, self._is_unread = now + _AGAIN, False
        return is_due

    def _key_of(self, kid: bytes) -> DecryptionKey | None:
        return self._key if self._key is not None and self._key.kid == kid else None


def body_keys(config: Config, store: DeviceStore) -> BodyKeys:
    return BodyKeys.of(store, is_required=config.encryption.required)


def saved_status(_config: Config, store: DeviceStore) -> dict[str, Any]:
    """Return the public key of a store as ``gridfed-edge status`` shows it."""
    key = BodyKeys.saved(store)
    return {"encryption_key": key.hex()} if key else {}
