"""Read and write the root: one public key, or a threshold of several."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.protocol.keys import KeyFileError, checked_public, key_text, kid_of

MOST: Final = 8
"""Most keys of a root."""

_FIRST = re.compile(r"([1-8]) of ([1-8])")
_HEX = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class RootKeys:
    """The root of a fleet: Ed25519 public keys, and the threshold of signatures.

    >>> root = RootKeys((bytes(31) + b"a", bytes(31) + b"b", bytes(31) + b"c"), 2)
    >>> root.is_enough([root.keys[0]]), root.is_enough([root.keys[0], root.keys[2]])
    (False, True)
    >>> root.is_enough([root.keys[0], root.keys[0], b"other"])
    False
    """

    keys: tuple[bytes, ...]  # raw public keys
    threshold: int = 1  # number of different keys whose signatures are needed

    def __post_init__(self) -> None:
        if not self.keys and self.threshold == 1:
            return  # nobody is trusted: of a device without a fleet
        if not 1 <= self.threshold <= len(self.keys) <= MOST:
            raise ValueError(
                f"root: expected a threshold from 1 to {len(self.keys)} of 1 to {MOST} keys, "
                f"got {self.threshold} of {len(self.keys)}"
            )
        if len(set(self.keys)) != len(self.keys):
            raise ValueError("root: a key is listed twice")

    def is_enough(self, signers: Collection[bytes]) -> bool:
        return len(set(signers) & set(self.keys)) >= self.threshold

    def key(self, kid: bytes) -> bytes | None:
        return next((key for key in self.keys if kid_of(key) == kid), None)

    @property
    def name(self) -> str:
        """Return the key ids, and the threshold unless it is one of one.

        >>> RootKeys((bytes(32),)).name, RootKeys((bytes(32), b"k" * 32), 2).name
        ('66687aadf862bd77', '2 of 66687aadf862bd77, 5e318f8cf9cbe249')
        """
        names = ", ".join(kid_of(key).hex() for key in self.keys)
        return names if len(self.keys) == 1 else f"{self.threshold} of {names}"

    @property
    def text(self) -> str:
        """Return the content of a file ``root.pub``."""
        lines = [key.hex() for key in self.keys]
        if len(lines) > 1:
            lines.insert(0, f"{self.threshold} of {len(lines)}")
        return "\n".join(lines) + "\n"


NOBODY: Final = RootKeys(())
"""The root of a device without a fleet: no set of keys is enough."""


def read_root(where: Path | str) -> RootKeys:
    """Return the root from 64 hex digits, or from a file: one key, or "2 of 3" and a key a line.

    Raises:
        KeyFileError: No such file, neither form, or a key that is unsafe to trust.
    """
    return parse_root(key_text(where, _HEX, "64 hex digits"), str(where))


def parse_root(text: str, where: str) -> RootKeys:
    """Return the root of the content of a file.

    Raises:
        KeyFileError: It is not of that form, or has a key that is unsafe to trust.
    """
    lines = text.split("\n")
    first = _FIRST.fullmatch(lines[0].strip())
    listed = [line.strip() for line in (lines[1:] if first else lines) if line.strip()]
    if not listed or not all(_HEX.fullmatch(line) for line in listed):
        raise KeyFileError(f'{where}: expected 64 hex digits, or "2 of 3" and a key a line')
    if first is None and len(listed) > 1:
        raise KeyFileError(f'{where}: expected "N of {len(listed)}" before several keys')
    if first is not None and int(first[2]) != len(listed):
        raise KeyFileError(f"{where}: expected {first[2]} keys, got {len(listed)}")
    keys = tuple(checked_public(bytes.fromhex(line), where) for line in listed)
    try:
        return RootKeys(keys, int(first[1]) if first else 1)
    except ValueError as error:
        raise KeyFileError(f"{where}: {error}") from error
