"""Certificates of removal: a signed statement that a logged model is without a device's contribution.

A certificate is one line of JSON. It names the removal's event in the journal and the first model after
it, proves that this model is in the log of its run, and is verified by the aggregator's public key alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aggregator.extensions.model_log.log_export import VerifiedLog, leaf_fields, read_leaf, read_row
from edge_sdk.errors import RUNTIME, Failure, Reason, Refused
from edge_sdk.extensions.model_log import merkle_tree, signed_note
from edge_sdk.extensions.model_log.log_format import LoggedModel, checkpoint, checkpoint_of
from edge_sdk.protocol.contract.method import Unlearned, Update
from edge_sdk.protocol.keys import Signer, verify

if TYPE_CHECKING:  # an outsider who verifies a certificate opens no database
    from aggregator.extensions.model_log.model_log import LogLeaf
    from aggregator.store.store import Store

FORMAT = "gridfed-removal/1"
_FIELDS = {
    "format": str, "fleet": str, "run": int, "device": str, "event": int, "model": dict, "path": str, "note": str,
    "signature": str,
}  # fmt: skip


class RemovalError(Failure):
    """A device that was not removed, or whose removal has no announced model yet."""

    exit_code = RUNTIME


@dataclass(frozen=True, slots=True)
class Removal:
    """Removal of a device's contribution, and the first model without it."""

    fleet: str
    run: int
    device: str
    event: int  # position of the removal in the journal
    leaf: int  # number of the model's leaf in the log of the run
    model: LoggedModel

    @property
    def text(self) -> str:
        """Return the lines that are signed."""
        return (
            f"{FORMAT}\nfleet {self.fleet}\nrun {self.run}\ndevice {self.device}\nevent {self.event}\n"
            f"leaf {self.leaf}\nmodel {self.model.hash.hex()}\n"
        )


def certificate(store: Store, fleet: str, run: int, device: str, signer: Signer) -> str:
    """Return the certificate of a device's last removal from a run, without a line end.

    Raises:
        RemovalError: The device was not removed, has answered again since, or the model without it is not
            announced yet.
    """
    from aggregator.extensions.model_log.model_log import ModelLeaves  # noqa: PLC0415 - as above

    log = store.table(ModelLeaves)
    event, leaf = _first_without(store, run, device)
    model, size = LoggedModel.parse(leaf.data), log.size(run)

    def node_of(level: int, place: int) -> bytes:
        return log.node(run, level, place)

    said = checkpoint(fleet, run, size, merkle_tree.root(size, node_of))
    removal = Removal(fleet, run, device, event, leaf.index, model)
    path = merkle_tree.joined(merkle_tree.inclusion_proof(leaf.index, size, node_of))
    found = {
        "format": FORMAT, "fleet": fleet, "run": run, "device": device, "event": event,
        "model": leaf_fields(leaf), "path": path.hex(), "note": signed_note.signed(said, signer).text,
        "signature": signer.sign(removal.text.encode()).hex(),
    }  # fmt: skip
    return json.dumps(found)


def _first_without(store: Store, run: int, device: str) -> tuple[int, LogLeaf]:
    """Return the position of a removal, and the leaf of the first model without the device."""
    from aggregator.extensions.model_log.model_log import ModelLeaves  # noqa: PLC0415 - as above

    removed = answered = 0
    for entry in store.journal.entries(run):
        match entry.event:
            case Unlearned(client=name) if name == device:
                removed, answered = entry.position, 0
            case Update(sender=name) if name == device and removed:
                answered = entry.position
    if not removed:
        raise RemovalError(f"run {run}: {device!r} was not unlearned")
    if answered:
        why = f"run {run}: {device!r} has answered again since it was unlearned (event {answered})"
        raise RemovalError(why, hint=f"gridfed-aggregator revoke {device}, then unlearn it again")
    closed = (one for one in store.runs.versions(run) if one.moved and one.position >= removed)
    version = min((one.version for one in closed), default=0)
    for leaf in store.table(ModelLeaves).leaves(run) if version else ():
        if LoggedModel.parse(leaf.data).version >= version:
            return removed, leaf
    raise RemovalError(
        f"run {run}: the model without {device!r} is not announced yet",
        hint="give the command again after the next round",
    )


def verified(line: str, public: Sequence[bytes], log: VerifiedLog | None = None) -> Removal:
    """Verify a certificate.

    Args:
        public: Public keys of the aggregator.
        log: A verified export of the run's log, of which the certificate's log must be the beginning.

    Raises:
        Refused: MALFORMED; BAD_SIGNATURE; BAD_DIGEST if the model is not in the log; ROLLBACK or LOG_FORK if
            the export does not continue the certificate's log.
    """
    row = read_row(1, line, _FIELDS)
    if row["format"] != FORMAT:
        raise Refused(Reason.MALFORMED, f"format {row['format']!r}, expected {FORMAT!r}")
    index, model = read_leaf(1, json.dumps(row["model"]), row["run"])
    note = checkpoint_of(row["note"], row["fleet"], row["run"])
    removal = Removal(row["fleet"], row["run"], row["device"], row["event"], index, model)
    signature = _hex(row["signature"])
    is_signed = any(verify(key, signature, removal.text.encode()) for key in public)
    if not is_signed or not any(map(note.is_signed_by, public)):
        raise Refused(Reason.BAD_SIGNATURE, "no key of the aggregator signed the certificate")
    try:
        path = merkle_tree.split(_hex(row["path"]))
        root = merkle_tree.included_root(index, note.checkpoint.size, model.hash, path)
    except ValueError as error:
        raise Refused(Reason.MALFORMED, f"proof of the model: {error}") from error
    if root != note.checkpoint.root:
        raise Refused(Reason.BAD_DIGEST, f"the model is not leaf {index} of its log")
    if log is not None:
        log.require_continues(note)
    return removal


def _hex(text: Any) -> bytes:  # noqa: ANN401 - a field of foreign JSON
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise Refused(Reason.MALFORMED, f"expected hex digits: {error}") from error
