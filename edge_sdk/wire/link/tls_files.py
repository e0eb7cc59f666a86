"""Load the files that a TLS link depends on, and report which expire soon.

Changed files are read again. The caller decides how to react; this module returns the warnings,
each at most once a day.
"""

from __future__ import annotations

import math
import ssl
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Final, TypeVar

from edge_sdk.wire.link.x509_expiry import DAY, HORIZON, Expiry, Kind, X509Error, expiry

_LARGEST: Final = 64 * 1024 * 1024  # bytes of a file that is read
Context = TypeVar("Context", bound=ssl.SSLContext)
Name = str | PathLike[str]


class ExpiredFileError(X509Error):
    """An error: a file has expired, so that no peer accepts the link.

    Attributes:
        file: The file.
    """

    def __init__(self, file: File, why: str) -> None:
        """Join key, path and reason into one sentence."""
        super().__init__(f"{file.key}: {file.path}: {why}")
        self.file = file


def load(
    context: Context, ca: Name | None = None, cert: Name | None = None, key: Name | None = None
) -> Context:
    """Require TLS 1.2 or later in a context, and load PEM files into it; return the context.

    Args:
        context: Context of a client or of a server.
        ca: File of the authority to trust.
        cert: File of the own certificate, with its chain.
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
    """A file that a configuration names.

    Attributes:
        kind: Purpose of the file.
        path: Path of the file.
        key: Configuration key that names it.
    """

    kind: Kind
    path: Path
    key: str

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
    """Validity of one file at its last reading.

    Attributes:
        file: The file.
        expiry: Its validity; None if it could not be read.
        why: Reason why it could not be read.
    """

    file: File
    expiry: Expiry | None = None
    why: str = ""

    @property
    def until(self) -> float:
        """Return Unix seconds of its end; 0 if it cannot be read, so that an alarm fires."""
        return 0.0 if self.expiry is None else self.expiry.until

    def days(self, now: float) -> int | None:
        """Return whole days left; None if it never expires, or cannot be read."""
        return None if self.expiry is None else self.expiry.days(now)

    def told(self, now: float) -> str:
        """Describe the validity for the operator."""
        return self.why if self.expiry is None else self.expiry.told(now)

    def is_near(self, now: float, horizon: float) -> bool:
        """Return whether the operator should be warned."""
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
        named: The files.
        now: Unix seconds.

    Raises:
        ExpiredFileError: A file has expired.
        X509Error: A file cannot be read.
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
    """Watch the validity of files while a program runs.

    Attributes:
        files: Watched files; may be replaced.
        horizon: Seconds before an end from which a warning is given; may be replaced.
        seen: Last state of each file.
        warned: Time of the last warning about each file, Unix seconds.
    """

    files: Sequence[File] = ()
    horizon: float = HORIZON
    seen: dict[File, TlsFileState] = field(default_factory=dict)
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
