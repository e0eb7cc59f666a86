"""Record that a program's main loop turns, in a small file in memory, and read its age.

The age is measured by the monotonic clock of the machine, which all processes share, so a wall
clock that is set does not change it. The file lies in ``/dev/shm`` where there is one: it is
rewritten every few seconds, which would wear out flash.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from edge_sdk.config import Config

EVERY = 5.0  # seconds between two beats
_MEMORY = Path("/dev/shm")  # noqa: S108 - the file is opened without following links
_SIZE = 256


def default_path(state: Path) -> Path:
    """Return the heartbeat file of a state folder: its own name in memory, else in ``/tmp``."""
    name = hashlib.sha256(str(state.absolute()).encode()).hexdigest()[:16]
    folder = _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    return folder / f"gridfed-edge-{name}.beat"


def path_of(config: Config) -> Path:
    return config.heartbeat or default_path(config.state)


def open_heartbeat(config: Config) -> Heartbeat:
    """Return the heartbeat of an agent."""
    return Heartbeat(path_of(config))


class Heartbeat:
    """The heartbeat file of one running program.

    A file that cannot be written is no reason to stop: then ``age`` finds an old one, or none.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._beaten = -float("inf")

    def beat(self) -> None:
        """Record that the loop turns, every few seconds at most."""
        now = self._clock()
        if now - self._beaten < EVERY:
            return
        self._beaten = now
        text = json.dumps({"pid": os.getpid(), "monotonic": round(now, 3)}).encode()
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(OSError):
            descriptor = os.open(beside, flags, 0o644)
            try:
                os.write(descriptor, text)
            finally:
                os.close(descriptor)
            beside.replace(self._path)

    def close(self) -> None:
        """Remove the file: a program that was stopped is not alive."""
        with suppress(OSError):
            self._path.unlink()


def age(path: Path, now: float | None = None) -> float | None:
    """Return the seconds since the last beat; None without one, or with one of an earlier boot.

    Args:
        now: Monotonic seconds; None is now.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            text = os.read(descriptor, _SIZE)
        finally:
            os.close(descriptor)
        beaten = float(json.loads(text)["monotonic"])
    except (OSError, ValueError, TypeError, LookupError):
        return None
    passed = (time.monotonic() if now is None else now) - beaten
    return passed if passed >= 0.0 else None
