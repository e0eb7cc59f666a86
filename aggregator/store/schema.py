"""Create and upgrade the tables, and store the file's own facts."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from aggregator.store.dialect import Database, upsert
from aggregator.store.errors import DatabaseError, DatabaseNewerError
from edge_sdk.app import sqlite_file
from edge_sdk.app.extensions import ExtensionIndex

APPLICATION = 0x47464147  # "GFAG"
SCHEMA = 10
RESTORED = "restored"  # fact that marks a backup copy until it is adopted
_TASKS = """
CREATE TABLE IF NOT EXISTS tasks (device TEXT NOT NULL, run INTEGER NOT NULL,
    round INTEGER NOT NULL, attempt INTEGER NOT NULL, step INTEGER NOT NULL,
    base INTEGER NOT NULL, ask TEXT NOT NULL,
    vals TEXT NOT NULL, content BLOB NOT NULL, state TEXT NOT NULL,
    PRIMARY KEY (device, run)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS tasks_content ON tasks (content) WHERE state = 'open';
"""

# since schema 3: each device's highest number with a deleted update, and their count
_PRUNED = """
CREATE TABLE IF NOT EXISTS pruned (device TEXT PRIMARY KEY, life INTEGER NOT NULL,
    seq INTEGER NOT NULL, updates INTEGER NOT NULL) WITHOUT ROWID;
"""

# since schema 4: labels of devices, names of runs, and the runs that a downloadable body is of
_RUNS = """
CREATE TABLE IF NOT EXISTS labels (device TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (device, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS run_names (run INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS content_names (id BLOB NOT NULL, name TEXT NOT NULL,
    PRIMARY KEY (id, name)) WITHOUT ROWID;
"""

# since schema 5: version and last message of devices, and the runs that they have declined
_CONTACTS = """
CREATE TABLE IF NOT EXISTS contacts (device TEXT PRIMARY KEY, sdk TEXT NOT NULL,
    seen INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS declined (device TEXT NOT NULL, name TEXT NOT NULL, reason TEXT NOT NULL,
    ref BLOB NOT NULL, PRIMARY KEY (device, name)) WITHOUT ROWID;
"""

# since schema 8: the audit log of who did what, when and why
_AUDIT_LOG = """
CREATE TABLE IF NOT EXISTS audit_records (number INTEGER PRIMARY KEY, time INTEGER NOT NULL,
    via TEXT NOT NULL, actor TEXT NOT NULL, act TEXT NOT NULL, subject TEXT NOT NULL,
    reason TEXT NOT NULL, detail TEXT NOT NULL, order_id TEXT NOT NULL, previous BLOB NOT NULL,
    signer BLOB NOT NULL, signature BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS audit_records_order ON audit_records (order_id) WHERE order_id <> '';
"""

# since schema 10: the root's signatures of the commands that need them
_COMMAND_ROOTS = """
CREATE TABLE IF NOT EXISTS command_roots (device TEXT NOT NULL, num INTEGER NOT NULL,
    root BLOB NOT NULL, PRIMARY KEY (device, num)) WITHOUT ROWID;
"""

_TASKS_BEFORE = """
ALTER TABLE tasks RENAME TO tasks_of_devices;
DROP INDEX IF EXISTS tasks_content;
"""
# schemas 2 and 3 kept one task of a device, schema 4 keeps one of each of its runs
_TASKS_AFTER = """
INSERT INTO tasks SELECT * FROM tasks_of_devices;
DROP TABLE tasks_of_devices;
"""

_CONTENT_NAMES = "INSERT INTO content_names SELECT id, '' FROM contents WHERE kind <> 'task';"

TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE clients (id TEXT PRIMARY KEY, sign TEXT NOT NULL, generation INTEGER NOT NULL,
    state TEXT NOT NULL, why TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE ledgers (device TEXT PRIMARY KEY, cur INTEGER NOT NULL, hid BLOB NOT NULL,
    hid_life INTEGER NOT NULL, hid_open TEXT NOT NULL, open TEXT NOT NULL, spent INTEGER NOT NULL,
    cmd INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE rows (device TEXT NOT NULL, life INTEGER NOT NULL, seq INTEGER NOT NULL,
    digest BLOB NOT NULL, code INTEGER NOT NULL, run INTEGER NOT NULL, round INTEGER NOT NULL,
    PRIMARY KEY (device, life, seq)) WITHOUT ROWID;
CREATE TABLE journal (position INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL,
    run INTEGER NOT NULL, round INTEGER NOT NULL, device TEXT, life INTEGER, seq INTEGER,
    turn INTEGER, facts BLOB NOT NULL, vector BLOB);
CREATE UNIQUE INDEX journal_number ON journal (device, life, seq) WHERE kind = 'update';
CREATE UNIQUE INDEX journal_turn ON journal (device, run, turn) WHERE kind = 'update';
CREATE TABLE runs (run INTEGER PRIMARY KEY, method TEXT NOT NULL, settings TEXT NOT NULL,
    bundle TEXT NOT NULL, spec BLOB NOT NULL, layout BLOB NOT NULL, upto INTEGER NOT NULL,
    anchor INTEGER NOT NULL, timers BLOB NOT NULL);
CREATE TABLE leaves (run INTEGER NOT NULL, path TEXT NOT NULL, position INTEGER NOT NULL,
    value BLOB, PRIMARY KEY (run, path, position)) WITHOUT ROWID;
CREATE TABLE versions (run INTEGER NOT NULL, round INTEGER NOT NULL, version INTEGER NOT NULL,
    moved INTEGER NOT NULL, position INTEGER NOT NULL, digest BLOB NOT NULL, report TEXT NOT NULL,
    time INTEGER NOT NULL, PRIMARY KEY (run, round)) WITHOUT ROWID;
CREATE TABLE announcements (topic TEXT PRIMARY KEY, payload BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE contents (id BLOB PRIMARY KEY, kind TEXT NOT NULL, rank INTEGER NOT NULL,
    chunk INTEGER NOT NULL, body BLOB NOT NULL);
CREATE TABLE commands (device TEXT NOT NULL, num INTEGER NOT NULL, op TEXT NOT NULL,
    args TEXT NOT NULL, until INTEGER, done INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (device, num)) WITHOUT ROWID;
"""

LATER_TABLES = f"{_TASKS}{_PRUNED}{_RUNS}{_CONTACTS}{_AUDIT_LOG}{_COMMAND_ROOTS}"
# tables of extensions, each created where it is missing
EXTENSION_TABLES = "".join(
    entry.row.get("tables", "") for entry in ExtensionIndex("aggregator").values()
)
_FORMAT = sqlite_file.FileFormat(APPLICATION, SCHEMA, f"{TABLES}{LATER_TABLES}{EXTENSION_TABLES}")


def prepare(db: sqlite3.Connection, path: Path, *, read_only: bool = False) -> None:
    """Create the tables of an empty file, or upgrade those of an older one.

    Args:
        db: Connection without implicit transactions.
        read_only: Read only; an older file is not upgraded.

    Raises:
        DatabaseNewerError: A newer version wrote it; it is unchanged.
        DatabaseError: It is no aggregator database; it is unchanged.
    """
    try:
        schema = sqlite_file.prepare(db, _FORMAT, read_only=read_only)
    except sqlite_file.ForeignFileError as error:
        raise DatabaseError(f"{path}: not an aggregator's database") from error
    except sqlite_file.NewerFileError as error:
        raise DatabaseNewerError(
            f"{path}: written by a newer version (schema {error.schema}, ours is {SCHEMA})",
            hint="run that version, or restore a backup from before it",
        ) from error
    if schema < SCHEMA and not read_only:  # schema 2 added tasks of single devices, 3 the pruned
        tasks = _TASKS if schema < 2 else f"{_TASKS_BEFORE}{_TASKS}{_TASKS_AFTER}"
        until_4 = f"{tasks}{_PRUNED}{_RUNS}{_CONTENT_NAMES}" if schema < 4 else ""
        db.executescript(
            f"BEGIN IMMEDIATE; {until_4}{_CONTACTS}{_AUDIT_LOG}{_COMMAND_ROOTS} "
            f"PRAGMA user_version = {SCHEMA}; COMMIT;"
        )
    if not read_only:
        db.executescript(EXTENSION_TABLES)


def fact(db: Database, name: str) -> int:
    """Return a named number of the file; 0 if it was never stored.

    >>> db = sqlite3.connect(":memory:", isolation_level=None)
    >>> prepare(db, Path("fleet.db"))
    >>> put_fact(db, "serial", 256)
    >>> fact(db, "serial"), fact(db, "restored")
    (256, 0)
    """
    found = db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    return int(found[0]) if found else 0


def put_fact(db: Database, name: str, value: int) -> None:
    db.execute(upsert("facts", "name", "value"), (name, value))
