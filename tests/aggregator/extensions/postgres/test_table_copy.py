"""Migration to PostgreSQL: every row, in parts, compared; and backups back into a file."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest

from aggregator.extensions.postgres import table_copy
from aggregator.extensions.postgres.engine import migrate
from aggregator.store.errors import DatabaseBusyError, DatabaseError
from aggregator.store.opener import exists, open_store, refill
from aggregator.store.types import Contact, DownloadBody, EnrolledDevice, Retention, Version
from tests.aggregator.store.rig import begin, settle


def fill(file, rounds=300):
    with open_store(file) as store:
        begin(store)
        store.devices.save(EnrolledDevice("mètre-1", (bytes(32),), labels=(("kind", "é"),)))
        for number in range(1, rounds + 1):
            _, entry = settle(store, key=(1, number), round_number=number)
            closed = Version(1, number, number, True, bytes(32), {"cohort": ["m-1"]}, 99)
            leaves = {"w": np.full(2, number / 3), "round": number}
            keep = Retention(rounds=rounds - 20)
            store.commit(1, leaves, entry.position, closed=closed, keep=keep)
        store.announce({"t": b"\0\xff"}, [DownloadBody("model", b"id", b"\0body", 9, "")])
        store.contacts.save({"mètre-1": Contact("1.0", 5)})
        store.commands.issue("mètre-1", "stop")
        store.announcements.next_serial()


def digests(db):
    return {table.name: table_copy.digest(db, table) for table in table_copy.tables()}


def of_file(file):
    with closing(sqlite3.connect(file)) as db:
        return digests(db)


def of_place(place):
    with open_store(place, read_only=True) as store:
        return digests(store._db)


def test_every_table_arrives_and_the_journal_continues_after_its_end(file, place):
    fill(file)
    lines = []
    assert not exists(place)
    migrate(file, place, lines.append)
    assert exists(place)
    assert of_place(place) == of_file(file)
    assert len(lines) == len(table_copy.tables())
    with open_store(file) as before, open_store(place) as after:
        assert after.states.load(1).leaves.keys() == before.states.load(1).leaves.keys()
        assert (
            after.states.load(1).leaves["w"].tobytes()
            == before.states.load(1).leaves["w"].tobytes()
        )
        entries = [settle(one, key=(1, 999), round_number=999)[1] for one in (before, after)]
        assert entries[0].position == entries[1].position
        assert after.announcements.next_serial() > before.announcements.next_serial() - 1


class InterruptedCopyError(Exception):
    """Stands for a process that ended."""


def test_a_migration_that_was_interrupted_continues_and_the_database_waits_for_it(file, place):
    fill(file)
    lines = []

    def stop(line):
        lines.append(line)
        if line.startswith("journal"):
            raise InterruptedCopyError

    with pytest.raises(InterruptedCopyError):
        migrate(file, place, stop)
    with pytest.raises(DatabaseError, match="interrupted"):
        open_store(place)
    with open_store(file) as store:  # the daemon went on in between: what differs is copied again
        store.devices.save(EnrolledDevice("mètre-1", (bytes(32), bytes(32))))
        settle(store, key=(1, 900), round_number=900)
    migrate(file, place, lines.append)
    assert of_place(place) == of_file(file)


def test_a_database_in_use_or_with_a_fleet_is_not_overwritten(file, place):
    fill(file, rounds=30)
    with open_store(file), pytest.raises(DatabaseBusyError):
        migrate(file, place, print)
    with open_store(place) as store:
        with pytest.raises(DatabaseBusyError):
            migrate(file, place, print)
        begin(store)
    with pytest.raises(DatabaseError, match="has a fleet already"):
        migrate(file, place, print)


def test_a_backup_is_a_file_that_restores_into_either_engine(file, place, tmp_path):
    fill(file, rounds=30)
    migrate(file, place, lambda _: None)
    with open_store(place, read_only=True) as store:
        store.backup(tmp_path / "copy.db")
    found, expected = of_file(tmp_path / "copy.db"), of_file(file)
    assert {name for name in found if found[name] != expected[name]} == {"facts"}  # the mark
    with open_store(tmp_path / "copy.db", read_only=True) as copy:
        assert copy.was_restored
    with open_store(place) as store:
        settle(store, key=(1, 950), round_number=950)
    refill(place, tmp_path / "copy.db", tmp_path / "aside.db")
    assert of_place(place) == of_file(tmp_path / "copy.db")
    with open_store(tmp_path / "aside.db", read_only=True) as aside:
        assert aside.ledgers.row("m-1", (1, 950)) is not None
    with open_store(place) as store:
        assert store.was_restored
        _, entry = settle(store, key=(1, 960), round_number=960)
        with open_store(file) as before:
            assert entry.position == settle(before, key=(1, 960), round_number=960)[1].position
