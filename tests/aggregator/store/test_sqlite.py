"""Every call is one transaction: whole after kill -9, and undone when the disk is full."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aggregator.store.errors import DatabaseError, DatabaseFullError
from aggregator.store.opener import open_store
from tests.aggregator.store.rig import settle


def test_a_number_is_never_settled_twice(store):
    settle(store)
    with pytest.raises(DatabaseError, match=r"(?i)unique"):
        settle(store, round_number=2)
    assert store.journal.waiting(1, 2) == 0  # the whole transaction is undone


def test_a_full_disk_undoes_the_whole_transaction(sqlite_store):
    sqlite_store._db.execute("PRAGMA max_page_count = 1")

    def fill():
        for number in range(1, 500):
            settle(sqlite_store, key=(1, number), round_number=number)

    with pytest.raises(DatabaseFullError) as caught:
        fill()
    assert caught.value.exit_code == 75
    kept = sum(1 for _ in sqlite_store.journal.entries(1))
    assert sqlite_store.ledgers.held("m-1") == kept
    sqlite_store._db.execute("PRAGMA max_page_count = 100000")
    settle(sqlite_store, key=(1, 999), round_number=999)


KILLED = """
import sys
from pathlib import Path
import numpy as np
from aggregator.store.ledgers import Ledger, LedgerRow
from aggregator.store.types import RunRecord, Version
from aggregator.store.dialect import DatabaseUrl
from aggregator.store.opener import open_store
from edge_sdk.protocol.contract.method import Update
place = sys.argv[1]
store = open_store(DatabaseUrl(place) if "://" in place else Path(place))
if store.runs.latest() is None:
    store.begin(RunRecord(1, "fedavg", "{}", "toy", bytes(16), bytes(16)), {"w": np.zeros(2), "round": 0})
number = int(store.states.load(1).leaves["round"])
while True:
    number += 1
    event = Update("m-1", number, number - 1, np.full(2, number, np.float32))
    row = LedgerRow(number.to_bytes(32, "big"), 0, 1, number)
    taken = store.ledgers.row("m-1", (1, number))
    if taken is None:
        _, entry = store.append("m-1", Ledger(cur=1, spent=number), (1, number), row, event)
        position = entry.position
        print("receipt", number, flush=True)
    else:
        position = [e.position for e in store.journal.entries(1)][-1]
    closed = Version(1, number, number, True, bytes(32))
    leaves = {"w": np.full(2, float(number)), "round": number}
    store.commit(1, leaves, position, closed=closed, published={"t": str(number).encode()})
    print("announced", number, flush=True)
"""


@pytest.mark.slow
def test_killed_at_any_moment_nothing_that_was_said_is_lost_or_half(path):
    """Kill -9 a process that appends and commits; what it said before is there, and whole."""
    said: list[tuple[str, int]] = []
    for attempt in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, getattr(path, "url", str(path))],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        lines = [process.stdout.readline() for _ in range(3 + attempt)]
        time.sleep(0.003 * attempt)
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
        process.wait()
        process.stdout.close()
        said += [(w, int(n)) for w, n in (line.split() for line in lines if line.endswith("\n"))]
        with open_store(path) as store:
            assert store.integrity() == []
            settled = [e.event.round for e in store.journal.entries(1)]
            assert settled == sorted(set(settled))
            assert {n for word, n in said if word == "receipt"} <= set(settled)
            saved = store.states.load(1)
            done = int(saved.leaves["round"])
            assert saved.leaves["w"].tolist() == [done, done]
            assert store.announcements.all().get("t", b"0") == str(done).encode()
            assert len(store.runs.versions(1)) == done
            assert max((n for word, n in said if word == "announced"), default=0) <= done
            assert store.ledgers.held("m-1") == len(settled) == store.ledgers.get("m-1").spent
