"""Load the files that a TLS link depends on, and report which expire soon.

Changed files are read again. The caller decides how to react; this module returns the warnings,
each at most once a day.
"""

from __future__ import annotations

import math
import re
import ssl
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import WireError
from edge_sdk.protocol.topics import AGGREGATOR, is_device_id, is_fleet_id

Kind = Literal["ca", "certificate", "crl"]

DAY: Final = 86_400.0
"""Seconds."""

HORIZON: Final = 30 * DAY
"""Seconds before the end at which warnings start: enough time to arrange a renewal.

The last third of the validity, if that is shorter: a revocation list is valid for days.
"""

_BLOCK: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)
_LABELS: Final = {"CERTIFICATE": "certificate", "X509 CERTIFICATE": "certificate"} | {
    "X509 CRL": "list of revoked certificates"
}
_HOLDS: Final[dict[Kind, str]] = {
    "ca": "certificate",
    "certificate": "certificate",
    "crl": "list of revoked certificates",
}


class X509Error(WireError):
    """An error: a file without the expected content, or one that cannot be read."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """Validity of one file.

    Example:
        An authority and its successor in one file: the old one's end is reported, the file works:

        >>> both = Expiry("ca", since=0.0, until=3 * DAY, over=900 * DAY, count=2)
        >>> both.told(1.5 * DAY), both.told(4 * DAY), both.is_over(4 * DAY)
        ('1 day left, the first of 2', 'expired 1 day ago, the first of 2', False)
        >>> Expiry("crl", 0.0, 3 * DAY, 3 * DAY).is_over(3 * DAY)
        True
    """

    kind: Kind  # purpose of the file
    since: float  # start of validity, Unix seconds
    until: float  # end of the first part that expires, Unix seconds; infinite if none ever does
    # time at which no part is usable any more. A chain ends with its first certificate, a file of
    # authorities with its last one.
    over: float
    count: int = 1  # number of certificates or lists in the file

    def is_over(self, now: float) -> bool:
        """Return whether the file is unusable at ``now`` (Unix seconds)."""
        return now >= self.over

    def is_near(self, now: float, horizon: float = HORIZON) -> bool:
        """Return whether to warn: it ends within ``horizon`` seconds, or is not yet valid.

        >>> weekly = Expiry("crl", since=0.0, until=6 * DAY, over=6 * DAY)
        >>> [weekly.is_near(t * DAY) for t in (-1, 0, 3, 4, 9)]
        [True, False, False, True, True]
        """
        last = min(horizon, (self.until - self.since) / 3)
        return now >= self.until - last or now < self.since

    def days(self, now: float) -> int | None:
        """Return whole days left, negative once it has expired; None if it never does.

        >>> [Expiry("ca", 0.0, 2 * DAY, 2 * DAY).days(t * DAY) for t in (0.5, 1.5, 2.5)]
        [1, 0, -1]
        """
        return None if math.isinf(self.until) else math.floor((self.until - now) / DAY)

    def told(self, now: float) -> str:
        """Describe the validity for the operator."""
        among = f", the first of {self.count}" if self.count > 1 else ""
        if now < self.since:
            return f"not valid before {day_of(self.since)}: is this machine's clock right?"
        left = self.days(now)
        if left is None:
            return "never expires"
        if now >= self.until:
            return f"expired {_days(math.floor((now - self.until) / DAY))} ago{among}"
        return f"{_days(left)} left{among}"


def expiry(pem: bytes, kind: Kind) -> Expiry:
    r"""Read the validity of a PEM file. Anything else in it, such as a key, is ignored.

    Args:
        pem: The file's bytes.
        kind: Expected content: certificates, or revocation lists.

    Raises:
        X509Error: It holds no such content, or content that cannot be read.

    >>> expiry(b"-----BEGIN PRIVATE KEY-----\nMC4C\n-----END PRIVATE KEY-----", "ca")
    Traceback (most recent call last):
    edge_sdk.link.tls_files.X509Error: no certificate in it, but: private key
    """
    wanted = _HOLDS[kind]
    blocks = [(match[1].decode(), match[0]) for match in _BLOCK.finditer(pem)]
    found = [_span(block, label, wanted) for label, block in blocks if _LABELS.get(label) == wanted]
    if not found:
        held = sorted({_LABELS.get(label, label.lower()) for label, _ in blocks})
        raise X509Error(
            f"no {wanted} in it, but: {', '.join(held)}"
            if held
            else f"no {wanted} in it: not a PEM file (openssl … -inform DER turns it into one)"
        )
    begins, ends = zip(*found, strict=True)
    if kind == "ca":
        return Expiry(kind, min(begins), min(ends), max(ends), len(found))
    return Expiry(kind, max(begins), min(ends), min(ends), len(found))


def _span(pem: bytes, label: str, what: str) -> tuple[float, float]:
    from cryptography import x509  # noqa: PLC0415 - only where a link has such files

    try:
        if label == "X509 CRL":
            revoked = x509.load_pem_x509_crl(pem)
            return _moment(revoked, "last_update"), _moment(revoked, "next_update")
        certificate = x509.load_pem_x509_certificate(pem)
        return _moment(certificate, "not_valid_before"), _moment(certificate, "not_valid_after")
    except (ValueError, TypeError, OverflowError, x509.InvalidVersion) as error:
        raise X509Error(f"a {what} in it cannot be read") from error


def _moment(dated: Any, name: str) -> float:  # noqa: ANN401 - a certificate or a list
    """Read a date as Unix seconds; from cryptography 42 on its old name warns.

    A list may leave out its next update: then it never expires.
    """
    aware = f"{name}_utc"
    date: datetime | None = getattr(dated, aware if hasattr(dated, aware) else name)
    return math.inf if date is None else date.replace(tzinfo=UTC).timestamp()


def day_of(moment: float) -> str:
    """Return a moment's date in UTC.

    >>> day_of(1_800_000_000.0)
    '2027-01-15'
    """
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d")


def _days(count: int) -> str:
    return "1 day" if count == 1 else f"{count} days"


_LARGEST: Final = 64 * 1024 * 1024  # bytes of a file that is read
Context = TypeVar("Context", bound=ssl.SSLContext)
Name = str | PathLike[str]


class ExpiredFileError(X509Error):
    """An error: a file has expired, so that no peer accepts the link."""

    def __init__(self, file: File, why: str) -> None:
        super().__init__(f"{file.key}: {file.path}: {why}")
        self.file = file


def load(
    context: Context, ca: Name | None = None, cert: Name | None = None, key: Name | None = None
) -> Context:
    """Require TLS 1.2 or later in a context, and load PEM files into it; return the context.

    Args:
        context: Context of a client or of a server.
        ca: File of the authority to trust.
        key: File of its private key; None where the certificate's file has it.

    Raises:
        OSError: A file cannot be read or is invalid; the message names the files.
    """
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if ca is not None:
            context.load_verify_locations(cafile=ca)
        if cert is not None:
            context.load_cert_chain(cert, key)
    except OSError as error:
        named = ", ".join(str(file) for file in (ca, cert, key) if file)
        raise OSError(f"cannot use the TLS files {named}: {error}") from error
    return context


@dataclass(frozen=True, slots=True)
class File:
    """A file that a configuration names."""

    kind: Kind
    path: Path
    key: str  # configuration key that names it

    def read(self) -> Expiry:
        """Read the file's validity now.

        Raises:
            X509Error: As ``expiry``, or the file cannot be read; the message names key and file.
        """
        try:
            return expiry(_content(self.path), self.kind)
        except OSError as error:
            why = error.strerror or str(error)
            raise X509Error(f"{self.key}: {self.path}: {why}") from error
        except X509Error as error:
            raise X509Error(f"{self.key}: {self.path}: {error}") from error


def files(
    url: str,
    ca_file: Path | None = None,
    cert_file: Path | None = None,
    crl: Path | None = None,
) -> tuple[File, ...]:
    """Return the files that a ``[broker]`` section names and that its link depends on.

    A plain link to a local broker uses no certificate; but that broker's revocation list applies to
    all other clients.

    >>> [file.key for file in files("mqtts://broker", Path("ca.pem"), crl=Path("revoked.pem"))]
    ['broker.ca_file', 'broker.crl_file']
    >>> [file.key for file in files("mqtt://127.0.0.1", Path("ca.pem"), crl=Path("revoked.pem"))]
    ['broker.crl_file']
    """
    is_tls = url.startswith("mqtts:")
    named: tuple[tuple[Kind, Path | None, str], ...] = (
        ("ca", ca_file if is_tls else None, "ca_file"),
        ("certificate", cert_file if is_tls else None, "cert_file"),
        ("crl", crl, "crl_file"),
    )
    return tuple(File(kind, path, f"broker.{key}") for kind, path, key in named if path is not None)


@dataclass(frozen=True, slots=True)
class TlsFileState:
    """Validity of one file at its last reading."""

    file: File
    expiry: Expiry | None = None  # its validity; None if it could not be read
    why: str = ""  # reason why it could not be read

    @property
    def until(self) -> float:
        """Return Unix seconds of its end; 0 if it cannot be read, so that an alarm fires."""
        return 0.0 if self.expiry is None else self.expiry.until

    def days(self, now: float) -> int | None:
        """Return whole days left; None if it never expires, or cannot be read."""
        return None if self.expiry is None else self.expiry.days(now)

    def told(self, now: float) -> str:
        return self.why if self.expiry is None else self.expiry.told(now)

    def is_near(self, now: float, horizon: float) -> bool:
        return self.expiry is None or self.expiry.is_near(now, horizon)


def look(named: Iterable[File]) -> Iterator[TlsFileState]:
    """Read files; a file that cannot be read has a reason."""
    for file in named:
        try:
            yield TlsFileState(file, file.read())
        except X509Error as error:
            yield TlsFileState(file, why=str(error).removeprefix(f"{file.key}: {file.path}: "))


def refuse_expired(named: Iterable[File], now: float) -> list[TlsFileState]:
    """Read files; return their states.

    Args:
        now: Unix seconds.
    """
    found = []
    for file in named:
        expiry_now = file.read()
        if expiry_now.is_over(now):
            raise ExpiredFileError(file, expiry_now.told(now))
        found.append(TlsFileState(file, expiry_now))
    return found


@dataclass(slots=True)
class Watch:
    """Watch over the validity of files while a program runs."""

    files: Sequence[File] = ()  # watched files; may be replaced
    horizon: float = HORIZON  # seconds before an end from which a warning is given; may be replaced
    seen: dict[File, TlsFileState] = field(default_factory=dict)
    # time of the last warning about each file, Unix seconds
    warned: dict[File, float] = field(default_factory=dict)
    _marks: dict[File, object] = field(default_factory=dict)

    def look(self) -> list[TlsFileState]:
        """Read new and changed files; return the state of every file."""
        for removed in set(self.seen) - set(self.files):
            del self.seen[removed]
        for file in self.files:
            mark = mark_of(file.path)
            if file not in self.seen or self._marks.get(file) != mark:
                (self.seen[file],) = look([file])
                self._marks[file] = mark
                self.warned.pop(file, None)
        return [self.seen[file] for file in self.files]

    def warnings(self, now: float) -> list[TlsFileState]:
        """Return the warnings due now: each file at most once a day."""
        due = [
            seen
            for seen in self.look()
            if seen.is_near(now, self.horizon)
            and not 0 <= now - self.warned.get(seen.file, -math.inf) < DAY
        ]
        self.warned.update({seen.file: now for seen in due})
        return due


def _content(path: Path) -> bytes:
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe would block the caller
        raise X509Error("not a file")
    with path.open("rb") as file:
        return file.read(_LARGEST)


def mark_of(path: Path) -> object:
    """Return a value that changes when a file is written or replaced; None while there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


NAME_LIMIT = 64
"""Characters of a certificate's common name (X.509, ``ub-common-name``)."""

_CERTIFICATE = re.compile(
    rb"-----BEGIN (X509 )?CERTIFICATE-----.*?-----END \1?CERTIFICATE-----", re.DOTALL
)


def qualified(fleet: str, name: str) -> str:
    """Return the name of a device or aggregator on a broker that several fleets share.

    Raises:
        ValueError: The name is longer than a certificate's common name may be.

    >>> qualified("north", "meter-1"), qualified("north", "_agg")
    ('north.meter-1', 'north._agg')
    """
    text = f"{fleet}.{name}"
    if len(text) > NAME_LIMIT:
        raise ValueError(
            f"{text!r} has {len(text)} characters; a certificate's name has at most {NAME_LIMIT}: "
            "choose a shorter fleet or device id"
        )
    return text


def unqualified(name: str) -> tuple[str, str]:
    """Return fleet and device of a name; the fleet is empty if the name is not qualified.

    >>> unqualified("north.meter-1"), unqualified("meter-1"), unqualified("north.a.b")
    (('north', 'meter-1'), ('', 'meter-1'), ('', 'north.a.b'))
    """
    fleet, _, device = name.partition(".")
    is_known = device == AGGREGATOR or is_device_id(device)
    return (fleet, device) if is_fleet_id(fleet) and is_known else ("", name)


def client_id_of(fleet: str, name: str, certificate: str | PathLike[str] | None) -> str:
    """Return the MQTT client id: the certificate's common name, or the qualified name without one.

    Mosquitto takes the client id from the certificate anyway (``use_username_as_clientid``), and a
    certificate from before fleets were qualified keeps its session. A file without a readable
    certificate gives the qualified name; the link then refuses the file by name.
    """
    found = "" if certificate is None else _common_name(Path(certificate))
    return found or f"{fleet}.{name}"


def _common_name(path: Path) -> str:
    """Return the common name of a PEM file's first certificate; empty if it has none."""
    from cryptography import x509  # noqa: PLC0415 - only where a link has a certificate

    try:
        block = _CERTIFICATE.search(path.read_bytes())
        if block is None:
            return ""
        subject = x509.load_pem_x509_certificate(block[0]).subject
        names = subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    except (OSError, ValueError, TypeError, x509.InvalidVersion):
        return ""
    return str(names[0].value) if names else ""
