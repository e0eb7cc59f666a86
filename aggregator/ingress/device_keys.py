"""Hold the X25519 keys that devices announce in their hellos, and encrypt messages to them.

A key is bound to the signing key of the hello that announced it: under another signing key of the
device it is not used until a hello of that key announces one.
"""

from __future__ import annotations

from collections.abc import Callable

from aggregator.store.types import AnnouncedKey, Store
from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.keys import KID_SIZE
from edge_sdk.wire.protocol.encrypted_body import BodyContext, encrypted_body
from edge_sdk.wire.protocol.envelope import AGGREGATOR, Sealed

EXEMPT = frozenset(("floor", "refusal"))
"""Kinds that may be sent clear to a device whose key is unknown here: it may have lost its key."""


class DeviceKeys:
    """The devices' encryption keys, read from the store once.

    Args:
        store: Store of the keys.
        signs: Returns the public key of a device by its key id; None if it is not in force.

    Attributes:
        are_required: True to refuse hellos without a key, and to send no clear content.
    """

    def __init__(self, store: Store, signs: Callable[[str, bytes], bytes | None]) -> None:
        self._store, self._signs = store, signs
        self._announced = store.device_keys()
        self.are_required = False

    def of(self, device: str) -> bytes | None:
        """Return the raw X25519 key to which messages to a device are encrypted, or None."""
        found = self._announced.get(device)
        is_bound = found is not None and self._signs(device, found.signer) is not None
        return found.key if found is not None and is_bound else None

    def refuse_missing(self, device: str, key: bytes) -> None:
        """Refuse a hello whose key is missing where one is required, or cannot be encrypted to.

        Raises:
            Refused: PLAIN_REFUSED; CANNOT_OPEN for a key of small order.
        """
        if not key and self.are_required:
            raise Refused(Reason.PLAIN_REFUSED, f"{device}: a hello without a key to encrypt to")
        if key:
            encrypted_body(b"", key, BodyContext("", "", AGGREGATOR, device))

    def record(self, hello: Sealed, key: bytes) -> bool:
        """Record the key of an accepted hello; an empty one deletes the device's key.

        Returns:
            True if the device had another key before, or none.
        """
        device, signer = hello.sender, hello.proof[:KID_SIZE]
        found = AnnouncedKey(signer, key) if key else None
        before = self._announced.get(device)
        if found == before:
            return False
        self._store.save_device_key(device, found)
        if found is None:
            del self._announced[device]
        else:
            self._announced[device] = found
        return True
