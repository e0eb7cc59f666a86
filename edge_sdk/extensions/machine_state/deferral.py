"""Decide from the time and the state of the machine whether training waits.

The state is read from Linux (``/proc``, ``/sys``); where that is missing, nothing is known and nothing
waits.
"""

from __future__ import annotations

import os
from pathlib import Path

from edge_sdk.limits import LimitsSection

_SUPPLIES = Path("/sys/class/power_supply")
_DAY = 86_400
_IDLE = 0.5  # runnable processes per processor below which a machine is idle


def why_deferred(section: LimitsSection, wall: float) -> str:
    """Return why training and sending are forbidden now, by the machine's clock and state."""
    return held_by(section, wall, load=load_by_processor(), battery=on_battery())


def is_open(windows: tuple[str, ...], wall: float) -> bool:
    """Return whether updates may be sent at a time in Unix seconds; always without a window.

    >>> night = ("22:00-02:00",)
    >>> [is_open(night, hour * 3600.0) for hour in (21, 23, 1, 2)], is_open((), 0.0)
    ([False, True, True, False], True)
    """
    now = wall % _DAY
    for window in windows:
        begin, end = (3600 * int(t[:2]) + 60 * int(t[3:]) for t in window.split("-"))
        if (begin <= now < end) if begin <= end else (now >= begin or now < end):
            return True
    return not windows


def held_by(
    section: LimitsSection, wall: float, *, load: float = 0.0, battery: bool | None = None
) -> str:
    """Return why training and sending are forbidden; empty if they are not.

    Args:
        load: Runnable processes per processor.
        battery: Whether the machine runs on battery. One that does not report its supply has none.

    >>> held_by(LimitsSection(train_when="mains"), 0.0, battery=True)
    'on battery'
    """
    if not is_open(section.upload_windows, wall):
        return "outside the upload windows"
    if section.train_when == "mains" and battery:
        return "on battery"
    return "busy" if section.train_when == "idle" and load >= _IDLE else ""


def load_by_processor() -> float:
    """Return the number of runnable processes per processor, averaged over a minute."""
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except OSError:
        return 0.0


def on_battery(supplies: Path = _SUPPLIES) -> bool | None:
    """Return whether all mains supplies are off; None if the machine reports none."""
    found = []
    for supply in sorted(supplies.glob("*")):
        try:
            if (supply / "type").read_text(encoding="ascii").strip() == "Mains":
                found.append((supply / "online").read_text(encoding="ascii").strip() == "1")
        except OSError:
            continue
    return None if not found else not any(found)
