"""SIGHUP: read the configuration again, and find what of it can be put into force as things are.

All of it or nothing. What defines the run, or what somebody was promised, is not changed under
a fleet that is at work: then the old configuration stays, and the log says which key and why.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass, replace
from types import FrameType

from aggregator.config import AggregatorConfig, BoundRun, bind
from aggregator.operations import run_setup
from aggregator.store import SqliteStore
from edge_sdk.app.cli import USAGE, Failure, StopSignal
from edge_sdk.wire.errors import WireError

LIVE: Mapping[str, str] = {
    "log.level": "at once",
    "alerts.expiry": "at once",
    "broker.crl": "at once",
    "admission.window_bytes": "at once; who is uploading goes on",
    "admission.control": "at once",
    "admission.quota": "at once, at the door; a device hears of it with its next welcome",
    "admission.releases": "at once",
    "pace.spread": "with the next manifest",
    "pace.down_rate": "with the next manifest; for content that devices ask for, at once",
    "pace.up_rate": "with the next manifest",
    "store.keep_vectors": "with the next closed round",
    "store.keep_journal": "with the next closed round",
    "store.keep_rounds": "with the next closed round",
    "run.deadline": "with the next round",
}
"""What may change while the daemon runs, and when that counts."""

RESTART: Mapping[str, str] = {
    "fleet": "every topic and signature names it",
    "state": "the database is open",
    "broker": "the link was made with it",
    "keys": "what is announced is signed with them",
    "page": "the page listens there",
    "admission.inline": "devices that are here were promised it",
    "admission.hold": "devices that are here were promised it",
    "run.share": "who takes part in the open round was drawn with it",
    "run.seed": "who takes part in the open round was drawn with it",
}
"""What needs a restart, and why; a section stands for all of its keys that are not in ``LIVE``."""

_DEFINES = "it defines the run; another one begins with: gridfed-aggregator announce"
_TURNS = "the turns of the open round keep time with it"


class ReloadError(Failure):
    """A configuration that is well, and cannot be put into force without a restart."""

    exit_code = USAGE


def changed(before: AggregatorConfig, after: AggregatorConfig) -> list[str]:
    """Return the dotted keys in which two configurations differ, in order."""
    found = []
    for section in fields(before):
        old, new = getattr(before, section.name), getattr(after, section.name)
        if is_dataclass(old):
            names = [
                one.name for one in fields(old) if getattr(old, one.name) != getattr(new, one.name)
            ]
            found += [f"{section.name}.{name}" for name in names]
        elif old != new:
            found.append(section.name)
    return found


def why_not(key: str) -> str:
    """Say why a key cannot change while the daemon runs; empty if it can.

    >>> why_not("run.deadline"), why_not("page.listen")
    ('', 'the page listens there')
    >>> why_not("run.quorum").partition(";")[0]
    'it defines the run'
    """
    if key in LIVE:
        return ""
    return RESTART.get(key) or RESTART.get(key.partition(".")[0]) or _DEFINES


def again(run: BoundRun, store: SqliteStore, environ: Mapping[str, str] = os.environ) -> BoundRun:
    """Read the configuration again; return the run as it goes on under it.

    Everything is checked as at a start. Nothing is changed here, whatever comes of it.

    Args:
        run: As it is in force.
        store: With what the run was begun with.
        environ: Settings from outside the file; a running process's never change.

    Raises:
        Failure: The file is wrong, or needs a restart; one sentence.
    """
    wanted = AggregatorConfig.load(run.config.file, environ)
    keys = changed(run.config, wanted)
    _check(keys, run)
    bound = bind(wanted)
    run_setup.check(bound, store, run_setup.signer(wanted))
    if "run.deadline" not in keys:
        return replace(run, config=wanted)
    return replace(run, config=wanted, half=bound.half, rounds=bound.rounds)


def is_foreseen(error: Exception) -> bool:
    """Whether a configuration was refused for a reason; anything else is a defect of ours.

    >>> is_foreseen(ReloadError("fleet: no")), is_foreseen(KeyError("fleet"))
    (True, False)
    """
    return isinstance(error, Failure | WireError | OSError)


def sentence(error: Exception) -> str:
    """Say why a configuration was refused; what nobody foresaw is named as such.

    >>> sentence(ReloadError("fleet: no")), sentence(KeyError("fleet"))
    ('fleet: no', "unexpected KeyError: 'fleet'")
    """
    return str(error) if is_foreseen(error) else f"unexpected {type(error).__name__}: {error}"


def _check(keys: Iterable[str], run: BoundRun) -> None:
    refused = {key: why_not(key) for key in keys}
    if "run.deadline" in refused and run.half.play is not None:
        refused["run.deadline"] = _TURNS
    said = [f"{key}: {why}" for key, why in refused.items() if why]
    if said:
        raise ReloadError(
            f"{run.config.file.name} needs a restart: {'; '.join(said)}",
            hint="restart the daemon, or take it back",
        )


class HangUps:
    """Whether SIGHUP came since it was last asked."""

    def __init__(self) -> None:
        """Start with none."""
        self._heard = False

    def set(self) -> None:
        """Note one."""
        self._heard = True

    def take(self) -> bool:
        """Whether one came; several are one."""
        heard, self._heard = self._heard, False
        return heard


@contextmanager
def hang_ups(stopping: StopSignal) -> Iterator[HangUps]:
    """Hear SIGHUP as a wish to read the configuration again.

    Where it comes because the terminal is gone, it asks to stop, as it does to any program: a
    closed window must not leave a daemon behind. Must be entered in the main thread.
    """
    heard = HangUps()
    before = signal.getsignal(signal.SIGHUP)
    is_seen = before != signal.SIG_IGN and _has_terminal()  # ignored by nohup: stay

    def hung_up(_number: int, _frame: FrameType | None) -> None:
        if is_seen and not _has_terminal():
            stopping.set()
        else:
            heard.set()

    signal.signal(signal.SIGHUP, hung_up)
    try:
        yield heard
    finally:
        signal.signal(signal.SIGHUP, before)


def _has_terminal() -> bool:
    with suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
        return True
    return False
