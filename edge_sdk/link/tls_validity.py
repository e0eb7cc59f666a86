"""Read until when the files that a TLS link depends on are valid, and report which expire soon.

Changed files are read again. The caller decides how to react; this module returns the warnings,
each at most once a day.
"""

from __future__ import annotations

import math
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import WireError
from edge_sdk.link.tls_files import mark_of

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
    edge_sdk.link.tls_validity.X509Error: no certificate in it, but: private key
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


class ExpiredFileError(X509Error):
    """An error: a file has expired, so that no peer accepts the link."""

    def __init__(self, file: File, why: str) -> None:
        super().__init__(f"{file.key}: {file.path}: {why}")
        self.file = file


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
    url: str, ca_file: Path | None = None, cert_file: Path | None = None, crl: Path | None = None
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
    """Read files; return their states."""
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
