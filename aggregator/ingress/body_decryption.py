"""Decrypt bodies that devices encrypted to the aggregator, and refuse clear ones that must be encrypted."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.hpke import DecryptionKey
from edge_sdk.wire.protocol import envelope
from edge_sdk.wire.protocol.encrypted_body import BodyContext, decrypted_body
from edge_sdk.wire.protocol.envelope import AGGREGATOR, PAYLOAD_LIMIT, KeyOf, Sealed


def no_key(_kid: bytes) -> None:
    """Return None: this aggregator has no decryption key."""


@dataclass(frozen=True, slots=True)
class BodyDecryption:
    """The aggregator's decryption keys and the kinds that devices must encrypt.

    Attributes:
        fleet: Id of the fleet, part of every context.
        key_of: Function that returns the private key with an id, or None.
        kinds: Kinds of which no clear body is accepted.
    """

    fleet: str
    key_of: Callable[[bytes], DecryptionKey | None] = no_key
    kinds: Collection[str] = ()

    def decrypt(self, kind: str, sender: str, body: bytes) -> bytes:
        """Return the clear body of a verified message.

        Raises:
            Refused: CANNOT_OPEN or MALFORMED, as ``decrypted_body``.
        """
        return decrypted_body(body, self.key_of, BodyContext(self.fleet, kind, sender, AGGREGATOR))

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
        return self.require_encryption(
            envelope.unseal(
                payload,
                kind=kind,
                sender=sender,
                recipient=AGGREGATOR,
                fleet=self.fleet,
                key_of=key_of,
                decrypt=self.decrypt,
                verified_by=verified_by,
                limit=limit,
            )
        )

    def opened(self, body: Sealed) -> Sealed:
        """Return a verified body that arrived in chunks, decrypted.

        Raises:
            Refused: CANNOT_OPEN, MALFORMED or PLAIN_REFUSED.
        """
        return self.require_encryption(envelope.opened(body, self.decrypt))

    def require_encryption(self, proved: Sealed) -> Sealed:
        """Return a message after checking that it was encrypted, if its kind must be.

        Raises:
            Refused: PLAIN_REFUSED.
        """
        if proved.clear is None and proved.kind in self.kinds:
            raise Refused(Reason.PLAIN_REFUSED, f"{proved.sender}: a clear {proved.kind}")
        return proved
