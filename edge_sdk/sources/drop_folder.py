"""A folder that somebody else drops files into: every file that has come to rest is one frame.

Who writes well writes under another name and renames; who does not is waited for until a file has
stayed as it is from one look to the next. What was read is remembered by name, size and time, so
that a file that was broken and is written again is read again. Nothing in the folder is changed.
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
    """What tells a version of a file from another."""

    size: int
    changed: int  # nanoseconds


@dataclass(slots=True)
class DropFolder:
    """The files of a folder, oldest first.

    Attributes:
        path: The folder; it may come later.
        pattern: Which names count, as a shell's.
        every: Seconds between two looks, and for which a file must have stayed as it is.
        history: Seconds a file may be old when it is first seen.
        largest: Bytes of a file that is still read, and of what one call returns.
        clock: What passes the time.
        wait: Passes so many seconds.
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
    _ripe: list[Path] = field(default_factory=list)
    _before: dict[Path, FileState] = field(default_factory=dict)
    _read: dict[Path, FileState] = field(default_factory=dict)
    _large: set[Path] = field(default_factory=set)
    _listed: list[Path] = field(default_factory=list)

    def frames(self, patience: float) -> list[RawFrame]:
        """Return files that have come to rest, or what they were by the end of the patience."""
        pause = self._next - self.clock.monotonic()
        if not self._ripe and pause > 0:
            self.wait(min(pause, patience))
            pause = self._next - self.clock.monotonic()
        if not self._ripe and pause <= 0:
            self._look()
            self._next = self.clock.monotonic() + self.every
        return self._some()

    def close(self) -> None:
        """Nothing is held."""

    def _look(self) -> None:
        """Find out which files have come to rest since the last look."""
        now = {one: state for one in self._candidates() if (state := self._state(one))}
        self._ripe = sorted(
            (one for one in now if self._before.get(one) == now[one] != self._read.get(one)),
            key=lambda one: (now[one].changed, one),
        )
        self._before = now
        self._large.intersection_update(self._listed)
        self._read = {one: state for one, state in self._read.items() if one in now}

    def _some(self) -> list[RawFrame]:
        """Read the oldest of them, as much as one call may return."""
        found: list[RawFrame] = []
        room = self.largest
        while self._ripe and (size := self._before[self._ripe[0]].size) <= room:
            one, room = self._ripe.pop(0), room - size
            self._read[one] = self._before[one]
            try:
                found.append(RawFrame(one.read_bytes(), self.clock.wall() / 1000))
            except OSError:
                self.rejected["unreadable file"] += 1
        return found

    def _candidates(self) -> list[Path]:
        try:
            found = list(self.path.glob(self.pattern))
        except OSError:
            return []
        self._listed = [
            one for one in found if not (one.name.startswith(".") or one.name.endswith(UNFINISHED))
        ]
        return self._listed

    def _state(self, one: Path) -> FileState | None:
        """Return what a file looks like, or None for one that does not count."""
        try:
            said = one.stat()
        except OSError:  # gone since
            return None
        is_old = said.st_mtime < self.clock.wall() / 1000 - self.history
        if not stat.S_ISREG(said.st_mode) or (is_old and one not in self._read):
            return None
        if said.st_size > self.largest:
            if one not in self._large:
                self._large.add(one)
                self.rejected["too large"] += 1
            return None
        return FileState(said.st_size, said.st_mtime_ns)
