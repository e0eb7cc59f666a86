"""Measurements of another process by the kernel: memory, bytes written, exit status."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from firmware_sim.fleet.processes import RunningProgram


@dataclass(slots=True)
class Seen:
    """Measurements of one process, taken from outside."""

    data: int = 0  # most bytes of data (``VmData``: what ``RLIMIT_DATA`` limits) at any look
    resident: int = 0  # most bytes resident, ever
    anonymous: int = 0  # most bytes resident that are not pages of files, at any look
    written: int = 0  # bytes it had sent to disks (``write_bytes``), to its very end
    said: int = 0  # bytes it handed to ``write`` and its kin, whatever the medium (``wchar``)
    processor: float = 0.0  # seconds of processor time, user and system
    code: int | None = None  # how it ended

    @property
    def flash(self) -> int:
        """Return the bytes that reached disks; on a RAM disk, the bytes written."""
        return self.written or self.said

    def look(self, pid: int) -> None:
        """Update the measurements."""
        status = _table(Path(f"/proc/{pid}/status"))
        self.data = max(self.data, 1024 * status.get("VmData", 0))
        self.resident = max(self.resident, 1024 * status.get("VmHWM", 0))
        self.anonymous = max(self.anonymous, 1024 * status.get("RssAnon", 0))
        counts = _table(Path(f"/proc/{pid}/io"))
        self.written = max(self.written, counts.get("write_bytes", 0))
        self.said = max(self.said, counts.get("wchar", 0))
        self.processor = max(self.processor, _processor(Path(f"/proc/{pid}/stat")))


def see_off(process: RunningProgram, seen: Seen, patience: float) -> None:
    """Stop a process, and read its last counters before it is reaped."""
    pid, until = process.process.pid, time.monotonic() + patience
    os.kill(pid, signal.SIGTERM)
    left = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while os.waitid(os.P_PID, pid, left) is None and time.monotonic() < until:
        seen.look(pid)
        time.sleep(0.01)
    seen.look(pid)
    seen.code = process.wait(1.0)


def _processor(path: Path) -> float:
    """Return the processor seconds of a process; 0 of one that is gone."""
    try:
        fields = path.read_text("ascii", errors="replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


def _table(path: Path) -> dict[str, int]:
    """Read ``name: number …`` lines; empty for a process that has ended."""
    try:
        lines = path.read_text("ascii", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    words = ((name, rest.split()) for name, _, rest in pairs)
    return {name: int(rest[0]) for name, rest in words if rest and rest[0].isdigit()}
