"""Write manual pages and shell completion from the parsers that print ``--help``.

    python -m tools.manuals OUT

Below ``OUT`` the files lie as below ``/usr``: ``share/man/man1``, ``share/bash-completion`` and ``share/zsh``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from edge_sdk.app.command_line import CommandLine

PROGRAMS = {
    "edge_sdk": "edge_sdk.commands.main",
    "aggregator": "aggregator.commands.main",
    "aggregator.extensions.console": "aggregator.extensions.console.program",
    "aggregator.extensions.model_log": "aggregator.extensions.model_log.program",
    "firmware_sim": "firmware_sim.commands.main",
}
"""Module with the ``program`` of every package with a command."""

PACKAGES = tuple(PROGRAMS)

FILES = ("CONFIG", "CSV", "FILE", "FOLDER", "SVG")
"""Metavariables of arguments that a shell completes with names of files."""


def command_line(package: str) -> CommandLine:
    """Return the command line of a package.

    >>> command_line("edge_sdk").name
    'gridfed-edge'
    """
    program: CommandLine = import_module(PROGRAMS[package]).program()
    return program


def man_page(program: CommandLine) -> str:
    """Return the manual page in roff: name, synopsis, every subcommand and its arguments, examples."""
    name, parser = program.name, program.parser()
    purpose = " ".join(program.about.split("\n\n")[0].split()).rstrip(".")
    lines = [
        f'.TH {name.upper()} 1 "" gridfed "User commands"',
        ".SH NAME",
        f"{_roff(name)} \\- {_roff(purpose)}",
        ".SH SYNOPSIS",
        f".B {_roff(name)}",
        "COMMAND [arguments]",
        ".SH DESCRIPTION",
        *_prose(program.about),
        ".SH COMMANDS",
    ]
    for command, sub in _subcommands(parser).items():
        usage = " ".join(sub.format_usage().removeprefix("usage: ").split())
        lines += [f".SS {_roff(command)}", f".B {_roff(usage)}", ".PP", *_prose(sub.description)]
        for action in sub._actions:  # noqa: SLF001 - argparse has no public list of arguments
            lines += [".TP", f".B {_roff(_signature(action))}", _roff(action.help or "")]
    lines += [".SH NOTES", *_prose(program.epilogue)]
    return "\n".join(lines) + "\n"


def completion(program: CommandLine, shell: str) -> str:
    """Return the completion script of a program, by shtab.

    Args:
        shell: ``bash`` or ``zsh``.
    """
    import shtab  # noqa: PLC0415 - only this function needs it, from the extra publish

    parser = program.parser()
    for sub in _subcommands(parser).values():
        for action in sub._actions:  # noqa: SLF001 - as above
            if action.metavar in FILES or action.type is Path:
                vars(action)["complete"] = shtab.FILE
    script: str = shtab.complete(parser, shell)
    return script


def write(package: str, out: Path) -> tuple[Path, ...]:
    """Write the manual page and the completion of a package's program; return the files.

    Args:
        out: Folder that stands for ``/usr``.
    """
    program = command_line(package)
    share = out / "share"
    texts = {
        share / "man" / "man1" / f"{program.name}.1": man_page(program),
        share / "bash-completion" / "completions" / program.name: completion(program, "bash"),
        share / "zsh" / "site-functions" / f"_{program.name}": completion(program, "zsh"),
    }
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tuple(texts)


def _subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:  # noqa: SLF001 - as above
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - as above
            return dict(action.choices)
    return {}


def _signature(action: argparse.Action) -> str:
    choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else ""
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    value = "" if action.nargs == 0 else metavar or choices or action.dest.upper()
    return " ".join(filter(None, (", ".join(action.option_strings), value)))


def _roff(text: str) -> str:
    r"""Return text with backslashes, hyphens and leading control characters escaped.

    >>> print(_roff(".key --json"))
    \&.key \-\-json
    """
    escaped = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-").replace("%%", "%")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped


def _prose(text: str | None) -> Iterator[str]:
    """Yield paragraphs; lines that begin with a blank keep their breaks."""
    for paragraph in (text or "").strip("\n").split("\n\n"):
        lines = paragraph.splitlines()
        if any(line.startswith(" ") for line in lines):
            yield ".nf"
            for line in lines:
                indent = len(line) - len(line.lstrip())
                yield "\\ " * indent + _roff(line)
            yield ".fi"
        else:
            yield from map(_roff, lines)
        yield ".PP"


def main() -> None:
    """Write the pages of all programs below the folder of the command line."""
    for package in PACKAGES:
        for path in write(package, Path(sys.argv[1])):
            print(path)


if __name__ == "__main__":
    main()
