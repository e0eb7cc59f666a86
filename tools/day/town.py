"""Simulated clock that runs fast while no message is in transit, and a proxy that counts bytes."""

from __future__ import annotations

import mmap
import os
import socket
import struct
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

_DAY, _MORNING = 86_400, 21_600
_FORM = struct.Struct("qdddq")  # as clock/sitecustomize.py reads it
_BLOCK = 65_536
_WORD = 64  # bytes up that are more than a ping or an acknowledgement
_MODEL = 1024  # bytes down that are more than the time of day
_ALERT = 0.3  # of our seconds that a conversation may pause
_SLOWEST = 60.0
_PING, _PONG = b"\xc0\x00", b"\xd0\x00"


class Town:
    """Simulated clock of the programs that are started with ``environ``.

    Args:
        file: Where the clock is kept.
        pace: How many of the town's seconds pass in one of ours while it is quiet.
    """

    def __init__(self, file: Path, pace: float) -> None:
        file.write_bytes(_FORM.pack(0, 0.0, 0.0, 1.0, 0))
        with file.open("r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), _FORM.size)
        self._file, self._lock, self._turn = file, threading.Lock(), 0
        self._ours = self._town = time.monotonic()
        morning = time.time() // _DAY * _DAY + _MORNING  # counters of a day begin anew at midnight
        self._wall = morning - self._ours
        self.quiet = self._most = pace
        self._pace = 1.0
        self._alert_until, self._ping_until = float("inf"), 0.0
        self._write()

    @property
    def environ(self) -> Mapping[str, str]:
        paths = [str(Path(__file__).with_name("clock")), os.environ.get("PYTHONPATH", "")]
        joined = os.pathsep.join(filter(None, paths))
        clock = {
            "GRIDFED_TOWN_CLOCK": str(self._file.absolute()),
            "GRIDFED_TOWN_WALL": repr(self._wall),
        }
        return {**clock, "PYTHONPATH": joined}

    @property
    def now(self) -> float:
        """Return the simulated Unix seconds."""
        with self._lock:
            return self._wall + self._town + (time.monotonic() - self._ours) * self._pace

    def go(self) -> None:
        self._alert_until = 0.0

    def hear(self) -> None:
        """Run at real time while a message is in transit, so that its reply has the right time."""
        self._alert_until = max(self._alert_until, time.monotonic() + _ALERT)
        self._set(1.0)

    def ping(self) -> None:
        """Run at real time until the reply to a ping, as ``hear``."""
        self._ping_until = time.monotonic() + _ALERT
        self._set(1.0)

    def pong(self) -> None:
        self._ping_until = 0.0

    def tire(self) -> None:
        """Reduce the rate to two thirds for a while, because a program was too slow."""
        self.quiet = max(_SLOWEST, self.quiet / 1.5)

    def rest(self) -> None:
        """Increase the rate a little, because all programs kept up."""
        self.quiet = min(self._most, self.quiet * 1.005)

    def look(self) -> None:
        """Run fast again after a moment without messages."""
        if time.monotonic() > max(self._alert_until, self._ping_until):
            self._set(self.quiet)

    def _set(self, pace: float) -> None:
        with self._lock:
            if pace != self._pace:
                now = time.monotonic()
                self._town += (now - self._ours) * self._pace
                self._ours, self._pace = now, pace
                self._write()

    def _write(self) -> None:
        self._turn += 1
        whole = _FORM.pack(self._turn, self._ours, self._town, self._pace, self._turn)
        self._map[:8] = whole[:8]
        self._map[8:32] = whole[8:32]
        self._map[32:40] = whole[32:40]


class Counted:
    """A TCP proxy between a program and its broker, which counts every byte that passes.

    Args:
        target: The broker's port.
        town: Told of pings and of words.
        is_watched: Whether time runs slowly while more than a ping or the time of day passes.

    Attributes:
        up: Bytes from the device.
        down: Bytes to it.
        connections: How many it made.
    """

    def __init__(self, target: int, town: Town, *, is_watched: bool) -> None:
        self._target, self._town, self._is_watched = ("127.0.0.1", target), town, is_watched
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.up = self.down = self.connections = 0
        self._greeter = threading.Thread(target=self._greet, daemon=True)
        self._greeter.start()

    def _greet(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                self.connections += 1
                threading.Thread(target=self._join, args=(near,), daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        with near, suppress(OSError), socket.create_connection(self._target) as far:
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=self._carry, args=(far, near, False), daemon=True)
            back.start()
            self._carry(near, far, True)
            back.join()

    def _carry(self, here: socket.socket, there: socket.socket, is_up: bool) -> None:  # noqa: FBT001
        with suppress(OSError):
            while block := here.recv(_BLOCK):
                self._note(block, is_up)
                there.sendall(block)
        for end in (here, there):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _note(self, block: bytes, is_up: bool) -> None:  # noqa: FBT001
        if is_up:
            self.up += len(block)
        else:
            self.down += len(block)
        if block.endswith(_PING if is_up else _PONG):
            (self._town.ping if is_up else self._town.pong)()
        elif self._is_watched and len(block) > (_WORD if is_up else _MODEL):
            self._town.hear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # which wakes who waits in it
        self._greeter.join(1.0)
        self._server.close()
