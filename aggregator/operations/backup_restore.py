"""Restore a backup of the database, and start a run that cannot be confused with a lost one.

Devices have seen lives, runs, announcements and commands from after the backup, which the backup
does not contain. Every increasing number therefore leaps ahead, and a new run begins; a device
with an unknown life must send a hello, and its updates for a lost run are refused as such.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aggregator.config import AggregatorConfig
from aggregator.store.dialect import DatabaseUrl
from aggregator.store.opener import alone, open_store, refill
from aggregator.store.store import Store
from edge_sdk.app.permissions import tighten
from edge_sdk.errors import USAGE, Failure
from edge_sdk.protocol import topics


class RestoreError(Failure):
    """A file that cannot replace the database."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of a restore."""

    run: int  # last run in the backup
    version: int  # version of its common model
    aside: Path | None  # path of the previous database; None if there was none


def put_in_place(config: AggregatorConfig, backup: Path, *, now: int) -> Restored:
    """Check a backup and replace the database with it; the old database is kept beside it.

    Args:
        backup: File written by ``gridfed-aggregator backup``.
        now: Unix milliseconds, for the name of the old database.

    Raises:
        RestoreError: No backup, a damaged one, or one of another fleet; nothing was changed.
        DatabaseBusyError: The daemon runs; nothing was changed.
    """
    file = config.file_database
    if isinstance(config.database, DatabaseUrl):
        with checked(config, backup) as (_, run, version):
            aside = file.with_name(f"{file.stem}-before-{now // 1000}{file.suffix}")
            refill(config.database, backup, aside)
        return Restored(run, version, aside)
    with alone(file):
        fresh = file.with_name(f".{file.name}.restored")
        with checked(config, backup) as (copy, run, version):
            copy.backup(fresh)
        before = _put_aside(file, now)
        fresh.replace(file)
    return Restored(run, version, before)


@contextmanager
def checked(config: AggregatorConfig, backup: Path) -> Iterator[tuple[Store, int, int]]:
    """Open and check a backup; yield it with its run and version."""
    if not backup.is_file():
        raise RestoreError(f"{backup}: file not found")
    file = config.file_database
    if config.database == file and file.exists() and backup.samefile(file):
        raise RestoreError(
            f"{backup} is the database itself",
            hint=f"to continue from it as it is: gridfed-aggregator announce {config.file}",
        )
    with open_store(backup, read_only=True) as copy:
        begun, faults = copy.runs.latest(), copy.integrity()
        if faults:
            raise RestoreError(f"{backup} is damaged: {faults[0]}", hint="use an older backup")
        is_ours = topics.common(config.fleet, "keys") in copy.announcements.all()
        if begun is None or not is_ours:
            raise RestoreError(f"{backup} has no run of fleet {config.fleet!r}")
        closed = copy.runs.versions(begun.run, last=1)
        yield copy, begun.run, closed[-1].version if closed else 0


def _put_aside(database: Path, now: int) -> Path | None:
    if not database.exists():
        return None
    aside = database.with_name(f"{database.stem}-before-{now // 1000}{database.suffix}")
    for rest in ("", "-wal", "-shm"):
        path = database.with_name(database.name + rest)
        if path.exists():
            tighten(path)
            path.replace(aside.with_name(aside.name + rest))
    return aside
