"""One process writes to PostgreSQL; another takes over; a process that lost its place cannot commit."""

import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

psycopg = pytest.importorskip("psycopg")

from aggregator.extensions.postgres import postgres_lease  # noqa: E402 - after the skip
from aggregator.store.dialect import ENGINES  # noqa: E402 - after the skip
from aggregator.store.errors import DatabaseBusyError, DatabaseError, DatabaseLostError  # noqa: E402 - after the skip
from aggregator.store.opener import Engine, open_store, wait_for_store  # noqa: E402 - after the skip
from aggregator.store.types import EnrolledDevice  # noqa: E402 - after the skip
from edge_sdk.app.clock import SystemClock  # noqa: E402 - after the skip
from tests.aggregator.store.rig import begin, settle  # noqa: E402 - after the skip

ROOT = Path(__file__).resolve().parents[4]


def never():
    return False


def check_for_30_s(store):
    for _ in range(3000):
        store.check_lease()
        time.sleep(0.01)


def names(place):
    with open_store(place, read_only=True) as store:
        return [one.id for one in store.devices.all()]


def epoch(place):
    with psycopg.connect(place.url) as db:
        return db.execute("SELECT epoch FROM schema_version").fetchone()[0]


def test_each_opening_to_write_increases_the_epoch(place):
    for number in (1, 2, 3):
        open_store(place).close()
        assert epoch(place) == number
    open_store(place, read_only=True).close()
    assert epoch(place) == 3


def test_a_transaction_of_an_older_epoch_is_refused_and_leaves_nothing(place):
    with open_store(place) as store:
        begin(store)
        settle(store)
        with psycopg.connect(place.url) as db:
            db.execute("UPDATE schema_version SET epoch = epoch + 1")
        with pytest.raises(DatabaseLostError, match="another process has taken over"):
            settle(store, key=(1, 2), round_number=2)
        with pytest.raises(DatabaseLostError), store.transaction():
            store.devices.save(EnrolledDevice("m-9", (bytes(32),)))
    assert names(place) == []
    with open_store(place) as store:
        assert [one.event.round for one in store.journal.entries(1)] == [1]


def test_a_takeover_waits_for_a_transaction_that_has_begun(place):
    """The epoch is locked from the first statement: an open transaction either commits before or fails."""
    with open_store(place) as store:
        begin(store)
        with store.transaction():
            settle(store)
            with psycopg.connect(place.url) as db:
                db.execute("SET lock_timeout = '100ms'")
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    db.execute("UPDATE schema_version SET epoch = epoch + 1")
        assert store.journal.waiting(1, 1) == 1


def test_a_lost_lock_is_noticed_without_writing(place, monkeypatch):
    monkeypatch.setattr(postgres_lease, "BEAT", 0.02)
    with open_store(place) as store, psycopg.connect(place.url, autocommit=True) as db:
        store.check_lease()
        db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'gridfed lock'"
        )
        with pytest.raises(DatabaseLostError, match="the lock is lost"):
            check_for_30_s(store)
        with open_store(place) as successor:  # which also ends the session that writes
            with pytest.raises(DatabaseLostError):
                store.devices.save(EnrolledDevice("m-1", (bytes(32),)))
            successor.devices.save(EnrolledDevice("m-2", (bytes(32),)))
    assert names(place) == ["m-2"]


class TestWatch:
    def test_a_session_in_use_is_left_alone(self, place, monkeypatch):
        monkeypatch.setattr(postgres_lease, "BEAT", 0.01)
        with open_store(place) as store:
            now = iter(range(0, 10**6, 2))  # a clock that runs fast: 2 s at each look
            watch = postgres_lease.LockWatch(place, lambda: next(now))
            for _ in range(20):
                assert not watch.look()
                time.sleep(0.05)
            watch.close()
            store.check_lease()

    def test_a_silent_session_is_ended_by_the_standbys_own_clock(self, place, monkeypatch):
        monkeypatch.setattr(postgres_lease, "BEAT", 10**6)  # as a process that is paused
        with open_store(place):
            clock = [1000.0]
            watch = postgres_lease.LockWatch(place, lambda: clock[0])
            assert not watch.look()
            clock[0] += postgres_lease.SILENT - 0.1
            assert not watch.look()
            with pytest.raises(DatabaseBusyError):
                open_store(place)
            clock[0] += 0.2
            watch.look()
            for _ in range(3000):
                if watch.look():
                    break
                time.sleep(0.01)
            watch.close()
            open_store(place).close()

    def test_a_server_that_is_away_is_looked_at_again(self, place):
        watch = postgres_lease.LockWatch(type(place)("postgresql:///x?host=/nonexistent"))
        assert not watch.look()
        assert not watch.look()


def test_a_process_that_is_ending_is_waited_for(place, monkeypatch):
    monkeypatch.setattr(postgres_lease, "ENDING", 60_000)
    ending = open_store(place)
    timer = threading.Timer(0.3, ending.close)
    timer.start()
    open_store(place).close()
    timer.join()


def test_a_standby_that_is_stopped_gives_up(place):
    with open_store(place):
        noted, answers = [], iter([False, False, True])
        found = wait_for_store(place, lambda: next(answers), noted.append)
    assert (found, len(noted)) == (None, 1)
    assert "another process holds this database" in noted[0]


def test_a_wrong_url_is_refused_at_once_and_waited_for_later(place):
    gone = type(place)("postgresql://gridfed@/x?host=/nonexistent")
    with pytest.raises(DatabaseError, match="cannot open the database"):
        wait_for_store(gone, never, lambda _why: None)
    answers = iter([False, True])
    assert wait_for_store(gone, lambda: next(answers), lambda _why: None, is_patient=True) is None


def test_a_failed_transaction_is_not_reported_as_committed(place):
    """PostgreSQL answers COMMIT of a failed transaction with a rollback and no error."""

    def write():
        with store.transaction():
            store.devices.save(EnrolledDevice("m-1", (bytes(32),)))
            with suppress(sqlite3.Error):
                store._db.execute("SELECT 1 / 0")

    with open_store(place) as store:
        with pytest.raises(DatabaseError, match="the transaction has failed"):
            write()
        assert store.devices.all() == []


def test_commits_are_synchronous_even_where_the_server_is_not(place):
    with psycopg.connect(place.url, autocommit=True) as db:
        db.execute("ALTER ROLE gridfed SET synchronous_commit = off")
        try:
            with open_store(place) as store:
                assert store._db.execute("SHOW synchronous_commit").fetchone()[0] == "on"
        finally:
            db.execute("ALTER ROLE gridfed RESET synchronous_commit")


WRITER = """
import sys
from aggregator.store.errors import is_lost
from aggregator.store.dialect import DatabaseUrl
from aggregator.store.opener import open_store
from tests.aggregator.store.rig import begin, settle
with open_store(DatabaseUrl(sys.argv[1])) as store:
    begin(store)
    number = 0
    try:
        while True:
            number += 1
            settle(store, key=(1, number), round_number=number)
            print("receipt", number, flush=True)
    except Exception as error:
        print("lost" if is_lost(error) else repr(error), flush=True)
"""


def test_a_paused_process_is_replaced_and_cannot_commit_when_it_wakes_up(place):
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, place.url], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        said = [writer.stdout.readline() for _ in range(5)]
        writer.send_signal(signal.SIGSTOP)
        store = wait_for_store(place, never, lambda _why: None)
        with store:
            recorded = [one.event.round for one in store.journal.entries(1)]
            writer.send_signal(signal.SIGCONT)
            said += writer.stdout.readlines()
            assert said[-1] == "lost\n"
            receipted = [int(line.split()[1]) for line in said[:-1]]
            # what was receipted is recorded; the one commit whose answer was not read may be, too
            assert receipted == recorded[: len(receipted)]
            assert len(recorded) - len(receipted) <= 1
            assert [one.event.round for one in store.journal.entries(1)] == recorded
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()


def test_postgres_is_an_engine_for_the_opener():
    names = {name for name in vars(Engine) if not name.startswith("_")}
    assert len(names) == 5
    assert names <= {*vars(ENGINES["postgresql"])}


def test_the_clock_is_the_servers_whatever_this_machines_shows(place, monkeypatch):
    monkeypatch.setattr(postgres_lease, "BEAT", 0.01)
    monkeypatch.setattr(SystemClock, "wall", lambda _self: 0)
    with open_store(place) as store, psycopg.connect(place.url) as db:
        clock = store.clock()
        (before,) = db.execute("SELECT extract(epoch FROM now()) * 1000").fetchone()
        assert abs(clock.wall() - int(before)) < 60_000
        clock.set(0)  # the next beat of the lock reads it again
        for _ in range(3000):
            if clock.wall() >= int(before):
                return
            time.sleep(0.01)
    pytest.fail("the server's clock was not read again")
