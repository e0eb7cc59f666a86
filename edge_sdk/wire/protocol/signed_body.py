"""Write the body of a message to the aggregator that is stored before it is sent, and its proof."""

from __future__ import annotations

from edge_sdk.wire.keys import Signer
from edge_sdk.wire.protocol.codec import encode
from edge_sdk.wire.protocol.encrypted_body import BodyContext, encrypted_body
from edge_sdk.wire.protocol.envelope import AGGREGATOR, digest, prove
from edge_sdk.wire.protocol.messages import Message


def signed_body(
    message: Message, *, fleet: str, sender: str, signer: Signer, encrypt_to: bytes | None = None
) -> tuple[bytes, bytes]:
    """Return the body of a message, encrypted if a key is given, and its proof.

    Args:
        message: Message to the aggregator.
        fleet: Id of the fleet.
        sender: Id of the sender.
        signer: Signing key of the sender.
        encrypt_to: Raw X25519 key of the aggregator (32 bytes); None if the body is sent clear.

    Raises:
        Refused: CANNOT_OPEN: the key is of small order, and agrees on no secret.
    """
    body, way = encode(message), BodyContext(fleet, message.kind, sender, AGGREGATOR)
    if encrypt_to is not None:
        body = encrypted_body(body, encrypt_to, way)
    proof = prove(
        digest(body),
        kind=way.kind,
        sender=way.sender,
        recipient=way.recipient,
        fleet=way.fleet,
        signer=signer,
    )
    return body, proof
