"""Which file is ours, of which schema, and what it promises."""

import sqlite3
from dataclasses import replace

import pytest

from aggregator.store.errors import DatabaseNewerError
from aggregator.store.opener import open_store
from aggregator.store.types import (
    Contact,
    DeclinedRun,
    DownloadBody,
    EnrolledDevice,
    PendingTask,
)


def test_a_newer_schema_is_refused_and_untouched(file):
    open_store(file).close()
    with sqlite3.connect(file) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(DatabaseNewerError) as caught:
        open_store(file)
    assert caught.value.exit_code == 3
    with sqlite3.connect(file) as db:
        db.execute("PRAGMA user_version = 1")
    open_store(file).close()  # the lock was given back


def test_what_the_file_promises(sqlite_store):
    pragmas = ("application_id", "journal_mode", "synchronous")
    found = [sqlite_store._db.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas]
    assert found == [0x47464147, "wal", 2]
    assert sqlite_store.integrity() == []


@pytest.mark.extension
def test_a_file_of_schema_4_is_read_beside_its_daemon_and_upgraded_without_loss(file):
    task = PendingTask("meter-1", 1, 7, 0, 0, 6, "step", {}, b"\0")
    with open_store(file) as store:
        store.devices.save(EnrolledDevice("meter-1", (bytes(32),), labels=(("kind", "meter"),)))
        store.commit(1, {}, 0, asked=[task, replace(task, run=2)])
    with sqlite3.connect(file) as db:
        db.executescript(
            "DROP TABLE contacts; DROP TABLE declined; DROP TABLE rollout_changes;"
            "DROP TABLE trials; DROP TABLE trial_states; PRAGMA user_version = 4;"
        )
    with open_store(file, read_only=True) as store:
        assert store.contacts.all() == {}
        assert store.declined.all() == []
    contact, run = Contact("0.1.1", 1_800_000_000_000), DeclinedRun("meter-1", "a", "TOO", b"r")
    with open_store(file) as store:
        assert [store.tasks.of_run(number)[0].run for number in (1, 2)] == [1, 2]
        assert store.devices.all()[0].labels == (("kind", "meter"),)
        store.contacts.save({"meter-1": contact})
        store.declined.add(run)
    with open_store(file) as store:
        assert store.contacts.all() == {"meter-1": contact}
        assert store.declined.all() == [run]
        store.declined.forget("meter-1")
        assert store.declined.all() == []


TASKS_OF_SCHEMA_3 = """
DROP TABLE contacts; DROP TABLE declined; DROP TABLE labels; DROP TABLE run_names;
DROP TABLE content_names; DROP TABLE tasks;
CREATE TABLE tasks (device TEXT PRIMARY KEY, run INTEGER NOT NULL,
    round INTEGER NOT NULL, attempt INTEGER NOT NULL, step INTEGER NOT NULL,
    base INTEGER NOT NULL, ask TEXT NOT NULL,
    vals TEXT NOT NULL, content BLOB NOT NULL, state TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX tasks_content ON tasks (content) WHERE state = 'open';
INSERT INTO tasks VALUES ('meter-1', 1, 7, 0, 0, 6, 'step', '{}', x'00', 'open');
INSERT INTO contents VALUES (x'00', 'task', 0, 9, x'00'), (x'01', 'model', 1, 9, x'01');
PRAGMA user_version = 3;
"""


def test_a_file_of_schema_3_keeps_its_tasks_and_contents(file):
    with open_store(file) as store:
        store.devices.save(EnrolledDevice("meter-1", (bytes(32),)))
    with sqlite3.connect(file) as db:
        db.executescript(TASKS_OF_SCHEMA_3)
    with open_store(file, read_only=True) as store:  # beside a daemon of before
        assert store.devices.all()[0].labels == ()
        assert store.runs.latest() is store.runs.latest("meters") is None
    task = PendingTask("meter-1", 1, 7, 0, 0, 6, "step", {}, b"\0")
    with open_store(file) as store:
        assert store.tasks.of_run(1) == [task]
        assert store.contents.get(b"\1").body == b"\1"
        store.commit(1, {}, 0, asked=[replace(task, run=2)])
        assert [one.run for run in (1, 2) for one in store.tasks.of_run(run)] == [1, 2]
        for number in (2, 3):
            store.announce({}, [DownloadBody("model", bytes([number]), b"x", 9)])
        assert store.contents.get(b"\1") is None
        assert store.contents.get(b"\0") is not None


def test_each_run_keeps_its_newest_contents(store):
    for name in ("slow", "fast", "fast", "fast", "slow", "fast"):
        number = len(store._db.execute("SELECT id FROM content_names").fetchall())
        body = DownloadBody("model", f"{name} {number}".encode(), b"x", 9, name)
        store.announce({}, [body])
    shared = DownloadBody("bundle", b"shared", b"x", 9, "slow")
    for name in ("slow", "fast"):
        store.announce({}, [replace(shared, name=name)])
    for number in range(3):
        store.announce({}, [DownloadBody("bundle", b"%d" % number, b"x", 9, "fast")])
    kept = {bytes(name) for (name,) in store._db.execute("SELECT id FROM contents")}
    assert {b"shared", b"1", b"2"} <= kept
    assert b"0" not in kept
    assert sum(name.startswith(b"slow") for name in kept) == 2
    assert sum(name.startswith(b"fast") for name in kept) == 2
