"""Define the log of a run's models: its name, its leaves, and the proof in a manifest.

Every manifest that the aggregator signs is one leaf, appended in the order of their serial numbers. The
manifest carries the signed checkpoint of the tree with this leaf as the last one, and the proof of it: see
``merkle_tree.appended`` (`PROTOCOL.md` section 7).
"""

from __future__ import annotations

import hashlib
import struct

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.model_log import merkle_tree, signed_note
from edge_sdk.extensions.model_log.signed_note import Checkpoint, NoteError, SignedCheckpoint
from edge_sdk.protocol.messages import ModelMessage

_LEAF = b"gridfed/1/leaf\x00"
_TERMS = b"gridfed/1/terms\x00"


@dataclass(frozen=True, slots=True)
class LoggedModel:
    """Content of a leaf: one published manifest."""

    run: int
    round: int
    version: int
    serial: int
    digest: bytes  # SHA-256 of the content body (32 bytes)
    bundle: bytes  # SHA-256 of the archive of the announced bundle (32 bytes)
    terms: bytes  # SHA-256 of the layout and the numbers with which devices train (32 bytes)

    @property
    def data(self) -> bytes:
        """Return the bytes of the leaf: 143 of them.

        >>> leaf = LoggedModel(7, 41, 41, 5, bytes(32), bytes(32), bytes(32))
        >>> len(leaf.data), LoggedModel.parse(leaf.data) == leaf
        (143, True)
        """
        numbers = struct.pack(">4Q", self.run, self.round, self.version, self.serial)
        return _LEAF + numbers + self.digest + self.bundle + self.terms

    @classmethod
    def parse(cls, data: bytes) -> LoggedModel:
        """Read the bytes of a leaf.

        Raises:
            Refused: MALFORMED.
        """
        if len(data) != len(_LEAF) + 128 or not data.startswith(_LEAF):
            raise Refused(Reason.MALFORMED, "these bytes are no leaf of a log of models")
        run, round_, version, serial = struct.unpack(">4Q", data[len(_LEAF) : len(_LEAF) + 32])
        rest = data[len(_LEAF) + 32 :]
        return cls(run, round_, version, serial, rest[:32], rest[32:64], rest[64:])

    @property
    def hash(self) -> bytes:
        return merkle_tree.leaf_hash(self.data)


def origin_of(fleet: str, run: int) -> str:
    """Return the name of the log of a run.

    >>> origin_of("north", 7)
    'gridfed-log/1/north/7'
    """
    return f"gridfed-log/1/{fleet}/{run}"


def run_of(origin: str, fleet: str) -> int:
    """Return the run of a log of this fleet; 0 for any other name.

    >>> run_of("gridfed-log/1/north/7", "north"), run_of("gridfed-log/1/south/7", "north")
    (7, 0)
    """
    _, _, number = origin.rpartition("/")
    run = int(number) if number.isascii() and number.isdigit() and len(number) < 17 else 0
    return run if origin == origin_of(fleet, run) else 0


def leaf_of(manifest: ModelMessage, bundle: bytes) -> LoggedModel:
    """Return the leaf of a manifest.

    Args:
        manifest: The manifest, with or without its proof.
        bundle: SHA-256 of the archive of the bundle that is announced for its run.
    """
    return LoggedModel(
        manifest.run,
        manifest.round,
        manifest.version,
        manifest.serial,
        manifest.digest,
        bundle,
        _terms(manifest),
    )


def proved_roots(
    manifest: ModelMessage, bundle: bytes, fleet: str
) -> tuple[SignedCheckpoint, bytes]:
    """Return the checkpoint of a manifest, and the root of the log without this manifest.

    No signature is verified.

    Args:
        bundle: SHA-256 of the archive of the bundle that is announced for its run.

    Raises:
        Refused: MALFORMED for a note or a proof that is none, or that of another log; BAD_DIGEST if the
            manifest is not the last leaf of the checkpoint.
    """
    note = checkpoint_of(manifest.note or "", fleet, manifest.run)
    said = note.checkpoint
    try:
        path = merkle_tree.split(manifest.path)
        before, after = merkle_tree.appended(said.size, leaf_of(manifest, bundle).hash, path)
    except ValueError as error:
        raise Refused(Reason.MALFORMED, f"proof of the manifest: {error}") from error
    if after != said.root:
        raise Refused(Reason.BAD_DIGEST, f"the manifest is not leaf {said.size} of its log")
    return note, before


def checkpoint_of(text: str, fleet: str, run: int) -> SignedCheckpoint:
    """Read a checkpoint of a run's log; no signature is verified.

    Raises:
        Refused: MALFORMED: it is none, or one of another log.
    """
    try:
        note = signed_note.read_note(text)
    except NoteError as error:
        raise Refused(Reason.MALFORMED, f"checkpoint: {error}") from error
    if note.checkpoint.origin != origin_of(fleet, run):
        why = f"checkpoint of {note.checkpoint.origin!r}, expected {origin_of(fleet, run)!r}"
        raise Refused(Reason.MALFORMED, why)
    return note


def checkpoint(fleet: str, run: int, size: int, root: bytes) -> Checkpoint:
    return Checkpoint(origin_of(fleet, run), size, root)


def _terms(manifest: ModelMessage) -> bytes:
    parts = [manifest.spec, manifest.cohort or b"", struct.pack(">d", manifest.share)]
    for name, value in sorted(manifest.vals.items()):
        parts += [name.encode(), struct.pack(">d", value)]
    framed = b"".join(len(part).to_bytes(1, "big") + part for part in parts)
    return hashlib.sha256(_TERMS + framed).digest()
