"""Which of an operator's commands a device has done, over restarts: each once, and in order."""

from __future__ import annotations

from edge_sdk.store.store import DeviceStore
from edge_sdk.wire.errors import Reason, Refused, WireError
from edge_sdk.wire.protocol.codec import pack_leaves, unpack_leaves
from edge_sdk.wire.protocol.messages import COMMAND_LEAP

REMEMBERED = 32
"""Commands that are known again if they are repeated."""

_PAPER, _HIGHEST = "commands", "command"


class CommandLog:
    """The commands that were done last, in the device's store.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with DeviceStore.open(Path(tempfile.mkdtemp())) as store:
        ...     log = CommandLog(store)
        ...     log.note(9, bytes(16), 0)
        ...     log.code(9, bytes(16)), log.code(9, b"other bytes"), log.is_older(3)
        (0, None, True)
    """

    def __init__(self, store: DeviceStore) -> None:
        """Read and write in this store."""
        self._store = store

    @property
    def highest(self) -> int:
        """The highest number that was done; 0 before the first."""
        return self._store.fact(_HIGHEST)

    def code(self, number: int, ref: bytes) -> int | None:
        """Return how a command was answered when it was done, or None if it is not remembered."""
        found = [code for num, which, code in self._done() if (num, which) == (number, ref)]
        return found[0] if found else None

    def is_older(self, number: int) -> bool:
        """Whether a command may be a replay: it is not numbered above what was done."""
        return number <= self.highest

    def check_leap(self, number: int, issued: int) -> None:
        """Refuse a number that no aggregator gets to.

        Args:
            number: Of the command.
            issued: Highest number that the last welcome told of.

        Raises:
            Refused: FROM_FUTURE.
        """
        if number > max(self.highest, issued) + COMMAND_LEAP:
            raise Refused(Reason.FROM_FUTURE, f"command {number} after {self.highest}")

    def note(self, number: int, ref: bytes, code: int, **facts: int) -> None:
        """Remember a command that was done, with what it changed, in one transaction."""
        done = [*self._done(), (number, ref, code)][-REMEMBERED:]
        self._store.file_paper(_PAPER, pack_leaves({"done": done}), **{_HIGHEST: number}, **facts)

    def lower(self, issued: int) -> int | None:
        """Forget a number above every one that was issued: it would silence what comes after it.

        Returns:
            The highest number from now on, or None if nothing was forgotten.
        """
        if self.highest <= issued:
            return None
        lower = max((num for num, *_ in self._done() if num <= issued), default=issued)
        self._store.set_facts(**{_HIGHEST: lower})
        return lower

    def _done(self) -> list[tuple[int, bytes, int]]:
        paper = self._store.paper(_PAPER)
        try:
            return [] if paper is None else [tuple(one) for one in unpack_leaves(paper)["done"]]
        except (WireError, KeyError):
            return []
