"""Open byte streams with the standard library: a serial line, a pseudo-terminal, a TCP port."""

from __future__ import annotations

import os
import select
import socket
import termios
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol
from urllib.parse import parse_qsl, urlsplit

from edge_sdk.errors import ConfigError
from edge_sdk.extensions.sources.base import FramedLink, Framer, RawFrame

_AT_ONCE = 4096
_PATIENCE = 5.0  # seconds to reach a TCP port

PARITY: Mapping[str, int] = MappingProxyType(
    {"N": termios.CS8, "E": termios.CS7 | termios.PARENB, "8E": termios.CS8 | termios.PARENB}
)
"""Framing of a byte on a serial line: ``N`` is 8N1, ``E`` 7E1 (DSMR 2 and 3), ``8E`` 8E1."""


class ByteLink(Protocol):
    """A bidirectional stream of bytes."""

    def read(self, patience: float) -> bytes:
        """Wait up to ``patience`` seconds; return the received bytes, or none.

        Raises:
            OSError: The link is lost.
        """

    def write(self, data: bytes) -> None:
        """Send all bytes.

        Raises:
            OSError: The link is lost.
        """

    def close(self) -> None:
        """Close the link."""


@dataclass(frozen=True, slots=True)
class SourceAddress:
    """The address of a byte stream."""

    scheme: str  # ``serial`` or ``tcp``
    host: str = ""  # host of ``tcp``
    port: int = 0  # port of ``tcp``
    path: str = ""  # path of ``serial``: a device or a pseudo-terminal
    baud: int = 115_200  # baud rate of ``serial``
    parity: str = "N"  # key of ``PARITY``, for ``serial``

    @classmethod
    def parse(cls, url: str) -> SourceAddress:
        """Parse ``serial:///dev/ttyUSB0?baud=115200&parity=N`` or ``tcp://host:port``.

        ``socket://`` is an alias of ``tcp://``.

        Raises:
            ConfigError: Anything else.

        >>> SourceAddress.parse("serial:///dev/ttyUSB0?baud=9600").baud
        9600
        >>> SourceAddress.parse("socket://127.0.0.1:2000").port
        2000
        """
        how = "such as serial:///dev/ttyUSB0?baud=115200 or tcp://host:port"
        try:
            parts = urlsplit(url)
            options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
            if parts.scheme in ("tcp", "socket") and parts.hostname and parts.port and not options:
                return cls("tcp", parts.hostname, parts.port)
            if parts.scheme == "serial" and parts.path.startswith("/") and not parts.netloc:
                baud, parity = int(options.pop("baud", "115200")), options.pop("parity", "N")
                if not options and parity in PARITY and hasattr(termios, f"B{baud}"):
                    return cls("serial", path=parts.path, baud=baud, parity=parity)
        except ValueError:
            pass
        raise ConfigError(f"source: {url!r} is not an address", hint=how)

    def open(self) -> ByteLink:
        """Open the link.

        Raises:
            OSError: It does not exist, or is busy.
        """
        if self.scheme == "tcp":
            return TcpLink(socket.create_connection((self.host, self.port), _PATIENCE))
        return SerialLink(self.path, self.baud, self.parity)


class TcpLink(ByteLink):
    """A TCP connection: a meter's network module, or a serial line behind a converter."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def read(self, patience: float) -> bytes:
        """Wait up to ``patience`` seconds; return the received bytes, or none."""
        if not _is_readable(self._channel.fileno(), patience):
            return b""
        data = self._channel.recv(_AT_ONCE)
        if not data:
            raise ConnectionResetError("the other end closed the connection")
        return data

    def write(self, data: bytes) -> None:
        """Send all bytes."""
        self._channel.sendall(data)

    def close(self) -> None:
        self._channel.close()


class SerialLink(ByteLink):
    """A raw serial line, without line discipline; also a pseudo-terminal."""

    def __init__(self, path: str, baud: int, parity: str) -> None:
        flags = os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
        self._file = os.open(path, flags)
        try:
            _make_raw(self._file, getattr(termios, f"B{baud}"), PARITY[parity])
        except termios.error as error:
            os.close(self._file)
            raise OSError(f"{path}: no serial line ({error.args[-1]})") from error

    def read(self, patience: float) -> bytes:
        """Wait up to ``patience`` seconds; return the received bytes, or none."""
        if not _is_readable(self._file, patience):
            return b""
        data = os.read(self._file, _AT_ONCE)
        if not data:
            raise ConnectionResetError("the serial line was disconnected")
        return data

    def write(self, data: bytes) -> None:
        """Send all bytes."""
        while data:
            select.select([], [self._file], [], _PATIENCE)
            data = data[os.write(self._file, data) :]

    def close(self) -> None:
        os.close(self._file)


def _is_readable(file: int, patience: float) -> bool:
    waiting = select.poll()
    waiting.register(file, select.POLLIN)
    return bool(waiting.poll(patience * 1000))


def _make_raw(file: int, baud: int, form: int) -> None:
    """Set a line to raw mode at a baud rate, as cfmakeraw(3) does."""
    modes = termios.tcgetattr(file)
    modes[0] = termios.IGNBRK
    modes[1] = 0
    modes[2] = form | termios.CREAD | termios.CLOCAL
    modes[3] = 0
    modes[4] = modes[5] = baud
    modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
    termios.tcsetattr(file, termios.TCSANOW, modes)


@dataclass(slots=True)
class ListeningFeed(FramedLink):
    """A passive feed: a link that pushes bytes, and their framer."""

    address: SourceAddress
    framer: Framer
    link: ByteLink | None = None

    @property
    def rejected(self) -> Counter[str]:
        """Input dropped before it was a frame, counted by reason."""
        return self.framer.rejected

    def frames(self, patience: float) -> list[RawFrame]:
        """Wait up to ``patience`` seconds; return the complete frames."""
        if self.link is None:
            self.link = self.address.open()
        data = self.link.read(patience)
        return (
            [RawFrame(payload, time.time()) for payload in self.framer.feed(data)] if data else []
        )

    def close(self) -> None:
        """Close the link and discard the unfinished frame."""
        self.framer.forget()
        if self.link is not None:
            self.link.close()
            self.link = None


def is_there(address: SourceAddress) -> bool:
    """Return whether a serial device exists; for a TCP port this is unknown before connecting."""
    return address.scheme == "tcp" or Path(address.path).exists()
