"""Read files that another program writes into a folder: each complete file is one frame.

A careful writer uses a temporary name and renames; otherwise a file counts as complete once it is
unchanged between two scans. Files that were read are recorded by name, size and time, so that a
broken file that is written again is read again. Nothing in the folder is changed.
"""

from __future__ import annotations

import math
import re
import stat
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from edge_sdk.app.clock import Clock, SystemClock
from edge_sdk.extensions.sources.base import RawFrame, tally

UNFINISHED = (".part", ".tmp", ".temp", ".filepart", ".swp")
_COUNTED = 1024  # files that are not read are counted up to this number, in bounded memory
_REPORT = re.compile(r".*\.xml\b.*|[A-D]\d{8}\.\d{4}.*", re.IGNORECASE | re.DOTALL)


class FileState(NamedTuple):
    """Identifies a version of a file."""

    size: int
    changed: int  # nanoseconds


@dataclass(slots=True)
class DropFolder:
    """The files of a folder, oldest first."""

    path: Path  # folder; it may be created later
    # shell pattern of the file names to read; empty reads XML, and the names of TS 32.432, which
    # have no ending
    pattern: str = ""
    every: float = 5.0  # seconds between two scans, and for which a file must be unchanged
    history: float = math.inf  # largest age in seconds of a file when it is first seen
    largest: int = 4 << 20  # largest size in bytes of a file to read, and of the frames of one call
    clock: Clock = field(default_factory=SystemClock)
    wait: Callable[[float], object] = time.sleep  # function that sleeps for so many seconds
    rejected: Counter[str] = field(default_factory=Counter)  # files that were not read, by reason
    # the same files by name and reason, as ``tally`` counts them
    unused: Counter[str] = field(default_factory=Counter)
    _next: float = -math.inf
    _complete: list[Path] = field(default_factory=list)
    _before: dict[Path, FileState] = field(default_factory=dict)
    _read: dict[Path, FileState] = field(default_factory=dict)
    _ignored: dict[Path, str] = field(default_factory=dict)

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
        self._read = {path: state for path, state in self._read.items() if path in now}

    def _oldest(self) -> list[RawFrame]:
        """Read the oldest complete files, up to the size limit of one call."""
        found: list[RawFrame] = []
        room = self.largest
        while self._complete and (size := self._before[self._complete[0]].size) <= room:
            path, room = self._complete.pop(0), room - size
            self._read[path] = self._before[path]
            try:
                found.append(RawFrame(path.read_bytes(), self.clock.wall() / 1000, path.name))
            except OSError:
                self._ignore(path, "unreadable file")
        return found

    def sample(self) -> list[RawFrame]:
        """Return the newest file that is there now, and count those that are not read."""
        self._look()
        newest = sorted(self._before.items(), key=lambda item: (item[1].changed, item[0]))[-1:]
        self._complete = [path for path, _ in newest]
        return self._oldest()

    def _candidates(self) -> list[Path]:
        """Return the files to read; count each of the others once."""
        try:
            found = [
                *(self.path.glob(self.pattern) if "/" in self.pattern else self.path.iterdir())
            ]
        except OSError:
            return []
        there = set(found)
        self._ignored = {path: why for path, why in self._ignored.items() if path in there}
        return [path for path in found if not path.name.startswith(".") and self._is_wanted(path)]

    def _is_wanted(self, path: Path) -> bool:
        if path.name.endswith(UNFINISHED):
            return False
        is_wanted = (
            "/" in self.pattern  # of a folder below: found by it
            or (
                fnmatchcase(path.name, self.pattern)
                if self.pattern
                else _REPORT.fullmatch(path.name)
            )
        )
        if not is_wanted:
            self._ignore(path, "name outside 'pattern'")
        return bool(is_wanted)

    def _ignore(self, path: Path, reason: str) -> None:
        if self._ignored.get(path) != reason and self.rejected[reason] < _COUNTED:
            self._ignored[path] = reason
            self.rejected[reason] += 1
            tally(self.unused, path.name, reason)

    def _state(self, path: Path) -> FileState | None:
        """Return the version of a file, or None for one that does not count."""
        try:
            status = path.stat()
        except OSError:  # deleted since
            return None
        if not stat.S_ISREG(status.st_mode):
            self._ignore(path, "no file")
        elif status.st_mtime < self.clock.wall() / 1000 - self.history and path not in self._read:
            self._ignore(path, "older than 'max_age'")
        elif status.st_size > self.largest:
            self._ignore(path, "too large")
        else:
            return FileState(status.st_size, status.st_mtime_ns)
        return None
