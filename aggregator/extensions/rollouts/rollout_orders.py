"""Hand a signed description of a rollout to the running daemon, beside its order."""

from __future__ import annotations

import os
from pathlib import Path

from aggregator.operations.commands import OrderError
from edge_sdk.app.permissions import make_private_folder, open_private

_NAME = "rollout.description"


def leave_description(folder: Path, payload: bytes) -> None:
    """Write a signed description atomically; its order is written after it."""
    make_private_folder(folder)
    part = folder / f"{_NAME}-part"
    with open_private(part, "wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())
    part.replace(folder / _NAME)


def read_description(folder: Path) -> bytes:
    """Return the signed description."""
    try:
        return (folder / _NAME).read_bytes()
    except OSError as error:
        raise OrderError(f"rollout: {error}") from error


def remove_description(folder: Path) -> None:
    """Delete the description, after its rollout was saved."""
    (folder / _NAME).unlink(missing_ok=True)
