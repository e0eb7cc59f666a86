"""Serve the newest forecast and the agent's metrics over HTTP; on loopback unless configured otherwise."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Annotated, Any, cast
from urllib.parse import urlsplit

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.app.schema import Matches
from edge_sdk.extensions.outputs.energy_managers import PLANS, NotPlannableError, plan_text
from edge_sdk.extensions.outputs.forecast_issuer import AgentReport, OutputPlace, OutputType
from edge_sdk.extensions.outputs.metrics_text import metrics_text
from edge_sdk.extensions.outputs.threaded_output import OutputSection, ThreadedOutput
from edge_sdk.forecasting.forecast import IssuedForecast
from edge_sdk.link.broker_options import is_loopback

STALE = 600.0  # s without a report after which the agent counts as dead
DEADLINE = 5.0  # s for a request
AT_ONCE = 8  # requests served concurrently; further ones are closed at once


class HttpSink:
    """HTTP server of the newest report.

    ``/forecast`` is the forecast as JSON, ``/forecast/NAME`` that of an energy manager, ``/metrics``
    is for Prometheus, and ``/health`` answers 200, or 503 when the agent has reported nothing for
    ten minutes.

    Args:
        host: Address to bind.
        port: Port; 0 selects a free one.
        clock: Monotonic seconds.

    Raises:
        OSError: The address cannot be bound.
    """

    def __init__(self, host: str, port: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._report: AgentReport | None = None
        self._reported = clock()
        try:
            self._server = _Server((host, port), self)
        except OSError as error:
            raise OSError(f"cannot bind {host}:{port}: {error.strerror or error}") from error
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def send(self, report: AgentReport, *, is_new: bool) -> bool:
        """Take a report; requests are answered from it."""
        del is_new
        self._report, self._reported = report, self._clock()
        return True

    def serve(self, patience: float) -> None:
        time.sleep(patience)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def page(self, path: str) -> tuple[HTTPStatus, str, str]:
        """Return status, media type and text of a path."""
        report, age = self._report, self._clock() - self._reported
        if path == "/health":
            is_alive = report is not None and age < STALE
            found = {"alive": is_alive, "seconds_since_report": round(age, 1)}
            code = HTTPStatus.OK if is_alive else HTTPStatus.SERVICE_UNAVAILABLE
            return code, _JSON, json.dumps(found)
        plan = path.removeprefix("/forecast/")
        if path not in ("/forecast", "/metrics") and plan not in PLANS:
            known = " ".join(f"/forecast/{name}" for name in PLANS)
            return HTTPStatus.NOT_FOUND, _TEXT, f"known: /forecast /metrics /health {known}\n"
        if report is None:
            return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, "the agent has reported nothing yet\n"
        if path == "/metrics":
            return HTTPStatus.OK, _METRICS, metrics_text(report)
        if plan in PLANS:
            return _planned(plan, report.issued)
        return HTTPStatus.OK, _JSON, json.dumps(report.issued.document(), ensure_ascii=False)


def _planned(name: str, issued: IssuedForecast) -> tuple[HTTPStatus, str, str]:
    try:
        return HTTPStatus.OK, _JSON, plan_text(name, issued)
    except NotPlannableError as error:
        return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, f"{error}\n"


_JSON = "application/json; charset=utf-8"
_TEXT = "text/plain; charset=utf-8"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(self, address: tuple[str, int], sink: HttpSink) -> None:
        self.sink = sink
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.is_local = is_loopback(address[0])
        self._guard = threading.Lock()
        self._open: dict[socket.socket, float] = {}
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as the base has it
        """Serve a request in a thread, or close it if all threads are busy."""
        with self._guard:
            is_full = len(self._open) >= AT_ONCE
            if not is_full:
                self._open[request] = time.monotonic() + DEADLINE
        if is_full:
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no memory for a thread
            self._forget(request)
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as above
        """Serve a request."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def service_actions(self) -> None:
        """Shut the connections whose request has passed its deadline; called twice a second."""
        now = time.monotonic()
        with self._guard:
            for request, end in self._open.items():
                if end < now:
                    with contextlib.suppress(OSError):
                        request.shutdown(socket.SHUT_RDWR)

    def _forget(self, request: socket.socket) -> None:
        with self._guard:
            self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as above
        """Drop a request that failed: a client that goes away is not an event."""


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD."""

    server_version = "gridfed"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def _answer(self, *, has_body: bool) -> None:
        server = cast("_Server", self.server)
        if server.is_local and not self._is_named_locally():
            # a web page in a browser on this machine must not read it under a name of its own
            code, kind, text = HTTPStatus.FORBIDDEN, _TEXT, "Host must be a loopback address\n"
        else:
            code, kind, text = server.sink.page(urlsplit(self.path).path)
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if has_body:
            self.wfile.write(body)

    def _is_named_locally(self) -> bool:
        try:
            host = urlsplit(f"//{self.headers.get('Host', 'localhost')}").hostname or ""
        except ValueError:
            return False
        return is_loopback(host)

    def log_message(self, *_: object) -> None:
        """Log nothing: a request is not an event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOutputSection(OutputSection):
    """``type = "http"``: the newest forecast at ``/forecast`` and metrics at ``/metrics``."""

    listen: Annotated[str, Matches(r"(\[[0-9a-fA-F:]+\]|[^:\[\]]+):\d{1,5}")] = (
        "127.0.0.1:8322"  # host:port
    )
    remote: bool = (
        False  # allow an address other than loopback: every host that reaches it can read
    )

    def __post_init__(self) -> None:
        """Refuse to listen on the network unless this is set."""
        OutputSection.__post_init__(self)
        host, port = self.address
        if port > 65_535:
            raise ValueError(f"listen: port {port} is above 65535")
        if not self.remote and not is_loopback(host):
            raise ValueError(
                f"listen: {host} is not loopback; set remote = true to serve forecasts on the network"
            )

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


def _open(section: HttpOutputSection, place: OutputPlace) -> ThreadedOutput:
    return ThreadedOutput.of(section, place, lambda: HttpSink(*section.address))


HTTP = OutputType(HttpOutputSection, _open)
