"""The file that a device's store is: held by one process, ours, and of the newest schema."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterable
from dataclasses import astuple
from pathlib import Path

from edge_sdk.charge import Charge
from edge_sdk.errors import StoreBusy, StoreError, StoreNewer
from edge_sdk.permissions import PermissionsError, make_private_file, make_private_folder, tighten

FILE = "device.db"
APPLICATION = 0x47464544  # "GFED"
SCHEMA = 2

_TABLES = """
CREATE TABLE numbers (one INTEGER PRIMARY KEY CHECK (one = 1),
    life INTEGER NOT NULL, seq INTEGER NOT NULL, spent INTEGER NOT NULL, lost INTEGER NOT NULL);
CREATE TABLE outbox (life INTEGER NOT NULL, seq INTEGER NOT NULL, kind TEXT NOT NULL,
    body BLOB NOT NULL, proof BLOB NOT NULL, run INTEGER NOT NULL, round INTEGER NOT NULL,
    base INTEGER NOT NULL, spec BLOB NOT NULL, spent INTEGER NOT NULL, attempts INTEGER NOT NULL,
    PRIMARY KEY (life, seq));
CREATE TABLE learned (one INTEGER PRIMARY KEY CHECK (one = 1),
    run INTEGER NOT NULL, round INTEGER NOT NULL, version INTEGER NOT NULL, spec BLOB NOT NULL,
    leaves BLOB NOT NULL);
CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE papers (name TEXT PRIMARY KEY, bytes BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE readings (stream TEXT NOT NULL, slot INTEGER NOT NULL, value REAL NOT NULL,
    flags INTEGER NOT NULL, PRIMARY KEY (stream, slot)) WITHOUT ROWID;
"""

_PRIVACY = """
CREATE TABLE ledger (line INTEGER PRIMARY KEY AUTOINCREMENT, time INTEGER NOT NULL,
    unit TEXT NOT NULL, point TEXT NOT NULL, mechanism TEXT NOT NULL, multiplier REAL NOT NULL,
    rate REAL NOT NULL, count INTEGER NOT NULL, releases INTEGER NOT NULL);
CREATE TRIGGER ledger_is_not_rewritten BEFORE UPDATE ON ledger
    BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END;
CREATE TRIGGER ledger_is_not_shortened BEFORE DELETE ON ledger
    BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END;
CREATE TABLE noised (stream TEXT NOT NULL, slot INTEGER NOT NULL, value REAL NOT NULL,
    PRIMARY KEY (stream, slot)) WITHOUT ROWID;
"""
"""Since schema 2: what was charged, and readings as they were perturbed once and for all."""

CHARGE = "time, unit, point, mechanism, multiplier, rate, count, releases"
"""The columns of the ledger, as ``Charge`` has them."""


def opened(folder: Path, *, read_only: bool) -> tuple[sqlite3.Connection, Path, int | None]:
    """Open the file in a folder, and make both if they are missing.

    Returns:
        The connection, the file's path, and the lock that guards it; None where it is only read.

    Raises:
        StoreBusy: Another process runs on this folder.
        StoreNewer: A newer version of this software wrote the file.
        StoreError: It cannot be opened, or is not ours.
        PermissionsError: Other users may read it, and that cannot be changed.
    """
    path = folder / FILE
    lock = None
    if read_only and not path.exists():
        raise StoreError(
            f"{folder}: no state of a device yet", hint="start it: gridfed-edge run CONFIG"
        )
    try:
        if read_only:
            db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
        else:
            make_private_folder(folder)
            lock = _hold(folder)
            _keep_private(path)
            db = sqlite3.connect(path, isolation_level=None)
        _prepare(db, path, read_only=read_only)
    except sqlite3.Error as error:
        let_go(lock)
        raise StoreError(
            f"{path}: {error}", hint="is there a state of this device, and may we read it?"
        ) from error
    except OSError as error:
        let_go(lock)
        raise StoreError(f"{folder}: {error.strerror or error}") from error
    except (StoreError, PermissionsError):
        let_go(lock)
        raise
    return db, path, lock


def write_charges(db: sqlite3.Connection, charges: Iterable[Charge]) -> None:
    """Add lines to the ledger."""
    rows = [astuple(charge) for charge in charges]
    places = ", ".join("?" * len(CHARGE.split(",")))
    db.executemany(f"INSERT INTO ledger ({CHARGE}) VALUES ({places})", rows)  # noqa: S608 - constants


def before_the_ledger(spent: int) -> list[Charge]:
    """Return the line for what left before there was a ledger: nothing bounds what it told."""
    if not spent:
        return []
    return [Charge(0, "device", "none", "none", 0.0, count=spent, releases=spent)]


def _hold(folder: Path) -> int:
    """Take the folder's lock; it goes with the process, however that ends."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise StoreBusy(
            f"{folder} is in use by another process",
            hint="two processes must not share one device's state; stop the other one",
        ) from error
    return lock


def _keep_private(path: Path) -> None:
    """Make the file for its owner only; SQLite gives its log and its index the same mode."""
    make_private_file(path)
    for beside in (*path.parent.glob(f"{FILE}?*"), path.parent / "lock"):
        tighten(beside)


def let_go(lock: int | None) -> None:
    """Let others have the folder."""
    if lock is not None:
        os.close(lock)


def _prepare(db: sqlite3.Connection, path: Path, *, read_only: bool) -> None:
    """Check that the file is ours and of a known schema; make the tables in a new one."""
    db.execute("PRAGMA busy_timeout = 5000")
    application = db.execute("PRAGMA application_id").fetchone()[0]
    schema = db.execute("PRAGMA user_version").fetchone()[0]
    is_new = application == 0 and schema == 0 and not read_only
    if is_new and db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.executescript(
            f"BEGIN IMMEDIATE; {_TABLES} {_PRIVACY} PRAGMA application_id = {APPLICATION};"
            f" PRAGMA user_version = {SCHEMA}; COMMIT;"
        )
        return
    if application != APPLICATION:
        raise StoreError(f"{path} is not a device's state", hint="check 'state' in the config")
    if schema > SCHEMA:
        raise StoreNewer(
            f"{path} was written by a newer version (schema {schema}, this one knows {SCHEMA})",
            hint="install that version again, or restore a backup from before the upgrade",
        )
    db.execute("PRAGMA synchronous = FULL")
    if schema < SCHEMA and not read_only:
        _migrate(db, path, schema)


def _migrate(db: sqlite3.Connection, path: Path, schema: int) -> None:
    """Bring an older file to this schema in one transaction; a copy of it is kept beside."""
    copy = path.with_name(f"{FILE}.schema-{schema}")
    copy.unlink(missing_ok=True)
    make_private_file(copy)
    db.execute("VACUUM INTO ?", (str(copy),))
    db.executescript(f"BEGIN IMMEDIATE; {_PRIVACY}")
    spent = db.execute("SELECT spent FROM numbers").fetchone()
    write_charges(db, before_the_ledger(spent[0] if spent else 0))
    db.execute(f"PRAGMA user_version = {SCHEMA}")
    db.execute("COMMIT")
