"""Read the files of the state folder that hold the roots before and after the present one.

- ``root.next.pub``: the next root; a rotation has begun and is not announced yet.
- ``root.former.pub``: the root before; devices are changing over, and both roots sign.
- ``root.archive.pub``: keys of all roots before, a key a line; they have signed older archives.
"""

from __future__ import annotations

from pathlib import Path

from edge_sdk.protocol.root_keys import RootKeys, read_root

NEXT, FORMER, ARCHIVE = "root.next.pub", "root.former.pub", "root.archive.pub"


def next_root(folder: Path) -> RootKeys | None:
    """Return the next root of a rotation that is not announced yet."""
    return _read(folder / NEXT)


def former_root(folder: Path) -> RootKeys | None:
    """Return the root before, while devices are changing over."""
    return _read(folder / FORMER)


def archived_keys(folder: Path) -> tuple[bytes, ...]:
    """Return the keys of former roots, which have signed older archives of bundles."""
    path = folder / ARCHIVE
    lines = path.read_text("ascii").split() if path.exists() else []
    former = former_root(folder)
    return (*map(bytes.fromhex, lines), *(former.keys if former else ()))


def _read(path: Path) -> RootKeys | None:
    return read_root(path) if path.exists() else None
