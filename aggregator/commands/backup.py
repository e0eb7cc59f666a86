"""Copy the database while the daemon runs.

gridfed-aggregator backup backup.db --config aggregator.toml
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from aggregator.commands import arguments
from aggregator.commands.announce import load_keys, sign_announcements
from aggregator.config import AggregatorConfig, bind
from aggregator.store.audit_record import AuditRecord
from aggregator.store.dialect import DatabaseUrl
from aggregator.store.errors import DatabaseError
from aggregator.store.opener import alone, exists, open_store, refill
from aggregator.store.store import Store
from edge_sdk.app.cli import CommandResult
from edge_sdk.app.clock import SystemClock
from edge_sdk.app.permissions import tighten
from edge_sdk.errors import USAGE, Failure
from edge_sdk.protocol import topics


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", help="target file; must not exist")
    arguments.add_config_option(parser)


def run(args: Namespace) -> CommandResult:
    """Copy the database while the daemon runs."""
    target = Path(args.file)
    _refuse_existing(target, args.config)
    config = arguments.require_database(AggregatorConfig.load(args.config))
    with open_store(config.database, read_only=True) as store:
        store.backup(target)
        begun = store.runs.latest()
        after = store.runs.closed_by(begun.run, store.states.first(begun.run).upto) if begun else 0
    size = target.stat().st_size
    result = f"{target}: {size} bytes" + (f"; audit after round {after}" if after else "")
    return CommandResult({"file": str(target), "bytes": size, "audit after": after}, result)


def _refuse_existing(target: Path, config: str) -> None:
    """Refuse a target that exists, and a configuration given in its place, with the right call."""
    if target.suffix == ".toml":
        raise arguments.CommandError(
            f"backup: {target}: this is the target of the copy, and is named like a configuration",
            hint=f"gridfed-aggregator backup {target.with_suffix('.db').name} --config {target}",
        )
    if target.is_dir():
        raise arguments.CommandError(
            f"backup: {target}: this is a folder, not the file of the copy",
            hint=f"gridfed-aggregator backup {target / 'fleet.db'} --config {config}",
        )
    if target.exists() or target.is_symlink():
        raise arguments.CommandError(
            f"backup: {target}: this file exists, and a backup overwrites nothing",
            hint=f"choose another name: gridfed-aggregator backup {_free(target)} --config {config}",
        )


def _free(target: Path) -> Path:
    return next(
        one
        for number in count(2)
        if not (one := target.with_name(f"{target.stem}-{number}{target.suffix}")).exists()
    )


class Restore:
    """Put a backup in place and begin another run.

    Stop the daemon first. Devices may know rounds that the backup does not, so another run begins
    from its model, and every counter continues above any value used since the backup. The previous
    database is kept beside it.

      gridfed-aggregator restore backup.db --config aggregator.toml
    """

    @staticmethod
    def add_arguments(parser: ArgumentParser) -> None:
        """Add the backup's file, the root key and the configuration."""
        parser.add_argument("file", help="file that `backup` wrote")
        arguments.add_root_key(parser)
        arguments.add_config_option(parser)
        arguments.add_why(parser)

    @staticmethod
    def run(args: Namespace) -> CommandResult:
        """Restore a backup of the database, and begin the run that follows it."""
        config = AggregatorConfig.load(args.config)
        for view in config.views():
            bind(view)
        if not config.root_public.exists():
            raise arguments.CommandError(
                f"{config.root_public} does not exist; devices trust only the fleet's first root key",
                hint="put root.pub and aggregator.key back into the state folder, then restore",
            )
        load_keys(args, config)  # fail before the restore if the keys are missing
        before = _last_record(config)
        done = put_in_place(config, Path(args.file), now=SystemClock().wall())
        args.fresh = False
        begun = sign_announcements(
            args,
            config,
            subject=Path(args.file).name,
            detail=f"run {done.run}, version {done.version}; {_lost(before)}",
        )
        text = (
            f"{args.file}: run {done.run}, version {done.version}, restored; the next run continues "
            "from it\n"
            "records made after the backup are lost; devices with newer counters are sent a hello "
            "request, and no update is counted twice\n"
            "reapply changes made after the backup: enrolments, revocations, quarantines"
        )
        aside = None if done.aside is None else str(done.aside)
        kept = f"\nprevious database: {aside}" if aside else ""
        data = {**begun.data, "restored_run": done.run, "version": done.version, "aside": aside}
        return CommandResult(data, f"{text}{kept}\n{begun.text}")


def _last_record(config: AggregatorConfig) -> AuditRecord | None:
    """Return the newest record of the audit log that the backup replaces; None if it cannot be read."""
    try:
        if not exists(config.database):
            return None
        with open_store(config.database, read_only=True) as store:
            return store.audit_log.last()
    except DatabaseError:
        return None


def _lost(before: AuditRecord | None) -> str:
    if before is None:
        return "the replaced database had no audit log"
    return f"the audit log of the replaced database ended with record {before.number}"


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

    Devices have seen lives, runs, announcements and commands from after the backup, which it does not
    contain. Every increasing number therefore leaps ahead, and a new run begins; a device with an
    unknown life must send a hello, and its updates for a lost run are refused as such.

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
