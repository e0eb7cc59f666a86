"""Write and read signed checkpoints of a log: C2SP signed-note, tlog-checkpoint and cosignature/v1.

A checkpoint is a text of three lines: the name of the log, its number of leaves, and its root in base64.
After an empty line follow signatures, one a line: the log's own, and cosignatures of witnesses, which also
state a time. A key's name in a note is the name of its holder, and its id is 4 bytes of a hash of both.

Sources: https://c2sp.org/signed-note, https://c2sp.org/tlog-checkpoint, https://c2sp.org/tlog-cosignature.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.protocol.keys import PUBLIC_SIZE, SIGNATURE_SIZE, Signer, checked_public, verify

NOTE_LIMIT = 2048
"""Most bytes of a note."""

_ID_SIZE = 4
_LOG, _WITNESS = 1, 4  # signature types
_LINE = re.compile(r"\N{EM DASH} ([^\s+]+) ([A-Za-z0-9+/]+={0,2})")
_SIZE = re.compile(r"0|[1-9][0-9]{0,15}")
_NAME = re.compile(r"[^\s+]{1,128}")


class NoteError(ValueError):
    """An error: a text that is no checkpoint, or a key that is no verifier key."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State of a log."""

    origin: str  # name of the log
    size: int
    root: bytes  # root of its tree (32 bytes)

    @property
    def text(self) -> str:
        """Return the three lines that are signed.

        >>> print(Checkpoint("example.com/log", 1, bytes(32)).text, end="")
        example.com/log
        1
        AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=
        """
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"


@dataclass(frozen=True, slots=True)
class NoteSignature:
    """One signature line."""

    name: str  # name of the key's holder
    id: bytes  # key id (4 bytes)
    signature: bytes  # the bytes after the id: 64 of a log, 8 more of a witness

    @property
    def line(self) -> str:
        """Return the line without its line end."""
        return f"\N{EM DASH} {self.name} {base64.b64encode(self.id + self.signature).decode()}"


@dataclass(frozen=True, slots=True)
class SignedCheckpoint:
    """A checkpoint with its signatures, which are not verified by reading it."""

    checkpoint: Checkpoint
    signatures: tuple[NoteSignature, ...]

    @property
    def text(self) -> str:
        lines = "".join(f"{one.line}\n" for one in self.signatures)
        return f"{self.checkpoint.text}\n{lines}"

    def is_signed_by(self, public: bytes) -> bool:
        """Return whether the log's own key has signed it; the key's name is the name of the log."""
        origin, said = self.checkpoint.origin, self.checkpoint.text.encode()
        wanted = key_id(origin, public, _LOG)
        return any(
            (one.name, one.id) == (origin, wanted) and verify(public, one.signature, said)
            for one in self.signatures
        )

    def cosigned_at(self, witness: WitnessKey) -> int | None:
        """Return when a witness has cosigned it, Unix seconds; None if it has not."""
        for one in self.signatures:
            if (one.name, one.id) != (witness.name, witness.id):
                continue
            time, signature = one.signature[:8], one.signature[8:]
            at = int.from_bytes(time, "big")
            if verify(witness.public, signature, _cosigned(self.checkpoint, at)):
                return at
        return None


@dataclass(frozen=True, slots=True)
class WitnessKey:
    """Public key of a witness."""

    name: str
    public: bytes  # its raw Ed25519 public key

    @property
    def id(self) -> bytes:
        return key_id(self.name, self.public, _WITNESS)

    @property
    def text(self) -> str:
        """Return the verifier key: name, id and key, joined by plus signs.

        >>> WitnessKey("example.com/w", bytes(range(32))).text
        'example.com/w+fb8b3b01+BAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f'
        """
        encoded = base64.b64encode(bytes((_WITNESS,)) + self.public).decode()
        return f"{self.name}+{self.id.hex()}+{encoded}"

    @classmethod
    def parse(cls, text: str) -> WitnessKey:
        """Read a verifier key of a witness.

        Raises:
            NoteError: The text is none; the sentence says why.

        >>> WitnessKey.parse("example.com/w+00000000+BAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f")
        Traceback (most recent call last):
        edge_sdk.extensions.model_log.signed_note.NoteError: the key id 00000000 is not that of this key, fb8b3b01
        """
        name, _, rest = text.strip().partition("+")
        said, _, encoded = rest.partition("+")
        raw = _decoded(encoded)
        if not _NAME.fullmatch(name) or len(raw) != 1 + PUBLIC_SIZE or raw[0] != _WITNESS:
            raise NoteError(f"{text!r} is no verifier key of a witness (NAME+ID+KEY)")
        found = cls(name, checked_public(raw[1:], name))
        if said != found.id.hex():
            raise NoteError(f"the key id {said} is not that of this key, {found.id.hex()}")
        return found


def key_id(name: str, public: bytes, kind: int) -> bytes:
    """Return the 4 bytes by which a note names a key."""
    named = name.encode() + b"\n" + bytes((kind,)) + public
    return hashlib.sha256(named).digest()[:_ID_SIZE]


def signed(checkpoint: Checkpoint, signer: Signer) -> SignedCheckpoint:
    """Sign a checkpoint as its log.

    >>> from edge_sdk.protocol.keys import from_seed
    >>> key = from_seed(bytes(32))
    >>> note = signed(Checkpoint("example.com/log", 1, bytes(32)), key)
    >>> note.is_signed_by(key.public), read_note(note.text) == note
    (True, True)
    """
    signature = signer.sign(checkpoint.text.encode())
    own = NoteSignature(
        checkpoint.origin, key_id(checkpoint.origin, signer.public, _LOG), signature
    )
    return SignedCheckpoint(checkpoint, (own,))


def cosigned(note: SignedCheckpoint, name: str, signer: Signer, at: int) -> SignedCheckpoint:
    """Add a witness's signature, which states that the log was consistent until then.

    Args:
        note: The checkpoint; earlier signatures of this witness are replaced.
        at: Unix seconds.
    """
    witness = WitnessKey(name, signer.public)
    signature = at.to_bytes(8, "big") + signer.sign(_cosigned(note.checkpoint, at))
    others = (one for one in note.signatures if (one.name, one.id) != (name, witness.id))
    own = NoteSignature(name, witness.id, signature)
    return SignedCheckpoint(note.checkpoint, (*others, own))


def read_note(text: str) -> SignedCheckpoint:
    """Read a signed checkpoint; no signature is verified.

    Raises:
        NoteError: It is none; the sentence says why.
    """
    if len(text.encode()) > NOTE_LIMIT:
        raise NoteError(f"a note of more than {NOTE_LIMIT} bytes")
    head, separator, rest = text.rpartition("\n\n")
    lines = head.split("\n")
    if not separator or len(lines) < 3:
        raise NoteError("expected three lines, an empty line, and signatures")
    origin, size, encoded = lines[:3]
    root = _decoded(encoded)
    if not _NAME.fullmatch(origin) or not _SIZE.fullmatch(size) or len(root) != 32:
        raise NoteError("expected the name of a log, its size, and a root of 32 bytes in base64")
    checkpoint = Checkpoint(origin, int(size), root)
    if checkpoint.text != f"{head}\n":
        raise NoteError("expected three lines in their canonical form")
    return SignedCheckpoint(checkpoint, tuple(_signatures(rest)))


def _signatures(text: str) -> Iterable[NoteSignature]:
    if not text.endswith("\n"):
        raise NoteError("the last signature has no line end")
    for line in text[:-1].split("\n"):
        found = _LINE.fullmatch(line)
        raw = _decoded(found[2]) if found else b""
        if found is None or len(raw) < _ID_SIZE + SIGNATURE_SIZE:
            raise NoteError("expected a signature: a dash, a name, and base64")
        yield NoteSignature(found[1], raw[:_ID_SIZE], raw[_ID_SIZE:])


def _cosigned(checkpoint: Checkpoint, at: int) -> bytes:
    return f"cosignature/v1\ntime {at}\n{checkpoint.text}".encode()


def _decoded(encoded: str) -> bytes:
    """Return the bytes of canonical base64; empty if it is none."""
    try:
        raw = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return b""
    return raw if base64.b64encode(raw).decode() == encoded else b""
