"""Run the subcommands of a program: arguments, ``--help``, errors as one sentence, exit codes."""

from __future__ import annotations

import json
import os
import sys
from argparse import Action, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from edge_sdk.app.cli import Subcommand, installed_version
from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import (
    RUNTIME,
    TEMPORARY,
    USAGE,
    Failure,
    LinkError,
    SignerUnavailable,
    WireError,
)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command line: program name, purpose, and table of subcommands.

    >>> from edge_sdk.app.cli import CommandResult
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
        shape: Any = RawDescriptionHelpFormatter
        epilog = "\n\n".join(filter(None, (*self._further(), self.epilogue)))
        parser = ArgumentParser(
            self.name, description=self.about, epilog=epilog, formatter_class=shape
        )
        parser.add_argument("--version", action=_Version)
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


class _Version(Action):
    """Print the version and exit; the version is looked up only on request."""

    def __init__(self, option_strings: list[str], dest: str, **_: object) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version and exit")

    def __call__(self, parser: ArgumentParser, *_: object) -> None:
        print(installed_version())
        parser.exit()


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
