"""The files that a TLS link rests on, and a watch over when they expire.

They are read again when they change. What to do about an end that comes near is the program's
business; here is only what to say, and that it is said once a day.
"""

from __future__ import annotations

import math
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from edge_sdk.wire.link.x509_expiry import DAY, HORIZON, Expiry, Kind, X509Error, expiry

_LARGEST: Final = 64 * 1024 * 1024  # bytes of a file that is read


@dataclass(frozen=True, slots=True)
class File:
    """A file that a configuration names.

    Attributes:
        kind: What it is for.
        path: Where it is.
        key: The configuration's key that names it.
    """

    kind: Kind
    path: Path
    key: str

    def read(self) -> Expiry:
        """Read it now.

        Raises:
            X509Error: As ``expiry``, or it cannot be read at all; names key and file.
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
    """Return the files that a ``[broker]`` section names and that its link rests on.

    A link in the clear, to a broker on this machine, uses no certificate; but that broker's list
    of the revoked decides about everybody else's.

    >>> [file.key for file in files("mqtts://broker", Path("ca.pem"), crl=Path("revoked.pem"))]
    ['broker.ca_file', 'broker.crl']
    >>> [file.key for file in files("mqtt://127.0.0.1", Path("ca.pem"), crl=Path("revoked.pem"))]
    ['broker.crl']
    """
    is_tls = url.startswith("mqtts:")
    named: tuple[tuple[Kind, Path | None, str], ...] = (
        ("ca", ca_file if is_tls else None, "ca_file"),
        ("certificate", cert_file if is_tls else None, "cert_file"),
        ("crl", crl, "crl"),
    )
    return tuple(File(kind, path, f"broker.{key}") for kind, path, key in named if path is not None)


@dataclass(frozen=True, slots=True)
class TlsFileState:
    """A file as it was found.

    Attributes:
        file: Which one.
        expiry: Until when it is good; None if it could not be read.
        why: Why it could not.
    """

    file: File
    expiry: Expiry | None = None
    why: str = ""

    @property
    def until(self) -> float:
        """Unix seconds of its end. What cannot be read has ended: 0, so that an alarm sees it."""
        return 0.0 if self.expiry is None else self.expiry.until

    def days(self, now: float) -> int | None:
        """Return whole days left; None if it never expires, or cannot be read."""
        return None if self.expiry is None else self.expiry.days(now)

    def told(self, now: float) -> str:
        """Say it to a person."""
        return self.why if self.expiry is None else self.expiry.told(now)

    def is_near(self, now: float, horizon: float) -> bool:
        """Whether a person should hear of it."""
        return self.expiry is None or self.expiry.is_near(now, horizon)


def look(named: Iterable[File]) -> Iterator[TlsFileState]:
    """Read files; what cannot be read says why."""
    for file in named:
        try:
            yield TlsFileState(file, file.read())
        except X509Error as error:
            yield TlsFileState(file, why=str(error).removeprefix(f"{file.key}: {file.path}: "))


@dataclass(slots=True)
class Watch:
    """Looks at files for as long as a program runs.

    Attributes:
        files: Which ones; may be replaced.
        horizon: Seconds before an end from which it is warned of; may be replaced.
        seen: What was found, by file.
        warned: When it was last warned of a file, Unix seconds.
    """

    files: Sequence[File] = ()
    horizon: float = HORIZON
    seen: dict[File, TlsFileState] = field(default_factory=dict)
    warned: dict[File, float] = field(default_factory=dict)
    _marks: dict[File, object] = field(default_factory=dict)

    def look(self) -> list[TlsFileState]:
        """Read what is new or has changed; return how every file is."""
        for gone in set(self.seen) - set(self.files):
            del self.seen[gone]
        for file in self.files:
            mark = mark_of(file.path)
            if file not in self.seen or self._marks.get(file) != mark:
                (self.seen[file],) = look([file])
                self._marks[file] = mark
                self.warned.pop(file, None)
        return [self.seen[file] for file in self.files]

    def warnings(self, now: float) -> list[TlsFileState]:
        """Return what a person should hear now: each file at most once a day."""
        due = [
            seen
            for seen in self.look()
            if seen.is_near(now, self.horizon)
            and not 0 <= now - self.warned.get(seen.file, -math.inf) < DAY
        ]
        self.warned.update({seen.file: now for seen in due})
        return due


def _content(path: Path) -> bytes:
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe would hold up the caller
        raise X509Error("not a file")
    with path.open("rb") as file:
        return file.read(_LARGEST)


def mark_of(path: Path) -> object:
    """Return what differs once a file was written or replaced; None while there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
