"""Build command-line programs: subcommands, exit codes, signals, log lines and sd_notify.

Shared by all programs; contains nothing specific to one of them.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pkgutil import resolve_name
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import (
    OK,
    RUNTIME,
    TEMPORARY,
    USAGE,
    Failure,
    LinkError,
    SignerUnavailable,
    WireError,
)

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

    Args:
        reference: Full name of the module, or ``module:class``.
        summary: One line in the program's ``--help``.
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


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command line: program name, purpose, and table of subcommands.

    >>> def hello(args):
    ...     return CommandResult({"to": args.who}, f"hello {args.who}")
    >>> table = {"hello": Subcommand("Greet.", hello, lambda p: p.add_argument("who"))}
    >>> CommandLine("greet", "Greets.", table).main(["hello", "meter"])
    hello meter
    0
    >>> CommandLine("greet", "Greets.", table).main(["hello", "meter", "--json"])
    {"to": "meter"}
    0
    """

    name: str
    about: str
    commands: Mapping[str, Subcommand]
    epilogue: str = ""

    def main(self, argv: list[str] | None = None) -> int:
        """Run one subcommand and return the exit code; wrong usage exits with 2 at once."""
        require_python(self.name)
        sys.excepthook = _brief(self.name)
        words = sys.argv[1:] if argv is None else argv
        try:
            args = self._parser(words).parse_args(words)
            answer = self.commands[args.command].run(args)
        except (Failure, WireError, OSError) as error:
            return self._complain(error)
        except ModuleNotFoundError as error:
            if (missing := missing_package(error)) is None:
                raise
            return self._complain(missing)
        except KeyboardInterrupt:
            return 130
        shown = json.dumps(answer.data, default=str) if args.json else answer.text
        if shown:
            _print(shown)
        return answer.code

    def parser(self) -> ArgumentParser:
        return self._parser(self.commands, tuple(self.commands))

    def _parser(self, words: Iterable[str], complete: Sequence[str] = ()) -> ArgumentParser:
        from argparse import ArgumentParser, RawDescriptionHelpFormatter  # noqa: PLC0415 - 8 ms

        shape: Any = RawDescriptionHelpFormatter
        epilog = "\n\n".join(filter(None, (*self._further(), self.epilogue)))
        parser = ArgumentParser(
            self.name, description=self.about, epilog=epilog, formatter_class=shape
        )
        parser.add_argument("--version", action=_version_action())
        table = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
        chosen = next((word for word in words if word in self.commands), None)
        for name, command in self.commands.items():
            description = f"{command.summary}\n\n{command.details}".strip()
            # argparse lists a command with a help; one with a heading stands in the epilogue of --help
            is_listed = not command.heading or name in complete
            listed: Any = {"help": command.summary} if is_listed else {}
            sub = table.add_parser(name, description=description, formatter_class=shape, **listed)
            if name == chosen or name in complete:
                command.arguments(sub)
            sub.add_argument("--json", action="store_true", help="print JSON instead of prose")
        return parser

    def _further(self) -> Iterator[str]:
        width = max(map(len, self.commands))
        for heading in dict.fromkeys(one.heading for one in self.commands.values() if one.heading):
            rows = [(n, one.summary) for n, one in self.commands.items() if one.heading == heading]
            yield "\n".join(
                (f"{heading}:", *(f"    {name:<{width}}  {text}" for name, text in rows))
            )

    def _complain(self, error: Failure | WireError | OSError) -> int:
        print(f"{self.name}: {error}", file=sys.stderr)
        if hint := getattr(error, "hint", ""):
            print(f"  hint: {hint}", file=sys.stderr)
        if isinstance(error, Failure):
            return error.exit_code
        return TEMPORARY if isinstance(error, (LinkError, SignerUnavailable)) else RUNTIME


EXTRAS: Mapping[str, str] = {
    "numpy": "",
    "paho": "",
    "msgpack": "",
    "cryptography": "",
    "prometheus_client": "aggregator",
    "torch": "train",
    "onnx": "train",
    "iotcore": "sim",
    "rich": "sim",
    "matplotlib": "sim",
    "pandas": "evaluate",
    "pyarrow": "evaluate",
    "lightgbm": "compare",
    "ray": "ray",
}
"""Extra of the distribution that installs a package, by the package's import name."""


class MissingPackageError(Failure):
    """A package that the command needs is not installed."""

    exit_code = USAGE


def missing_package(error: ModuleNotFoundError) -> Failure | None:
    """Return the sentence for a package that is not installed, with the extra; None if not ours.

    >>> missing_package(ModuleNotFoundError(name="rich.table")).hint
    "pip install 'gridfed[sim]'"
    >>> missing_package(ModuleNotFoundError(name="my_own_rules")) is None
    True
    """
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    extra = f"[{EXTRAS[package]}]" if EXTRAS[package] else ""
    return MissingPackageError(
        f"needs the package {package}, which is not installed", hint=f"pip install 'gridfed{extra}'"
    )


def _print(text: str) -> None:
    """Print; a reader that closes the pipe early (``| head``) is not an error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def require_python(name: str, version: tuple[int, ...] = sys.version_info[:2]) -> None:
    """Exit with code 2 and one sentence if Python is too old.

    >>> require_python("gridfed-edge", (3, 12))
    """
    if version < (3, 11):
        found = ".".join(map(str, version[:2]))
        print(f"{name}: needs Python 3.11 or newer, this is {found}", file=sys.stderr)
        raise SystemExit(USAGE)


def installed_version() -> str:
    """Return the version of the installed distribution, or ``0`` in a bare checkout."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - 15 ms

    try:
        return version("gridfed")
    except PackageNotFoundError:
        return "0"


def _version_action() -> type[Any]:
    from argparse import Action  # noqa: PLC0415 - only parsers need it

    class Version(Action):
        """Print the version and exit; the version is looked up only on request."""

        def __init__(self, option_strings: list[str], dest: str, **_: object) -> None:
            super().__init__(option_strings, dest, nargs=0, help="print the version and exit")

        def __call__(self, parser: ArgumentParser, *_: object) -> None:
            print(installed_version())
            parser.exit()

    return Version


def _brief(name: str) -> Callable[[type[BaseException], BaseException, TracebackType | None], None]:
    """Print an unexpected error as one sentence; with ``GRIDFED_DEBUG`` set, with its trace."""

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if os.environ.get("GRIDFED_DEBUG"):
            sys.__excepthook__(kind, error, trace)
            return
        print(
            f"{name}: unexpected {kind.__name__}: {error}\n"
            "  hint: this is a defect; set GRIDFED_DEBUG=1 to see where, and report it",
            file=sys.stderr,
        )

    return show


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
