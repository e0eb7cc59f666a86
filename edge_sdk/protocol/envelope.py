"""Sign and verify the envelope around every body: fleet, kind, sender, recipient.

``[wire, kind, sender, body, proof]``, five elements of fixed types. The signature covers fleet,
kind, sender, recipient and the body's digest, so an envelope is valid in no other context.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import msgpack_reader
from edge_sdk.protocol.keys import KID_SIZE, SIGNATURE_SIZE, Signer, kid_of, verify
from edge_sdk.protocol.messages import CLEAR, ENCRYPTED, SINGLE_LIMIT, WIRE
from edge_sdk.protocol.msgpack_reader import Cursor, malformed

AGGREGATOR = "_agg"
ROOT = "_root"
ALL = "_all"

PAYLOAD_LIMIT = 65536
SINGLE_PAYLOAD_LIMIT = SINGLE_LIMIT + 512  # of an update in one message, with its envelope
PROOF_SIZE = KID_SIZE + SIGNATURE_SIZE
PROOFS_LIMIT = 16  # of the root: a present one of 8 keys, and its successor of 8

KeyOf = Callable[[str, bytes], bytes | None]
"""``(sender, kid)`` to the raw public key in force, or None. It may itself raise ``Refused``
(REVOKED, QUOTA): it is asked after the topic was checked and before any signature is computed."""

IsEnough = Callable[[Collection[bytes]], bool]
"""Public keys whose signatures were verified, to whether the message counts."""

Decrypt = Callable[[str, str, bytes], bytes]
"""``(kind, sender, encrypted body)`` to the clear body. It raises ``Refused`` (CANNOT_OPEN)."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """A body whose sender is authenticated; its content is not yet decoded."""

    kind: str
    sender: str
    body: bytes  # body as received, encrypted or clear; the digest is that of these bytes
    digest: bytes  # SHA-256 of the body
    proof: bytes  # key id and signature; of the root one or several, one after the other
    clear: bytes | None = None  # Decrypted body; None if it was not encrypted

    @property
    def content(self) -> bytes:
        """Return the clear body, which can be decoded."""
        return self.body if self.clear is None else self.clear

    @property
    def ref(self) -> bytes:
        """Return the 16 bytes by which answers refer to this message."""
        return ref(self.digest)

    @property
    def clear_ref(self) -> bytes:
        return self.ref if self.clear is None else ref(digest(self.clear))


def digest(body: bytes) -> bytes:
    """Return the identity of a message: SHA-256 of its body, as received."""
    return hashlib.sha256(body).digest()


def ref(whole: bytes) -> bytes:
    """Return the short form of a digest: its first 16 bytes."""
    return whole[:16]


def seal(
    body: bytes,
    *,
    kind: str,
    sender: str,
    recipient: str,
    fleet: str,
    signer: Signer,
    also: Sequence[Signer] = (),
) -> bytes:
    """Wrap and sign a body, by several keys of the root if given; the result is a whole MQTT payload."""
    whole = digest(body)
    proof = b"".join(
        prove(whole, kind=kind, sender=sender, recipient=recipient, fleet=fleet, signer=one)
        for one in (signer, *also)
    )
    return wrap(body, kind=kind, sender=sender, proof=proof)


def wrap(body: bytes, *, kind: str, sender: str, proof: bytes) -> bytes:
    """Build an envelope around a body that was signed before; an outbox resends in this way."""
    return b"".join(
        (
            bytes([0x95, WIRE]),
            msgpack_reader.text(kind),
            msgpack_reader.text(sender),
            msgpack_reader.binary(body),
            msgpack_reader.binary(proof),
        )
    )


def prove(
    whole: bytes, *, kind: str, sender: str, recipient: str, fleet: str, signer: Signer
) -> bytes:
    """Sign a body's digest: 8 bytes of key id and 64 bytes of signature."""
    signed = _signed(whole, kind=kind, sender=sender, recipient=recipient, fleet=fleet)
    return kid_of(signer.public) + signer.sign(signed)


def check_proof(
    whole: bytes,
    proof: bytes,
    *,
    kind: str,
    sender: str,
    recipient: str,
    fleet: str,
    key_of: KeyOf,
    verified_by: bytes = b"",
) -> None:
    """Check that ``sender`` signed the body with this digest; an offer is verified in this way.

    With ``verified_by``, the public key with which another process of this receiver has verified these
    bytes, the signature is not verified again if that is still the sender's key.

    Raises:
        Refused: UNKNOWN_CLIENT if there is no such key, BAD_SIGNATURE, or what ``key_of`` raised.
    """
    if len(proof) != PROOF_SIZE:
        raise malformed(f"a proof of {len(proof)} bytes")
    kid, signature = proof[:KID_SIZE], proof[KID_SIZE:]
    public = key_of(sender, kid)
    if public is None:
        raise Refused(Reason.UNKNOWN_CLIENT, f"{sender}, key {kid.hex()}")
    if kid_of(public) == kid and public == verified_by:
        return
    signed = _signed(whole, kind=kind, sender=sender, recipient=recipient, fleet=fleet)
    if kid_of(public) != kid or not verify(public, signature, signed):
        raise Refused(Reason.BAD_SIGNATURE, f"{sender}, key {kid.hex()}")


def check_root_proofs(
    whole: bytes,
    proof: bytes,
    *,
    kind: str,
    recipient: str,
    fleet: str,
    key_of: KeyOf,
    is_enough: IsEnough,
) -> None:
    """Check that enough keys of the root signed the body with this digest.

    Signatures of unknown keys are skipped: during a rotation those of the former and of the next
    root are there.

    Raises:
        Refused: MALFORMED for a wrong length, UNKNOWN_CLIENT if there is no known key, BAD_SIGNATURE
            if a known key's signature is wrong or too few have signed, or what ``key_of`` raised.
    """
    if not proof or len(proof) % PROOF_SIZE or len(proof) > PROOFS_LIMIT * PROOF_SIZE:
        raise malformed(f"a proof of {len(proof)} bytes")
    signed = _signed(whole, kind=kind, sender=ROOT, recipient=recipient, fleet=fleet)
    found: set[bytes] = set()
    for one in _proofs(proof):
        kid, signature = one[:KID_SIZE], one[KID_SIZE:]
        public = key_of(ROOT, kid)
        if public is None or kid_of(public) != kid:
            continue
        if not verify(public, signature, signed):
            raise Refused(Reason.BAD_SIGNATURE, f"{ROOT}, key {kid.hex()}")
        found.add(public)
    if not found:
        names = ", ".join(one[:KID_SIZE].hex() for one in _proofs(proof))
        raise Refused(Reason.UNKNOWN_CLIENT, f"{ROOT}, key {names}")
    if not is_enough(found):
        raise Refused(Reason.BAD_SIGNATURE, f"{ROOT}: signed by {len(found)} of its keys, too few")


def root_signers(
    proved: Sealed, candidates: Iterable[bytes], *, recipient: str, fleet: str
) -> frozenset[bytes]:
    """Return the public keys with a valid signature on a root's message."""
    by_kid = {one[:KID_SIZE]: one[KID_SIZE:] for one in _proofs(proved.proof)}
    signed = _signed(proved.digest, kind=proved.kind, sender=ROOT, recipient=recipient, fleet=fleet)
    return frozenset(key for key in candidates if verify(key, by_kid.get(kid_of(key), b""), signed))


def _proofs(proof: bytes) -> list[bytes]:
    return [proof[at : at + PROOF_SIZE] for at in range(0, len(proof), PROOF_SIZE)]


def unseal(
    raw: bytes,
    *,
    kind: str,
    sender: str,
    recipient: str,
    fleet: str,
    key_of: KeyOf,
    decrypt: Decrypt | None = None,
    is_enough: IsEnough = bool,
    verified_by: bytes = b"",
    limit: int = PAYLOAD_LIMIT,
) -> Sealed:
    """Verify the sender of these bytes before decoding their content.

    Args:
        raw: The MQTT payload.
        kind: Kind that the topic names.
        sender: Sender that the topic names (``_agg`` or ``_root`` on downlink topics).
        recipient: The receiver's own name: ``_agg``, the device's id, or ``_all``.
        fleet: Fleet of the receiver's configuration, never of the message.
        key_of: Function that returns the sender's key; see ``KeyOf``.
        decrypt: Function that decrypts a body; None where no message is encrypted.
        is_enough: Function that decides whether the root's keys that have signed are enough; any
            one of those that ``key_of`` knows if it is left out.
        verified_by: As for ``check_proof``.
        limit: Largest payload, bytes.

    Raises:
        Refused: In this order: TOO_LARGE; MALFORMED; UNKNOWN_WIRE; MALFORMED (another kind than
            the topic's); WRONG_SENDER; what ``key_of`` raises; UNKNOWN_CLIENT; BAD_SIGNATURE;
            what ``decrypt`` raises; CANNOT_OPEN for an encrypted body without ``decrypt``.
    """
    if len(raw) > limit:
        raise Refused(Reason.TOO_LARGE, f"{len(raw)} bytes")
    wire, claimed_kind, claimed_sender, body, proof = _outer(raw, limit)
    if wire != WIRE:
        raise Refused(Reason.UNKNOWN_WIRE, str(wire))
    if claimed_kind != kind:
        raise malformed(f"kind {claimed_kind!r}, expected {kind!r} as in the topic")
    if claimed_sender != sender:
        raise Refused(
            Reason.WRONG_SENDER, f"sender {claimed_sender!r}, expected {sender!r} as in the topic"
        )
    whole = digest(body)
    if sender == ROOT:
        check_root_proofs(
            whole,
            proof,
            kind=kind,
            recipient=recipient,
            fleet=fleet,
            key_of=key_of,
            is_enough=is_enough,
        )
    else:
        check_proof(
            whole,
            proof,
            kind=kind,
            sender=sender,
            recipient=recipient,
            fleet=fleet,
            key_of=key_of,
            verified_by=verified_by,
        )
    return opened(Sealed(kind, sender, body, whole, proof), decrypt)


def opened(proved: Sealed, decrypt: Decrypt | None) -> Sealed:
    """Return a verified message with its clear body.

    Raises:
        Refused: CANNOT_OPEN or MALFORMED, as ``unseal``.
    """
    if proved.body[:1] == bytes([ENCRYPTED]):
        if decrypt is None:
            raise Refused(Reason.CANNOT_OPEN, f"an encrypted {proved.kind}")
        return replace(proved, clear=decrypt(proved.kind, proved.sender, proved.body))
    if proved.body[:1] != bytes([CLEAR]):
        raise malformed("a body starts with 0x92 or 0x94")
    return proved


def kind_of(raw: bytes) -> str:
    """Return the kind an envelope names, where its topic does not name one; verify nothing.

    Raises:
        Refused: TOO_LARGE, or MALFORMED: the bytes are not an envelope.
    """
    if len(raw) > PAYLOAD_LIMIT:
        raise Refused(Reason.TOO_LARGE, f"{len(raw)} bytes")
    return _outer(raw)[1]


def claimed_signer(raw: bytes) -> bytes:
    """Return the first key id that an envelope names as its signer; verify nothing.

    Raises:
        Refused: TOO_LARGE, or MALFORMED: the bytes are not an envelope.
    """
    return _outer(raw)[4][:KID_SIZE]


def unproved(raw: bytes) -> bytes:
    """Return the body of an envelope that this machine wrote and stored; verify nothing.

    Raises:
        Refused: MALFORMED: the bytes are not an envelope.
    """
    return _outer(raw, SINGLE_PAYLOAD_LIMIT)[3]


def _outer(raw: bytes, limit: int = PAYLOAD_LIMIT) -> tuple[int, str, str, bytes, bytes]:
    """Read five elements of fixed types and lengths; nothing else is decoded yet."""
    at = Cursor(raw)
    if at.array() != 5:
        raise malformed("an envelope has five elements")
    kind_and_sender = at.whole(), at.text(16), at.text(64)
    most = PROOF_SIZE * (PROOFS_LIMIT if kind_and_sender[2] == ROOT else 1)
    five = *kind_and_sender, at.binary(limit), at.binary(most)
    if not at.is_done:
        raise malformed("bytes after the envelope")
    return five


def _signed(whole: bytes, *, kind: str, sender: str, recipient: str, fleet: str) -> bytes:
    return b"gridfed/1/sig\0" + named(fleet, kind, sender, recipient) + whole


def named(*names: str) -> bytes:
    """Return names of at most 255 bytes, each after its length.

    >>> named("north", "m-1").hex(" ")
    '05 6e 6f 72 74 68 03 6d 2d 31'
    """
    return b"".join(bytes([len(raw)]) + raw for raw in map(str.encode, names))
