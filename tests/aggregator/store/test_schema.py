"""Which file is ours, of which schema, and what it promises."""

import sqlite3

import pytest

from aggregator.store import DatabaseNewerError, SqliteStore


def test_a_newer_schema_is_refused_and_untouched(path):
    SqliteStore.open(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(DatabaseNewerError) as caught:
        SqliteStore.open(path)
    assert caught.value.exit_code == 3
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 1")
    SqliteStore.open(path).close()  # the lock was given back


def test_what_the_file_promises(store):
    pragmas = ("application_id", "journal_mode", "synchronous")
    found = [store._db.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas]
    assert found == [0x47464147, "wal", 2]
    assert store.integrity() == []
