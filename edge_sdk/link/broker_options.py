"""Define a client's broker options: address, TLS files and session settings, validated."""

from __future__ import annotations

import ipaddress
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import field
from os import PathLike, fspath
from pathlib import Path as FilePath
from typing import Any, Final
from urllib.parse import urlsplit

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import LinkError
from edge_sdk.link.tls_files import load, mark_of

WINDOW: Final = 20
"""Largest number of QoS 1 publishes in flight, whatever the server allows."""

LARGEST: Final = 65_536
"""Largest payload in bytes, unless the server's limit is lower."""

LARGEST_UPDATE: Final = 262_656
"""Largest payload in bytes where the server states that it takes packets of this size."""

OVERHEAD: Final = 512
"""Bytes of a packet that are not payload: topic (at most 6 levels), properties, headers."""

STORED: Final = "stored time"
MACHINE: Final = "machine's clock"
EARLIER: Final = "stored time before its last leap"
LIMITED: Final = "no time yet"
"""Name of the time at which a broker certificate's dates were valid; the last of a limited connection."""

Will = tuple[str, bytes, bool]
"""Topic, payload and retain flag of the message that the broker publishes on a lost link."""

Path = str | PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """Address of the broker and settings of this client's connection.

    Raises:
        LinkError: The settings cannot work together; the message names them.

    >>> Broker(url="mqtt://broker.example", client_id="meter-1")
    Traceback (most recent call last):
    edge_sdk.errors.LinkError: mqtt:// to broker.example would send everything unencrypted; \
    use mqtts:// (plain MQTT is for loopback, or insecure = true)
    """

    url: str  # ``mqtts://host:port`` or, on loopback only, ``mqtt://host:port``
    client_id: str  # stable and unique id; the broker keeps the session under it
    # PEM of the authority that signed the broker's certificate; required for mqtts
    ca_file: Path | None = None
    cert_file: Path | None = None  # PEM of this client's certificate
    key_file: Path | None = None  # PEM of its private key
    protocol: int = 5  # 5, or 4 for MQTT 3.1.1
    keepalive: int = 60  # seconds without traffic before a ping
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    # message that the broker publishes when the link is lost. A callable is called before every
    # CONNECT.
    will: Will | Callable[[], Will | None] | None = None
    session_expiry: int = 86_400  # seconds for which the broker keeps the session (MQTT 5)
    # unacknowledged messages the broker may have in flight to this client (MQTT 5)
    receive_maximum: int = WINDOW
    max_packet: int = LARGEST  # largest packet this client accepts, bytes (MQTT 5)
    reconnect_min: float = 1.0  # upper bound of the first random reconnect delay, seconds
    reconnect_max: float = 600.0  # largest upper bound after doubling, seconds
    connect_timeout: float = 5.0  # seconds for TCP and TLS; the only step that blocks
    insecure: bool = False  # allow ``mqtt://`` to a host that is not loopback
    # function called before every TLS handshake. It returns the signed time in Unix seconds for
    # checking the broker's certificate when this machine's clock is a day or more behind it, else
    # None. The dates may also be valid at this machine's clock.
    judged_at: Callable[[], float | None] | None = field(default=None, repr=False)
    # function that returns one more moment at which the dates may be valid, or None
    judged_else: Callable[[], float | None] | None = field(default=None, repr=False)
    # function that returns the earliest moment that the present time may be, while it is not known
    # for certain; None once it is. Until then a certificate that ends later, and is valid at none
    # of the other moments, makes a limited connection, on which the caller may do no more than
    # learn the time (``LinkUp.is_limited``). None: there is no such connection.
    earliest: Callable[[], float | None] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Refuse invalid settings before anything is sent."""
        parts = urlsplit(self.url)
        if parts.scheme not in {"mqtt", "mqtts"} or not parts.hostname:
            raise LinkError(f"{self.url!r} is not a broker address: mqtt://host or mqtts://host")
        if self.protocol not in {4, 5}:
            raise LinkError(f"MQTT protocol {self.protocol} is not known: 5, or 4 for MQTT 3.1.1")
        if not 1 <= self.keepalive <= 65_535:
            raise LinkError(f"keepalive {self.keepalive} is outside 1 to 65535 seconds")
        if self.reconnect_max <= 0:
            raise LinkError(
                "reconnect_max is 0; expected more: without a wait, reconnecting never pauses"
            )
        if not self.client_id:
            raise LinkError("a client id is required: the broker stores the session under it")
        if self.is_tls:
            self._check_files()
        elif not (self.insecure or is_loopback(parts.hostname)):
            raise LinkError(
                f"mqtt:// to {parts.hostname} would send everything unencrypted; use mqtts:// "
                "(plain MQTT is for loopback, or insecure = true)"
            )

    def _check_files(self) -> None:
        if self.ca_file is None:
            raise LinkError("mqtts:// needs ca_file: the authority that signed the broker")
        if (self.cert_file is None) != (self.key_file is None):
            raise LinkError("cert_file and key_file must be set together")

    @property
    def is_tls(self) -> bool:
        return urlsplit(self.url).scheme == "mqtts"

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """Return the port: as given, else 8883 with TLS and 1883 without."""
        return urlsplit(self.url).port or (8883 if self.is_tls else 1883)


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine's loopback.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_NO_CHECK_TIME = 0x200000
"""OpenSSL's flag that leaves the dates of a chain to its caller; Python has no name for it."""

_DATES = (9, 10)
"""OpenSSL's errors of verification: a certificate is not yet valid, or has expired."""


class _Dated(ssl.SSLSocket):
    """Check the leaf certificate's dates where the clock and the signed time disagree."""

    def do_handshake(self, block: bool = False) -> None:  # noqa: FBT001, FBT002 - ssl's signature
        """Shake hands, and refuse a certificate that is not valid at any accepted moment.

        Raises:
            SSLCertVerificationError: The message has the certificate's dates and the moments tried.
        """
        context = self.context
        try:
            super().do_handshake(block)
        except ssl.SSLCertVerificationError as error:
            if isinstance(context, TlsContext):
                context.note_refusal(error)
            raise
        if isinstance(context, TlsContext):
            leaf: Any = self.getpeercert()
            context.judge(leaf)


_second = ssl.cert_time_to_seconds


def _utc(at: float) -> str:
    """Format a moment for the operator.

    >>> _utc(0.0)
    '1970-01-01 00:00 UTC'
    """
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))


class TlsContext(ssl.SSLContext):
    """TLS context that remembers its last connection, and when to check certificate dates again.

    The MQTT library leaves the connection open when the handshake fails; the caller can close it
    here. While the clock is a day or more behind the signed time, OpenSSL checks chain and host
    name without the time, and the dates of the broker's own certificate are compared with the
    signed time, with the clock, and with the signed time before its last jump. The same holds after
    OpenSSL has refused the dates by a clock of which nothing is known for certain.
    """

    sslsocket_class = _Dated
    judged_at: Callable[[], float | None] | None = None
    judged_else: Callable[[], float | None] | None = None
    earliest: Callable[[], float | None] | None = None
    # true once OpenSSL has refused dates by the machine's clock, which may be wrong
    is_doubted: bool = False
    # true if that is unknown, and the connection may only serve to learn the time
    is_limited: bool = False
    at: float | None = None  # signed time, Unix seconds; None while the clock agrees
    other: float | None = None  # one more moment to try
    dates_by: str = ""  # name of the moment at which the last certificate was valid
    wrapped: ssl.SSLSocket | None = None
    marks: tuple[object, ...] = ()

    def wrap_socket(self, *args: Any, **settings: Any) -> ssl.SSLSocket:  # noqa: ANN401
        self.prepare()
        self.wrapped = super().wrap_socket(*args, **settings)
        return self.wrapped

    def prepare(self) -> None:
        """Choose the clock of the next handshake: OpenSSL checks the dates, or ``judge`` does."""
        self.at = None if self.judged_at is None else self.judged_at()
        self.other = None if self.judged_else is None else self.judged_else()
        self.is_doubted &= self._earliest() is not None
        is_checked_here = self.at is not None or self.is_doubted
        flags = self.verify_flags & ~_NO_CHECK_TIME
        self.verify_flags = flags | _NO_CHECK_TIME if is_checked_here else flags

    def note_refusal(self, error: ssl.SSLCertVerificationError) -> None:
        """Mark the machine's clock as doubtful if OpenSSL refused dates by it and no signed time confirms it."""
        if error.verify_code in _DATES:
            self.doubt_clock()

    def doubt_clock(self) -> None:
        """Check certificate dates in this class from the next handshake on, unless the time is certain."""
        self.is_doubted = self._earliest() is not None

    def _earliest(self) -> float | None:
        return None if self.earliest is None else self.earliest()

    def judge(self, leaf: Mapping[str, Any]) -> None:
        """Check the dates of the other end's certificate after a handshake.

        Args:
            leaf: The certificate, as ``ssl.SSLSocket.getpeercert`` returns it.

        Raises:
            SSLCertVerificationError: The message has the certificate's dates and the moments tried.
        """
        self.dates_by, self.is_limited = MACHINE, False
        if self.at is None and not self.is_doubted:
            return
        begin, end = _second(leaf["notBefore"]), _second(leaf["notAfter"])
        tried = {STORED: self.at, MACHINE: time.time(), EARLIER: self.other}
        for name, at in tried.items():
            if at is not None and begin <= at <= end:
                self.dates_by = name
                return
        earliest = self._earliest()
        if earliest is not None and end >= earliest:
            self.dates_by, self.is_limited = LIMITED, True
            return
        self.dates_by = ""
        tried_times = "; ".join(
            f"{name} {_utc(at)}" for name, at in tried.items() if at is not None
        )
        raise ssl.SSLCertVerificationError(
            f"the certificate is valid from {leaf['notBefore']} to {leaf['notAfter']}; "
            f"this machine's clock is wrong, or the signed time is; outside that range: {tried_times}"
        )


def tls_context(broker: Broker) -> TlsContext:
    """Return a context: TLS 1.2 or later, pinned authority, checked name, client certificate.

    Raises:
        LinkError: A file is missing or invalid.
    """
    context = TlsContext(ssl.PROTOCOL_TLS_CLIENT)
    context.judged_at, context.judged_else = broker.judged_at, broker.judged_else
    context.earliest = broker.earliest
    context.marks = _marks(broker)  # first: a file written meanwhile is read again
    try:
        return load(context, broker.ca_file, broker.cert_file, broker.key_file)
    except OSError as error:
        raise LinkError(str(error)) from error


def renewed(context: TlsContext, broker: Broker) -> TlsContext:
    """Return a context of the current files, so that a link survives a certificate renewal.

    The present context is returned while no file has changed, and while certificate and key do not
    match: a certificate may be in place a moment before its key.
    """
    if is_current(context, broker):
        return context
    try:
        return tls_context(broker)
    except LinkError:
        return context


def is_current(context: TlsContext, broker: Broker) -> bool:
    """Return whether no file has changed since the context was made."""
    return context.marks == _marks(broker)


def _marks(broker: Broker) -> tuple[object, ...]:
    named = (broker.ca_file, broker.cert_file, broker.key_file)
    return tuple(mark_of(FilePath(fspath(name))) for name in named if name is not None)
