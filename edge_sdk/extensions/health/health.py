"""Exit with 0 if the agent of a configuration runs, else with 1: for containers and monitors.

The agent records every five seconds that its main loop turns, also while it trains. Nothing of the
store is read.

  gridfed-edge health meter.toml
  gridfed-edge health meter.toml --max-age 2m
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from edge_sdk.app.cli import CommandResult
from edge_sdk.app.settings import seconds
from edge_sdk.commands import add_config
from edge_sdk.config import Config
from edge_sdk.errors import OK, RUNTIME

EVERY = 5.0  # seconds between two beats
_MEMORY = Path("/dev/shm")  # noqa: S108 - the file is opened without following links
_SIZE = 256


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    add_config(parser)
    parser.add_argument(
        "--max-age",
        type=_seconds,
        default=600.0,
        metavar="TIME",
        help="oldest heartbeat of a live agent (10m)",
    )


def run(args: Namespace) -> CommandResult:
    """Return whether the agent runs, and the age of its heartbeat."""
    config = Config.load(args.config)
    path = config.heartbeat or default_path(config.state)
    found = age(path)
    is_alive = found is not None and found <= args.max_age
    data = {"alive": is_alive, "seconds": None if found is None else round(found, 1)}
    if found is None:
        text = f"not running: no heartbeat in {path}"
    elif is_alive:
        text = f"running: heartbeat {found:.0f} s ago"
    else:
        text = f"not running: the last heartbeat is {found:.0f} s old, at most {args.max_age:g} s"
    return CommandResult({**data, "file": str(path)}, text, OK if is_alive else RUNTIME)


def _seconds(text: str) -> float:
    try:
        return seconds(text)
    except AttributeError as error:
        raise ArgumentTypeError(f"{text!r} is not a duration, such as 90s or 10m") from error


def default_path(state: Path) -> Path:
    """Return the heartbeat file of a state folder: its own name in memory, else in ``/tmp``."""
    name = hashlib.sha256(str(state.absolute()).encode()).hexdigest()[:16]
    folder = _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    return folder / f"gridfed-edge-{name}.beat"


def open_heartbeat(config: Config) -> Heartbeat:
    return Heartbeat(config.heartbeat or default_path(config.state))


class Heartbeat:
    """The heartbeat file of one running program.

    The age is measured by the monotonic clock of the machine, which all processes share, so a wall
    clock that is set does not change it. The file lies in ``/dev/shm`` where there is one: it is
    rewritten every few seconds, which would wear out flash.

    A file that cannot be written is no reason to stop: then ``age`` finds an old one, or none.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._beaten = -float("inf")

    def beat(self) -> None:
        """Record that the loop turns, every few seconds at most."""
        now = self._clock()
        if now - self._beaten < EVERY:
            return
        self._beaten = now
        text = json.dumps({"pid": os.getpid(), "monotonic": round(now, 3)}).encode()
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(OSError):
            descriptor = os.open(beside, flags, 0o644)
            try:
                os.write(descriptor, text)
            finally:
                os.close(descriptor)
            beside.replace(self._path)

    def close(self) -> None:
        """Remove the file: a program that was stopped is not alive."""
        with suppress(OSError):
            self._path.unlink()


def age(path: Path, now: float | None = None) -> float | None:
    """Return the seconds since the last beat; None without one, or with one of an earlier boot."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            text = os.read(descriptor, _SIZE)
        finally:
            os.close(descriptor)
        beaten = float(json.loads(text)["monotonic"])
    except (OSError, ValueError, TypeError, LookupError):
        return None
    passed = (time.monotonic() if now is None else now) - beaten
    return passed if passed >= 0.0 else None
