"""What is on disk after every call, after kill -9, in a backup, and when the disk is full."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from aggregator.ledger import Ledger, Row
from aggregator.records import Client, Content, Run, Timer, Version
from aggregator.store import (
    SERIAL_LEAP,
    SqliteStore,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreNewerError,
)
from edge_sdk.wire.errors import Reason
from edge_sdk.wire.method import Due, Member, Update

RUN = Run(1, "fedavg", "{}", "toy", bytes(16), bytes(16))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "fleet.db"


@pytest.fixture
def store(path):
    with SqliteStore.open(path) as store:
        yield store


def update(sender="m-1", round_number=1, vector=(1.0, 2.0)):
    values = {"n": 3.0, "loss": 0.125}
    return Update(sender, round_number, 0, np.array(vector, np.float32), values)


def settle(store, key=(1, 1), sender="m-1", round_number=1, digest=b"d" * 32):
    row = Row(digest, 0, 1, round_number)
    return store.append(sender, Ledger(cur=1), key, row, update(sender, round_number))


class TestOpening:
    def test_one_process_at_a_time(self, store, path):
        with pytest.raises(StoreBusyError) as caught:
            SqliteStore.open(path)
        assert caught.value.exit_code == 75

    def test_a_reader_beside_the_daemon_sees_and_cannot_write(self, store, path):
        store.put_client(Client("m-1", (bytes(32),)))
        with SqliteStore.open(path, read_only=True) as reader:
            assert [c.id for c in reader.clients()] == ["m-1"]
            with pytest.raises(StoreError, match="readonly"):
                reader.put_client(Client("m-2", (bytes(32),)))

    def test_a_newer_schema_is_refused_and_untouched(self, path):
        SqliteStore.open(path).close()
        with sqlite3.connect(path) as db:
            db.execute("PRAGMA user_version = 99")
        with pytest.raises(StoreNewerError) as caught:
            SqliteStore.open(path)
        assert caught.value.exit_code == 3
        with sqlite3.connect(path) as db:
            db.execute("PRAGMA user_version = 1")
        SqliteStore.open(path).close()  # the lock was given back

    def test_another_programs_database_and_no_database(self, tmp_path):
        other = tmp_path / "other.db"
        with sqlite3.connect(other) as db:
            db.execute("CREATE TABLE theirs (x)")
        with pytest.raises(StoreError, match="not an aggregator's"):
            SqliteStore.open(other)
        (tmp_path / "text.db").write_text("hello " * 1000)
        with pytest.raises(StoreError, match="cannot open"):
            SqliteStore.open(tmp_path / "text.db")
        with pytest.raises(StoreError, match="cannot open"):
            SqliteStore.open(tmp_path / "none.db", read_only=True)

    def test_what_the_file_promises(self, store):
        pragmas = ("application_id", "journal_mode", "synchronous")
        found = [store._db.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas]
        assert found == [0x47464147, "wal", 2]
        assert store.integrity() == []


class TestNumbers:
    def test_everything_of_a_device_comes_back(self, store, path):
        ledger = Ledger(2, b"h" * 32, 3, ((2, 1), (2, 9)), ((1, 4),), 17, 0)
        store.save_ledger("m-1", ledger)
        store.put_client(Client("m-1", (bytes(32), b"k" * 32), 2, "quarantined", "fork"))
        store.close()
        with SqliteStore.open(path) as again:
            assert again.ledger("m-1") == ledger
            assert again.ledger("m-2") == Ledger()
            assert again.clients() == [
                Client("m-1", (bytes(32), b"k" * 32), 2, "quarantined", "fork")
            ]

    def test_an_update_is_row_ledger_and_journal_in_one(self, store):
        row, entry = settle(store)
        assert store.row("m-1", (1, 1)) == row
        assert store.ledger("m-1").cur == 1
        (kept,) = store.journal(1)
        assert kept.position == entry.position
        assert kept.event.vector.dtype == np.float32
        assert (kept.event.vector.tolist(), kept.event.values) == (
            [1.0, 2.0],
            {"n": 3.0, "loss": 0.125},
        )

    def test_wide_vectors_keep_every_bit(self, store):
        vector = np.array([1 / 3, 1e300])
        event = Update("m-1", 1, 0, vector)
        store.append("m-1", Ledger(), (1, 1), Row(b"", 0, 1, 1), event)
        (kept,) = store.journal(1)
        assert kept.event.vector.tobytes() == vector.tobytes()

    def test_a_second_update_in_a_round_is_settled_and_not_journalled(self, store):
        settle(store)
        row, entry = settle(store, key=(1, 2), digest=b"e" * 32)
        assert (row.code, entry) == (Reason.TWICE_IN_ROUND, None)
        assert store.row("m-1", (1, 2)) == row
        assert store.waiting(1, 1) == 1

    def test_a_number_is_never_settled_twice(self, store):
        settle(store)
        with pytest.raises(StoreError, match="UNIQUE"):
            settle(store, round_number=2)
        assert store.waiting(1, 2) == 0  # the whole transaction is undone

    def test_a_new_life_prunes_what_is_not_open(self, store):
        for seq in (1, 2, 3):
            settle(store, key=(1, seq), round_number=seq)
        store.save_ledger("m-1", Ledger(cur=2, open=((1, 2),)))
        assert [store.row("m-1", (1, seq)) is not None for seq in (1, 2, 3)] == [False, True, False]
        assert store.held("m-1") == 1
        assert [entry.event.round for entry in store.journal(1)] == [1, 2, 3]

    def test_commands_are_numbered_and_stay_until_done(self, store):
        assert [store.issue("m-1", op).num for op in ("stop", "resume")] == [1, 2]
        assert store.ledger("m-1").cmd == 2
        assert store.command_done("m-1", 1, 0)
        assert not store.command_done("m-1", 1, 0)
        assert [c.op for c in store.issued("m-1")] == ["resume"]


class TestRuns:
    def begin(self, store):
        store.begin(RUN, {"w": np.zeros(2), "round": 0, "pending.a": 1.0})

    def close(self, store, number, keep=None):
        _, entry = settle(store, key=(1, number), round_number=number)
        closed = Version(1, number, number, True, bytes(32), {"cohort": ["m-1"]}, 99)
        leaves = {"w": np.full(2, float(number)), "round": number}
        store.commit(1, leaves, entry.position, closed=closed, keep_rounds=keep)
        return entry.position

    def test_only_changed_leaves_are_written_and_all_come_back(self, store):
        self.begin(store)
        entry = store.record(1, Due(1, "train", after=60.0))
        timers = (Timer(Due(2, "train", after=60.0), 123_456),)
        store.commit(1, {"round": 1, "pending.a": None}, entry.position, timers=timers)
        saved = store.load(1)
        assert saved.leaves.keys() == {"w", "round"}
        assert saved.leaves["round"] == 1
        assert (saved.upto, saved.timers) == (entry.position, timers)
        assert store._one("SELECT count(*) FROM leaves WHERE path = 'w'") == 1
        assert store.run() == RUN
        assert store.first(1).leaves["pending.a"] == 1.0
        with pytest.raises(StoreError, match="no run 7"):
            store.load(7)

    def test_other_events_are_journalled_in_order(self, store):
        self.begin(store)
        events = [Due(0, "open"), Member("m-1", present=True), Due(3, "train", 1, 2.5)]
        for event in events:
            store.record(1, event)
        settle(store)
        kept = [entry.event for entry in store.journal(1)]
        assert kept[:3] == events
        assert [e.event for e in store.journal(1, after=2)][:1] == events[2:]
        assert list(store.journal(2)) == []

    def test_old_rounds_lose_their_vectors_and_their_states(self, store):
        self.begin(store)
        positions = [self.close(store, number, keep=2) for number in range(1, 6)]
        assert store.first(1).upto == positions[2]
        assert store.first(1).leaves["round"] == 3
        assert store.load(1).leaves["round"] == 5
        assert [e.event is None for e in store.journal(1)] == [True] * 3 + [False] * 2
        assert store._one("SELECT count(*) FROM leaves WHERE path = 'round'") == 3
        (closed,) = store.versions(1, last=1)
        assert (closed.round, closed.report, closed.position) == (
            5,
            {"cohort": ["m-1"]},
            positions[4],
        )

    def test_announcements_contents_and_serials(self, store, path):
        self.begin(store)
        store.announce({"gf/1/n/_all/model": b"one", "gf/1/n/_all/part/1": b"slot"})
        store.announce({"gf/1/n/_all/part/1": b""})
        for number in range(3):
            store.announce({}, [Content("model", bytes([number] * 16), b"body", 8192)])
        assert store.announcements() == {"gf/1/n/_all/model": b"one", "gf/1/n/_all/part/1": b""}
        assert [store.content(bytes([n] * 16)) is not None for n in range(3)] == [
            False,
            True,
            True,
        ]
        serials = [store.next_serial() for _ in range(3)]
        assert serials == sorted(set(serials))
        store.close()
        with SqliteStore.open(path) as again:
            assert again.next_serial() > serials[-1]


class TestBackup:
    def test_a_copy_knows_that_it_is_one(self, store, tmp_path):
        settle(store)
        before = store.next_serial()
        store.backup(tmp_path / "copy.db")
        assert not store.was_restored
        with SqliteStore.open(tmp_path / "copy.db") as copy:
            assert copy.row("m-1", (1, 1)) is not None
            assert copy.was_restored
            copy.adopt()
            assert not copy.was_restored
            assert copy.next_serial() >= before + SERIAL_LEAP

    def test_a_damaged_file_is_told(self, store, path):
        for number in range(200):
            settle(store, key=(1, number + 1), round_number=number)
        store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        store.close()
        raw = bytearray(path.read_bytes())
        raw[8192:12288] = os.urandom(4096)
        path.write_bytes(raw)
        with SqliteStore.open(path) as damaged:
            assert damaged.integrity()


def test_a_full_disk_undoes_the_whole_transaction(store):
    store._db.execute("PRAGMA max_page_count = 1")

    def fill():
        for number in range(1, 500):
            settle(store, key=(1, number), round_number=number)

    with pytest.raises(StoreFullError) as caught:
        fill()
    assert caught.value.exit_code == 75
    kept = sum(1 for _ in store.journal(1))
    assert store.held("m-1") == kept
    store._db.execute("PRAGMA max_page_count = 100000")
    settle(store, key=(1, 999), round_number=999)


KILLED = """
import sys
from pathlib import Path
import numpy as np
from aggregator.ledger import Ledger, Row
from aggregator.records import Run, Version
from aggregator.store import SqliteStore
from edge_sdk.wire.method import Update
store = SqliteStore.open(Path(sys.argv[1]))
if store.run() is None:
    store.begin(Run(1, "fedavg", "{}", "toy", bytes(16), bytes(16)), {"w": np.zeros(2), "round": 0})
number = int(store.load(1).leaves["round"])
while True:
    number += 1
    event = Update("m-1", number, number - 1, np.full(2, number, np.float32))
    row = Row(number.to_bytes(32, "big"), 0, 1, number)
    taken = store.row("m-1", (1, number))
    if taken is None:
        _, entry = store.append("m-1", Ledger(cur=1, spent=number), (1, number), row, event)
        position = entry.position
        print("receipt", number, flush=True)
    else:
        position = [e.position for e in store.journal(1)][-1]
    closed = Version(1, number, number, True, bytes(32))
    leaves = {"w": np.full(2, float(number)), "round": number}
    store.commit(1, leaves, position, closed=closed, published={"t": str(number).encode()})
    print("announced", number, flush=True)
"""


def test_killed_at_any_moment_nothing_that_was_said_is_lost_or_half(path):
    """Kill -9 a process that appends and commits; what it said before is there, and whole."""
    said: list[tuple[str, int]] = []
    for attempt in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        lines = [process.stdout.readline() for _ in range(3 + attempt)]
        time.sleep(0.003 * attempt)
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
        process.wait()
        process.stdout.close()
        said += [(w, int(n)) for w, n in (line.split() for line in lines if line.endswith("\n"))]
        with SqliteStore.open(path) as store:
            assert store.integrity() == []
            settled = [e.event.round for e in store.journal(1)]
            assert settled == sorted(set(settled))
            assert {n for word, n in said if word == "receipt"} <= set(settled)
            saved = store.load(1)
            done = int(saved.leaves["round"])
            assert saved.leaves["w"].tolist() == [done, done]
            assert store.announcements().get("t", b"0") == str(done).encode()
            assert len(store.versions(1)) == done
            assert max((n for word, n in said if word == "announced"), default=0) <= done
            assert store.held("m-1") == len(settled) == store.ledger("m-1").spent
