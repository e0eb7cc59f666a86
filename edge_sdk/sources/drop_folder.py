"""Read files that another program writes into a folder: each complete file is one frame.

A careful writer uses a temporary name and renames; otherwise a file counts as complete once it is
unchanged between two scans. Files that were read are recorded by name, size and time, so that a
broken file that is written again is read again. Nothing in the folder is changed.
"""

from __future__ import annotations

import math
import stat
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from edge_sdk.app.clock import Clock, SystemClock
from edge_sdk.sources.base import RawFrame

UNFINISHED = (".part", ".tmp", ".temp", ".filepart", ".swp")


class FileState(NamedTuple):
    """Identifies a version of a file."""

    size: int
    changed: int  # nanoseconds


@dataclass(slots=True)
class DropFolder:
    """The files of a folder, oldest first.

    Attributes:
        path: Folder; it may be created later.
        pattern: Shell pattern of the file names to read.
        every: Seconds between two scans, and for which a file must be unchanged.
        history: Largest age in seconds of a file when it is first seen.
        largest: Largest size in bytes of a file to read, and of the frames of one call.
        clock: Monotonic clock.
        wait: Function that sleeps for so many seconds.
        rejected: Files that were not read, by reason.
    """

    path: Path
    pattern: str = "*"
    every: float = 5.0
    history: float = math.inf
    largest: int = 4 << 20
    clock: Clock = field(default_factory=SystemClock)
    wait: Callable[[float], object] = time.sleep
    rejected: Counter[str] = field(default_factory=Counter)
    _next: float = -math.inf
    _complete: list[Path] = field(default_factory=list)
    _before: dict[Path, FileState] = field(default_factory=dict)
    _read: dict[Path, FileState] = field(default_factory=dict)
    _large: set[Path] = field(default_factory=set)
    _listed: list[Path] = field(default_factory=list)

    def frames(self, patience: float) -> list[RawFrame]:
        """Wait up to ``patience`` seconds; return the files that have become complete."""
        pause = self._next - self.clock.monotonic()
        if not self._complete and pause > 0:
            self.wait(min(pause, patience))
            pause = self._next - self.clock.monotonic()
        if not self._complete and pause <= 0:
            self._look()
            self._next = self.clock.monotonic() + self.every
        return self._oldest()

    def close(self) -> None:
        """Do nothing: the feed holds no resource."""

    def _look(self) -> None:
        """Find the files that have become complete since the last scan."""
        now = {path: state for path in self._candidates() if (state := self._state(path))}
        self._complete = sorted(
            (path for path in now if self._before.get(path) == now[path] != self._read.get(path)),
            key=lambda path: (now[path].changed, path),
        )
        self._before = now
        self._large.intersection_update(self._listed)
        self._read = {path: state for path, state in self._read.items() if path in now}

    def _oldest(self) -> list[RawFrame]:
        """Read the oldest complete files, up to the size limit of one call."""
        found: list[RawFrame] = []
        room = self.largest
        while self._complete and (size := self._before[self._complete[0]].size) <= room:
            path, room = self._complete.pop(0), room - size
            self._read[path] = self._before[path]
            try:
                found.append(RawFrame(path.read_bytes(), self.clock.wall() / 1000))
            except OSError:
                self.rejected["unreadable file"] += 1
        return found

    def _candidates(self) -> list[Path]:
        try:
            found = list(self.path.glob(self.pattern))
        except OSError:
            return []
        self._listed = [
            path
            for path in found
            if not (path.name.startswith(".") or path.name.endswith(UNFINISHED))
        ]
        return self._listed

    def _state(self, path: Path) -> FileState | None:
        """Return the version of a file, or None for one that does not count."""
        try:
            status = path.stat()
        except OSError:  # deleted since
            return None
        is_old = status.st_mtime < self.clock.wall() / 1000 - self.history
        if not stat.S_ISREG(status.st_mode) or (is_old and path not in self._read):
            return None
        if status.st_size > self.largest:
            if path not in self._large:
                self._large.add(path)
                self.rejected["too large"] += 1
            return None
        return FileState(status.st_size, status.st_mtime_ns)
