"""What the kernel says of another process: memory, bytes written, how it ended."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from firmware_sim.fleet.processes import RunningProgram


@dataclass(slots=True)
class Seen:
    """One process, seen from outside of it.

    Attributes:
        data: Most bytes of data (``VmData``: what ``RLIMIT_DATA`` limits) at any look.
        resident: Most bytes resident, ever.
        written: Bytes it had sent to disks (``write_bytes``), to its very end.
        said: Bytes it handed to ``write`` and its kin, whatever the medium (``wchar``).
        code: How it ended.
    """

    data: int = 0
    resident: int = 0
    written: int = 0
    said: int = 0
    code: int | None = None

    @property
    def flash(self) -> int:
        """Bytes of flash: what reached disks; where that is none (a RAM disk), what was written."""
        return self.written or self.said

    def look(self, pid: int) -> None:
        """Take in what is so now."""
        status = _table(Path(f"/proc/{pid}/status"))
        self.data = max(self.data, 1024 * status.get("VmData", 0))
        self.resident = max(self.resident, 1024 * status.get("VmHWM", 0))
        counts = _table(Path(f"/proc/{pid}/io"))
        self.written = max(self.written, counts.get("write_bytes", 0))
        self.said = max(self.said, counts.get("wchar", 0))


def see_off(process: RunningProgram, seen: Seen, patience: float) -> None:
    """Ask a process to stop, and read its counters when it has ended, before it is forgotten."""
    pid, until = process.process.pid, time.monotonic() + patience
    os.kill(pid, signal.SIGTERM)
    left = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while os.waitid(os.P_PID, pid, left) is None and time.monotonic() < until:
        seen.look(pid)
        time.sleep(0.01)
    seen.look(pid)
    seen.code = process.wait(1.0)


def _table(path: Path) -> dict[str, int]:
    """Read ``name: number …`` lines; nothing of a process that is gone."""
    try:
        lines = path.read_text("ascii", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    words = ((name, rest.split()) for name, _, rest in pairs)
    return {name: int(rest[0]) for name, rest in words if rest and rest[0].isdigit()}
