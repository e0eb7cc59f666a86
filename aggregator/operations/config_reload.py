"""Reload the configuration on SIGHUP, and decide whether it can be applied without a restart.

It is applied completely or not at all. A key that defines the run, or a limit that devices were
granted, does not change while the fleet is running: the old configuration stays in force, and the
log names the key and the reason.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass, replace
from types import FrameType
from typing import Any

from aggregator.config import AggregatorConfig, BoundRun, bind
from aggregator.operations import run_setup, signing_keys
from aggregator.store.store import Store
from edge_sdk.app.cli import StopSignal
from edge_sdk.app.settings import EXTENSIONS
from edge_sdk.errors import USAGE, Failure, WireError
from edge_sdk.protocol.keys import SigningKey

LIVE: Mapping[str, str] = {
    "log.level": "at once",
    "alerts.certificate_expiry": "at once",
    "broker.crl_file": "at once",
    "admission.max_in_flight_bytes": "at once; uploads in progress continue",
    "admission.messages_per_minute": "at once",
    "admission.daily_bytes": "at once here; a device receives it with its next welcome",
    "admission.max_updates": "at once",
    "admission.max_queued_updates": "when a worker starts",
    "pacing.jitter": "with the next manifest",
    "pacing.broadcast_bytes_per_second": "with the next manifest; for requested content, at once",
    "pacing.updates_per_second": "with the next manifest",
    "retention.vector_bytes": "with the next closed round",
    "retention.journal_bytes": "with the next closed round",
    "retention.rounds": "with the next closed round",
    "run.deadline": "with the next round",
    "run.schedule.rounds_per_day": "at once; an open round continues",
    "run.schedule.windows": "at once; an open round continues",
    "run.schedule.time_zone": "at once; an open round continues",
    "run.schedule.jitter": "at once; an open round continues",
    "run.schedule.min_new_rows": "at once; an open round continues",
} | AggregatorConfig.index.texts("live")
"""Keys and whole sections that may change while the daemon runs, each with the time at which a change applies."""

# keys that need a restart, with reasons; a section covers all its keys not in ``LIVE``
RESTART: Mapping[str, str] = {
    "fleet": "every topic and signature contains it",
    "state": "the database is open",
    "store": "the database is open",
    "broker": "the connection uses it",
    "keys": "the announcements are signed with them",
    "http": "the HTTP server is listening there",
    "admission.max_inline_bytes": "connected devices were granted it",
    "admission.max_single_bytes": "connected devices were granted it",
    "admission.max_pending_updates": "connected devices were granted it",
    "admission.workers": "the subscriptions depend on it",
    "run.client_fraction": "the cohort of the open round was drawn with it",
    "run.rule_memory_mb": "the updates of the open round are kept by it",
    "run.seed": "the cohort of the open round was drawn with it",
} | AggregatorConfig.index.texts("restart")

_DEFINES = "it defines the run; begin another run: gridfed-aggregator announce"
_TURNS = "the deadlines of the open round depend on it"


class ReloadError(Failure):
    """A valid configuration that cannot be applied without a restart."""

    exit_code = USAGE


def changed(before: AggregatorConfig, after: AggregatorConfig) -> list[str]:
    """Return the dotted keys in which two configurations differ, in order."""
    plain = [key for key in _changed(before, after, "") if key != EXTENSIONS]
    names = sorted({*before.extensions, *after.extensions})
    pairs = ((name, before.section(name), after.section(name)) for name in names)
    return plain + [key for name, old, new in pairs for key in _differences(old, new, name)]


def _changed(before: Any, after: Any, at: str) -> list[str]:  # noqa: ANN401 - any settings
    found: list[str] = []
    for one in fields(before):
        found += _differences(getattr(before, one.name), getattr(after, one.name), at + one.name)
    return found


def _differences(old: Any, new: Any, key: str) -> list[str]:  # noqa: ANN401 - as above
    if is_dataclass(old) and type(old) is type(new):
        return _changed(old, new, f"{key}.")
    return [] if old == new else [key]


def why_not(key: str) -> str:
    """Return the reason why a key cannot change while the daemon runs; empty if it can.

    >>> why_not("run.deadline"), why_not("http.listen")
    ('', 'the HTTP server is listening there')
    >>> why_not("run.quorum").partition(";")[0]
    'it defines the run'
    """
    if key in LIVE or key.partition(".")[0] in LIVE:
        return ""
    return RESTART.get(key) or RESTART.get(key.partition(".")[0]) or _DEFINES


def again(
    present: AggregatorConfig,
    runs: Sequence[BoundRun],
    store: Store,
    environ: Mapping[str, str] = os.environ,
) -> tuple[AggregatorConfig, tuple[BoundRun, ...]]:
    """Read the configuration again; return it and the runs bound to it.

    Everything is checked as at a start. Nothing is changed here.

    Args:
        runs: The runs in force, in the order of the configuration.
        environ: Environment settings, which are constant in a running process.

    Raises:
        Failure: The file is invalid or needs a restart.
    """
    wanted = AggregatorConfig.load(present.file, environ)
    names = [run.name for run in wanted.runs]
    if names != [run.config.run.name for run in runs]:
        raise ReloadError(
            f"{present.file.name} needs a restart: run.name: the runs are others: "
            f"{', '.join(name or '-' for name in names)}",
            hint="sign them: gridfed-aggregator announce; then restart the daemon",
        )
    views = list(zip(runs, wanted.views(), strict=True))
    for run, view in views:
        _check(changed(run.config, view), run)
    signer = signing_keys.signer(wanted)
    return wanted, tuple(_bound_again(run, view, store, signer) for run, view in views)


def _bound_again(
    run: BoundRun, view: AggregatorConfig, store: Store, signer: SigningKey
) -> BoundRun:
    keys = changed(run.config, view)
    bound = bind(view)
    run_setup.verified_run(bound, store, signer)
    if "run.deadline" not in keys:
        return replace(run, config=view, schedule=bound.schedule)
    return replace(run, config=view, half=bound.half, rounds=bound.rounds, schedule=bound.schedule)


def is_foreseen(error: Exception) -> bool:
    """Return whether an error is a regular refusal of a configuration, not a defect.

    >>> is_foreseen(ReloadError("fleet: no")), is_foreseen(KeyError("fleet"))
    (True, False)
    """
    return isinstance(error, Failure | WireError | OSError)


def sentence(error: Exception) -> str:
    """Return the reason for which a configuration was refused; a defect is marked as unexpected.

    >>> sentence(ReloadError("fleet: no")), sentence(KeyError("fleet"))
    ('fleet: no', "unexpected KeyError: 'fleet'")
    """
    return str(error) if is_foreseen(error) else f"unexpected {type(error).__name__}: {error}"


def _check(keys: Iterable[str], run: BoundRun) -> None:
    refused = {key: why_not(key) for key in keys}
    if "run.deadline" in refused and run.half.play is not None:
        refused["run.deadline"] = _TURNS
    reasons = [f"{key}: {why}" for key, why in refused.items() if why]
    if reasons:
        raise ReloadError(
            f"{run.config.file.name} needs a restart: {'; '.join(reasons)}",
            hint="restart the daemon, or undo the change",
        )


class HangUps:
    """Flag for received SIGHUP signals."""

    def __init__(self) -> None:
        self._received = False

    def set(self) -> None:
        self._received = True

    def consume(self) -> bool:
        """Clear the flag; return whether it was set."""
        received, self._received = self._received, False
        return received


@contextmanager
def hang_ups(stopping: StopSignal) -> Iterator[HangUps]:
    """Handle SIGHUP as a request to reload the configuration.

    If the signal follows the loss of the terminal, it requests a stop, as in any program, so that a
    closed window leaves no daemon behind. Must be entered in the main thread.
    """
    received = HangUps()
    before = signal.getsignal(signal.SIGHUP)
    is_seen = before != signal.SIG_IGN and _has_terminal()  # ignored under nohup

    def hung_up(_signal: int, _frame: FrameType | None) -> None:
        if is_seen and not _has_terminal():
            stopping.set()
        else:
            received.set()

    signal.signal(signal.SIGHUP, hung_up)
    try:
        yield received
    finally:
        signal.signal(signal.SIGHUP, before)


def _has_terminal() -> bool:
    with suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
        return True
    return False
