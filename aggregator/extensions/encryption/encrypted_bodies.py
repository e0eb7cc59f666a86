"""Decrypt bodies that devices encrypted to the aggregator, and encrypt those that it sends to one device.

The key of a device is bound to the signing key of the hello that announced it: under another signing key
of the device it is not used until a hello of that key announces one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from aggregator.config import AggregatorConfig
from aggregator.extensions.encryption.encryption_keys import EncryptionKeys
from aggregator.extensions.encryption.settings import folder_of, section_of
from aggregator.ingress.message_bodies import BodyCodec
from aggregator.store.dialect import has_table, upsert
from aggregator.store.store import Store
from aggregator.store.transactions import Table
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.encryption.encrypted_body import (
    BodyContext,
    decrypted_body,
    encrypted_body,
)
from edge_sdk.extensions.encryption.hpke import DecryptionKey
from edge_sdk.protocol.codec import encode
from edge_sdk.protocol.envelope import AGGREGATOR, Sealed
from edge_sdk.protocol.keys import KID_SIZE
from edge_sdk.protocol.messages import HelloMessage, ProtocolMessage, RefusalMessage

# kinds that may be sent clear to a device whose key is unknown here: it may have lost its key
EXEMPT = frozenset(("floor", "refusal"))


class EncryptedBodies(BodyCodec):
    """Codec of encrypted bodies.

    Args:
        fleet: Id of the fleet, part of every context.
        key_of: Returns the private key with an id, or None.
        store: Database with the devices' keys, which are read once.
        is_signed_by: Returns whether a device signs with the key of this id.
        kinds: Kinds of which no clear body is accepted.
        are_required: True to refuse hellos without a key, and to send no clear content.
    """

    def __init__(
        self,
        fleet: str,
        key_of: Callable[[bytes], DecryptionKey | None],
        store: Store,
        is_signed_by: Callable[[str, bytes], bool],
        *,
        kinds: Collection[str] = (),
        are_required: bool = False,
    ) -> None:
        self._fleet, self._private, self._is_signed_by = fleet, key_of, is_signed_by
        self._table = store.table(AnnouncedKeys)
        self._announced = self._table.all()
        self._kinds, self._are_required = kinds, are_required

    def decrypt(self, kind: str, sender: str, body: bytes) -> bytes:
        """Return the clear body of a verified message.

        Raises:
            Refused: CANNOT_OPEN or MALFORMED, as ``decrypted_body``.
        """
        context = BodyContext(self._fleet, kind, sender, AGGREGATOR)
        return decrypted_body(body, self._private, context)

    def refuse_clear(self, kind: str, sender: str) -> None:
        """Refuse a clear body of a kind that must be encrypted.

        Raises:
            Refused: PLAIN_REFUSED.
        """
        if kind in self._kinds:
            raise Refused(Reason.PLAIN_REFUSED, f"{sender}: a clear {kind}")

    def check_hello(self, device: str, hello: HelloMessage) -> None:
        """Refuse a hello whose key is missing where one is required, or cannot be encrypted to.

        Raises:
            Refused: PLAIN_REFUSED; CANNOT_OPEN for a key of small order.
        """
        if not hello.key and self._are_required:
            raise Refused(Reason.PLAIN_REFUSED, f"{device}: a hello without a key to encrypt to")
        if hello.key:
            encrypted_body(b"", hello.key, BodyContext("", "", AGGREGATOR, device))

    def record(self, sealed: Sealed, hello: HelloMessage) -> bool:
        """Record the key of an accepted hello; an empty one deletes the device's key.

        Returns:
            True if the device had another key before, or none.
        """
        device, signer = sealed.sender, sealed.proof[:KID_SIZE]
        found = AnnouncedKey(signer, hello.key) if hello.key else None
        before = self._announced.get(device)
        if found == before:
            return False
        self._table.save(device, found)
        if found is None:
            del self._announced[device]
        else:
            self._announced[device] = found
        return True

    def key_of(self, device: str) -> bytes:
        """Return the raw X25519 key to which messages to a device are encrypted; empty for none."""
        found = self._announced.get(device)
        return found.key if found and self._is_signed_by(device, found.signer) else b""

    def encoded(self, device: str, message: ProtocolMessage, key: bytes) -> tuple[str, bytes]:
        """Encrypt a message for one device if its key is known.

        Where keys are required, a device without a key is asked for a hello instead.
        """
        public = key or self.key_of(device)
        if public:
            context = BodyContext(self._fleet, message.kind, AGGREGATOR, device)
            return message.kind, encrypted_body(encode(message), public, context)
        if self._are_required and message.kind not in EXEMPT:
            message = RefusalMessage(Reason.SAY_HELLO, 0)
        return message.kind, encode(message)


def bodies(
    config: AggregatorConfig, store: Store, is_signed_by: Callable[[str, bytes], bool]
) -> EncryptedBodies:
    """Return the codec of a configuration."""
    section, keys = section_of(config), EncryptionKeys(folder_of(config))
    return EncryptedBodies(
        config.fleet,
        keys.key_of,
        store,
        is_signed_by,
        kinds=frozenset(section.kinds),
        are_required=section.require_device_keys,
    )


@dataclass(frozen=True, slots=True)
class AnnouncedKey:
    """Encryption key that a device announced."""

    signer: bytes  # key id of the signing key of the hello that announced it (8 bytes)
    key: bytes  # raw X25519 public key (32 bytes)


class AnnouncedKeys(Table):
    """Encryption key that each device has announced."""

    def all(self) -> dict[str, AnnouncedKey]:
        """Return the encryption keys that devices have announced, by id."""
        if not has_table(self._db, "device_keys"):
            return {}
        found = self._db.execute("SELECT device, signer, key FROM device_keys")
        return {device: AnnouncedKey(bytes(signer), bytes(key)) for device, signer, key in found}

    def save(self, device: str, found: AnnouncedKey | None) -> None:
        """Insert, replace or delete the encryption key of a device.

        >>> from aggregator.store.sqlite import in_memory
        >>> keys = in_memory().table(AnnouncedKeys)
        >>> keys.save("meter-1", AnnouncedKey(bytes(8), bytes(32)))
        >>> sorted(keys.all())
        ['meter-1']
        >>> keys.save("meter-1", None)
        >>> keys.all()
        {}
        """
        with self._writing() as db:
            if found is None:
                db.execute("DELETE FROM device_keys WHERE device = ?", (device,))
                return
            db.execute(
                upsert("device_keys", "device", "signer, key"), (device, found.signer, found.key)
            )
