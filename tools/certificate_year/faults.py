"""Kills of a device's program at each step of a renewal, counted by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest import mock

from edge_sdk.extensions.certificates import certificate_files
from edge_sdk.protocol.keys import write_atomically

CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"

STEPS: Final = (
    "request begins",
    "new key half written",
    "new key written",
    "request sent",
    "certificate issued",
    "answer received",
    "answer half written",
    "answer written",
    "copy of the former pair half written",
    "copy of the former pair written",
    "new pair to be put in place",
    "new pair in place",
    "link cut to use the new pair",
    "broker has accepted the pair",
    "CONNACK read",
    "former pair to be removed",
    "former pair removed",
    "copy for an exchange half written",
    "copy for an exchange written",
    "former pair in place of the refused one",
    "two pairs exchanged",
    "failure saved",
    "program starts",
)
"""Steps at which a program is killed, in the order of a renewal; then those of a failed one."""


_RENAMES: Final = {
    ".next": ("new pair to be put in place", "new pair in place"),
    ".previous": ("", "former pair in place of the refused one"),
    ".exchanged": ("", "two pairs exchanged"),
}
_replace, _unlink = Path.replace, Path.unlink


class KilledError(BaseException):
    """The end of a killed program, which nothing in it catches."""


class Faults:
    """Decide where a program is killed, and count it.

    Args:
        rate: Share of the visits of a step that end the program.

    Attributes:
        visits: Number of times that each step was reached.
        kills: Number of times that the program was killed there.
        is_armed: False while no program is killed.
    """

    def __init__(self, rng: Random, rate: float) -> None:
        self.rate, self.is_armed = rate, True
        self.visits: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        self._rng = rng
        self._is_dead = False
        self._writing = ""

    def step(self, name: str) -> None:
        """Count a step, and kill the program there by a random draw.

        Raises:
            KilledError: The program is killed here.
        """
        self.visits[name] += 1
        if self.is_armed and self._rng.random() < self.rate:
            self.kills[name] += 1
            self._is_dead = True
            raise KilledError(name)

    def revive(self) -> None:
        """Let a program start again."""
        self._is_dead = False

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Reach a step at each change of a certificate's file, while the block runs.

        What a program would do after it was killed, such as the removal of a temporary file, is not done.
        """
        changes: list[tuple[Any, str, Callable[..., Any]]] = [
            (certificate_files, "write_atomically", self._write),
            (Path, "replace", lambda *words: self._replace(*words)),  # noqa: PLW0108 - binds the path
            (Path, "unlink", lambda path, missing_ok=False: self._unlink(path, missing_ok)),
        ]
        with ExitStack() as patches:
            for owner, name, function in changes:
                patches.enter_context(mock.patch.object(owner, name, function))
            yield

    def _write(self, path: Path, data: bytes, mode: int) -> None:
        self._writing = what = _what(path, data)
        write_atomically(path, data, mode)
        self._writing = ""
        self.step(f"{what} written")

    def _replace(self, path: Path, target: Path) -> Path:
        before, after = _RENAMES.get(path.suffix, ("", ""))
        if self._writing and not before + after:
            before = f"{self._writing} half written"
        if before:
            self.step(before)
        found = _replace(path, target)
        if after:
            self.step(after)
        return found

    def _unlink(self, path: Path, missing_ok: bool) -> None:  # noqa: FBT001 - as pathlib
        if self._is_dead:
            return
        is_former = path.suffix == ".previous"
        if is_former:
            self.step("former pair to be removed")
        _unlink(path, missing_ok)
        if is_former:
            self.step("former pair removed")


def _what(path: Path, data: bytes) -> str:
    """Return the kind of a written file, by its name and content.

    >>> _what(Path("tls.pem.next"), b"key"), _what(Path("tls.pem"), b"")
    ('new key', 'pair put back')
    """
    if path.name.endswith(".next"):
        return "answer" if CERTIFICATE in data else "new key"
    names = {".previous": "copy of the former pair", ".exchanged": "copy for an exchange"}
    return names.get(path.suffix, "pair put back")
