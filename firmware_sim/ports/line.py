"""Outputs for a simulated meter's telegrams: a pseudo-terminal, or a TCP port."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import termios
import time
import tty
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from edge_sdk.app.settings import SettingsError

_TURN = 0.2
_QUIET = 50  # looks in a row, 10 ms apart, at an empty line


class Line(Protocol):
    """Sends bytes to a reader."""

    @property
    def url(self) -> str:
        """Return the address for a ``[[source]]``."""

    def send(self, data: bytes, *, waits: bool) -> bool:
        """Write; without a reader wait for one, or drop the bytes as a meter does, and return False."""

    def drain(self, patience: float) -> None:
        """Wait until the written bytes have been read, at most ``patience`` seconds."""

    def disconnect(self) -> None:
        """Disconnect the reader, and listen again at once under the same address."""

    def close(self) -> None:
        """Close the line."""


def open_line(url: str) -> Line:
    """Open ``pty``, ``pty:LINK`` (a symbolic link to it), or ``tcp://host:port``; raise SettingsError for others."""
    if url == "pty" or url.startswith("pty:"):
        return Pty(url.partition(":")[2])
    parts = urlsplit(url)
    if parts.scheme == "tcp" and parts.hostname and parts.port is not None:
        return Port(parts.hostname, parts.port)
    raise SettingsError(
        f"{url!r} is not a line", hint="such as pty, pty:./ttyP1 or tcp://127.0.0.1:0"
    )


class Pty:
    """A pseudo-terminal, whose other end replaces a serial port."""

    def __init__(self, link: str) -> None:
        self._link = Path(link).absolute() if link else None
        self._open()

    def _open(self) -> None:
        self._master, self._slave = os.openpty()
        tty.setraw(self._slave)
        os.set_blocking(self._master, False)
        self._name = os.ttyname(self._slave)
        if self._link is not None:
            if self._link.is_symlink():
                self._link.unlink()
            self._link.symlink_to(self._name)

    @property
    def url(self) -> str:
        return f"serial://{self._link or self._name}"

    def send(self, data: bytes, *, waits: bool) -> bool:
        """Write; a full line drops the rest unless ``waits``."""
        while data:
            try:
                data = data[os.write(self._master, data) :]
            except BlockingIOError:
                if not waits:
                    return False
                select.select([], [self._master], [], _TURN)
                self._room()
        return True

    def _room(self) -> None:
        if self._unread() > 3000:
            time.sleep(0.001)

    def _unread(self) -> int:
        held = fcntl.ioctl(self._slave, termios.FIONREAD, b"\0" * 4)
        return int(struct.unpack("i", held)[0])

    def drain(self, patience: float) -> None:
        """Wait until the written bytes have been read."""
        end, quiet = time.monotonic() + patience, 0
        while quiet < _QUIET and time.monotonic() < end:  # the kernel hands bytes over in its time
            quiet = 0 if self._unread() else quiet + 1
            time.sleep(0.01)

    def disconnect(self) -> None:
        """Reopen the terminal; without a lasting name, unread bytes are lost."""
        if self._link is None:
            termios.tcflush(self._slave, termios.TCIOFLUSH)
            return
        os.close(self._master)
        os.close(self._slave)
        self._open()

    def close(self) -> None:
        os.close(self._master)
        os.close(self._slave)
        if self._link is not None:
            self._link.unlink()


class Port:
    """A TCP port that sends to every connected reader."""

    def __init__(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one."""
        self._server = socket.create_server((host, port))
        self._server.setblocking(False)
        self._readers: list[socket.socket] = []

    @property
    def url(self) -> str:
        host, port = self._server.getsockname()[:2]
        return f"tcp://{host}:{port}"

    def send(self, data: bytes, *, waits: bool) -> bool:
        """Write to all readers; without one, wait if ``waits``."""
        while True:
            self._accept(_TURN if waits and not self._readers else 0.0)
            if self._readers or not waits:
                break
        is_sent = False
        for reader in list(self._readers):
            try:
                reader.settimeout(60.0 if waits else 0.05)
                reader.sendall(data)
                is_sent = True
            except OSError:
                self._readers.remove(reader)
                reader.close()
        return is_sent

    def _accept(self, patience: float) -> None:
        while select.select([self._server], [], [], patience)[0]:
            reader, _ = self._server.accept()
            self._readers.append(reader)
            patience = 0.0

    def drain(self, patience: float) -> None:
        """Shut down the sending side, and wait until the readers have disconnected."""
        end = time.monotonic() + patience
        for reader in self._readers:
            reader.settimeout(max(0.1, end - time.monotonic()))
            try:
                reader.shutdown(socket.SHUT_WR)
                while reader.recv(256):
                    pass
            except OSError:
                continue

    def disconnect(self) -> None:
        """Reset all connections: unread bytes are lost."""
        for reader in self._readers:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            reader.close()
        self._readers.clear()

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        self._server.close()
