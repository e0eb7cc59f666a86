"""Store dead letters: messages whose handling met a defect, kept on disk for the operator.

The folder has one file per letter, readable by the owner only, and a list of the digests that must
not be handled again. Both are bounded: beyond ``MOST`` letters or ``MOST_BYTES`` the oldest file
is deleted, at most ``PER_SITE`` letters are kept of one place in the code, and ``DIGESTS`` digests.
"""

from __future__ import annotations

import hashlib
import json
import traceback
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edge_sdk.app.cli import installed_version
from edge_sdk.app.permissions import PermissionsError, make_private_folder, open_private
from edge_sdk.errors import USAGE, Failure
from edge_sdk.protocol.keys import write_atomically

MOST = 64  # letters
MOST_BYTES = 32 * 1024 * 1024  # of all letters
PER_SITE = 8  # letters per place in the code
DIGESTS = 4096
TRACE = 16_384  # last characters kept of a trace
HALTED = "halted"  # name of the file with the reason why the run was halted


class LetterError(Failure):
    """A dead letter that does not exist."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class Letter:
    """One message, or one timer, whose handling met a defect."""

    name: str  # file name without the suffix
    at: int  # server time, Unix milliseconds
    where: str  # kind of the message, or name of the timer
    site: str  # type of the error, and file and line where it was raised
    error: str
    trace: str = ""  # the trace, at most ``TRACE`` characters
    version: str = field(default_factory=installed_version)
    device: str = ""  # the sender; empty for a timer
    topic: str = ""  # topic of arrival; empty for a body sent in chunks
    payload: bytes = b""  # the message, or the body sent in chunks
    proof: bytes = b""  # signature of that body; empty for a message, which contains its own
    # life and sequence number of an update that was finally refused
    number: tuple[int, int] | None = None
    digests: tuple[str, ...] = ()  # digests that must not be handled again, as hex

    def summary(self) -> dict[str, Any]:
        shown = ("name", "at", "where", "device", "site", "error")
        return {key: getattr(self, key) for key in shown} | {"bytes": len(self.payload)}


def arrival_digest(topic: str, payload: bytes) -> bytes:
    """Return the digest that identifies a message on a topic, or a body of a device.

    >>> arrival_digest("meter-1", b"x") == arrival_digest("meter-2", b"x")
    False
    """
    return hashlib.sha256(topic.encode() + b"\0" + payload).digest()


def site_of(error: BaseException) -> str:
    """Return the type of an error, and the file and line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"


def trace_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-TRACE:]


class DeadLetters:
    """Folder of dead letters, created with the first one; a command may read it meanwhile.

    >>> import tempfile
    >>> letters = DeadLetters(Path(tempfile.mkdtemp()) / "dead-letters")
    >>> digest = arrival_digest("topic", b"payload").hex()
    >>> letters.keep(Letter("1-ab", 1, "hello", "ValueError", "no", digests=(digest,)))
    True
    >>> letters.holds("topic", b"payload"), [one.name for one in letters.letters()]
    (True, ['1-ab'])
    >>> letters.remove("1-ab")
    >>> letters.holds("topic", b"payload"), letters.letters()
    (False, [])
    """

    def __init__(self, folder: Path) -> None:
        """Read the digests and the number of letters per place in the code."""
        self.folder = folder
        self._digests: dict[str, None] = dict.fromkeys(self._read_digests())
        self._sites = Counter(letter.site for letter in self.letters())
        self._lines = len(self._digests)

    def holds(self, source: str, content: bytes) -> bool:
        """Return whether a payload of a topic, or a body's digest of a device, was set aside."""
        return bool(self._digests) and arrival_digest(source, content).hex() in self._digests

    @property
    def count(self) -> int:
        return self._sites.total()

    def letters(self) -> list[Letter]:
        """Return all letters, oldest first; a file that is no letter is skipped."""
        found = [_read(path) for path in self._paths()]
        return [letter for letter in found if letter is not None]

    def letter(self, name: str) -> Letter:
        found = next((one for one in self.letters() if one.name == name), None)
        if found is None:
            raise LetterError(
                f"{name!r}: no such dead letter", hint="gridfed-aggregator dead-letters list"
            )
        return found

    def keep(self, letter: Letter) -> bool:
        """Record a letter's digests, and write its file unless its place in the code has too many.

        Returns:
            True if a file was written. A failed write is not an error.
        """
        try:
            self._remember(letter.digests)
            if self._sites[letter.site] >= PER_SITE:
                return False
            self._write(f"{letter.name}.json", _packed(letter))
            self._sites[letter.site] += 1
            self._make_room()
        except (OSError, PermissionsError):
            return False
        return True

    def remove(self, name: str) -> None:
        """Delete a letter; its bytes may be handled again."""
        letter = self.letter(name)
        self._path(name).unlink(missing_ok=True)
        self._sites = Counter(one.site for one in self.letters())
        for digest in letter.digests:
            self._digests.pop(digest, None)
        self._rewrite()

    def clear(self) -> int:
        """Delete all letters and digests; return the number of letters deleted."""
        count = 0
        for path in self._paths():
            path.unlink(missing_ok=True)
            count += 1
        self._digests, self._sites = {}, Counter()
        self._rewrite()
        return count

    @property
    def halted(self) -> str:
        """Return the reason why a run was halted, the first by name; empty if none was."""
        files = sorted(self.folder.glob(f"{HALTED}*"))
        return next(filter(None, (_text_of(file) for file in files)), "")

    def why_halted(self, name: str) -> str:
        """Return the reason why the run of this name was halted; empty if it was not."""
        return _text_of(self.folder / _halted_file(name))

    def halt(self, name: str, why: str) -> None:
        """Save the reason why a run was halted; an empty one says that it continues."""
        try:
            if why:
                self._write(_halted_file(name), why.encode())
            else:
                (self.folder / _halted_file(name)).unlink(missing_ok=True)
        except (OSError, PermissionsError):  # the log has it as well
            return

    # --- files

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("*.json"))

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _read_digests(self) -> list[str]:
        try:
            lines = (self.folder / "digests").read_text("ascii").split()
        except (OSError, UnicodeDecodeError):
            return []
        return [line for line in lines if len(line) == 64][-DIGESTS:]

    def _remember(self, digests: Iterable[str]) -> None:
        unknown = [one for one in digests if one not in self._digests]
        self._digests |= dict.fromkeys(unknown)
        while len(self._digests) > DIGESTS:
            del self._digests[next(iter(self._digests))]
        self._lines += len(unknown)
        if self._lines > 2 * DIGESTS:
            self._rewrite()
        elif unknown:
            make_private_folder(self.folder)
            with open_private(self.folder / "digests", "a", encoding="ascii") as text:
                text.writelines(f"{one}\n" for one in unknown)

    def _rewrite(self) -> None:
        self._lines = len(self._digests)
        if self.folder.is_dir():
            self._write("digests", "".join(f"{one}\n" for one in self._digests).encode())

    def _write(self, name: str, content: bytes) -> None:
        """Write a file atomically, readable by the owner only."""
        make_private_folder(self.folder)
        write_atomically(self.folder / name, content, 0o600)

    def _make_room(self) -> None:
        paths = self._paths()
        sizes = [path.stat().st_size for path in paths]
        while len(paths) > MOST or sum(sizes) > MOST_BYTES:
            paths.pop(0).unlink(missing_ok=True)
            sizes.pop(0)
        self._sites = Counter(letter.site for letter in self.letters())


def _halted_file(name: str) -> str:
    return f"{HALTED}-{name}" if name else HALTED


def _text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def forget(letters: DeadLetters, name: str) -> int:
    """Delete one letter, or all letters and digests with ``_all``; return how many were deleted."""
    if name == "_all":
        return letters.clear()
    letters.remove(name)
    return 1


def _packed(letter: Letter) -> bytes:
    fields = asdict(letter) | {
        "payload": b64encode(letter.payload).decode(),
        "proof": letter.proof.hex(),
    }
    return json.dumps(fields, indent=1).encode()


def _read(path: Path) -> Letter | None:
    try:
        fields = json.loads(path.read_bytes())
        fields["payload"], fields["proof"] = (
            b64decode(fields["payload"]),
            bytes.fromhex(fields["proof"]),
        )
        fields["digests"] = tuple(fields["digests"])
        fields["number"] = tuple(fields["number"]) if fields["number"] else None
        return Letter(**fields)
    except (OSError, ValueError, TypeError, KeyError):
        return None
