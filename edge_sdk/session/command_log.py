"""Record which operator commands were executed, across restarts: each once, in order."""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.store.store import DeviceStore
from edge_sdk.wire.errors import Reason, Refused, WireError
from edge_sdk.wire.protocol.codec import pack_leaves, unpack_leaves
from edge_sdk.wire.protocol.messages import COMMAND_LEAP, CommandMessage

REMEMBERED = 32
"""Number of executed commands that are recognised if repeated."""

_PAPER, _HIGHEST = "commands", "command"


@dataclass(frozen=True, slots=True)
class CommandReceived:
    """A command is new: execute it, then ``CommandLog.add`` it."""

    command: CommandMessage
    ref: bytes


@dataclass(frozen=True, slots=True)
class CommandRepeated:
    """A command was executed before, with this result code."""

    number: int
    ref: bytes
    code: int


@dataclass(frozen=True, slots=True)
class CommandSuperseded:
    """An unknown command is numbered below the highest executed one: it may be a replay."""

    command: CommandMessage
    ref: bytes
    highest: int


class CommandLog:
    """The latest executed commands, kept in the device's store.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with DeviceStore.open(Path(tempfile.mkdtemp())) as store:
        ...     log = CommandLog(store)
        ...     log.add(9, bytes(16), 0)
        ...     log.code(9, bytes(16)), log.code(9, b"other bytes"), log.highest
        (0, None, 9)
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

    def receive(
        self, command: CommandMessage, ref: bytes, *, issued: int
    ) -> CommandReceived | CommandRepeated | CommandSuperseded:
        """Return what is to be done about a command.

        Args:
            command: Verified command.
            ref: Digest that identifies it.
            issued: Highest number in the last welcome message.

        Raises:
            Refused: FROM_FUTURE: its number is implausibly far ahead.
        """
        number = command.num
        code = self.code(number, ref)
        if code is not None:
            return CommandRepeated(number, ref, code)
        if number <= self.highest:
            return CommandSuperseded(command, ref, self.highest)
        if number > max(self.highest, issued) + COMMAND_LEAP:
            why = f"command {number} is more than {COMMAND_LEAP} above {self.highest}"
            raise Refused(Reason.FROM_FUTURE, why)
        return CommandReceived(command, ref)

    def add(self, number: int, ref: bytes, code: int, **facts: int) -> None:
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
