"""TLS and HTTP between two objects of one process: OpenSSL on both ends, and no socket.

OpenSSL compares dates with the clock of the real machine, so here it checks everything but the dates.
They are compared with the clocks of the simulation: by ``TlsContext.judge`` where the device's own rules
decide, else here, in the words of OpenSSL.
"""

from __future__ import annotations

import http.client
import io
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from edge_sdk.link.broker_options import TlsContext

NO_CHECK_TIME: Final = 0x200000
"""OpenSSL's flag that leaves the dates of a chain to its caller; Python has no name for it."""


def shake_hands(
    client: ssl.SSLContext, server: ssl.SSLContext, host: str
) -> tuple[ssl.SSLObject, dict[str, Any]]:
    """Shake hands in memory; return the server's end, and its certificate. No date is checked.

    Args:
        client: Context of the device.
        server: Context of the server, with the flag ``NO_CHECK_TIME``.
        host: Name that the server's certificate must have.

    Raises:
        SSLCertVerificationError: The client refuses the server.
        SSLError: The server refuses the client.
    """
    client.verify_flags |= NO_CHECK_TIME
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(down, up, server_hostname=host if client.check_hostname else None)
    theirs = server.wrap_bio(up, down, server_side=True)
    ends = [ours, theirs]
    while ends:
        end = ends.pop(0)
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            ends.append(end)
    leaf: Any = ours.getpeercert()
    return theirs, leaf


def prepare(client: ssl.SSLContext) -> bool:
    """Begin a connection; return whether OpenSSL would check the dates by the machine's clock."""
    if not isinstance(client, TlsContext):
        return False
    client.prepare()
    return not client.verify_flags & NO_CHECK_TIME


def judge(client: ssl.SSLContext, leaf: dict[str, Any], *, is_dated: bool) -> None:
    """Check the dates of a server's certificate as the device does, by the simulation's clock.

    Args:
        is_dated: What ``prepare`` has returned.
    """
    if isinstance(client, TlsContext):
        if is_dated:
            try:
                for one in (leaf, *client.get_ca_certs()):
                    _check_dates(one, time.time())
            except ssl.SSLCertVerificationError as error:
                client.note_refusal(error)
                raise
        client.judge(leaf)


def _check_dates(certificate: Mapping[str, Any], now: float) -> None:
    begin, end = (ssl.cert_time_to_seconds(certificate[x]) for x in ("notBefore", "notAfter"))
    if begin <= now <= end:
        return
    why = "certificate has expired" if now > end else "certificate is not yet valid"
    error = ssl.SSLCertVerificationError(1, f"certificate verify failed: {why}")
    error.verify_code = 10 if now > end else 9
    raise error


class _ServerEnd:
    """The connection that a handler of ``http.server`` reads and writes."""

    def __init__(self, request: bytes, peer: ssl.SSLObject) -> None:
        self._request, self._peer = request, peer
        self.answer = bytearray()

    def makefile(self, mode: str, *_: object) -> io.BufferedIOBase:
        return (
            io.BufferedWriter(_Written(self.answer)) if "w" in mode else io.BytesIO(self._request)
        )

    def settimeout(self, _seconds: float) -> None:
        """Do nothing: the request is there."""

    def getpeercert(self, *, binary_form: bool) -> bytes | None:
        return self._peer.getpeercert(binary_form=True) if binary_form else None


class _Written(io.RawIOBase):
    """The bytes that a handler has written."""

    def __init__(self, into: bytearray) -> None:
        self._into = into

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:  # noqa: ANN401 - as the base class
        self._into += data
        return len(data)


class _ClientEnd:
    """The connection that ``http.client`` writes and reads: what it has sent is handled when it reads."""

    def __init__(self, handle: Callable[[bytes], bytes]) -> None:
        self._handle, self._sent = handle, bytearray()

    def sendall(self, data: bytes) -> None:
        self._sent += data

    def makefile(self, *_: object) -> io.BytesIO:
        return io.BytesIO(self._handle(bytes(self._sent)))

    def close(self) -> None:
        """Do nothing."""


def answered(handler: Callable[..., object], server: object, peer: ssl.SSLObject) -> Any:  # noqa: ANN401 - a function
    """Return a function that lets a handler of ``http.server`` answer a request in bytes."""

    def answer(request: bytes) -> bytes:
        end = _ServerEnd(request, peer)
        handler(end, ("simulated", 0), server)
        return bytes(end.answer)

    return answer


Open = Callable[[str, ssl.SSLContext], Callable[[bytes], bytes]]
"""Connects to a host, and returns the function that answers a request; or raises OSError."""


def https_connection(opened: Open) -> type[http.client.HTTPConnection]:
    """Return a class for ``http.client.HTTPSConnection`` whose connections stay in this process."""

    class Connection(http.client.HTTPConnection):
        def __init__(self, host: str, port: int | None = None, **more: Any) -> None:  # noqa: ANN401 - as the base class
            super().__init__(host, port)
            self._context: ssl.SSLContext = more["context"]

        def connect(self) -> None:
            self.sock = _ClientEnd(opened(self.host, self._context))

    return Connection
