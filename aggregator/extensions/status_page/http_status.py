"""Serve liveness, readiness, status and metrics over HTTP.

The threads only read a frozen snapshot and cannot change the daemon. One thread reads all
requests, each with a deadline, so that a slow client blocks no thread, and no file descriptor for
more than five seconds.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from queue import SimpleQueue
from string import Template
from typing import TYPE_CHECKING, Any, cast

from aggregator.operations.server_extensions import ServerExtension
from aggregator.operations.status_document import PageError, Snapshot, split
from edge_sdk.app.cli import fields, installed_version

if TYPE_CHECKING:
    from socketserver import BaseServer

DEADLINE = 5.0  # s for a whole request, including the header
POLICY = "default-src 'none'; style-src 'self'"
AT_ONCE = 4  # requests answered concurrently
MOST = 256  # connections with an incomplete request; as many complete ones may be queued
LARGEST = 8192  # bytes of a request
POLL = 0.1  # s between two checks of the deadlines

logger = logging.getLogger(__name__)

# returns a JSON document, by the path at which it is served
Documents = Mapping[str, Callable[[], Mapping[str, Any]]]


class Page:
    """HTTP server of the newest snapshot, on one address.

    Args:
        listen: ``host:port``; port 0 selects a free one.
        snapshot: Returns the snapshot; called for every request, from other threads.
        metrics: Returns the Prometheus page; called likewise.
        documents: Returns further JSON documents, by path; called likewise.

    Raises:
        PageError: The address cannot be bound.
    """

    def __init__(
        self,
        listen: str,
        snapshot: Callable[[], Snapshot],
        metrics: Callable[[], bytes],
        documents: Documents | None = None,
    ) -> None:
        host, port = split(listen)
        try:
            self._server = _Server((host, port), snapshot, metrics, documents or {})
        except OSError as error:
            raise PageError(
                f"cannot serve the page on {listen}: {error.strerror or error}",
                hint="another process has this port; set http.listen, or stop the other daemon",
            ) from error
        self.close = self._server.close

    @property
    def address(self) -> str:
        """Return the bound address, as ``host:port``."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"


@dataclass(slots=True)
class _Reading:
    """Connection with an incomplete request: the bytes received, and the deadline."""

    until: float
    head: bytearray = field(default_factory=bytearray)

    @property
    def is_complete(self) -> bool:
        """Return whether the blank line that ends a request without a body has arrived."""
        return b"\r\n\r\n" in self.head or b"\n\n" in self.head


class _Server:
    """Server with one thread that reads all requests, and ``AT_ONCE`` threads that answer them.

    A connection without a complete request occupies no thread, so however many of them are opened,
    a complete request waits only for those before it. At most ``MOST`` connections are read at a
    time, above which the oldest one is closed; at most ``MOST`` complete requests are queued, above
    which new connections stay in the listener's backlog.
    """

    def __init__(
        self,
        address: tuple[str, int],
        snapshot: Callable[[], Snapshot],
        metrics: Callable[[], bytes],
        documents: Documents,
    ) -> None:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.snapshot, self.metrics, self.documents = snapshot, metrics, documents
        self._listener = socket.create_server(address, family=family, backlog=MOST)
        self._listener.setblocking(False)
        self.server_address: tuple[Any, ...] = self._listener.getsockname()
        self._reading: dict[socket.socket, _Reading] = {}  # oldest first
        self._complete: SimpleQueue[tuple[socket.socket, bytes] | None] = SimpleQueue()
        self._is_closing = threading.Event()
        self._threads = [threading.Thread(target=self._read_all, daemon=True)]
        self._threads += [
            threading.Thread(target=self._answer_all, daemon=True) for _ in range(AT_ONCE)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop accepting, answer the complete requests, and free the port."""
        self._is_closing.set()
        for thread in self._threads:
            thread.join(DEADLINE)

    # --- reader thread

    def _read_all(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._is_closing.is_set():
                self._accept_if_room(selector)
                for key, _ in selector.select(POLL):
                    if key.fileobj is self._listener:
                        self._accept(selector)
                    elif key.fileobj in self._reading:  # else it was closed for a newer one
                        self._read(selector, key.fileobj)
                now = time.monotonic()
                for late in [one for one, what in self._reading.items() if what.until <= now]:
                    self._drop(selector, late)
            for left in list(self._reading):
                self._drop(selector, left)
        self._listener.close()
        for _ in range(AT_ONCE):
            self._complete.put(None)

    def _accept_if_room(self, selector: selectors.BaseSelector) -> None:
        """Watch the listener, except while the queue of complete requests is full."""
        is_full = self._complete.qsize() >= MOST
        is_accepting = self._listener in selector.get_map()
        if is_full and is_accepting:
            selector.unregister(self._listener)
        elif not is_full and not is_accepting:
            selector.register(self._listener, selectors.EVENT_READ)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:  # the client has closed it
            return
        except OSError:  # no descriptors: open ones close at their deadline
            time.sleep(POLL)
            return
        connection.setblocking(False)
        if len(self._reading) >= MOST:
            self._drop(selector, next(iter(self._reading)))
        self._reading[connection] = _Reading(time.monotonic() + DEADLINE)
        selector.register(connection, selectors.EVENT_READ)

    def _read(self, selector: selectors.BaseSelector, connection: socket.socket) -> None:
        reading = self._reading[connection]
        try:
            received = connection.recv(LARGEST)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        reading.head += received
        if not received or len(reading.head) > LARGEST:
            self._drop(selector, connection)
        elif reading.is_complete:
            selector.unregister(connection)
            del self._reading[connection]
            self._complete.put((connection, bytes(reading.head)))

    def _drop(self, selector: selectors.BaseSelector, connection: socket.socket) -> None:
        selector.unregister(connection)
        del self._reading[connection]
        connection.close()

    # --- answering threads

    def _answer_all(self) -> None:
        while (request := self._complete.get()) is not None:
            connection, head = request
            with connection, contextlib.suppress(OSError):  # a departed client is no error
                connection.settimeout(DEADLINE)
                _Request(connection, head, self)
                connection.shutdown(socket.SHUT_WR)


class _Request(BaseHTTPRequestHandler):
    server_version, sys_version = "gridfed", ""
    timeout = DEADLINE

    def __init__(self, connection: socket.socket, head: bytes, server: _Server) -> None:
        self._head, self._page = head, server
        super().__init__(connection, ("", 0), cast("BaseServer", server))

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BytesIO(self._head)

    def do_GET(self) -> None:
        """Answer one of the pages."""
        try:
            code, kind, body = self._answer(self.path.partition("?")[0])
        except Exception:
            logger.exception("http request failed %s", fields(path=self.path))
            code, kind = HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain"
            body = b"internal error; the log has the trace\n"
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - http.server's name

    def _answer(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        now = self._page.snapshot()
        match path:
            case "/healthz":
                return _verdict(("the main loop runs", now.is_alive(time.monotonic())))
            case "/readyz":
                return _verdict(*now.checks.items())
        pages: Mapping[str, tuple[str, Callable[[], bytes]]] = {
            "/metrics": ("text/plain; version=0.0.4; charset=utf-8", self._page.metrics),
            "/status": ("application/json", lambda: json.dumps(now.document()).encode()),
            "/style.css": ("text/css", lambda: _static("style.css").encode()),
            "/": ("text/html; charset=utf-8", lambda: html(now.document()).encode()),
        }
        if path in self._page.documents:
            document = self._page.documents[path]()
            return HTTPStatus.OK, "application/json", json.dumps(document).encode()
        if path not in pages:
            paths = sorted([*pages, *self._page.documents])
            known = f"pages: {' '.join(paths)} /healthz /readyz\n"
            return HTTPStatus.NOT_FOUND, "text/plain", known.encode()
        kind, body = pages[path]
        return HTTPStatus.OK, kind, body()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Log nothing: scrapes every few seconds are routine."""


def _verdict(*checks: tuple[str, bool]) -> tuple[HTTPStatus, str, bytes]:
    is_good = bool(checks) and all(ok for _, ok in checks)
    code = HTTPStatus.OK if is_good else HTTPStatus.SERVICE_UNAVAILABLE
    return code, "text/plain", "".join(f"{_mark(ok)} {name}\n" for name, ok in checks).encode()


def _mark(ok: object) -> str:
    return "ok " if ok else "NOT"


def _run_rows(document: Mapping[str, Any]) -> str:
    one = {**document.get("run", {}), "schedule": document.get("schedule", {})}
    return "".join(
        _rows({key: value for key, value in run.items() if key != "schedule"} | run["schedule"])
        for run in document.get("runs") or [one]
    )


def html(document: Mapping[str, Any]) -> str:
    """Render the status document as HTML; every value is escaped."""
    checks = document["checks"]
    missing = ", ".join(name for name, ok in checks.items() if not ok)
    alarms = {f"ALARM {name}": why for name, why in document.get("alarms", {}).items()}
    alarms |= {f"FLOOD {name}": what for name, what in document.get("flooding", {}).items()}
    return Template(_static("page.html")).substitute(
        fleet=escape(str(document.get("fleet", ""))),
        ready="yes" if document["ready"] else "no",
        headline="ready" if document["ready"] else escape(f"not ready: {missing or 'starting'}"),
        run=_run_rows(document),
        devices=_rows(document.get("devices", {})) + _rows(alarms),
        upkeep=_upkeep(document),
        clusters=_rows(_sizes(document.get("clusters", {}))),
        refused=_rows(document.get("refused", {})),
        credit=_CREDIT if document.get("credit") else "",
        rounds="".join(_row(entry.values()) for entry in document.get("rounds", ())),
        version=escape(installed_version()),
    )


_CREDIT = "<p>Weights of devices over rounds: <code>gridfed-aggregator credit</code></p>"


def _upkeep(document: Mapping[str, Any]) -> str:
    """Render the table of operator alerts; empty if there are none."""
    named = ("halted", "dead_letters", "configuration", "access_rules")
    alerts = {name.replace("_", " "): document[name] for name in named if name in document}
    for key in ("bundle_refused", "root_refused"):
        for why, count in document.get(key, {}).items():
            alerts[f"{key}: {why}"] = f"{count} devices"
    for name, one in document.get("unanswered", {}).items():
        alerts[f"run {name}, {one['rounds']} unanswered"] = one["cause"]
    for one in document.get("certificates", ()):
        alerts[f"{one['kind']} {one['file']}"] = one["status"]
    return f"<table><caption>Upkeep</caption>{_rows(alerts)}</table>" if alerts else ""


def _sizes(clusters: Mapping[str, Sequence[str]]) -> dict[str, int]:
    return {f"cluster {label}": len(names) for label, names in clusters.items()}


def _rows(pairs: Mapping[str, Any]) -> str:
    return "".join(
        f"<tr><th>{escape(str(k))}</th><td>{_cell(v)}</td></tr>" for k, v in pairs.items()
    )


def _row(values: Any) -> str:  # noqa: ANN401 - a view of any values
    return "<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in values) + "</tr>"


def _cell(value: object) -> str:
    if value is None:
        return "&ndash;"
    return escape(f"{value:.5g}" if isinstance(value, float) else str(value))


def _static(name: str) -> str:
    return files("aggregator.extensions.status_page").joinpath("static", name).read_text("utf-8")


class StatusPage(ServerExtension):
    """Serves the page of a running daemon, unless ``http.listen`` is ``off``."""

    _page: Page | None = None

    def open(self) -> None:
        """Begin to serve; raise PageError if the address cannot be bound."""
        if self.config.http.listen != "off":
            documents = {
                f"/{entry.name}": partial(entry.load("document"), self.config)
                for entry in self.config.index.configured(self.config.tables)
                if "document" in entry.row
            }
            text = self.parts.isolation.metrics.text
            self._page = Page(self.config.http.listen, self.parts.snapshot, text, documents)
            logger.info("http server started %s", fields(address=self._page.address))

    def close(self) -> None:
        if self._page is not None:
            self._page.close()
