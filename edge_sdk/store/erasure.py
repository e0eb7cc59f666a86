"""Erase a device's state, or the part of it that belongs to a fleet; the privacy ledger is kept.

What was released stays released: neither a wipe nor a change of the fleet gives a device a new budget.
So the ledger, the count of releases and the time before which no reading may be perturbed again are
never erased.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

from edge_sdk.app import sqlite_file
from edge_sdk.errors import ConfigError
from edge_sdk.store.release_count import COUNTED
from edge_sdk.store.rows import read_fact, write_facts
from edge_sdk.store.schema import FILE, INSTALLED, SET_ASIDE, opened
from edge_sdk.store.store import DeviceStore

WIPE_ORDERED, WIPED = "wipe ordered", "wiped"
"""Facts: an operator ordered the wipe; Unix seconds of the finished one."""

_PRIVACY = ("noised since", "ledger set aside", "releases allowed", "starts", "conn", COUNTED)
_RECORDS = ("key", SET_ASIDE)
_USED_TODAY = ("day", "used", "wake day", "wake", "flash day", "flash")
_SOURCE = "source "  # the position of a source: without it, readings would be counted twice


def state_folders(state: Path) -> list[Path]:
    """Return the state folders of a device: its own, and those of present and former participations."""
    return [
        file.parent for file in (state / FILE, *sorted(state.glob(f"*/*/{FILE}"))) if file.exists()
    ]


def is_wipe_due(state: Path, keys: Iterable[Path]) -> bool:
    """Return whether a wipe was ordered or begun, and has not ended. The agent must not run.

    Args:
        state: The device's own state folder.
        keys: Private key files, or the public key of one in a token, which a wipe deletes last.
    """
    has_key = any(key.exists() for key in keys)
    found = [(_fact(one, WIPE_ORDERED), _fact(one, WIPED)) for one in state_folders(state)]
    return any((ordered and not wiped) or (wiped and has_key) for ordered, wiped in found)


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


def fleet_of(store: DeviceStore) -> str:
    """Return the id of the fleet whose messages a state holds; empty if it was not recorded."""
    return (store.paper("fleet") or b"").decode()


def refuse_state(store: DeviceStore, fleet: str) -> None:
    """Refuse to run with a state that was wiped, or that belongs to another fleet.

    Args:
        fleet: Fleet of the device; empty for a device alone.

    Raises:
        ConfigError: With the command that helps.
    """
    refuse_wiped(store)
    before = fleet_of(store)
    if fleet and before not in ("", fleet):
        raise ConfigError(
            f"{store.path.parent} belongs to fleet {before!r}, the configuration to {fleet!r}",
            hint="to take readings and privacy ledger along: gridfed-edge migrate CONFIG",
        )


def refuse_wiped(store: DeviceStore) -> None:
    """Refuse a state that was wiped, or is to be.

    Raises:
        ConfigError: With the command that begins again.
    """
    if store.fact(WIPE_ORDERED) or store.fact(WIPED):
        raise ConfigError(
            f"{store.path.parent}: this device was wiped: its readings, models and key are erased",
            hint="to begin again under a new key: gridfed-edge enrol CONFIG",
        )


def end_wipe(state: Path) -> bool:
    """Let a wiped device begin again, under a new key; return whether it was wiped."""
    folders = [one for one in state_folders(state) if _fact(one, WIPED)]
    for folder in folders:
        with DeviceStore.open(folder) as store:
            store.set_facts(**{WIPED: 0, WIPE_ORDERED: 0})
    return bool(folders)


def wipe_state(folder: Path, now: int) -> None:
    """Erase readings, models, unsent updates and announcements from a state folder.

    Repeatable: a process that is killed here leaves the state as it was, or wiped. SQLite overwrites
    what it deletes; a flash memory may keep old copies of a block all the same.

    Args:
        folder: A device's ``state`` folder.
        now: Unix seconds. No reading before this time is perturbed and used again.

    Raises:
        EdgeError: The state is in use or cannot be opened.

    >>> import tempfile
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
    """Erase the fleet's announcements and models, and updates for it; keep readings and their noise.

    Raises:
        EdgeError: The state is in use or cannot be opened.
    """
    facts = (*_PRIVACY, *_USED_TODAY)
    _erase(folder, ("learned", "outbox"), facts, _RECORDS, prefix=_SOURCE)
    shutil.rmtree(folder / INSTALLED, ignore_errors=True)


def _fact(folder: Path, name: str) -> int:
    with DeviceStore.open(folder) as store:
        return store.fact(name)


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
            _delete_but(db, "facts", facts)
            _delete_but(db, "papers", records, prefix)
            write_facts(db, later)
        db.execute("VACUUM")
        with closing(db.execute("PRAGMA wal_checkpoint(TRUNCATE)")) as log:
            log.fetchall()


def _delete_but(
    db: sqlite3.Connection, table: str, names: tuple[str, ...], prefix: str | None = None
) -> None:
    marks = ", ".join("?" * len(names))
    db.execute(
        f"DELETE FROM {table} WHERE name NOT IN ({marks})"  # noqa: S608 - literals of this module
        " AND (? IS NULL OR substr(name, 1, length(?)) <> ?)",
        (*names, prefix, prefix, prefix),
    )
