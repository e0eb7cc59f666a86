"""Copy the database while the daemon runs.

gridfed-aggregator backup backup.db --config aggregator.toml
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from itertools import count
from pathlib import Path

from aggregator.commands.announce import load_keys, sign_announcements
from aggregator.commands.arguments import (
    CommandError,
    add_config_option,
    add_root_key,
    add_why,
    require_database,
)
from aggregator.config import AggregatorConfig, bind
from aggregator.operations.backup_restore import put_in_place
from aggregator.store.audit_record import AuditRecord
from aggregator.store.errors import DatabaseError
from aggregator.store.opener import exists, open_store
from edge_sdk.app.cli import CommandResult
from edge_sdk.app.clock import SystemClock


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", help="target file; must not exist")
    add_config_option(parser)


def run(args: Namespace) -> CommandResult:
    """Copy the database while the daemon runs."""
    target = Path(args.file)
    _refuse_existing(target, args.config)
    config = require_database(AggregatorConfig.load(args.config))
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
        raise CommandError(
            f"backup: {target}: this is the target of the copy, and is named like a configuration",
            hint=f"gridfed-aggregator backup {target.with_suffix('.db').name} --config {target}",
        )
    if target.is_dir():
        raise CommandError(
            f"backup: {target}: this is a folder, not the file of the copy",
            hint=f"gridfed-aggregator backup {target / 'fleet.db'} --config {config}",
        )
    if target.exists() or target.is_symlink():
        raise CommandError(
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
        add_root_key(parser)
        add_config_option(parser)
        add_why(parser)

    @staticmethod
    def run(args: Namespace) -> CommandResult:
        """Restore a backup of the database, and begin the run that follows it."""
        config = AggregatorConfig.load(args.config)
        for view in config.views():
            bind(view)
        if not config.root_public.exists():
            raise CommandError(
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
