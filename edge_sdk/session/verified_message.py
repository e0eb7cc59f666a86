"""Define a message whose sender is verified, and verify those of peers."""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.protocol import topics
from edge_sdk.wire.protocol.envelope import AGGREGATOR, Decrypt, KeyOf, Sealed, kind_of, unseal
from edge_sdk.wire.protocol.messages import Message

_PEERS = frozenset({"peer", "settle"})


@dataclass(frozen=True, slots=True)
class VerifiedMessage:
    """A message whose sender is verified, its clear body, and the reference to that."""

    message: Message
    body: bytes
    ref: bytes
    sender: str = AGGREGATOR


def sealed_by_peer(
    payload: bytes,
    address: topics.TopicAddress,
    recipient: tuple[str, str],
    key_of: KeyOf,
    decrypt: Decrypt | None,
) -> Sealed:
    """Verify the sender of a message from a peer.

    Args:
        payload: Bytes of the message.
        address: Its topic.
        recipient: Ids of fleet and device that read it.
        key_of: Returns the key of a peer; None for any other sender.
        decrypt: As for ``unseal``.

    Raises:
        Refused: UNKNOWN_KIND: not of a kind for this device from a peer; or as ``unseal``.
    """
    (fleet, device), kind = recipient, kind_of(payload)
    if kind not in _PEERS or address.tail != device:
        raise Refused(Reason.UNKNOWN_KIND, f"{kind!r} is not accepted from a peer")
    return unseal(
        payload,
        kind=kind,
        sender=address.id,
        recipient=device,
        fleet=fleet,
        key_of=key_of,
        decrypt=decrypt,
    )
