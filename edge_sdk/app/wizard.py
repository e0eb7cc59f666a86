"""Ask for the values of a new configuration on a terminal, and write the file once it is valid."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge_sdk.errors import USAGE, Failure


class WizardError(Failure):
    """A configuration that cannot be written."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class Wizard:
    """Takes each value from an option, from the person at the terminal, or from a default."""

    is_interactive: bool
    read: Callable[[str], str] = input  # reads one line after a prompt

    @classmethod
    def of(cls, *, accept_defaults: bool) -> Wizard:
        return cls(not accept_defaults and sys.stdin.isatty() and sys.stderr.isatty())

    def value(self, given: str | None, question: str, default: str) -> str:
        """Return a value: as given, else as answered, else the default."""
        if given is not None:
            return given
        if not self.is_interactive:
            return default
        return self.read(f"{question} [{default}]: ").strip() or default

    def choice(self, given: str | None, question: str, options: Sequence[str], default: str) -> str:
        """Return one of several options; ask again after any other answer."""
        while True:
            found = self.value(given, f"{question} ({', '.join(options)})", default)
            if found in options:
                return found
            if given is not None or not self.is_interactive:
                raise WizardError(
                    f"{question}: expected one of {', '.join(options)}, got {found!r}"
                )


def write_new(path: Path, text: str, check: Callable[[Path], object]) -> None:
    """Write a file that does not exist yet, once a check of the same text has passed.

    Args:
        check: Called with the path of a temporary file beside it; raises what is wrong.

    Raises:
        Failure: What the check raises; then nothing is left behind.
    """
    if path.exists():
        raise WizardError(f"{path} exists", hint="choose another name, or edit it")
    if not path.parent.is_dir():
        raise WizardError(f"no such folder: {path.parent}", hint=f"mkdir -p {path.parent}")
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("x", encoding="utf-8") as file:
            file.write(text)
        check(beside)
        os.link(beside, path)  # unlike a rename, never in place of another file
    except FileExistsError as error:
        raise WizardError(f"{path} exists", hint="choose another name, or edit it") from error
    finally:
        beside.unlink(missing_ok=True)
