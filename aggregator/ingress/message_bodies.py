"""Encode and decode the bodies of messages: clear ones, and encrypted ones by an extension."""

from __future__ import annotations

from collections.abc import Callable

from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import envelope
from edge_sdk.protocol.codec import encode
from edge_sdk.protocol.envelope import AGGREGATOR, PAYLOAD_LIMIT, KeyOf, Sealed
from edge_sdk.protocol.messages import HelloMessage, ProtocolMessage


class BodyCodec:
    """Base class of a codec of encrypted bodies; ``bodies`` in the row of its extension returns one."""

    def decrypt(self, kind: str, sender: str, body: bytes) -> bytes:
        """Return the clear body of a verified message.

        Raises:
            Refused: CANNOT_OPEN or MALFORMED.
        """
        raise NotImplementedError

    def refuse_clear(self, kind: str, sender: str) -> None:
        """Refuse a clear body of a kind that must be encrypted.

        Raises:
            Refused: PLAIN_REFUSED.
        """

    def check_hello(self, device: str, hello: HelloMessage) -> None:
        """Refuse a hello whose key is missing where one is required, or cannot be used.

        Raises:
            Refused: PLAIN_REFUSED; CANNOT_OPEN.
        """

    def record(self, sealed: Sealed, hello: HelloMessage) -> bool:
        """Record the key of an accepted hello; return whether the device had another one before."""
        raise NotImplementedError

    def key_of(self, device: str) -> bytes:
        """Return the key to which messages to a device are encrypted; empty for none."""
        raise NotImplementedError

    def encoded(self, device: str, message: ProtocolMessage, key: bytes) -> tuple[str, bytes]:
        """Return kind and body of a message to a device, under the key of the answered hello or the recorded one."""
        raise NotImplementedError


class MessageBodies:
    """Bodies of one fleet's messages: clear until a configuration, a device or a message needs a codec."""

    def __init__(self, fleet: str) -> None:
        self.fleet = fleet
        self._load: Callable[[], BodyCodec] | None = None
        self._codec: BodyCodec | None = None

    def follow(self, codec: Callable[[], BodyCodec], *, is_needed: bool) -> None:
        """Set the codec of a configuration: loaded now if it is needed, else when the first message needs it."""
        self._load = codec
        self._codec = codec() if is_needed or self._codec is not None else None

    def unseal(
        self,
        payload: bytes,
        *,
        kind: str,
        sender: str,
        key_of: KeyOf,
        verified_by: bytes = b"",
        limit: int = PAYLOAD_LIMIT,
    ) -> Sealed:
        """Verify a payload of a device, unless a worker has with this key, and decrypt its body.

        Raises:
            Refused: As ``envelope.unseal``, and PLAIN_REFUSED.
        """
        return self._checked(
            envelope.unseal(
                payload,
                kind=kind,
                sender=sender,
                recipient=AGGREGATOR,
                fleet=self.fleet,
                key_of=key_of,
                decrypt=self._decrypt,
                verified_by=verified_by,
                limit=limit,
            )
        )

    def opened(self, body: Sealed) -> Sealed:
        """Return a verified body that arrived in chunks, decrypted.

        Raises:
            Refused: CANNOT_OPEN, MALFORMED or PLAIN_REFUSED.
        """
        return self._checked(envelope.opened(body, self._decrypt))

    def check_hello(self, device: str, hello: HelloMessage) -> None:
        if codec := self._needed(bool(hello.key)):
            codec.check_hello(device, hello)

    def record(self, sealed: Sealed, hello: HelloMessage) -> bool:
        codec = self._needed(bool(hello.key))
        return codec is not None and codec.record(sealed, hello)

    def key_of(self, device: str) -> bytes:
        return b"" if self._codec is None else self._codec.key_of(device)

    def encoded(self, device: str, message: ProtocolMessage, key: bytes) -> tuple[str, bytes]:
        """Return kind and body of a message to a device, encrypted if the device has a key."""
        if codec := self._needed(bool(key)):
            return codec.encoded(device, message, key)
        return message.kind, encode(message)

    def _needed(self, is_needed: bool) -> BodyCodec | None:  # noqa: FBT001 - one word
        if self._codec is None and self._load is not None and is_needed:
            self._codec = self._load()
        return self._codec

    def _decrypt(self, kind: str, sender: str, body: bytes) -> bytes:
        found = self._needed(True)
        if found is None:
            raise Refused(Reason.CANNOT_OPEN, f"an encrypted {kind}")
        return found.decrypt(kind, sender, body)

    def _checked(self, proved: Sealed) -> Sealed:
        if proved.clear is None and self._codec is not None:
            self._codec.refuse_clear(proved.kind, proved.sender)
        return proved
