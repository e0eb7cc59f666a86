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
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any, Final

from aggregator.authority import certificates as x509
from aggregator.authority import folder as authority
from aggregator.authority.certificates import CertificateError
from aggregator.authority.enrolment import (
    UNAUTHENTICATED,
    Credentials,
    EnrolmentAuthority,
    EnrolmentPolicy,
    RefusalReason,
    RefusedError,
)
from aggregator.authority.folder import text_of
from aggregator.authority.pending_acts import AuthorityAct
from aggregator.authority.record import EnrolledMember, Record
from aggregator.authority.server_certificate import server_context
from edge_sdk.app.cli import fields

logger = logging.getLogger(__name__)

ROOT_PATH: Final = "/.well-known/gridfed/root"
"""Path of the fleet's root public key: not part of RFC 7030."""

BODY_LIMIT: Final = 16_384  # bytes of a request in base64
PATIENCE: Final = 10.0  # s without a byte from a client
CONNECTIONS: Final = 128  # handled at the same time; further ones wait in the system's queue
RETRY_AFTER: Final = 3600  # s until a device that waits for an operator asks again
UPKEEP: Final = 0.2  # s between two deliveries of enrolments to the aggregator
RETRY: Final = 5.0  # s after a failed one
CERTIFICATES_EVERY: Final = timedelta(hours=12)
"""Time between two looks at this server's own certificate and at the revocation list."""


@dataclass(slots=True)
class EstService:
    """The authority behind the server: decisions in one thread, counts, and delivery.

    Attributes:
        folder: Folder of the authority.
        policy: Rules of the authority.
        root: Public key of the fleet's root, 64 hex digits; empty if it is not served.
        deliver: Receives the new members, in order, and gives them to the aggregator; repeated after
            a crash.
        passphrase: Passphrase of the authority's key.
        deliver_acts: Receives the acts for the aggregator's audit log, likewise.
        clock: Returns the present time.
        reload_broker: Called after the list of revoked certificates was written again.
    """

    folder: Path
    policy: EnrolmentPolicy
    root: str = ""
    deliver: Callable[[list[EnrolledMember]], None] = lambda _members: None
    passphrase: bytes = b""
    deliver_acts: Callable[[list[AuthorityAct]], None] = lambda _acts: None
    clock: Callable[[], datetime] = lambda: datetime.now(UTC).replace(microsecond=0)
    reload_broker: Callable[[], None] = lambda: None
    _enrolment: EnrolmentAuthority = field(init=False)
    _thread: ThreadPoolExecutor = field(init=False)
    _refused: Counter[str] = field(default_factory=Counter)
    _last: str = ""
    _is_reload_due: bool = False

    def __post_init__(self) -> None:
        """Load the authority; the record is opened in the thread that uses it."""
        loaded = authority.load_folder(self.folder, self.passphrase)
        self._thread = ThreadPoolExecutor(1, "enrolment")
        record = self._thread.submit(Record, self.folder).result()
        self._enrolment = EnrolmentAuthority(record, loaded, self.policy)

    def close(self) -> None:
        """Save the counts, and close the record."""
        self._thread.submit(self._end).result()
        self._thread.shutdown()

    def authorities(self) -> bytes:
        """Return the authority's certificate as PKCS #7, DER."""
        return x509.certs_only([self._enrolment.authority.certificate])

    def is_claim(self, issuer: str) -> bool:
        """Return whether an issuer, by common name, is the authority of claim certificates."""
        return issuer == authority.CLAIMS_NAME

    def answer(self, der: bytes, shown: Credentials, *, is_renewal: bool) -> bytes:
        """Return the certificate for a request, as PKCS #7 in DER.

        Raises:
            RefusedError: With the reason; it is counted.
        """
        act = self._enrolment.renew if is_renewal else self._enrolment.enrol
        return self._thread.submit(self._decide, act, der, shown).result()

    def refuse(self, reason: RefusalReason, about: str) -> None:
        """Count a refusal, and log it."""
        self._thread.submit(self._count, reason, about)

    def turn(self) -> None:
        """Deliver new members, and save the counts of refusals."""
        self._thread.submit(self._upkeep).result()

    def renew_list(self) -> None:
        """Write the list of revoked certificates again when half of its validity is over."""
        if authority.renew_list_in_time(self.folder, self.clock(), self.passphrase):
            logger.info("revocation list renewed")
            self._is_reload_due = True
        if self._is_reload_due:
            self.reload_broker()
            self._is_reload_due = False

    def _decide(self, act: Callable[..., bytes], der: bytes, shown: Credentials) -> bytes:
        try:
            made = act(der, shown, self.clock())
        except RefusedError as error:
            self._count(error.reason, error.about)
            raise
        certificate = x509.certificate_of(made)
        name = certificate.subject.rfc4514_string().removeprefix("CN=")
        until = f"{x509.validity(certificate)[1]:%Y-%m-%d}"
        logger.info("certificate issued %s", fields(name=name, until=until))
        return x509.certs_only([certificate])

    def _count(self, reason: RefusalReason, about: str) -> None:
        about = "".join(c if c.isprintable() else "?" for c in about[:64])
        if not self._refused[reason]:
            logger.warning("request refused %s", fields(reason=reason, about=about))
        self._refused[reason] += 1
        self._last = about

    def _upkeep(self) -> None:
        if self._refused:
            with self._enrolment.record.transaction():
                now = text_of(self.clock())
                self._enrolment.record.count_refusals(self._refused, now, self._last)
            self._refused.clear()
        if members := self._enrolment.record.undelivered():
            self.deliver(members)
            with self._enrolment.record.transaction():
                self._enrolment.record.mark_delivered(members)
        if acts := self._enrolment.record.acts():
            self.deliver_acts(acts)
            with self._enrolment.record.transaction():
                self._enrolment.record.forget_acts(acts)

    def _end(self) -> None:
        self._upkeep()
        self._enrolment.record.close()


class EstServer(ThreadingMixIn, HTTPServer):
    """HTTPS server of one authority.

    Args:
        address: Host and port to listen on; port 0 for any.
        service: The authority.
        hosts: Names and addresses of this server, for its certificate.

    Raises:
        OSError: The address cannot be used.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], service: EstService, hosts: list[str]) -> None:
        """Issue the server's certificate, and listen."""
        self.service, self.hosts = service, hosts
        self.context = server_context(service.folder, hosts, service.clock(), service.passphrase)
        self._certificates_due = service.clock()
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        self._due = 0.0
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def run(self, is_stopping: Callable[[], bool]) -> None:
        """Serve until ``is_stopping``; deliver enrolments meanwhile."""
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
        """Deliver, and renew what expires; try again after a full disk."""
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
        """Renew this server's own certificate and the list of revoked ones, in time."""
        service, now = self.service, self.service.clock()
        if now >= self._certificates_due:
            self.context = server_context(service.folder, self.hosts, now, service.passphrase)
            service.renew_list()
            self._certificates_due = now + CERTIFICATES_EVERY


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "gridfed-est"
    sys_version = ""
    timeout = PATIENCE
    server: EstServer

    def do_GET(self) -> None:
        """Answer with the authority's certificate, or the root's public key."""
        service = self.server.service
        if _operation(self.path) == "cacerts":
            self._send_pkcs7(service.authorities())
        elif self.path == ROOT_PATH and service.root:
            self._send(200, service.root.encode() + b"\n", {"Content-Type": "text/plain"})
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
        if der:
            try:
                found = x509.presented(der)
            except CertificateError as error:
                raise _BadRequestError(str(error)) from error
            claims = self.server.service.is_claim(found.issuer)
            return Credentials(certificate=found, is_claim=claims)
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return Credentials()
        try:
            text = base64.b64decode(given.strip(), validate=True).decode()
        except (binascii.Error, ValueError) as error:
            raise _BadRequestError("expected HTTP Basic credentials") from error
        serial, _, password = text.partition(":")
        return Credentials(serial, password)

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
