"""Encrypt a body to the key of its recipient, so that a broker reads neither header nor blob.

Devices encrypt to the aggregator, the aggregator to one device, and neighbours to each other.

``[1, kid, enc, ciphertext]``: the number of the suite, the id of the recipient's key, and the two
outputs of ``hpke``. Fleet, kind, sender and recipient are the context of the encryption, so
the ciphertext is valid in no other envelope, also under another signature.
"""

from __future__ import annotations

from collections.abc import Callable

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.encryption.hpke import (
    ENC_SIZE,
    TAG_SIZE,
    DecryptionKey,
    HpkeError,
    encrypt,
)
from edge_sdk.protocol import msgpack_reader
from edge_sdk.protocol.envelope import AGGREGATOR
from edge_sdk.protocol.keys import KID_SIZE, kid_of
from edge_sdk.protocol.messages import BODY_LIMIT, CLEAR, ENCRYPTED
from edge_sdk.protocol.msgpack_reader import Cursor, malformed

SUITE = 1
"""DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20-Poly1305; other numbers are reserved."""


@dataclass(frozen=True, slots=True)
class BodyContext:
    """The ends and the kind of a message, which both ends of an encryption must state alike."""

    fleet: str
    kind: str
    sender: str
    recipient: str

    def info(self) -> bytes:
        """Return the bytes that bind a ciphertext to this context."""
        parts = (self.fleet, self.kind, self.sender, self.recipient)
        return self._label + b"".join(
            bytes([len(raw)]) + raw for raw in (part.encode() for part in parts)
        )

    @property
    def _label(self) -> bytes:
        """Return the label of the direction: up, down to one device, or between neighbours."""
        if self.recipient == AGGREGATOR:
            return b"gridfed/1/hpke\0"
        return b"gridfed/1/hpke/down\0" if self.sender == AGGREGATOR else b"gridfed/1/hpke/peer\0"


def encrypted_body(
    body: bytes, public: bytes, context: BodyContext, *, ephemeral: DecryptionKey | None = None
) -> bytes:
    """Return the encrypted form of a clear body, 64 to 67 bytes longer.

    Args:
        public: Raw X25519 key of the recipient (32 bytes).
        context: Ends and kind of the message.
        ephemeral: Key of this message; given by test vectors only.

    Raises:
        Refused: CANNOT_OPEN: the public key is of small order, and agrees on no secret.
    """
    try:
        sent = encrypt(body, public, info=context.info(), ephemeral=ephemeral)
    except HpkeError as error:
        raise Refused(Reason.CANNOT_OPEN, str(error)) from error
    return b"".join(
        (
            bytes([ENCRYPTED, SUITE]),
            msgpack_reader.binary(kid_of(public)),
            msgpack_reader.binary(sent[:ENC_SIZE]),
            msgpack_reader.binary(sent[ENC_SIZE:]),
        )
    )


def decrypted_body(
    body: bytes, key_of: Callable[[bytes], DecryptionKey | None], context: BodyContext
) -> bytes:
    """Return the clear body of an encrypted one.

    Args:
        body: Body of a message whose sender is verified; its first byte is ``ENCRYPTED``.
        key_of: Function that returns the private key with an id (8 bytes), or None.
        context: Ends and kind of the message.

    Raises:
        Refused: MALFORMED for an error of form; CANNOT_OPEN for another suite, a key that
            ``key_of`` does not return, and a ciphertext that was changed or made for another context.
    """
    kid, sent = _read(body)
    key = key_of(kid)
    if key is None:
        raise Refused(Reason.CANNOT_OPEN, f"encrypted to the key {kid.hex()}, which is not here")
    try:
        clear = key.decrypt(sent, info=context.info())
    except HpkeError as error:
        raise Refused(Reason.CANNOT_OPEN, f"key {kid.hex()}: {error}") from error
    if clear[:1] != bytes([CLEAR]):
        raise malformed("the content of an encrypted body starts with 0x92")
    return clear


def _read(body: bytes) -> tuple[bytes, bytes]:
    if len(body) > BODY_LIMIT:
        raise Refused(Reason.TOO_LARGE, f"body of {len(body)} bytes")
    at = Cursor(body)
    if at.array() != 4:
        raise malformed("an encrypted body has four elements")
    suite = at.whole()
    if suite != SUITE:
        raise Refused(Reason.CANNOT_OPEN, f"suite {suite} of an encrypted body; known: {SUITE}")
    kid, enc, ciphertext = at.binary(KID_SIZE), at.binary(ENC_SIZE), at.binary(BODY_LIMIT)
    if not at.is_done:
        raise malformed("bytes after the encrypted body")
    if len(kid) != KID_SIZE or len(enc) != ENC_SIZE or len(ciphertext) <= TAG_SIZE:
        raise malformed(f"an encrypted body of {len(kid)}, {len(enc)}, {len(ciphertext)} bytes")
    return kid, enc + ciphertext
