"""Request certificates from an EST server (RFC 7030) over HTTPS."""

from __future__ import annotations

import base64
import http.client
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from edge_sdk.errors import WireError
from edge_sdk.extensions.certificates.certificate_request import certificates_in, fingerprint
from edge_sdk.link.broker_options import Broker, tls_context

ANSWER_LIMIT: Final = 65_536  # bytes
ROOT_PATH: Final = "/.well-known/gridfed/root"
"""Path of the fleet's root public key on gridfed's own server."""

AUTHORITIES_HEADER: Final = "Gridfed-Authorities"
"""HTTP header with the SHA-256 of each authority that a client trusts; not part of RFC 7030.

While an authority is replaced, the server issues by the next one to those that trust it.
"""


class EstError(WireError):
    """An error: the server cannot be reached, or has not issued a certificate.

    Attributes:
        status: HTTP status of its answer; 0 without one.
        retry_after: Seconds until the request should be repeated; 0 if it did not say.
    """

    def __init__(self, text: str, status: int = 0, retry_after: float = 0.0) -> None:
        super().__init__(text)
        self.status, self.retry_after = status, retry_after


@dataclass(frozen=True, slots=True)
class EstServerAddress:
    """Address and trust of an EST server.

    >>> EstServerAddress("https://ca.example:8443/north", "ca.pem").path("cacerts")
    '/.well-known/est/north/cacerts'
    """

    url: str  # ``https://host:port``, with a path label where the server has one
    ca_file: Path | str  # PEM of the authority of the server's certificate
    # time from the aggregator, Unix seconds, at which the server's certificate may be valid too,
    # for a machine whose clock is wrong; None while that is right
    signed_time: float | None = None
    timeout: float = 30.0  # longest wait for the network, seconds
    # earliest moment that the present time may be, while it is not known for certain. The server's
    # certificate may then be valid at any later moment, for requests that contain no secret. None:
    # its dates are checked.
    earliest: float | None = None

    def path(self, operation: str) -> str:
        """Return the path of an operation."""
        label = urlsplit(self.url).path.strip("/")
        label = label.removeprefix(".well-known/est").strip("/")
        return "/".join(filter(None, ("/.well-known/est", label, operation)))

    def context(self, certificate: Path | str | None = None) -> ssl.SSLContext:
        """Return a context that trusts this authority alone, with a client certificate if given.

        Raises:
            LinkError: A file is missing or invalid.
        """
        broker = Broker(
            url="mqtts://unused",
            client_id="unused",
            ca_file=self.ca_file,
            cert_file=certificate,
            key_file=certificate,
            judged_at=lambda: self.signed_time,
            earliest=lambda: self.earliest,
        )
        context = tls_context(broker)
        context.doubt_clock()
        return context


def pinned_authority(address: EstServerAddress, digest: str) -> bytes:
    """Return the authority whose SHA-256 the operator has given, as PEM (RFC 7030, section 4.1.1).

    The connection is not verified: the digest verifies what it carries, and nothing is sent.
    """
    context = _UnverifiedContext(ssl.PROTOCOL_TLS_CLIENT)
    body = _exchange(address, context, "GET", address.path("cacerts"))
    found = {fingerprint(pem): pem for pem in certificates_in(_decoded(body))}
    if digest.lower() not in found:
        raise EstError(
            f"{address.url}: its authority has the SHA-256 {', '.join(found)}, expected {digest}: "
            "this is another server, or another authority"
        )
    return found[digest.lower()]


def request_certificate(
    address: EstServerAddress,
    der: bytes,
    *,
    is_renewal: bool,
    user: str = "",
    password: str = "",
    certificate: Path | str | None = None,
    trusted: Sequence[str] = (),
) -> list[bytes]:
    """Send a certificate request, and return the certificates of the answer, each as PEM.

    Args:
        der: Request (PKCS #10).
        is_renewal: Use `/simplereenroll`, else `/simpleenroll`.
        user: User name of HTTP Basic; empty without.
        certificate: PEM file with a client certificate and its key.
        trusted: SHA-256 of each authority that this client trusts, as hexadecimal digits.

    Raises:
        EstError: The server refuses, asks to wait, or cannot be reached.
    """
    headers = {"Content-Type": "application/pkcs10", "Content-Transfer-Encoding": "base64"}
    if user:
        word = base64.b64encode(f"{user}:{password}".encode()).decode()
        headers["Authorization"] = f"Basic {word}"
    if trusted:
        headers[AUTHORITIES_HEADER] = ", ".join(trusted)
    path = address.path("simplereenroll" if is_renewal else "simpleenroll")
    context = address.context(certificate)
    body = _exchange(address, context, "POST", path, body=base64.encodebytes(der), headers=headers)
    return certificates_in(_decoded(body))


def root_public_key(address: EstServerAddress) -> str:
    """Return the content of the fleet's root.pub; empty if the server has none.

    Raises:
        EstError: The server cannot be reached, or cannot say which root is the fleet's.
    """
    try:
        body = _exchange(address, address.context(), "GET", ROOT_PATH)
    except EstError as error:
        if error.status and error.status < 500:
            return ""
        raise
    return body.decode("ascii", "replace").strip()


class _UnverifiedContext(ssl.SSLContext):
    """TLS context that accepts any server: for an answer that is compared with a digest."""

    def __init__(self, *_: object) -> None:
        self.minimum_version = ssl.TLSVersion.TLSv1_2
        self.check_hostname, self.verify_mode = False, ssl.CERT_NONE


def _exchange(
    address: EstServerAddress,
    context: ssl.SSLContext,
    method: str,
    path: str,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    parts = urlsplit(address.url)
    host = parts.hostname or ""
    link = http.client.HTTPSConnection(host, parts.port, timeout=address.timeout, context=context)
    try:
        link.request(method, path, body, {"User-Agent": "gridfed", **(headers or {})})
        answer = link.getresponse()
        content = answer.read(ANSWER_LIMIT)
    except (OSError, http.client.HTTPException) as error:
        raise EstError(f"{address.url}: {error}") from error
    finally:
        link.close()
    if answer.status != http.client.OK:
        said = content[:200].decode("utf-8", "replace").strip().partition("\n")[0]
        said = "".join(c if c.isprintable() else "?" for c in said) or answer.reason
        given = answer.getheader("Retry-After", "")
        wait = float(given) if given.isascii() and given.isdigit() else 0.0
        what = (
            "the request waits for the operator"
            if answer.status == http.client.ACCEPTED
            else (f"refused ({answer.status})")
        )
        raise EstError(f"{address.url}: {what}: {said}", answer.status, wait)
    return content


def _decoded(content: bytes) -> bytes:
    try:
        return base64.b64decode(b"".join(content.split()), validate=True)
    except ValueError as error:
        raise EstError("the server's answer is not base64") from error
