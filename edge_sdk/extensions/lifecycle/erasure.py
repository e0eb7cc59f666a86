"""Erase a device's state, or the part of it that belongs to a fleet; the privacy ledger is kept.

What was released stays released: neither a wipe nor a change of the fleet gives a device a new budget.
So the ledger, the count of releases and the time before which no reading may be perturbed again are
never erased.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from pathlib import Path

from edge_sdk.app import sqlite_file
from edge_sdk.config import Config
from edge_sdk.session.identity import has_identity, key_files, place_outside
from edge_sdk.store import WIPED, state_folders
from edge_sdk.store.rows import read_fact, write_facts
from edge_sdk.store.schema import FILE, INSTALLED, SET_ASIDE, opened
from edge_sdk.store.store import COUNTED

_PRIVACY = ("noised since", "ledger set aside", "releases allowed", "starts", "conn", COUNTED)
_RECORDS = ("key", SET_ASIDE)
_USED_TODAY = ("day", "used", "wake day", "wake", "flash day", "flash")
_SOURCE = "source "  # the position of a source: without it, readings would be counted twice


def erase_device(config: Config) -> None:
    """Erase the device of a configuration: its state, then its key."""
    now = int(time.time())
    wipe_device(config.state, key_files(config), now, partial(erase_identity, config))


def erase_identity(config: Config) -> None:
    """Destroy the key in the token, where it is in one; a file is deleted by the caller.

    Raises:
        TokenUnreachable: It is away: the key is still there.
    """
    if (place := place_outside(config)) is not None and has_identity(config):
        place.erase(config)


def wipe_device(
    state: Path, keys: Iterable[Path], now: int, destroy: Callable[[], None] = lambda: None
) -> None:
    """Wipe every state folder of a device, then delete its private keys.

    Repeatable after a kill: the keys go last, and a state is wiped before them.

    Args:
        keys: Private key files, or the public key of one in a token; missing ones are skipped.
        now: As for ``wipe_state``.
        destroy: Destroys a private key that is not in a file; called before the files are deleted.

    Raises:
        EdgeError: A state is in use or cannot be opened, or the key cannot be destroyed now.
    """
    for folder in state_folders(state):
        wipe_state(folder, now)
        shutil.rmtree(folder / INSTALLED, ignore_errors=True)
    destroy()
    for key in keys:
        key.unlink(missing_ok=True)


def wipe_state(folder: Path, now: int) -> None:
    """Erase readings, models, unsent updates and announcements from a state folder.

    Repeatable: a process that is killed here leaves the state as it was, or wiped. SQLite overwrites
    what it deletes; a flash memory may keep old copies of a block all the same.

    Args:
        now: Unix seconds. No reading before this time is perturbed and used again.

    >>> import tempfile
    >>> from edge_sdk.store.store import DeviceStore
    >>> folder = Path(tempfile.mkdtemp())
    >>> with DeviceStore.open(folder) as store:
    ...     store.add_readings([("power", 7, 1.5, 0)])
    >>> wipe_state(folder, 1_800_000_000)
    >>> with DeviceStore.open(folder) as store:
    ...     len(store.readings), store.fact(WIPED)
    (0, 1800000000)
    """
    facts = ("command", *_PRIVACY)
    tables = ("readings", "noised", "learned", "outbox")
    _erase(folder, tables, facts, (*_RECORDS, "commands"), noted={WIPED: now, "noised since": now})
    for copy in folder.glob(f"{FILE}.schema-*"):  # made before a migration of the tables
        copy.unlink()


def leave_fleet(folder: Path) -> None:
    """Erase the fleet's announcements and models, and updates for it; keep readings and their noise."""
    facts = (*_PRIVACY, *_USED_TODAY)
    _erase(folder, ("learned", "outbox"), facts, _RECORDS, prefix=_SOURCE)
    shutil.rmtree(folder / INSTALLED, ignore_errors=True)


def _erase(
    folder: Path,
    tables: Iterable[str],
    facts: tuple[str, ...],
    records: tuple[str, ...],
    *,
    prefix: str | None = None,
    noted: dict[str, int] | None = None,
) -> None:
    """Empty some tables, and delete the facts and records that are not listed, in one transaction."""
    db, _, held = opened(folder, read_only=False)
    with held:
        db.execute("PRAGMA secure_delete = ON")
        with sqlite_file.transaction(db):
            later = {name: max(at, read_fact(db, name, 0)) for name, at in (noted or {}).items()}
            for table in tables:
                db.execute(f"DELETE FROM {table}")  # noqa: S608 - a literal of this module
            for table, names, begin in (("facts", facts, None), ("papers", records, prefix)):
                marks = ", ".join("?" * len(names))
                db.execute(
                    f"DELETE FROM {table} WHERE name NOT IN ({marks})"  # noqa: S608 - literals
                    " AND (? IS NULL OR substr(name, 1, length(?)) <> ?)",
                    (*names, begin, begin, begin),
                )
            write_facts(db, later)
        db.execute("VACUUM")
        with closing(db.execute("PRAGMA wal_checkpoint(TRUNCATE)")) as log:
            log.fetchall()
