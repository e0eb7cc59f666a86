"""Accelerated clock of a Python process, whose rate a shared file sets.

The file holds, twice a counter around them, three numbers: a moment of this machine's monotonic
clock, the town's moment then, and how many of the town's seconds pass in one of ours. Whoever runs
the town writes it (``tools.day.town``). Clocks read from it; waits are as much shorter, and are
taken in slices, so that a wait ends in time though the town's pace changes meanwhile. The programs
are not changed and know nothing of it. Without ``GRIDFED_TOWN_CLOCK`` nothing happens.
"""

from __future__ import annotations

import mmap
import os
import select
import selectors
import struct
import time
from collections.abc import Callable
from typing import Any

_FORM = struct.Struct("qdddq")  # counter, ours, the town's, pace, counter
_SLICE = 0.005  # of our seconds: how soon a wait notices that the pace has changed
_ours, _ours_to_sleep = time.monotonic, time.sleep
_wall = float(os.environ.get("GRIDFED_TOWN_WALL", "0"))  # Unix seconds at the town's moment 0
_file: mmap.mmap | None = None


def _town() -> tuple[float, float]:
    assert _file is not None
    while True:
        before, ours, town, pace, after = _FORM.unpack(_file[: _FORM.size])
        if before == after:
            return town + (_ours() - ours) * pace, pace


def _moment() -> float:
    return _town()[0]


def _waiting(look: Callable[[float], Any], seconds: float | None) -> Any:  # noqa: ANN401
    """Call ``look`` with slices of real seconds until it returns a result or the time is over."""
    until = float("inf") if seconds is None else _moment() + max(0.0, seconds)
    while True:
        now, pace = _town()
        left = (until - now) / pace
        found = look(min(max(left, 0.0), _SLICE))
        if found or left <= 0:
            return found


class _Poll:
    """``select.poll`` in simulated milliseconds."""

    def __init__(self) -> None:
        self._real = _REAL_POLL()
        self.register, self.unregister = self._real.register, self._real.unregister
        self.modify = self._real.modify

    def poll(self, milliseconds: float | None = None) -> Any:  # noqa: ANN401
        patience = None if milliseconds is None or milliseconds < 0 else milliseconds / 1000
        return _waiting(lambda s: self._real.poll(s * 1000), patience)


def _install() -> None:
    time.monotonic = _moment
    time.monotonic_ns = lambda: int(_moment() * 1e9)
    time.time = lambda: _moment() + _wall
    time.time_ns = lambda: int((_moment() + _wall) * 1e9)
    time.sleep = lambda seconds: _waiting(_ours_to_sleep, float(seconds))
    import threading  # noqa: PLC0415 - after the clock, which it takes by name

    real_wait = threading.Condition.wait
    real_select, real_selector = select.select, selectors.DefaultSelector.select

    def wait(self: threading.Condition, timeout: float | None = None) -> bool:
        return bool(_waiting(lambda s: real_wait(self, s), timeout))

    def chosen(r: Any, w: Any, x: Any, timeout: float | None = None) -> Any:  # noqa: ANN401
        def look(seconds: float) -> Any:  # noqa: ANN401
            found = real_select(r, w, x, seconds)
            return found if any(found) else None

        return _waiting(look, timeout) or ([], [], [])

    def selected(self: Any, timeout: float | None = None) -> Any:  # noqa: ANN401
        return _waiting(lambda s: real_selector(self, s), timeout)

    threading.Condition.wait = wait  # type: ignore[method-assign]
    select.select, select.poll = chosen, _Poll  # type: ignore[assignment, misc]
    selectors.DefaultSelector.select = selected  # type: ignore[method-assign]


if path := os.environ.get("GRIDFED_TOWN_CLOCK"):
    _REAL_POLL = select.poll
    with open(path, "rb") as opened:  # noqa: PTH123 - nothing more is imported than must be
        _file = mmap.mmap(opened.fileno(), _FORM.size, prot=mmap.PROT_READ)
    _install()
