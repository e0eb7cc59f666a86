"""One opener for both ends: private files, one holder, our own format, and commits that last."""

import sqlite3
import stat
from contextlib import closing

import pytest

from edge_sdk.app import sqlite_file
from edge_sdk.app.sqlite_file import FileFormat, ForeignFileError, NewerFileError

FORM = FileFormat(0x47, 2, "CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER);")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a folder? #1" / "some.db"


@pytest.fixture
def db(path):
    path.parent.mkdir()
    with closing(sqlite_file.connect(path)) as one:
        assert sqlite_file.prepare(one, FORM) == 2
        yield one


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_and_its_log_are_private_and_durable(db, path):
    db.execute("INSERT INTO facts VALUES ('a', 1)")
    assert {mode(file) for file in path.parent.iterdir()} == {0o600}
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert db.execute("PRAGMA busy_timeout").fetchone() == (5000,)
    assert sqlite_file.size(path) >= path.stat().st_size > 0


def test_an_open_file_and_its_log_get_private_permissions(db, path):
    db.close()
    beside = path.with_name("some.db.schema-1")
    beside.touch()
    for file in (path, beside):
        file.chmod(0o644)
    sqlite_file.connect(path).close()
    assert (mode(path), mode(beside)) == (0o600, 0o600)


def test_a_reader_creates_nothing_and_cannot_write(db, path):
    with closing(sqlite_file.connect(path, read_only=True)) as reader:
        assert sqlite_file.prepare(reader, FORM, read_only=True) == 2
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader.execute("INSERT INTO facts VALUES ('a', 1)")
    with pytest.raises(sqlite3.OperationalError):
        sqlite_file.connect(path.with_name("none.db"), read_only=True)


@pytest.mark.parametrize(
    ("pragma", "error"),
    [("application_id = 9", ForeignFileError), ("user_version = 3", NewerFileError)],
)
def test_a_foreign_and_a_newer_file_are_refused_unchanged(db, path, pragma, error):
    db.execute(f"PRAGMA {pragma}")
    db.execute("PRAGMA journal_mode = DELETE")
    with pytest.raises(error):
        sqlite_file.prepare(db, FORM)
    assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_a_failed_transaction_changes_nothing(db):
    with pytest.raises(ZeroDivisionError), sqlite_file.transaction(db):  # noqa: PT012
        db.execute("INSERT INTO facts VALUES ('a', 1)")
        raise ZeroDivisionError
    assert db.execute("SELECT count(*) FROM facts").fetchone() == (0,)
    with sqlite_file.transaction(db):
        db.execute("INSERT INTO facts VALUES ('a', 1)")
    assert db.execute("SELECT count(*) FROM facts").fetchone() == (1,)


def test_a_lock_has_one_holder_at_a_time(tmp_path):
    lock = tmp_path / "lock"
    with sqlite_file.locked(lock):
        with pytest.raises(BlockingIOError), sqlite_file.locked(lock):
            pass
        assert mode(lock) == 0o600
    with sqlite_file.locked(lock):
        pass
