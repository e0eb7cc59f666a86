"""Record which operator commands were executed, across restarts: each once, in order."""

from __future__ import annotations

from edge_sdk.store.store import DeviceStore
from edge_sdk.wire.errors import Reason, Refused, WireError
from edge_sdk.wire.protocol.codec import pack_leaves, unpack_leaves
from edge_sdk.wire.protocol.messages import COMMAND_LEAP

REMEMBERED = 32
"""Number of executed commands that are recognised if repeated."""

_PAPER, _HIGHEST = "commands", "command"


class CommandLog:
    """The latest executed commands, kept in the device's store.

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
        """Highest command number executed; 0 before the first."""
        return self._store.fact(_HIGHEST)

    def code(self, number: int, ref: bytes) -> int | None:
        """Return the result code of an executed command, or None if it is not in the log."""
        found = [code for num, which, code in self._done() if (num, which) == (number, ref)]
        return found[0] if found else None

    def is_older(self, number: int) -> bool:
        """Return whether a command may be a replay: its number is not above the highest."""
        return number <= self.highest

    def check_leap(self, number: int, issued: int) -> None:
        """Refuse a command number that is implausibly far ahead.

        Args:
            number: Number of the command.
            issued: Highest number in the last welcome message.

        Raises:
            Refused: FROM_FUTURE.
        """
        if number > max(self.highest, issued) + COMMAND_LEAP:
            raise Refused(Reason.FROM_FUTURE, f"command {number} after {self.highest}")

    def note(self, number: int, ref: bytes, code: int, **facts: int) -> None:
        """Save an executed command together with the facts it changed, in one transaction."""
        done = [*self._done(), (number, ref, code)][-REMEMBERED:]
        self._store.file_paper(_PAPER, pack_leaves({"done": done}), **{_HIGHEST: number}, **facts)

    def lower(self, issued: int) -> int | None:
        """Discard a number above every one issued, which would block all later commands.

        Returns:
            The new highest number, or None if nothing was discarded.
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
