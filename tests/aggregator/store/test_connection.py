"""Who may open the file, what is refused, what a copy knows, and how damage is told."""

import os
import sqlite3
from contextlib import ExitStack

import pytest

from aggregator.store.errors import DatabaseBusyError, DatabaseError
from aggregator.store.opener import open_store
from aggregator.store.store import SERIAL_LEAP
from aggregator.store.types import EnrolledDevice
from tests.aggregator.store.rig import settle


class TestOpening:
    def test_one_process_at_a_time(self, store, path):
        with pytest.raises(DatabaseBusyError) as caught:
            open_store(path)
        assert caught.value.exit_code == 75

    def test_a_file_that_a_command_has_open_is_waited_for(self, tmp_path, monkeypatch):
        file, command = tmp_path / "fleet.db", ExitStack()
        command.enter_context(open_store(file))
        monkeypatch.setattr("time.sleep", lambda _seconds: command.close())
        with open_store(file, patience=60.0) as store:
            assert store.devices.all() == []

    def test_a_reader_beside_the_daemon_sees_and_cannot_write(self, store, path):
        store.devices.save(EnrolledDevice("m-1", (bytes(32),)))
        with open_store(path, read_only=True) as reader:
            assert [c.id for c in reader.devices.all()] == ["m-1"]
            with pytest.raises(DatabaseError, match=r"read-?only"):
                reader.devices.save(EnrolledDevice("m-2", (bytes(32),)))

    def test_another_programs_database_and_no_database(self, tmp_path):
        other = tmp_path / "other.db"
        with sqlite3.connect(other) as db:
            db.execute("CREATE TABLE theirs (x)")
        with pytest.raises(DatabaseError, match="not an aggregator's"):
            open_store(other)
        (tmp_path / "text.db").write_text("hello " * 1000)
        with pytest.raises(DatabaseError, match="cannot open"):
            open_store(tmp_path / "text.db")
        with pytest.raises(DatabaseError, match="cannot open"):
            open_store(tmp_path / "none.db", read_only=True)


class TestBackup:
    def test_a_copy_knows_that_it_is_one(self, store, tmp_path):
        settle(store)
        before = store.announcements.next_serial()
        store.backup(tmp_path / "copy.db")
        assert not store.was_restored
        with open_store(tmp_path / "copy.db") as copy:
            assert copy.ledgers.row("m-1", (1, 1)) is not None
            assert copy.was_restored
            copy.adopt()
            assert not copy.was_restored
            assert copy.announcements.next_serial() >= before + SERIAL_LEAP

    def test_a_damaged_file_is_told(self, sqlite_store, file):
        for number in range(200):
            settle(sqlite_store, key=(1, number + 1), round_number=number)
        sqlite_store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        sqlite_store.close()
        raw = bytearray(file.read_bytes())
        raw[8192:12288] = os.urandom(4096)
        file.write_bytes(raw)
        with open_store(file) as damaged:
            assert damaged.integrity()
