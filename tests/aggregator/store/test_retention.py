"""What the store drops, what it never drops, and that its file stays within its budgets."""

import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from aggregator.extensions.audit.recompute import recompute
from aggregator.methods import METHODS, OPEN, Rounds, Setup
from aggregator.rules import bind
from aggregator.store import schema, state_codec
from aggregator.store.ledgers import Ledger, LedgerRow
from aggregator.store.opener import open_store
from aggregator.store.types import Retention, RunRecord, Version
from edge_sdk.protocol.contract.method import Closed, Update
from tests.edge_sdk.test_growth import bounded, tables


def half_of(quorum):
    settings = METHODS["fedavg"].settings()
    return METHODS["fedavg"].half(Setup(bind("mean"), settings, Rounds(quorum=quorum)))


class Fleet:
    """Devices and a shell that closes rounds, on a store with small budgets."""

    def __init__(self, store, keep, *, devices=20, size=64, run=1, name=""):
        self.store, self.keep, self.size, self.run = store, keep, size, run
        self.devices = [f"meter{name}-{number:04}" for number in range(devices)]
        self.half = half_of(devices)
        self.initial = np.zeros(size, np.float32)
        self.state = self.half.init(self.initial)
        self.saved = state_codec.flatten(self.state)
        if store.runs.latest(name) is None:
            layout = state_codec.layout(self.state)
            store.begin(RunRecord(run, "fedavg", "{}", "toy", bytes(16), layout, name), self.saved)
            self.take(store.journal.append(run, OPEN))
        else:
            saved = store.states.load(run)
            self.state = state_codec.rebuild(self.state, saved.leaves)
            self.saved = state_codec.flatten(self.state)
            for entry in list(store.journal.entries(run, saved.upto)):
                self.take(entry)

    def rounds(self, count):
        for _ in range(count):
            self.round()

    def round(self, devices=None):
        number = self.state.round
        for device in self.devices if devices is None else devices:
            if (
                self.store.ledgers.row(device, (number, 1)) is not None
            ):  # settled before it was killed
                continue
            vector = np.full(self.size, 1.0 / number, np.float32)
            values = {"n": 1.0, "loss": 0.5}
            update = Update(device, number, self.state.version, vector, values)
            row = LedgerRow(bytes(32), 0, self.run, number)
            # a life for each round: the rows of settled numbers are not what is measured here
            _, entry = self.store.append(device, Ledger(cur=number), (number, 1), row, update)
            if entry is not None:
                self.take(entry)

    def take(self, entry):
        self.state, effects = self.half.apply(self.state, entry.event)
        closed = next((e for e in effects if isinstance(e, Closed)), None)
        if not effects:
            return
        version = closed and Version(
            self.run,
            closed.round,
            closed.version,
            closed.moved,
            state_codec.digest(self.state),
            closed.report,
        )
        now = state_codec.flatten(self.state)
        changed = state_codec.changed(self.saved, now)
        self.store.commit(self.run, changed, entry.position, closed=version, keep=self.keep)
        self.saved = now

    def audit(self):
        return recompute(self.store, self.half, self.initial, self.run)


KILLED = """
import sys
from pathlib import Path
from aggregator.store.dialect import DatabaseUrl
from aggregator.store.types import Retention
from aggregator.store.opener import open_store
from tests.aggregator.store.test_retention import Fleet
where = sys.argv[1]
store = open_store(DatabaseUrl(where) if where.startswith("postgresql:") else Path(where))
fleet = Fleet(store, Retention(vectors=8_000, journal=10_000), devices=4)
while True:
    fleet.round()
    print(fleet.state.round - 1, flush=True)
"""


@pytest.mark.slow
def test_killed_while_it_drops_the_file_opens_and_every_round_it_keeps_is_recomputed(path):
    """Kill -9 a process each of whose rounds drops another one: budgets hold four of them."""
    done = 0
    for attempt in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, getattr(path, "url", str(path))],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        with process:
            lines = [process.stdout.readline() for _ in range(10 + attempt)]
            time.sleep(0.004 * attempt)
            process.send_signal(signal.SIGKILL)
            lines += process.stdout.readlines()
        done = max(int(line) for line in lines if line.endswith("\n"))
        with open_store(path) as store:
            assert store.integrity() == []
            fleet = Fleet(store, None, devices=4)
            found = fleet.audit()
            assert found.is_sound, found.faults
            assert found.since > 0
            assert found.since + found.rounds >= done
            assert store.retention.used()["vectors"] < 12_000
            assert store.retention.horizon().updates > 0
    assert done > 25


def quick(store):
    """Let a test write without waiting for the disk; what is written is the same."""
    is_file = isinstance(store.path, Path)
    store._db.execute("PRAGMA synchronous = OFF" if is_file else "SET synchronous_commit = off")
    return store


def test_vectors_stay_within_their_bytes_and_the_audit_begins_at_a_checkpoint(path):
    keep = Retention(vectors=200_000, journal=10**9)
    with open_store(path) as store:
        fleet = Fleet(quick(store), keep)
        fleet.rounds(100)
        used = store.retention.used()
        assert 100_000 < used["vectors"] <= keep.vectors * 65 / 64 + 20 * 256 + 2000
        found = fleet.audit()
        assert store.retention.kept == pytest.approx({**used, "audit after": found.since}, rel=0.05)
        assert found.is_sound, found.faults
        assert 1 < found.rounds < 100
        assert found.since == 100 - found.rounds
        assert len(list(store.journal.applied())) == 2000  # who and when is still written


@pytest.mark.slow
def test_events_stay_within_their_bytes_and_the_highest_number_of_each_device_remains(path):
    keep = Retention(vectors=100_000, journal=200_000)
    with open_store(path) as store:
        fleet = Fleet(quick(store), keep)
        fleet.rounds(150)
        assert store.retention.used()["journal"] <= keep.journal * 65 / 64 + 20 * 400
        horizon, kept = store.retention.horizon(), list(store.journal.applied())
        assert horizon.updates + len(kept) == 150 * 20
        assert horizon.first <= kept[0].position
        oldest = min(one.life for one in kept)
        assert {(one.life, one.seq) for one in horizon.pruned.values()} == {(oldest - 1, 1)}
        assert horizon.covers(("meter-0000", oldest - 1, 1))
        assert not horizon.covers(("meter-0000", oldest, 1))
        assert store.journal.oldest_round(1) == oldest
        assert fleet.audit().is_sound


def test_the_file_does_not_grow_once_it_is_full(file):
    keep = Retention(vectors=200_000, journal=200_000)
    with open_store(file) as store:
        fleet, sizes = Fleet(quick(store), keep), []
        for number in range(240):
            fleet.round()
            if number % 60 == 59:
                store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                sizes.append(store.size())
        assert sizes[-1] <= sizes[1] * 1.05, sizes


@pytest.mark.slow
def test_a_file_over_budget_comes_within_it_step_by_step(path):
    with open_store(path) as store:
        fleet = Fleet(quick(store), None)
        fleet.rounds(100)
        before = store.retention.used()["vectors"]
    keep = Retention(vectors=100_000)
    with open_store(path) as store:
        fleet = Fleet(quick(store), keep)
        fleet.round()
        step = before - store.retention.used()["vectors"]
        assert 0 < step < before / 10  # no single commit does it all
        fleet.rounds(100)
        assert store.retention.used()["vectors"] <= keep.vectors * 65 / 64 + 20 * 256 + 2000
        assert fleet.audit().is_sound


def test_a_failed_commit_is_counted_as_if_it_had_not_been(path, monkeypatch):
    keep = Retention(vectors=100_000)
    with open_store(path) as store:
        fleet = Fleet(quick(store), keep)
        fleet.rounds(30)
        before = store.retention.used()
        with monkeypatch.context() as patch:
            patch.setattr("aggregator.store.journal.Journal.forget", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                fleet.rounds(30)
        fleet = Fleet(store, keep)  # as after a restart
        fleet.round()
        found, used = fleet.audit(), store.retention.used()
        assert store.retention.kept == pytest.approx({**used, "audit after": found.since}, rel=0.05)
        assert used["vectors"] <= before["vectors"] * 1.2
        assert found.is_sound


def test_an_older_run_goes_first_and_its_last_state_stays_readable(path):
    keep = Retention(vectors=100_000)
    with open_store(path) as store:
        fleet = Fleet(quick(store), keep)
        fleet.rounds(5)
        last = store.states.load(1).leaves["w"].copy()
        second = RunRecord(2, "fedavg", "{}", "toy", bytes(16), bytes(16))
        store.begin(second, {"w": np.zeros(2), "round": 0})
        for number in range(1, 60):
            settled = LedgerRow(bytes(32), 0, 2, number)
            vector = np.zeros(1000, np.float32)
            update = Update("meter-0000", number, 0, vector, {})
            _, entry = store.append("meter-0000", Ledger(cur=9), (1000, number), settled, update)
            closed = Version(2, number, number, True, bytes(32))
            store.commit(2, {"round": number}, entry.position, closed=closed, keep=keep)
        assert store.retention.used()["vectors"] <= keep.vectors * 65 / 64 + 5000
        assert store.states.first(1).upto == store.states.load(1).upto
        np.testing.assert_array_equal(store.states.load(1).leaves["w"], last)


def test_a_file_of_schema_2_opens_reads_and_is_kept_within_budget(file):
    with open_store(file) as store:
        fleet = Fleet(quick(store), None)
        fleet.rounds(30)
    with sqlite3.connect(file) as db:
        db.execute("DROP TABLE pruned")
        db.execute("PRAGMA user_version = 2")
    with open_store(file, read_only=True) as store:
        assert store.retention.horizon().updates == 0
    keep = Retention(vectors=30_000, journal=60_000)
    with open_store(file) as store:
        assert store._db.execute("PRAGMA user_version").fetchone()[0] == schema.SCHEMA
        fleet = Fleet(quick(store), keep)
        fleet.rounds(60)
        assert store.retention.used()["vectors"] <= keep.vectors * 65 / 64 + 20 * 256 + 2000
        assert store.retention.horizon().updates > 0
        assert fleet.audit().is_sound


def test_a_slow_run_stays_recomputable_beside_a_fast_one(path):
    """The fast run drops its oldest rounds; the slow one closes one in fifty, and one is half open."""
    keep = Retention(vectors=30_000, journal=40_000)
    with open_store(path) as store:
        fast = Fleet(store, keep, devices=4, run=1, name="fast")
        slow = Fleet(store, keep, devices=4, run=2, name="slow")
        for _ in range(4):
            slow.round(slow.devices[:2])
            fast.rounds(50)
            slow.round(slow.devices[2:])
        slow.round(slow.devices[:3])  # the open round stays open
        fast.rounds(60)
        assert store.retention.horizon().updates > 0
        for fleet in (fast, slow):
            assert fleet.audit().is_sound, fleet.audit().faults
        assert store.journal.waiting(2, slow.state.round) == 3
        assert store.states.first(2).upto < store.states.first(1).upto
        assert store.journal.oldest_round(1) > 100
        assert store.journal.oldest_round(2) <= 5
    with open_store(path) as store:
        again = Fleet(store, keep, devices=4, run=2, name="slow")
        assert state_codec.digest(again.state) == state_codec.digest(slow.state)
        again.round(again.devices[3:])
        assert again.state.round == slow.state.round + 1
        assert again.audit().is_sound


def test_every_table_of_an_aggregator_has_a_bound_in_the_docs(file):
    open_store(file).close()
    missing = tables(file) - bounded("operating.md", "### Retention")
    assert not missing, f"say in docs/operating.md what bounds {missing}"
