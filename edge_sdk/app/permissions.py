"""Restrict files to their owner: readings, vectors and keys, whatever the umask.

Files are created with mode 0600 and folders with 0700. Wider permissions of existing ones are
tightened; where that is impossible, the file is refused.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, ClassVar

from edge_sdk.errors import USAGE, Failure

FOLDER, FILE = 0o700, 0o600
_OTHERS = 0o077


class PermissionsError(Failure):
    """A file or folder is accessible to other users, and its permissions cannot be changed."""

    exit_code: ClassVar[int] = USAGE


def make_private_folder(path: Path) -> None:
    """Create a folder with mode 0700, or tighten the permissions of an existing one.

    Missing parents get mode 0755.

    Raises:
        PermissionsError: It belongs to another user, is shared like ``/tmp``, or is on a file
            system without permissions.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "state"
    >>> folder.mkdir(mode=0o755)
    >>> make_private_folder(folder)
    >>> oct(folder.stat().st_mode & 0o777)
    '0o700'
    """
    for parent in reversed([p for p in path.parents if not p.exists()]):
        parent.mkdir(mode=0o755, exist_ok=True)
    path.mkdir(mode=FOLDER, exist_ok=True)
    tighten(path)


def make_private_file(path: Path) -> None:
    """Create an empty file with mode 0600 if it is missing; tighten an existing one.

    An existing file is never opened: closing it would release the locks that SQLite has on it in
    this process.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE))
    except FileExistsError:
        tighten(path)


@contextmanager
def open_private(path: Path, mode: str = "w", **how: Any) -> Iterator[IO[Any]]:  # noqa: ANN401 - as open takes it
    """Open a file for writing, with mode 0600; an existing one is tightened before."""
    if not path.exists() or path.is_file():
        make_private_file(path)
    with path.open(mode, **how) as file:
        yield file


def require_private(path: Path) -> None:
    """Refuse a key that other users can read: they may have copied it.

    Raises:
        PermissionsError: The message names the command that corrects it.
    """
    if path.exists() and stat.S_IMODE(path.stat().st_mode) & _OTHERS:
        raise PermissionsError(f"{path}: other users can read this key", hint=f"chmod 600 {path}")


def tighten(path: Path) -> None:
    """Remove every permission of other users; do nothing if there are none, or no such file."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return
    if not mode & _OTHERS:
        return
    if mode & stat.S_ISVTX:
        raise PermissionsError(
            f"{path}: mode {mode:04o}: this folder is shared by several users",
            hint=f"name a folder of its own below it, such as {path / 'state'}; or, if no other user "
            f"needs {path}: chmod 700 {path} (of a tmpfs, mount it with mode=0700)",
        )
    try:
        path.chmod(mode & ~_OTHERS)
        left = stat.S_IMODE(path.stat().st_mode)
    except PermissionError:
        left = mode
    if left & _OTHERS:
        raise PermissionsError(
            f"{path}: mode {mode:04o} is readable by other users, and chmod failed",
            hint=f"chmod go= {path} as its owner, or mount its file system with umask=077",
        )
