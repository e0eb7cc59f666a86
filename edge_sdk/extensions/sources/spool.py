"""Pass frames through a bounded folder of recordings: one process writes, another reads."""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from edge_sdk.app.permissions import PermissionsError, make_private_folder, tighten
from edge_sdk.extensions.sources.base import RawFrame
from edge_sdk.extensions.sources.recording import read_record, record, title

_SEGMENT = 1 << 18
_SUFFIX = ".rec"
_TURN = 0.1


def segments(folder: Path) -> list[Path]:
    """Return the folder's recordings, oldest first."""
    return sorted(folder.glob(f"*{_SUFFIX}"))


@dataclass(slots=True)
class SpoolWriter:
    """The writing end. Every start begins a new file, so that a partial frame stays at an end."""

    folder: Path  # folder; created if it is missing
    kind: str  # type of the recordings
    most: int = 4 << 20  # maximum size of the folder in bytes; the oldest file is deleted first
    _file: BinaryIO | None = None

    def write(self, frame: RawFrame) -> None:
        """Append a frame; it survives this process as soon as this returns.

        Raises:
            OSError: No space, or no permission.
        """
        if self._file is None or self._file.tell() > _SEGMENT:
            self._new_segment()
        assert self._file is not None
        self._file.write(record(frame))
        self._file.flush()

    def _new_segment(self) -> None:
        self.close()
        files = self._private()
        while files and sum(path.stat().st_size for path in files) > self.most - _SEGMENT:
            files.pop(0).unlink()
        number = int(files[-1].stem) + 1 if files else 1
        path = self.folder / f"{number:010d}{_SUFFIX}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.fdopen(os.open(path, flags, 0o600), "wb")
        self._file.write(title(self.kind))

    def _private(self) -> list[Path]:
        try:
            make_private_folder(self.folder)
            for old in (files := segments(self.folder)):
                tighten(old)
        except PermissionsError as error:
            raise PermissionError(errno.EPERM, str(error)) from error
        return files

    def close(self) -> None:
        """Close the current file."""
        if self._file is not None:
            self._file.close()
            self._file = None


@dataclass(slots=True)
class SpoolReader:
    """The reading end: a feed that begins with the oldest file and continues with newer ones."""

    folder: Path  # folder; it may be created later
    kind: str  # type of the recordings
    rejected: Counter[str] = field(default_factory=Counter)  # dropped input, counted by reason
    _path: Path | None = None
    _file: BinaryIO | None = None

    def frames(self, patience: float) -> list[RawFrame]:
        """Return the frames written since; wait briefly if there are none."""
        later = self._next_file()  # looked up before reading: the current file is then complete
        frame = None if self._file is None else self._next(self._file)
        if frame is not None:
            return [frame]
        if later is not None:
            self._open(later)
        else:
            time.sleep(min(patience, _TURN))
        return []

    def sample(self) -> list[RawFrame]:
        """Return the frames of the newest file that is there now."""
        found: list[RawFrame] = []
        for path in segments(self.folder)[-1:]:
            with path.open("rb") as file, suppress(EOFError):
                file.readline(128)
                while (frame := read_record(file)) is not None:
                    found.append(frame)
        return found

    def _next(self, file: BinaryIO) -> RawFrame | None:
        try:
            return read_record(file)
        except EOFError:
            self.rejected["damaged recording"] += 1
            file.seek(0, os.SEEK_END)
            return None

    def _next_file(self) -> Path | None:
        before = "" if self._path is None else self._path.name
        return next((path for path in segments(self.folder) if path.name > before), None)

    def _open(self, path: Path) -> None:
        if self._file is not None and self._file.read(1):
            self.rejected["torn recording"] += 1
        self.close()
        self._path = path
        try:
            self._file = path.open("rb")
        except FileNotFoundError:  # the writer deleted it for space
            return
        if self._file.readline(128) != title(self.kind):
            self.rejected["foreign recording"] += 1
            self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Close the current file."""
        if self._file is not None:
            self._file.close()
            self._file = None
