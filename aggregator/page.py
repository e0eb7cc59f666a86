"""The loopback page: is it alive, is it ready, what is it doing, and its metrics.

A thread that only ever reads one frozen snapshot; it cannot touch the daemon. Every request has a
deadline, so a client that sends a byte a minute holds a thread for five seconds and no longer.
"""

from __future__ import annotations

import contextlib
import io
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from string import Template
from types import MappingProxyType
from typing import Any

from aggregator.heat import Credits, received, svg
from aggregator.records import Version
from edge_sdk.program import TEMPORARY, Failure, installed_version

SCHEMA = 1
"""Version of the status document; it rises when a key changes its meaning or goes away."""

STALE = 60.0  # s without a turn of the loop: the process lives, the daemon does not
DEADLINE = 5.0  # s for a whole request, header included
POLICY = "default-src 'none'; style-src 'self'; img-src 'self'"
AT_ONCE = 8  # requests being served; who has said nothing makes room

Nothing: Mapping[str, Any] = MappingProxyType({})


class PageError(Failure):
    """The page cannot be served where the configuration says."""

    exit_code = TEMPORARY


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the daemon last said of itself.

    Attributes:
        ticked: Monotonic seconds of the loop's last turn.
        checks: What readiness needs, each with whether it holds.
        status: The status document, without its schema number.
        credits: Returns who trusted whom in which round; drawn only when somebody looks.
    """

    ticked: float = 0.0
    checks: Mapping[str, bool] = field(default_factory=lambda: Nothing)
    status: Mapping[str, Any] = field(default_factory=lambda: Nothing)
    credits: Callable[[], Credits] = dict

    @property
    def is_ready(self) -> bool:
        """Whether there is something to be ready, and all of it is."""
        return bool(self.checks) and all(self.checks.values())

    def is_alive(self, now: float) -> bool:
        """Whether the loop turned lately.

        >>> Snapshot(ticked=100.0).is_alive(150.0), Snapshot(ticked=100.0).is_alive(170.0)
        (True, False)
        """
        return now - self.ticked < STALE

    def document(self) -> dict[str, Any]:
        """Return the status document: the same for the page, the command and a program."""
        return {
            "schema": SCHEMA,
            "ready": self.is_ready,
            "checks": dict(self.checks),
            **self.status,
        }


def round_line(version: Version) -> dict[str, Any]:
    """Return what status and page tell of a closed round."""
    report = version.report
    return {
        "round": version.round,
        "version": version.version,
        "result": "moved" if version.moved else f"abandoned: {report.get('why', '')}",
        "updates": len(report.get("cohort", ())),
        "seconds": report.get("seconds"),
        "loss": report.get("loss"),
    }


class Page:
    """Serves the newest snapshot on one address until it is closed.

    Args:
        listen: ``host:port``; port 0 takes a free one.
        snapshot: Called for every request, from other threads.
        metrics: Returns the Prometheus page; as above.

    Raises:
        PageError: The address cannot be had.
    """

    def __init__(
        self, listen: str, snapshot: Callable[[], Snapshot], metrics: Callable[[], bytes]
    ) -> None:
        host, port = split(listen)
        try:
            self._server = _Server((host, port), snapshot, metrics)
        except OSError as error:
            raise PageError(
                f"cannot serve the page on {listen}: {error.strerror or error}",
                hint="another process has this port; set page.listen, or stop the other daemon",
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where the page is, as ``host:port``."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(DEADLINE)


def split(listen: str) -> tuple[str, int]:
    """Take ``host:port`` apart.

    >>> split("127.0.0.1:9464"), split("[::1]:0")
    (('127.0.0.1', 9464), ('::1', 0))

    Raises:
        PageError: It is not that.
    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65_535:
        raise PageError(f"page.listen: expected host:port, got {listen!r}")
    return host.strip("[]"), int(port)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(
        self,
        address: tuple[str, int],
        snapshot: Callable[[], Snapshot],
        metrics: Callable[[], bytes],
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.snapshot, self.metrics = snapshot, metrics
        self._seats = threading.BoundedSemaphore(AT_ONCE)
        self._silent: dict[socket.socket, None] = {}  # seated, and not a request said yet
        super().__init__(address, _Request)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - socketserver's own types
        """Serve at most ``AT_ONCE`` requests; who sits there and is silent makes room."""
        if self._seats.acquire(blocking=False) or self._make_room():
            self._silent[request] = None
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def _make_room(self) -> bool:
        """Turn away who has been silent longest: open sockets must not keep a health check out."""
        for silent in list(self._silent):
            if self.spoken(silent):
                with contextlib.suppress(OSError):  # it has just gone by itself
                    silent.shutdown(socket.SHUT_RDWR)
                return self._seats.acquire(timeout=DEADLINE)
        return False

    def spoken(self, request: socket.socket) -> bool:
        """Note that a request has come, or that nobody waits for it; False if that was known."""
        return self._silent.pop(request, False) is None

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as above
        """Give the seat back whatever became of the request."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.spoken(request)
            self._seats.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as above
        """A client that goes away in the middle is no news, and must not fill a log."""


class _Hurried(io.RawIOBase):
    """Reads a socket until a deadline for the whole request, not for each byte."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection, self._deadline = connection, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any writable buffer
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Request(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "gridfed", ""
    timeout = DEADLINE

    def setup(self) -> None:
        super().setup()
        hurried = _Hurried(self.connection, time.monotonic() + DEADLINE)
        self.rfile = io.BufferedReader(hurried)

    def do_GET(self) -> None:
        """Answer one of the pages."""
        self.server.spoken(self.request)
        code, kind, body = self._answer(self.path.partition("?")[0])
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header(
            "Content-Security-Policy", "default-src 'none'; style-src 'self'; img-src 'self'"
        )
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - http.server's name

    def _answer(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        now = self.server.snapshot()
        match path:
            case "/healthz":
                return _verdict(("the loop turns", now.is_alive(time.monotonic())))
            case "/readyz":
                return _verdict(*now.checks.items())
        pages: Mapping[str, tuple[str, Callable[[], bytes]]] = {
            "/metrics": ("text/plain; version=0.0.4; charset=utf-8", self.server.metrics),
            "/status": ("application/json", lambda: json.dumps(now.document()).encode()),
            "/style.css": ("text/css", lambda: _static("style.css").encode()),
            "/": ("text/html; charset=utf-8", lambda: html(now.document()).encode()),
            "/credit.svg": ("image/svg+xml", lambda: svg(received(now.credits())).encode()),
        }
        if path not in pages:
            known = f"pages: {' '.join(sorted(pages))} /healthz /readyz\n"
            return HTTPStatus.NOT_FOUND, "text/plain", known.encode()
        kind, body = pages[path]
        return HTTPStatus.OK, kind, body()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Say nothing: a scrape every few seconds is not news."""


def _verdict(*checks: tuple[str, bool]) -> tuple[HTTPStatus, str, bytes]:
    """Nothing to check yet is not good."""
    is_good = bool(checks) and all(ok for _, ok in checks)
    code = HTTPStatus.OK if is_good else HTTPStatus.SERVICE_UNAVAILABLE
    return code, "text/plain", "".join(f"{_mark(ok)} {name}\n" for name, ok in checks).encode()


def _mark(ok: object) -> str:
    return "ok " if ok else "NOT"


def html(document: Mapping[str, Any]) -> str:
    """Render the status document for a person; every value is escaped."""
    checks = document["checks"]
    missing = ", ".join(name for name, ok in checks.items() if not ok)
    alarms = {f"ALARM {name}": why for name, why in document.get("alarms", {}).items()}
    return Template(_static("page.html")).substitute(
        fleet=escape(str(document.get("fleet", ""))),
        ready="yes" if document["ready"] else "no",
        headline="ready" if document["ready"] else escape(f"not ready: {missing or 'starting'}"),
        run=_rows(document.get("run", {})),
        devices=_rows(document.get("devices", {})) + _rows(alarms),
        upkeep=_upkeep(document),
        clusters=_rows(_sizes(document.get("clusters", {}))),
        refused=_rows(document.get("refused", {})),
        credit=_CREDIT if document.get("credit") else "",
        rounds="".join(_row(entry.values()) for entry in document.get("rounds", ())),
        version=escape(installed_version()),
    )


_CREDIT = (
    '<figure><img src="/credit.svg" alt="weights of devices over rounds">'
    "<figcaption>The darker the more; red: nothing, an outcast.</figcaption></figure>"
)


def _upkeep(document: Mapping[str, Any]) -> str:
    """A table of what a person has to see to, where there is something."""
    said = {"configuration": document["configuration"]} if "configuration" in document else {}
    said |= {
        f"{one['kind']} {one['file']}": one["told"] for one in document.get("certificates", ())
    }
    return f"<table><caption>Upkeep</caption>{_rows(said)}</table>" if said else ""


def _sizes(clusters: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """A fleet's names do not fit a page; the status document has them."""
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
    return files("aggregator").joinpath("static", name).read_text("utf-8")
