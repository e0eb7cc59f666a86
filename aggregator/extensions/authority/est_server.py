"""Serve Enrolment over Secure Transport (EST, RFC 7030) over HTTPS: three operations and one file.

`/cacerts`, `/simpleenroll` and `/simplereenroll`, with or without a path label, and the fleet's root
public key. A client authenticates by HTTP Basic, by a TLS client certificate, or by the identity key
in its request. One thread decides, since the record has one writer; handshakes run in parallel.
"""

from __future__ import annotations

import base64
import binascii
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any, Final

from aggregator.extensions.authority import folder as authority
from aggregator.extensions.authority.certificate_reader import (
    CertificateError,
    described_server,
    presented,
)
from aggregator.extensions.authority.enrolment import Credentials
from aggregator.extensions.authority.est_service import EstService
from aggregator.extensions.authority.record_entries import UNAUTHENTICATED, RefusedError
from edge_sdk.app.cli import fields
from edge_sdk.errors import SignerUnavailable
from edge_sdk.extensions.certificates.est_client import AUTHORITIES_HEADER
from edge_sdk.link.tls_files import load

LIFETIME: Final = timedelta(days=90)
# OpenSSL's flag that leaves the dates of a chain to its caller; Python has no name for it
_NO_CHECK_TIME: Final = 0x200000


def server_context(
    folder: Path, hosts: list[str], now: datetime, passphrase: bytes = b""
) -> ssl.SSLContext:
    """Return the server's TLS context; issue its certificate unless it has half its validity left.

    It is issued again by the authority that has replaced its own.

    Client certificates are optional, and their dates are not checked here: a member whose
    certificate has expired may renew it.
    """
    file = folder / "issued" / "_est.pem"
    names = [one.strip("[]") for one in hosts]
    held = described_server(file.read_bytes()) if file.exists() else None
    by = authority.load_folder(folder, passphrase).key_id
    if held is None or held[0] - now < LIFETIME / 2 or held[1:] != (sorted(names), by):
        authority.issue(
            folder,
            "_est",
            "est",
            now,
            LIFETIME,
            hosts=names,
            is_renewal=True,
            passphrase=passphrase,
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load(context, folder / authority.CERTIFICATE, file, file.with_suffix(".key"))
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags |= _NO_CHECK_TIME
    context.num_tickets = 0  # a device comes once in weeks
    return context


logger = logging.getLogger(__name__)

# path of the fleet's root public key: not part of RFC 7030
ROOT_PATH: Final = "/.well-known/gridfed/root"
BODY_LIMIT: Final = 16_384  # bytes of a request in base64
PATIENCE: Final = 10.0  # s without a byte from a client
CONNECTIONS: Final = 128  # handled at the same time; further ones wait in the system's queue
RETRY_AFTER: Final = 3600  # s until a device that waits for an operator asks again
TOKEN_RETRY: Final = (
    60  # s until a device asks again, while the token of the authority's key is away
)
UPKEEP: Final = 0.2  # s between two deliveries of enrolments to the aggregator
RETRY: Final = 5.0  # s after a failed one
# time between two looks at this server's own certificate and at the revocation list
CERTIFICATES_EVERY: Final = timedelta(hours=12)


class EstServer(ThreadingMixIn, HTTPServer):
    """HTTPS server of one authority.

    Args:
        address: Host and port to listen on; port 0 for any.
        hosts: Names and addresses of this server, for its certificate.

    Raises:
        OSError: The address cannot be used.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], service: EstService, hosts: list[str]) -> None:
        self.service, self.hosts = service, hosts
        self.context = server_context(service.folder, hosts, service.clock(), service.passphrase)
        self._certificates_due, self._changes = service.clock(), service.changes
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        self._due = 0.0
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def run(self, is_stopping: Callable[[], bool]) -> None:
        """Serve and deliver enrolments until ``is_stopping``."""
        serving = threading.Thread(target=self.serve_forever, args=(0.2,), daemon=True)
        serving.start()
        try:
            while not is_stopping():
                time.sleep(UPKEEP)
                self._turn()
        finally:
            self.shutdown()
            serving.join()
            self.server_close()
            self.service.close()

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as the base class
        """Handle a connection in a thread, when one is free."""
        self._free.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as the base class
        """Shake hands, serve the requests of a connection, and free its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - as the base class
        """Log a connection that ended with an error; ordinary ones are cut off by the client."""
        logger.debug("connection failed %s", fields(client=client_address))

    def finish_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as the base class
        """Shake hands within the patience, and count a certificate of another authority."""
        request.settimeout(PATIENCE)
        try:
            with self.context.wrap_socket(request, server_side=True) as wrapped:
                _Handler(wrapped, client_address, self)
        except ssl.SSLCertVerificationError as error:
            self.service.refuse("forged authority", str(error.verify_message))
        except ssl.SSLError as error:
            logger.debug("handshake failed %s", fields(why=error.reason))

    def _turn(self) -> None:
        """Deliver enrolments and renew expiring certificates; retry after an error such as a full disk."""
        if time.monotonic() < self._due:
            return
        try:
            self.service.turn()
        except Exception:
            self._due = time.monotonic() + RETRY
            logger.exception("enrolments not delivered")
            return
        try:
            self._renew()
        except Exception:
            self._due = time.monotonic() + RETRY
            logger.exception("revocation list or server certificate not renewed")

    def _renew(self) -> None:
        service, now = self.service, self.service.clock()
        if now >= self._certificates_due or self._changes != service.changes:
            changes = service.changes
            self.context = server_context(service.folder, self.hosts, now, service.passphrase)
            service.renew_list()
            self._certificates_due, self._changes = now + CERTIFICATES_EVERY, changes


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "gridfed-est"
    sys_version = ""
    timeout = PATIENCE
    wbufsize = -1  # head and body of an answer in one TLS record
    server: EstServer

    def do_GET(self) -> None:
        """Answer with the authority's certificate, or the root's public key."""
        service = self.server.service
        if _operation(self.path) == "cacerts":
            self._send_pkcs7(service.authorities())
        elif self.path == ROOT_PATH:
            self._send_root(service.root_key())
        else:
            self._send(404, b"")

    def do_POST(self) -> None:
        """Answer a request for a certificate."""
        operation = _operation(self.path)
        if operation not in ("simpleenroll", "simplereenroll"):
            self.close_connection = True
            self._send(404, b"")
            return
        try:
            body = self._body()
            shown = self._credentials()
            made = self.server.service.answer(body, shown, is_renewal=operation == "simplereenroll")
        except _BadRequestError as error:
            self.close_connection = True
            self.server.service.refuse("bad request", str(error))
            self._send(400, f"{error}\n".encode())
        except RefusedError as error:
            self._refuse(error)
        except SignerUnavailable as error:
            logger.warning("authority token unreachable %s", fields(why=error))
            self._send(503, b"", {"Retry-After": str(TOKEN_RETRY)})
        else:
            self._send_pkcs7(made)

    def _refuse(self, error: RefusedError) -> None:
        text = f"{error.reason}\n".encode()
        if error.is_pending:
            self._send(202, text, {"Retry-After": str(RETRY_AFTER)})
        elif error.reason in UNAUTHENTICATED:
            self._send(401, text, {"WWW-Authenticate": 'Basic realm="enrolment"'})
        else:
            self._send(400 if error.reason == "bad request" else 403, text)

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit() or not 0 < int(length) <= BODY_LIMIT:
            raise _BadRequestError(f"expected a body of 1 to {BODY_LIMIT} bytes")
        try:
            raw = self.rfile.read(int(length))
            return base64.b64decode(b"".join(raw.split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise _BadRequestError("expected PKCS #10 in base64") from error

    def _credentials(self) -> Credentials:
        connection: Any = self.connection
        der = connection.getpeercert(binary_form=True)
        said = self.headers.get(AUTHORITIES_HEADER, "")
        trusted = frozenset(one.strip().lower() for one in said.split(","))
        if der:
            try:
                found = presented(der)
            except CertificateError as error:
                raise _BadRequestError(str(error)) from error
            return Credentials(certificate=found, trusted=trusted)
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return Credentials(trusted=trusted)
        try:
            text = base64.b64decode(given.strip(), validate=True).decode()
        except (binascii.Error, ValueError) as error:
            raise _BadRequestError("expected HTTP Basic credentials") from error
        serial, _, password = text.partition(":")
        return Credentials(serial, password, trusted=trusted)

    def _send_root(self, root: str | None) -> None:
        if root is None:
            self._send(503, b"the aggregator's root key cannot be read\n")
        elif root:
            self._send(200, root.strip().encode() + b"\n", {"Content-Type": "text/plain"})
        else:
            self._send(404, b"")

    def _send_pkcs7(self, der: bytes) -> None:
        kind = "application/pkcs7-mime; smime-type=certs-only"
        more = {"Content-Type": kind, "Content-Transfer-Encoding": "base64"}
        self._send(200, base64.b64encode(der), more)  # one line: strongSwan 5.9 reads no more

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing for each request: issued and refused ones are logged with their reason."""


class _BadRequestError(ValueError):
    """A request that is no EST request."""


def _operation(path: str) -> str:
    """Return the EST operation of a path; empty for any other path.

    >>> _operation("/.well-known/est/cacerts"), _operation("/.well-known/est/north/simpleenroll")
    ('cacerts', 'simpleenroll')
    >>> _operation("/cacerts"), _operation("/.well-known/est/a/b/cacerts")
    ('', '')
    """
    parts = path.partition("?")[0].split("/")
    is_est = parts[:3] == ["", ".well-known", "est"] and len(parts) in (4, 5)
    return parts[-1] if is_est else ""
