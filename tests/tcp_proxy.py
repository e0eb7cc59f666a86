"""Forward TCP connections to a server's socket, and interrupt them as a network does."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

BLOCK = 65536  # bytes of one read


class TcpProxy:
    """A loopback port whose connections end at a Unix socket. Use ``forwarding``.

    Attributes:
        port: Port on 127.0.0.1.
    """

    def __init__(self, target: Path) -> None:
        self._target = str(target)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._peers: dict[socket.socket, socket.socket] = {}
        self._may_pass = threading.Event()
        self._may_pass.set()
        self._lock = threading.Lock()
        self._is_cut = self._is_closed = False
        self._thread = threading.Thread(target=self._forward, daemon=True)
        self._thread.start()

    def hold(self) -> None:
        """Forward nothing, close nothing: what is sent meanwhile arrives after ``resume``."""
        self._may_pass.clear()

    def cut(self) -> None:
        """Close every connection, and close new ones at once, until ``resume``."""
        with self._lock:
            self._is_cut = True
            for one in [*self._peers]:
                self._drop(one)

    def resume(self) -> None:
        """Forward again."""
        with self._lock:
            self._is_cut = False
        self._may_pass.set()

    def close(self) -> None:
        """Close every connection and the port."""
        self._is_closed = True
        self._may_pass.set()
        self._thread.join(10)
        with self._lock:
            for one in [*self._peers]:
                self._drop(one)
        self._listener.close()

    def _forward(self) -> None:
        while not self._is_closed:
            self._may_pass.wait()
            with selectors.DefaultSelector() as ready:
                with self._lock:
                    for one in (self._listener, *self._peers):
                        ready.register(one, selectors.EVENT_READ)
                found = [key.fileobj for key, _ in ready.select(0.01)]
            for one in found:
                if not self._may_pass.is_set():
                    break
                with self._lock:
                    self._serve(one)

    def _serve(self, ready: object) -> None:
        assert isinstance(ready, socket.socket)
        if ready is self._listener:
            self._connect()
        elif ready in self._peers:
            with suppress(OSError):
                if block := ready.recv(BLOCK):
                    self._peers[ready].sendall(block)
                    return
            self._drop(ready)

    def _connect(self) -> None:
        client, _ = self._listener.accept()
        server = socket.socket(socket.AF_UNIX)
        try:
            if self._is_cut:
                raise ConnectionRefusedError
            server.connect(self._target)
        except OSError:
            client.close()
            server.close()
            return
        self._peers |= {client: server, server: client}

    def _drop(self, one: socket.socket) -> None:
        other = self._peers.pop(one, None)
        if other is not None:
            del self._peers[other]
            other.close()
            one.close()


@contextmanager
def forwarding(target: Path) -> Iterator[TcpProxy]:
    """Forward to a Unix socket until the block ends."""
    proxy = TcpProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
