"""Send and receive the text messages of a WebSocket, as its client, in bounded memory and time."""

from __future__ import annotations

import base64
import hashlib
import http.client
import os
import socket
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from edge_sdk.extensions.sources.http_poll import HttpService
from edge_sdk.extensions.sources.websocket import MessageStream, WebSocketError

LARGEST = 4 << 20
"""Largest size in bytes of a message that is received."""

_HEAD = 16_384  # bytes of the answer to the handshake
_PIECE = 65_536
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class WebSocketClient:
    """An open connection; pings are not answered, so close it between two polls.

    Args:
        service: Address of the service, ``http://`` or ``https://``.
        path: Path of the WebSocket.
        timeout: Longest wait for a whole message, in seconds.
        clock: Monotonic seconds.

    Raises:
        OSError: The service cannot be reached, or is no WebSocket.
    """

    def __init__(
        self,
        service: HttpService,
        path: str,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout, self._clock = timeout, clock
        link = service.connect(timeout)
        link.connect()
        channel = link.sock
        self._channel: socket.socket = channel
        self.close = channel.close
        self._stream = MessageStream(longest=LARGEST)
        try:
            self._messages = self._upgraded(urlsplit(service.url).netloc, path)
        except BaseException:
            channel.close()
            raise

    def send(self, text: str) -> None:
        """Send a message.

        Raises:
            OSError: The connection is lost.
        """
        data, mask = text.encode(), os.urandom(4)
        size = len(data)
        if size < 126:
            head = bytes([0x81, 0x80 | size])
        elif size < 1 << 16:
            head = bytes([0x81, 0x80 | 126]) + size.to_bytes(2)
        else:
            head = bytes([0x81, 0x80 | 127]) + size.to_bytes(8)
        key = (mask * (size // 4 + 1))[:size]
        masked = (int.from_bytes(data) ^ int.from_bytes(key)).to_bytes(size)
        self._channel.settimeout(self._timeout)
        self._channel.sendall(head + mask + masked)

    def receive(self) -> str:
        """Return the next text message.

        Raises:
            OSError: None arrived in time, it is too long, or the connection is lost.
        """
        end = self._clock() + self._timeout
        while True:
            for message in self._messages:
                return message
            if self._clock() > end:
                raise TimeoutError(f"no whole message within {self._timeout:g} s")
            self._messages = self._decoded(self._read(end))
            if self._stream.counts["message too long"]:
                raise ConnectionError(f"a message is longer than {LARGEST >> 20} MiB")

    def _decoded(self, data: bytes) -> Iterator[str]:
        try:
            return iter([*self._stream.feed(data)])
        except WebSocketError as error:
            raise ConnectionError(str(error)) from error

    def _read(self, end: float) -> bytes:
        try:
            self._channel.settimeout(max(1e-3, end - self._clock()))
            data = self._channel.recv(_PIECE)
        except TimeoutError as error:
            raise TimeoutError(f"no whole message within {self._timeout:g} s") from error
        if not data:
            raise ConnectionResetError("the other end closed the connection")
        return data

    def _upgraded(self, host: str, path: str) -> Iterator[str]:
        """Ask for a WebSocket; return the messages that came with the answer."""
        key = base64.b64encode(os.urandom(16))
        lines = (
            f"GET {path} HTTP/1.1",
            f"Host: {host}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key.decode()}",
            "Sec-WebSocket-Version: 13",
            "\r\n",
        )
        self._channel.sendall("\r\n".join(lines).encode())
        answer, end = b"", self._clock() + self._timeout
        while b"\r\n\r\n" not in answer:
            answer += self._read(end)
            if len(answer) > _HEAD:
                raise ConnectionError("the answer to the handshake is too long")
        head, _, rest = answer.partition(b"\r\n\r\n")
        status, *fields = head.decode("latin-1").split("\r\n")
        if status.split(" ")[1:2] != [str(int(http.client.SWITCHING_PROTOCOLS))]:
            raise ConnectionError(f"no WebSocket at {path}: {status[:80]}")
        accepted = base64.b64encode(hashlib.sha1(key + _MAGIC, usedforsecurity=False).digest())
        given = [x.partition(":")[2].strip() for x in fields if _is_accept(x)]
        if given != [accepted.decode()]:
            raise ConnectionError("the answer to the handshake belongs to another request")
        return self._decoded(rest)


def _is_accept(line: str) -> bool:
    return line.partition(":")[0].strip().lower() == "sec-websocket-accept"
