"""WebSocket client of the charge point: blocking, text only (RFC 6455)."""

from __future__ import annotations

import base64
import hashlib
import os
import select
import socket
import ssl
import struct
from urllib.parse import urlsplit

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_PATIENCE = 10.0
_TEXT, _CLOSE, _PING, _PONG = 1, 8, 9, 10


class WebSocketConnection:
    """One connection, from handshake to close.

    Args:
        url: ``ws://host:port/path`` or ``wss://…``.
        protocol: Required subprotocol: ``ocpp1.6``, ``ocpp2.0.1``.
        password: For basic authentication with the path's last part as user; empty sends none.

    Raises:
        OSError: The server is not reached, or declines.
    """

    def __init__(self, url: str, protocol: str, password: str = "") -> None:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "wss" else 80)
        channel = socket.create_connection((parts.hostname or "", port), _PATIENCE)
        if parts.scheme == "wss":
            channel = ssl.create_default_context().wrap_socket(
                channel, server_hostname=parts.hostname
            )
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._channel, self._buffer = channel, b""
        try:
            self._greet(parts.path or "/", f"{parts.hostname}:{port}", protocol, password)
        except OSError:
            channel.close()
            raise

    def _greet(self, path: str, host: str, protocol: str, password: str) -> None:
        key = base64.b64encode(os.urandom(16))
        lines = [
            f"GET {path} HTTP/1.1",
            f"Host: {host}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key.decode()}",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Protocol: {protocol}",
        ]
        if password:
            user = path.rstrip("/").rpartition("/")[2]
            token = base64.b64encode(f"{user}:{password}".encode()).decode()
            lines.append(f"Authorization: Basic {token}")
        self._channel.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        while b"\r\n\r\n" not in self._buffer:
            self._fill()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        proof = base64.b64encode(hashlib.sha1(key + _GUID).digest())  # noqa: S324 - as RFC 6455 has it
        if b" 101 " not in head.partition(b"\r\n")[0] or proof not in head:
            raise ConnectionRefusedError(head.partition(b"\r\n")[0].decode("ascii", "replace"))

    def send(self, text: str) -> None:
        """Send a text message; raise OSError if the connection is lost."""
        self._send(_TEXT, text.encode())

    def _send(self, kind: int, payload: bytes) -> None:
        mask, size = os.urandom(4), len(payload)
        if size < 126:
            head = struct.pack(">BB", 0x80 | kind, 0x80 | size)
        elif size < 1 << 16:
            head = struct.pack(">BBH", 0x80 | kind, 0x80 | 126, size)
        else:
            head = struct.pack(">BBQ", 0x80 | kind, 0x80 | 127, size)
        covered = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
        self._channel.sendall(head + mask + covered)

    def receive(self, patience: float) -> str | None:
        """Wait for a text message; None if none came; raise OSError if the connection is lost or closed."""
        message = b""
        while True:
            if not self._buffer and not select.select([self._channel], [], [], patience)[0]:
                return None
            first, payload = self._frame()
            kind = first & 0x0F
            if kind == _PING:
                self._send(_PONG, payload)
            elif kind == _CLOSE:
                raise ConnectionResetError("the other end closed the connection")
            elif kind != _PONG:
                message += payload
                if first & 0x80:
                    return message.decode()

    def _frame(self) -> tuple[int, bytes]:
        first, second = self._take(2)
        size = second & 0x7F
        if size == 126:
            size = int.from_bytes(self._take(2))
        elif size == 127:
            size = int.from_bytes(self._take(8))
        return first, self._take(size)

    def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._fill()
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _fill(self) -> None:
        data = self._channel.recv(65_536)
        if not data:
            raise ConnectionResetError("the connection was closed")
        self._buffer += data

    def close(self) -> None:
        """Close the connection, with a close frame if the other end is there."""
        try:
            self._send(_CLOSE, struct.pack(">H", 1000))
        except OSError:
            return
        finally:
            self._channel.close()
