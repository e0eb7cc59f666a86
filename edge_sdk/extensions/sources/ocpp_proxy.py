"""Proxy the connection between a charger and its back office, and record measured values.

Bytes pass unchanged in both directions; of the handshake, the path and the ``Host`` line are set to
the back office's, because the charger has the address of the tap. Decoding uses a copy, after
forwarding, and any error in it ends the decoding and never the connection: charging must not depend
on the tap. The tap is a separate process, so that the agent may stop, train or be replaced
meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from edge_sdk.app.cli import fields
from edge_sdk.errors import ConfigError
from edge_sdk.extensions.sources.base import RawFrame
from edge_sdk.extensions.sources.ocpp_redaction import ConversationLog
from edge_sdk.extensions.sources.spool import SpoolWriter
from edge_sdk.extensions.sources.websocket import MessageStream
from edge_sdk.link.tls_files import load
from edge_sdk.link.tls_validity import File, X509Error, refuse_expired

logger = logging.getLogger(__name__)

_LONGEST_HANDSHAKE = 8192  # bytes of a handshake
_TIMEOUT = 10.0  # seconds for a handshake, and to reach the back office
_READ_BYTES = 65_536
_MOST_CONNECTIONS = 64  # simultaneous connections
_REQUEST = re.compile(rb"GET (/[^ ]*) HTTP/1\.1\r\n")


@dataclass(frozen=True, slots=True)
class BackOffice:
    """The address of the chargers' back office."""

    host: str
    port: int
    path: str  # prefix of the charger's own path
    tls: ssl.SSLContext | None  # TLS context for ``wss://``; None is ``ws://``

    @classmethod
    def parse(cls, url: str, ca_file: Path | None = None) -> BackOffice:
        """Parse ``wss://host/path``.

        Raises:
            ConfigError: Anything else, or an authority's file that is unreadable or has expired.
        """
        parts = urlsplit(url)
        try:
            port = parts.port or {"ws": 80, "wss": 443}[parts.scheme]
        except (KeyError, ValueError):
            port = 0
        if not port or not parts.hostname or parts.query:
            raise ConfigError(f"source ocpp: {url!r} is not a ws:// or wss:// address")
        tls = _client_tls(ca_file) if parts.scheme == "wss" else None
        return cls(parts.hostname, port, parts.path.rstrip("/"), tls)

    def request(self, head: bytes) -> bytes | None:
        r"""Rewrite a charger's handshake for the back office; return None if it is no handshake.

        >>> office = BackOffice("csms.example", 443, "/ocpp", None)
        >>> office.request(b"GET /CP1 HTTP/1.1\r\nHost: gateway:9000\r\nUpgrade: websocket\r\n\r\n")
        b'GET /ocpp/CP1 HTTP/1.1\r\nHost: csms.example:443\r\nUpgrade: websocket\r\n\r\n'
        """
        found = _REQUEST.match(head)
        if found is None:
            return None
        line = f"GET {self.path}".encode() + found[1] + b" HTTP/1.1\r\n"
        host = f"Host: {self.host}:{self.port}".encode()
        rest = re.sub(rb"(?im)^host:[^\r]*", lambda _: host, head[found.end() :], count=1)
        return line + rest


def _client_tls(ca_file: Path | None) -> ssl.SSLContext:
    try:
        if ca_file is None:
            return load(ssl.create_default_context())
        refuse_expired([File("ca", ca_file, "source ocpp: ca_file")], time.time())
        return load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ca_file)
    except (OSError, X509Error) as error:
        raise ConfigError(str(error)) from error


@dataclass(slots=True)
class ConversationListener:
    """Decodes one connection; any error ends the decoding, and is counted."""

    charger: str
    keep: Callable[[RawFrame], None]
    counts: Counter[str]
    _log: ConversationLog = field(init=False)
    _sides: dict[bool, MessageStream] = field(default_factory=dict)
    _handshake: bytes = b""
    _is_stopped: bool = False

    def __post_init__(self) -> None:
        self._log = ConversationLog(self.charger)

    def feed(self, data: bytes, *, from_charger: bool) -> None:
        """Process bytes that were forwarded."""
        if self._is_stopped:
            return
        try:
            self._decode(data, from_charger=from_charger)
        except Exception as error:  # noqa: BLE001 - nothing in here may stop a charging session
            self._is_stopped = True
            self.counts["decoding stopped"] += 1
            logger.warning("recording stopped %s", fields(charger=self.charger, why=repr(error)))

    def _decode(self, data: bytes, *, from_charger: bool) -> None:
        if not self._sides:
            if from_charger:
                raise ValueError("data before the end of the handshake")
            data = self._after_handshake(data)
        if not self._sides:
            return
        for message in self._sides[from_charger].feed(data):
            self.counts["messages"] += 1
            try:
                note = self._log.record(message, from_charger=from_charger)
            except (ValueError, RecursionError):
                self.counts["not JSON"] += 1
                continue
            if note is not None:
                self.keep(RawFrame(note, time.time()))
                self.counts["recorded"] += 1

    def _after_handshake(self, data: bytes) -> bytes:
        """Read the back office's reply to the handshake; return the bytes after it."""
        self._handshake += data
        head, end, rest = self._handshake.partition(b"\r\n\r\n")
        if not end:
            if len(self._handshake) > _LONGEST_HANDSHAKE:
                raise ValueError("handshake too long or cut off")
            return b""
        if b" 101 " not in head.partition(b"\r\n")[0]:
            raise ValueError("the back office refused the handshake")
        extensions = b" ".join(re.findall(rb"(?im)^sec-websocket-extensions:([^\r]*)", head))
        is_deflated = b"permessage-deflate" in extensions
        for from_charger, side in ((True, b"client"), (False, b"server")):
            forgets = side + b"_no_context_takeover" in extensions
            self._sides[from_charger] = MessageStream(is_deflated, forgets, self.counts)
        return rest


@dataclass(slots=True)
class OcppProxy:
    """Accepts chargers, and connects each to the back office."""

    office: BackOffice
    spool: SpoolWriter
    # counters of recorded and ignored messages
    counts: Counter[str] = field(default_factory=Counter)
    _connections: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(
        self,
        host: str,
        port: int,
        ready: Callable[[str], object],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Serve chargers until cancelled.

        Args:
            port: Port to listen on; 0 selects a free one.
            tls: TLS context with the tap's certificate, for chargers that use TLS.

        Raises:
            OSError: The port is taken.
        """
        server = await asyncio.start_server(
            self._accept, host, port, limit=_LONGEST_HANDSHAKE, ssl=tls
        )
        name = server.sockets[0].getsockname()
        ready(f"{'wss' if tls else 'ws'}://{name[0]}:{name[1]}")
        async with server:
            await server.serve_forever()

    async def _accept(
        self, charger: asyncio.StreamReader, to_charger: asyncio.StreamWriter
    ) -> None:
        self.counts["connections"] += 1
        with contextlib.closing(to_charger):
            if len(self._connections) >= _MOST_CONNECTIONS:
                self.counts["connections refused"] += 1
                return
            task = asyncio.current_task()
            assert task is not None
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
            try:
                await self._forward(charger, to_charger)
            except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                self.counts["connections failed"] += 1

    async def _forward(
        self, charger: asyncio.StreamReader, to_charger: asyncio.StreamWriter
    ) -> None:
        async with asyncio.timeout(_TIMEOUT):
            head = await charger.readuntil(b"\r\n\r\n")
            request = self.office.request(head)
            if request is None:
                to_charger.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
                await to_charger.drain()
                return
            office, to_office = await asyncio.open_connection(
                self.office.host, self.office.port, ssl=self.office.tls
            )
        path = head.split(b" ", 2)[1].rstrip(b"/").rpartition(b"/")[2]
        listener = ConversationListener(
            path.decode("ascii", "replace")[:64], self._keep, self.counts
        )
        with contextlib.closing(to_office):
            to_office.write(request)
            await to_office.drain()
            upstream = _pump(
                charger, to_office, lambda data: listener.feed(data, from_charger=True)
            )
            downstream = _pump(
                office, to_charger, lambda data: listener.feed(data, from_charger=False)
            )
            await asyncio.gather(upstream, downstream)

    def _keep(self, frame: RawFrame) -> None:
        try:
            self.spool.write(frame)
        except OSError:  # no space: charging matters more than the record
            self.counts["not stored"] += 1
            self.spool.close()


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, feed: Callable[[bytes], None]
) -> None:
    try:
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
            await writer.drain()
            feed(data)
    finally:
        writer.close()  # a WebSocket has no half-open state: when one side ends, so does the other
