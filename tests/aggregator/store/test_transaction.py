"""Several writes joined in one transaction: all of it, or nothing."""

import sqlite3

import pytest

from aggregator.store.errors import DatabaseError, DatabaseFullError
from aggregator.store.opener import open_store
from aggregator.store.types import EnrolledDevice


def names(store):
    return [client.id for client in store.devices.all()]


def enrol(store, name):
    store.devices.save(EnrolledDevice(name, (bytes(32),)))


def joined(store, action):
    with store.transaction():
        action()


INSERT = "INSERT INTO clients VALUES ('meter-2', '[]', 1, '', '')"


def part(store, statement, error):
    """Write something and fail."""
    with store.transactions.writing() as db:
        db.execute(statement)
        raise error


def test_what_is_joined_is_there_together_or_not_at_all(store):
    with store.transaction():
        enrol(store, "meter-1")
        enrol(store, "meter-2")
    with pytest.raises(ZeroDivisionError):
        joined(store, lambda: (enrol(store, "meter-3"), 1 / 0))
    assert names(store) == ["meter-1", "meter-2"]
    enrol(store, "meter-4")
    assert names(store)[-1] == "meter-4"


def test_a_part_that_fails_alone_leaves_the_rest(store):
    with store.transaction():
        enrol(store, "meter-1")
        with pytest.raises(DatabaseError):
            part(store, INSERT, sqlite3.IntegrityError())
    assert names(store) == ["meter-1"]


def test_where_sqlite_gives_everything_up_nothing_is_saved(store):
    """A full disk may end the whole transaction; what came before in it must not count then."""
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL

    def several():
        enrol(store, "meter-1")
        with pytest.raises(DatabaseFullError):
            part(store, "ROLLBACK", full)  # as SQLite does by itself
        with pytest.raises(DatabaseFullError):
            enrol(store, "meter-2")

    with pytest.raises(DatabaseFullError):
        joined(store, several)
    assert names(store) == []


def test_serials_of_a_transaction_that_failed_are_reserved_again(store, path):
    with pytest.raises(ZeroDivisionError):
        joined(store, lambda: store.announcements.next_serial() / 0)
    said = [store.announcements.next_serial() for _ in range(3)]
    store.close()
    with open_store(path) as again:
        assert again.announcements.next_serial() > max(said)


def test_reading_begins_nothing(store):
    with store.transaction():
        assert names(store) == []
        assert not store._db.in_transaction


def test_a_closed_database_is_told_as_an_error_of_the_store(store):
    store._db.close()
    with pytest.raises(DatabaseError):
        joined(store, lambda: enrol(store, "meter-1"))


def test_a_part_of_a_group_that_fails_is_undone_alone(store):
    with store.transaction():
        with store.transaction():
            enrol(store, "meter-1")
        with pytest.raises(ZeroDivisionError):
            joined(store, lambda: (enrol(store, "meter-2"), 1 / 0))
        with store.transaction():
            enrol(store, "meter-3")
    assert names(store) == ["meter-1", "meter-3"]


def test_a_first_part_that_fails_leaves_a_group_that_has_not_begun(store):
    with store.transaction():
        with pytest.raises(ZeroDivisionError):
            joined(store, lambda: (enrol(store, "meter-1"), 1 / 0))
        assert not store._db.in_transaction
        with store.transaction():
            enrol(store, "meter-2")
    assert names(store) == ["meter-2"]


def test_no_part_of_a_group_is_saved_before_its_commit(store, path):
    with store.transaction():
        with store.transaction():
            enrol(store, "meter-1")
        with open_store(path, read_only=True) as beside:
            assert names(beside) == []
    with open_store(path, read_only=True) as beside:
        assert names(beside) == ["meter-1"]


def test_a_group_of_which_sqlite_gives_everything_up_is_not_saved(store):
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL

    def group():
        with store.transaction():
            enrol(store, "meter-1")
        with pytest.raises(DatabaseFullError):
            joined(store, lambda: part(store, "ROLLBACK", full))
        with pytest.raises(DatabaseFullError):
            joined(store, lambda: enrol(store, "meter-2"))

    with pytest.raises(DatabaseFullError):
        joined(store, group)
    assert names(store) == []
