"""Put a backup in the place of the database, and begin a run that nobody takes for a lost one.

What happened after the backup is known to the devices and not here: lives, runs, announcements and
commands. So every number that only rises leaps ahead, and the run is another one; a device whose
life is not known is told to say hello, and what it made for a lost run is refused as such.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aggregator.config import AggregatorConfig
from aggregator.store import SqliteStore, alone
from edge_sdk.app.cli import USAGE, Failure
from edge_sdk.app.permissions import tighten
from edge_sdk.wire.protocol import topics


class RestoreError(Failure):
    """This file cannot take the database's place."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class Restored:
    """What was put where.

    Attributes:
        run: The last run that the backup knows.
        version: Its version of the common model.
        aside: Where the database from before lies now; None if there was none.
    """

    run: int
    version: int
    aside: Path | None


def put_in_place(config: AggregatorConfig, backup: Path, *, now: int) -> Restored:
    """Put a checked backup in the place of the database, which is kept beside it.

    Args:
        config: Of the fleet.
        backup: What ``gridfed-aggregator backup`` wrote.
        now: Unix milliseconds, for the name of what is put aside.

    Raises:
        RestoreError: No backup, a damaged one, or one of another fleet; nothing was changed.
        StoreBusyError: The daemon runs; nothing was changed.
    """
    with alone(config.database):
        fresh = config.database.with_name(f".{config.database.name}.restored")
        run, version = _copied(config, backup, fresh)
        aside = _put_aside(config.database, now)
        fresh.replace(config.database)
    return Restored(run, version, aside)


def _copied(config: AggregatorConfig, backup: Path, fresh: Path) -> tuple[int, int]:
    """Copy the backup if it is one, and return which run and version it knows."""
    if not backup.is_file():
        raise RestoreError(f"{backup}: no such backup")
    if config.database.exists() and backup.samefile(config.database):
        raise RestoreError(
            f"{backup} is the database itself",
            hint=f"a copy that lies there already is adopted: gridfed-aggregator announce "
            f"{config.file}",
        )
    with SqliteStore.open(backup, read_only=True) as copy:
        begun, faults = copy.run(), copy.integrity()
        if faults:
            raise RestoreError(f"{backup} is damaged: {faults[0]}", hint="take an older backup")
        is_ours = topics.common(config.fleet, "keys") in copy.announcements()
        if begun is None or not is_ours:
            raise RestoreError(f"{backup} has no run of fleet {config.fleet!r}")
        closed = copy.versions(begun.run, last=1)
        copy.backup(fresh)
    return begun.run, closed[-1].version if closed else 0


def _put_aside(database: Path, now: int) -> Path | None:
    """Rename the database, and with it what is not yet merged into it."""
    if not database.exists():
        return None
    aside = database.with_name(f"{database.stem}-before-{now // 1000}{database.suffix}")
    for rest in ("", "-wal", "-shm"):
        path = database.with_name(database.name + rest)
        if path.exists():
            tighten(path)
            path.replace(aside.with_name(aside.name + rest))
    return aside
