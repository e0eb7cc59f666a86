"""Which file is ours, of which schema, and what it promises."""

import sqlite3

import pytest

from aggregator.store.errors import DatabaseNewerError
from aggregator.store.opener import open_store


def test_a_newer_schema_is_refused_and_untouched(path):
    open_store(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(DatabaseNewerError) as caught:
        open_store(path)
    assert caught.value.exit_code == 3
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 1")
    open_store(path).close()  # the lock was given back


def test_what_the_file_promises(store):
    pragmas = ("application_id", "journal_mode", "synchronous")
    found = [store._db.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas]
    assert found == [0x47464147, "wal", 2]
    assert store.integrity() == []
