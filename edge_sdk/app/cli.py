"""Define results of commands, and the common parts of running programs: signals, log lines, sd_notify.

Shared by all programs; contains nothing specific to one of them.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pkgutil import resolve_name
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import OK, RUNTIME

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command, for people and for programs."""

    data: Mapping[str, Any]  # data printed with ``--json``
    text: str = ""  # text printed otherwise; nothing if empty
    code: int = OK


@dataclass(frozen=True, slots=True)
class Subcommand:
    """One subcommand."""

    summary: str  # one line in the program's ``--help``
    # function that executes the command; imports what it needs when called
    run: Callable[[Namespace], CommandResult]
    # function that adds the command's own arguments
    arguments: Callable[[ArgumentParser], object] = lambda _parser: None
    details: str = ""  # text of the command's own ``--help`` after the summary
    heading: str = ""  # heading in the program's ``--help``; empty: the program's own commands


def subcommand(reference: str, summary: str) -> Subcommand:
    """Return a subcommand whose module is imported when it is used.

    The module, or the class in it, has ``run`` and ``add_arguments``; its docstring is the description in
    ``--help``.
    """
    reference += "" if ":" in reference else ":"  # without it, resolve_name hides a missing package

    def add_arguments(parser: ArgumentParser) -> None:
        found = resolve_name(reference)
        parser.description = inspect.cleandoc(found.__doc__ or "")
        found.add_arguments(parser)

    def run(args: Namespace) -> CommandResult:
        answer: CommandResult = resolve_name(reference).run(args)
        return answer

    return Subcommand(summary, run, add_arguments)


def installed_version() -> str:
    """Return the version of the installed distribution, or ``0`` in a bare checkout."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - 15 ms

    try:
        return version("gridfed")
    except PackageNotFoundError:
        return "0"


class StopSignal:
    """A flag that is set when the program is requested to stop."""

    def __init__(self) -> None:
        self._asked = False

    def is_set(self) -> bool:
        """Return whether the first signal arrived: finish the current work and exit."""
        return self._asked

    def set(self) -> None:
        """Request a stop, as the first signal does."""
        self._asked = True


@contextmanager
def stop_signals(
    signals: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT),
) -> Iterator[StopSignal]:
    """Set the flag at the first SIGTERM or SIGINT; exit at once at the second one.

    The previous handlers are restored at the end. Must be entered in the main thread.

    Raises:
        SystemExit: Inside the block, at the second signal, with code 1.
    """
    stopping = StopSignal()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if stopping.is_set():
            raise SystemExit(RUNTIME)
        stopping.set()

    before = {number: signal.signal(number, on_signal) for number in signals}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def fields(**values: object) -> str:
    """Format ``key=value`` pairs for a log line; values with blanks, quotes or ``=`` are quoted.

    >>> fields(version=41, why="link lost", seconds=0.08125)
    'version=41 why="link lost" seconds=0.08125'
    """
    return " ".join(f"{key}={_word(value)}" for key, value in values.items())


def _word(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if text and not set(text) & set(' "=\n\t') else json.dumps(text, ensure_ascii=False)


class LogFormatter(logging.Formatter):
    """Formats one line per record: time, level, logger, message; a trace only with an exception.

    Under systemd's journal the time is omitted and the priority comes first.
    """

    PRIORITIES: ClassVar[Mapping[int, int]] = {50: 2, 40: 3, 30: 4, 20: 6, 10: 7}

    def __init__(self, *, journal: bool = "JOURNAL_STREAM" in os.environ) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, followed by the trace of an exception."""
        line = super().format(record)
        if self._journal:
            return f"<{self.PRIORITIES.get(record.levelno, 6)}>{line}"
        return f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')} {line}"


def start_logging(level: str = "INFO") -> None:
    """Send log lines to standard error. Called by programs, never by a library."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def notify(*lines: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Send ``READY=1``, ``WATCHDOG=1``, ``STATUS=…`` or ``STOPPING=1`` to the service manager.

    Returns:
        True if there is a manager. A manager that does not receive it is not an error.
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    import socket  # noqa: PLC0415 - only under a service manager

    target = "\0" + address[1:] if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        try:
            channel.sendto("\n".join(lines).encode(), target)
        except OSError:
            return False
    return True


def watchdog_seconds(environ: Mapping[str, str] = os.environ) -> float | None:
    """Return the seconds between ``WATCHDOG=1`` notices (half the manager's limit), or None.

    >>> watchdog_seconds({"WATCHDOG_USEC": "30000000"})
    15.0
    """
    limit = environ.get("WATCHDOG_USEC", "")
    is_addressed = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(limit) / 2e6 if limit.isdecimal() and int(limit) and is_addressed else None
