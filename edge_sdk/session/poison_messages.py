"""Skip messages that triggered a defect of this program, also after a restart.

A retained message arrives again at every connect, so a device that stops because of one would stop
at every start.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter

from edge_sdk.app.cli import fields
from edge_sdk.errors import Failure, StoreFull, WireError
from edge_sdk.store.store import DeviceStore

logger = logging.getLogger(__name__)

MOST = 64  # newest digests that are kept
SIZE = 32
PAPER = "set aside"
COUNT = "internal errors"


def is_defect(error: Exception) -> bool:
    """Return whether an error is a defect of this program rather than of disk, link or settings.

    >>> is_defect(KeyError("w")), is_defect(OSError()), is_defect(MemoryError())
    (True, False, False)
    """
    is_of_the_file = any(kind.__module__ == "sqlite3" for kind in type(error).__mro__)
    return not isinstance(error, (Failure, WireError, OSError, MemoryError)) and not is_of_the_file


def digest_of(*parts: object) -> bytes:
    """Return a digest that identifies a message by its body, or a round by its numbers.

    >>> digest_of("task", 1, 7) == digest_of("task", 1, 7), digest_of("task", 17) == digest_of("t")
    (True, False)
    """
    return hashlib.sha256(repr(parts).encode()).digest()


class SetAside:
    """The digests of skipped messages, kept in the store, with a count of defects."""

    def __init__(self, store: DeviceStore, counts: Counter[str]) -> None:
        self._store, self._counts = store, counts
        kept = store.paper(PAPER) or b""
        self._digests = [kept[at : at + SIZE] for at in range(0, len(kept), SIZE)]

    def holds(self, digest: bytes) -> bool:
        """Return whether a message must be skipped; count it if so."""
        is_held = digest in self._digests
        self._counts["passed over"] += is_held
        return is_held

    def add(self, what: str, digest: bytes, error: Exception, *, run: int) -> None:
        """Save a digest, count the defect, and log its trace.

        On a full disk the digest is kept for this process only.
        """
        self._counts[COUNT] += 1
        if digest in self._digests:  # a repeated failure wears neither flash nor log
            return
        self._digests = [*self._digests, digest][-MOST:]
        logger.error("internal error %s", fields(what=what, run=run, error=error), exc_info=error)
        try:
            self._store.file_paper(PAPER, b"".join(self._digests))
        except StoreFull:
            self._counts["disk full"] += 1
