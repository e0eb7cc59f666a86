"""Cosign a log of models, or refuse it: the rule of a witness, and the last note that it cosigned.

A witness cosigns checkpoints that continue the last one that it has cosigned. It saves the new note before
it gives it away, so that after a restart it cannot cosign a second log.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from aggregator.extensions.model_log.log_export import VerifiedLog
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.model_log import signed_note
from edge_sdk.extensions.model_log.signed_note import NoteError, SignedCheckpoint
from edge_sdk.protocol.keys import Signer, write_atomically


def cosign(
    log: VerifiedLog, before: SignedCheckpoint | None, name: str, signer: Signer, at: int
) -> SignedCheckpoint:
    """Return the checkpoint of a log with the signature of a witness.

    Args:
        before: The last checkpoint of this log that the witness has cosigned; None if none.
        at: Unix seconds.

    Raises:
        Refused: ROLLBACK or LOG_FORK if the log does not continue the last checkpoint.
    """
    if before is not None:
        log.require_continues(before)
    return signed_note.cosigned(log.note, name, signer, at)


def note_path(folder: Path, origin: str) -> Path:
    """Return the file of the last note of a log.

    >>> note_path(Path("witness"), "gridfed-log/1/north/7").name
    '7a2bb080b9d0ff05.note'
    """
    return folder / f"{hashlib.sha256(origin.encode()).hexdigest()[:16]}.note"


def saved_note(folder: Path, origin: str) -> SignedCheckpoint | None:
    """Return the last note of a log that the witness has cosigned; None if none.

    Raises:
        Refused: MALFORMED for a file that is no note of this log: the witness must not begin without it.
    """
    path = note_path(folder, origin)
    try:
        note = signed_note.read_note(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (NoteError, UnicodeDecodeError) as error:
        raise Refused(Reason.MALFORMED, f"{path}: {error}") from error
    if note.checkpoint.origin != origin:
        raise Refused(Reason.MALFORMED, f"{path}: a note of {note.checkpoint.origin}")
    return note


def notes(folder: Path) -> list[SignedCheckpoint]:
    """Return the last cosigned note of every log, by its name; raise Refused, MALFORMED, for another file."""
    found = []
    for path in folder.glob("*.note"):
        try:
            found.append(signed_note.read_note(path.read_text("utf-8")))
        except (NoteError, UnicodeDecodeError) as error:
            raise Refused(Reason.MALFORMED, f"{path}: {error}") from error
    return sorted(found, key=lambda note: note.checkpoint.origin)


def forks(folder: Path) -> list[Path]:
    return sorted(folder.glob("fork-*.txt"))


def save_note(folder: Path, note: SignedCheckpoint) -> Path:
    """Save the last note of a log: atomic under power loss."""
    path = note_path(folder, note.checkpoint.origin)
    write_atomically(path, note.text.encode(), 0o644)
    return path


def save_fork(folder: Path, before: SignedCheckpoint, found: SignedCheckpoint) -> Path:
    """Save both notes of a fork as evidence; each fork has a file of its own."""
    text = f"{before.text}\n{found.text}".encode()
    path = folder / f"fork-{hashlib.sha256(text).hexdigest()[:16]}.txt"
    write_atomically(path, text, 0o644)
    return path
