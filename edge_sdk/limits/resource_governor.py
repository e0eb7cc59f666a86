"""Keep to what the device can spare: look at the machine, book what was written, hold back.

What it reads of the machine is Linux's (``/proc``, ``/sys``); where that is missing, nothing is
known and nothing is held back for it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from edge_sdk.limits.daily_quota import DailyQuota
from edge_sdk.limits.resource_limits import LimitsSection, MachineState, held_by, means_of

_LOOK_EVERY = 10.0  # seconds between two looks at the machine
_SPENT_PATIENCE = 3600.0  # readings wait so long once the day's flash is written
_SUPPLIES = Path("/sys/class/power_supply")
_IO = Path("/proc/self/io")
_NONE = DailyQuota()
_STACK = 2**20  # bytes of a thread: the system's 8 MiB count as data, used or not


class ResourceGovernor:
    """Holds a device to its means. ``held`` says why nothing is learned now."""

    def __init__(
        self,
        section: LimitsSection,
        booked: DailyQuota,
        woken: DailyQuota = _NONE,
        *,
        now: float,
        written: Callable[[], int] | None = None,
    ) -> None:
        """Start where the last process ended.

        Args:
            section: What the configuration says.
            booked: Bytes that were written on its day.
            woken: Milliseconds that it was awake on its day.
            now: Monotonic seconds.
            written: Bytes this process has written so far; the kernel's count by default.
        """
        self._section, self.means = section, means_of(section)
        self._written = written or bytes_written
        self.flash, self._counted = booked, self._written()
        self._looked, self.held = now - _LOOK_EVERY, ""
        self.wake, self._lived = woken, now

    def look(self, now: float, wall: float, server: int | None) -> str:
        """Look at the machine if it is time; return why nothing is learned, or nothing.

        Args:
            now: Monotonic seconds.
            wall: Unix seconds as this machine believes: for the windows of a day.
            server: Server time in Unix milliseconds, if known: which day writing counts for.
        """
        if now - self._looked < _LOOK_EVERY:
            return self.held
        self._looked = now
        written = self._written()
        self.flash = self.flash.use(written - self._counted, server)
        self._counted = written
        present = MachineState(wall, load_by_processor(), on_battery())
        spent = self.is_flash_spent, self.is_wake_spent
        self.held = held_by(self._section, present, flash_spent=spent[0], wake_spent=spent[1])
        return self.held

    def live(self, now: float, server: int | None, *, awake: bool) -> None:
        """Book the time since the last call, if it was spent on learning or on being heard.

        Args:
            now: Monotonic seconds.
            server: Server time in Unix milliseconds, if known.
            awake: Whether it was.
        """
        if awake:
            self.wake = self.wake.use(round(1000 * max(0.0, now - self._lived)), server)
        self._lived = now

    @property
    def is_flash_spent(self) -> bool:
        """Whether the day's bytes of flash are written."""
        return self.flash.is_spent(self.means.flash)

    @property
    def is_wake_spent(self) -> bool:
        """Whether the day's time to be awake is over."""
        most = self.means.wake
        return self.wake.is_spent(None if most is None else round(1000 * most))

    @property
    def patience(self) -> float:
        """Seconds that readings may wait in memory before they are written."""
        return _SPENT_PATIENCE if self.is_flash_spent else self.means.commit_after


def bytes_written() -> int:
    """Return what this process had written to disks, as the kernel counts; 0 if unknown."""
    try:
        lines = _IO.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("write_bytes:")), 0)


def load_by_processor() -> float:
    """Return how many processes want to run, a minute's mean, by processor."""
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except OSError:
        return 0.0


def on_battery(supplies: Path = _SUPPLIES) -> bool | None:
    """Return whether all mains supplies are off; None where there is none to ask."""
    found = []
    for supply in sorted(supplies.glob("*")):
        try:
            if (supply / "type").read_text(encoding="ascii").strip() == "Mains":
                found.append((supply / "online").read_text(encoding="ascii").strip() == "1")
        except OSError:
            continue
    return None if not found else not any(found)


def limit_memory(data: int | None) -> None:
    """Let this process have no more data than so many bytes, however it asks for them."""
    if data is None:
        return
    threading.stack_size(_STACK)
    import resource  # noqa: PLC0415 - not on every platform

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    within = data if hard == resource.RLIM_INFINITY else min(data, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (within, hard))


def peak_kib() -> int:
    """Return the largest resident memory this process ever had, in KiB."""
    import resource  # noqa: PLC0415 - not on every platform

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
