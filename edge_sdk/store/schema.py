"""Open a device's store file, and create its tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from edge_sdk.app import sqlite_file
from edge_sdk.app.permissions import make_private_folder
from edge_sdk.errors import StoreBusy, StoreError, StoreFull, StoreNewer
from edge_sdk.store.rows import SCHEMA

FILE = "device.db"
INSTALLED = "bundle"
"""Folder inside a state folder that holds bundles installed from the fleet."""
APPLICATION = 0x47464544  # "GFED"
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
_FORMAT = sqlite_file.FileFormat(APPLICATION, SCHEMA, _TABLES)
SET_ASIDE = "unusable rows"
"""Name of the stored record that lists unusable values found on disk."""


def opened(
    folder: Path, *, read_only: bool, exclusive: bool = False
) -> tuple[sqlite3.Connection, Path, ExitStack]:
    """Open the file in a folder; create both if they are missing.

    Returns:
        The connection, the file's path, and what closes it and releases its lock.

    Raises:
        StoreBusy: Another process uses this folder.
        StoreNewer: A newer version of this software wrote the file.
        PermissionsError: Other users can read it, and that cannot be changed.
    """
    path = folder / FILE
    if read_only and not path.exists():
        raise StoreError(
            f"{folder}: no state of a device yet",
            hint="run the device first: gridfed-edge run CONFIG",
        )
    with _refusing(path), ExitStack() as held:
        if not read_only:
            make_private_folder(folder)
            if not exclusive:
                held.enter_context(sqlite_file.locked(folder / "lock"))
        db = held.enter_context(closing(sqlite_file.connect(path, read_only=read_only)))
        schema = sqlite_file.prepare(db, _FORMAT, read_only=read_only, exclusive=exclusive)
        if schema < SCHEMA:
            raise StoreError(
                f"{path} was written before the first release (schema {schema})",
                hint="move the state folder away to start with an empty one",
            )
        return db, path, held.pop_all()


def stored_bytes(folder: Path) -> int:
    """Return the size of the file in a folder and of its log; 0 without a file."""
    return sqlite_file.size(folder / FILE)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Translate the reasons for which a file cannot be opened."""
    try:
        yield
    except BlockingIOError as error:
        raise StoreBusy(
            f"{path.parent} is in use by another process",
            hint="two processes must not share one device's state; stop the other one",
        ) from error
    except sqlite_file.ForeignFileError as error:
        raise StoreError(
            f"{path} is not a device's state", hint="check 'state' in the config"
        ) from error
    except sqlite_file.NewerFileError as error:
        raise StoreNewer(
            f"{path} was written by a newer version "
            f"(schema {error.schema}, this one supports {SCHEMA})",
            hint="install that version again, or restore a backup from before the upgrade",
        ) from error
    except sqlite3.Error as error:
        raise store_error(path, error) from error
    except OSError as error:
        raise StoreError(f"{path.parent}: {error.strerror or error}") from error


def store_error(path: Path, error: sqlite3.Error) -> StoreError:
    """Return the error to raise for one of SQLite's, with the remedy."""
    code = sqlite_file.primary_code(error)
    if code == sqlite3.SQLITE_FULL:
        return StoreFull(
            f"{path}: no space left; the transaction was rolled back",
            hint="free some space; updates that wait for a receipt are kept",
        )
    if code not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        hint = "check that the path is this device's state and is readable"
        return StoreError(f"{path}: {error}", hint=hint)
    return StoreError(
        f"{path} is damaged, or no device's state: {error}",
        hint=f"stop the agent, move the file away (mv {path} {path}.damaged), delete {path.name}-wal and "
        f"{path.name}-shm, and start again: readings come from the sources again, the models are lost, "
        "and numbers and privacy charges come from the aggregator",
    )
