"""Write the log of a run's models as JSON lines, and verify such an export from the file alone.

The first line has the fleet, the run and the signed checkpoint. Each further line is one leaf, in order. A
reader needs the aggregator's public key and nothing else: the leaves must give the root of the checkpoint,
and, for every earlier checkpoint of the same log, the root of its size.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.model_log import merkle_tree, signed_note
from edge_sdk.extensions.model_log.log_format import LoggedModel, checkpoint, origin_of
from edge_sdk.extensions.model_log.signed_note import NoteError, SignedCheckpoint
from edge_sdk.protocol.keys import Signer

if TYPE_CHECKING:  # an outsider who verifies an export opens no database
    from aggregator.extensions.model_log.model_log import LogLeaf
    from aggregator.store.store import Store

FORMAT = "gridfed-model-log/1"
LINE_LIMIT = 4096  # most characters of a line
_HEADER = {"format": str, "fleet": str, "run": int, "note": str}
_LEAF = {
    "leaf": int, "time": int, "round": int, "version": int, "serial": int, "digest": str, "bundle": str,
    "terms": str,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class VerifiedLog:
    """A log whose leaves give the root of its signed checkpoint."""

    note: SignedCheckpoint
    leaves: int
    nodes: dict[tuple[int, int], bytes]  # hashes of the complete subtrees, by level and number
    public: tuple[bytes, ...]  # public keys of the aggregator

    def root(self, size: int) -> bytes:
        """Return the root of the first ``size`` leaves (32 bytes)."""
        return merkle_tree.root(size, lambda level, place: self.nodes[level, place])

    def require_continues(self, earlier: SignedCheckpoint) -> None:
        """Refuse an earlier checkpoint that this log does not continue.

        Raises:
            Refused: BAD_SIGNATURE for a checkpoint that the aggregator has not signed; MALFORMED for one of
                another log; ROLLBACK if this log is shorter; LOG_FORK.
        """
        own, said = self.note.checkpoint, earlier.checkpoint
        if not any(map(earlier.is_signed_by, self.public)):
            raise Refused(Reason.BAD_SIGNATURE, "no key of the aggregator signed the checkpoint")
        if said.origin != own.origin:
            why = f"a checkpoint of {said.origin}, expected {own.origin}"
            raise Refused(Reason.MALFORMED, why)
        if said.size > self.leaves:
            why = f"the log has {self.leaves} leaves, and the checkpoint {said.size}"
            raise Refused(Reason.ROLLBACK, why)
        if self.root(said.size) != said.root:
            why = f"checkpoint {self.leaves} does not continue checkpoint {said.size}"
            raise Refused(Reason.LOG_FORK, why)


def export_lines(store: Store, fleet: str, run: int, signer: Signer) -> Iterator[str]:
    """Return the lines of the export of a run's log, without line ends; the signer signs the checkpoint."""
    from aggregator.extensions.model_log.model_log import ModelLeaves  # noqa: PLC0415 - as above

    log = store.table(ModelLeaves)
    size = log.size(run)
    root = merkle_tree.root(size, lambda level, place: log.node(run, level, place))
    note = signed_note.signed(checkpoint(fleet, run, size, root), signer).text
    yield json.dumps({"format": FORMAT, "fleet": fleet, "run": run, "note": note})
    for leaf in log.leaves(run, 0, size):
        yield json.dumps(leaf_fields(leaf))


def verified(lines: Iterable[str], public: Sequence[bytes]) -> VerifiedLog:
    """Verify an export.

    Args:
        public: Public keys of the aggregator; one of them has signed the checkpoint.

    Returns:
        The log, with which earlier checkpoints can be compared.

    Raises:
        Refused: MALFORMED for lines that are no export; BAD_SIGNATURE; BAD_DIGEST if the leaves do not give
            the root of the checkpoint.

    >>> verified(["{}"], [])
    Traceback (most recent call last):
    edge_sdk.errors.Refused: MALFORMED: line 1: expected fleet, format, note, run
    """
    rows = enumerate(lines, 1)
    header = read_row(*next(rows, (1, "")), _HEADER)
    if header["format"] != FORMAT:
        raise Refused(Reason.MALFORMED, f"format {header['format']!r}, expected {FORMAT!r}")
    try:
        note = signed_note.read_note(header["note"])
    except NoteError as error:
        raise Refused(Reason.MALFORMED, f"line 1: {error}") from error
    said, origin = note.checkpoint, origin_of(header["fleet"], header["run"])
    if said.origin != origin:
        raise Refused(Reason.MALFORMED, f"a checkpoint of {said.origin}, expected {origin}")
    if not any(map(note.is_signed_by, public)):
        raise Refused(Reason.BAD_SIGNATURE, "no key of the aggregator signed the checkpoint")
    nodes: dict[tuple[int, int], bytes] = {}
    count = 0
    for number, line in rows:
        index, leaf = read_leaf(number, line, header["run"])
        if index != count:
            raise Refused(Reason.MALFORMED, f"line {number}: leaf {index}, expected {count}")
        found = merkle_tree.completed(count, leaf.hash, lambda level, place: nodes[level, place])
        nodes.update({(level, place): value for level, place, value in found})
        count += 1
    log = VerifiedLog(note, count, nodes, tuple(public))
    if count != said.size or log.root(count) != said.root:
        why = f"{count} leaves do not give the root of checkpoint {said.size}"
        raise Refused(Reason.BAD_DIGEST, why)
    return log


def leaf_fields(leaf: LogLeaf) -> dict[str, Any]:
    """Return the fields of a leaf's line."""
    found = LoggedModel.parse(leaf.data)
    return {
        "leaf": leaf.index, "time": leaf.time, "round": found.round, "version": found.version,
        "serial": found.serial, "digest": found.digest.hex(), "bundle": found.bundle.hex(),
        "terms": found.terms.hex(),
    }  # fmt: skip


def read_leaf(number: int, line: str, run: int) -> tuple[int, LoggedModel]:
    """Return the number of the leaf in a line, and its content; raise Refused for any other line."""
    row = read_row(number, line, _LEAF)
    counts = [row[name] for name in ("round", "version", "serial")]
    digests = [_digest(number, row[name]) for name in ("digest", "bundle", "terms")]
    return row["leaf"], LoggedModel(run, *counts, *digests)


def _digest(number: int, text: str) -> bytes:
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if raw.hex() != text or len(raw) != merkle_tree.HASH_SIZE:
        raise Refused(Reason.MALFORMED, f"line {number}: expected a digest of 64 hex digits")
    return raw


def read_row(number: int, line: str, wanted: dict[str, type]) -> dict[str, Any]:
    """Return the object in a line, which has exactly the wanted fields; numbers are below 2**63."""
    try:
        found = json.loads(line) if len(line) <= LINE_LIMIT else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or set(found) != set(wanted):
        names = ", ".join(sorted(wanted))
        raise Refused(Reason.MALFORMED, f"line {number}: expected {names}")
    for name, kind in wanted.items():
        value = found[name]
        is_in_bounds = not isinstance(value, int) or 0 <= value < 2**63
        if type(value) is not kind or not is_in_bounds:
            raise Refused(
                Reason.MALFORMED, f"line {number}: {name} is no {kind.__name__} in bounds"
            )
    return found
