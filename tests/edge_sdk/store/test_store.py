"""What a device must not forget: all or nothing, and nothing lost to SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from edge_sdk.errors import StoreError, StoreFull
from edge_sdk.forecasting.series import SeriesRow
from edge_sdk.protocol.outbox_state import OutboxEntry, UplinkCounters
from edge_sdk.store.rows import LearnedState
from edge_sdk.store.store import DeviceStore


def entry(seq: int, life: int = 3) -> OutboxEntry:
    return OutboxEntry(life, seq, b"body" * seq, b"p" * 72, 1, seq, 0, b"s" * 16, spent=seq)


def learned(round_: int) -> LearnedState:
    return LearnedState(
        1, round_, round_, b"w" * 16, {"half": {"p": np.full(3, round_, np.float32)}}
    )


def test_saved_values_are_restored_bit_for_bit(tmp_path):
    p = np.array([0.1, -0.0, 1e-45], np.float32)
    with DeviceStore.open(tmp_path) as store:
        kept = LearnedState(2, 7, 6, b"x" * 16, {"half": {"p": p}, "scale": [0.25, 3.0]})
        store.save(learned=kept, numbers=UplinkCounters(3, 1, 12, lost=False), entry=entry(1))
    with DeviceStore.open(tmp_path) as store:
        again = store.learned()
        assert (again.run, again.round, again.version, again.spec) == (2, 7, 6, b"x" * 16)
        np.testing.assert_array_equal(again.leaves["half"]["p"].view(np.uint32), p.view(np.uint32))
        assert store.numbers() == UplinkCounters(3, 1, 12, lost=False)
        assert store.outbox() == (entry(1),)


_VICTIM = """
    import os, signal, sys
    from pathlib import Path
    import numpy as np
    from edge_sdk.store.rows import LearnedState
    from edge_sdk.store.store import DeviceStore
    from edge_sdk.protocol.outbox_state import OutboxEntry, UplinkCounters

    store = DeviceStore.open(Path(sys.argv[1]))
    left = int(sys.argv[2])

    def count(statement):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    store._db.set_trace_callback(count)
    for seq in (1, 2, 3):
        store.save(
            learned=LearnedState(1, seq, seq, b"w" * 16, {"half": {"p": np.full(3, seq, np.float32)}}),
            numbers=UplinkCounters(3, seq, seq, lost=False),
            entry=OutboxEntry(3, seq, b"body" * seq, b"p" * 72, 1, seq, 0, b"s" * 16, spent=seq),
        )
        print(seq, flush=True)
    store._db.set_trace_callback(None)
    print("done", flush=True)
"""


@pytest.mark.slow
def test_killed_before_every_statement_state_charge_and_release_stay_together(tmp_path):
    finished = False
    for count in range(1, 40):
        folder = tmp_path / str(count)
        run = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(_VICTIM), str(folder), str(count)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.getcwd()},  # noqa: PTH109 - the checkout
        )
        said = run.stdout.split()
        with DeviceStore.open(folder) as store:
            numbers, outbox, state = store.numbers(), store.outbox(), store.learned()
        assert numbers.seq == numbers.spent == len(outbox) == (state.round if state else 0)
        assert [e.seq for e in outbox] == list(range(1, numbers.seq + 1))
        assert numbers.seq >= sum(word.isdigit() for word in said), "told before it was on disk"
        finished = "done" in said
        if finished:
            break
        assert run.returncode == -signal.SIGKILL, run.stderr
    assert finished
    assert count > 12


def test_a_failed_save_changes_nothing(tmp_path):
    with DeviceStore.open(tmp_path) as store:
        store.save(learned=learned(1), numbers=UplinkCounters(3, 1, 1, lost=False), entry=entry(1))
        with pytest.raises(StoreError):
            store.save(
                learned=learned(2), numbers=UplinkCounters(3, 2, 2, lost=False), entry=entry(1)
            )
        assert store.numbers().seq == 1
        assert store.learned().round == 1


def test_on_a_full_disk_the_error_names_the_cause_and_the_outbox_is_kept(tmp_path):
    with DeviceStore.open(tmp_path) as store:
        store.save(learned=learned(1), numbers=UplinkCounters(3, 1, 1, lost=False), entry=entry(1))
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreFull, match="no space left"):
            store.add_readings(SeriesRow("load", slot, 1.0) for slot in range(100_000))
        assert store.outbox() == (entry(1),)
        store._db.execute("PRAGMA max_page_count = 1000000")
        store.add_readings([SeriesRow("load", 1, 1.0)])


def test_a_receipt_removes_exactly_its_entry(tmp_path):
    with DeviceStore.open(tmp_path) as store:
        for seq in (1, 2):
            store.save(
                learned=learned(seq), numbers=UplinkCounters(3, seq, seq, False), entry=entry(seq)
            )
        store.keep(UplinkCounters(3, 2, 2, False), before=(entry(1), entry(2)), after=(entry(2),))
        assert [e.seq for e in store.outbox()] == [2]


def test_the_last_write_of_a_slot_wins(tmp_path):
    with DeviceStore.open(tmp_path) as store:
        store.add_readings([SeriesRow("load", 2, 1.0), SeriesRow("load", 1, 5.0)])
        store.add_readings([SeriesRow("load", 2, 3.0)])
        assert list(store.readings) == [
            SeriesRow("load", 1, 5.0, 0),
            SeriesRow("load", 2, 3.0, 0),
        ]
        store.add_readings([SeriesRow("load", 3, 1.0)], before=2)
        assert [row.slot for row in store.readings] == [2, 3]
        assert (store.readings.span(), store.noised_since()) == ((2, 3), 0)


def test_columns_come_in_order_of_time_and_only_those_wanted(tmp_path):
    slots = range(9_000, 0, -1)
    with DeviceStore.open(tmp_path) as store:
        store.add_readings(SeriesRow("load", slot, slot / 2) for slot in slots)
        store.add_readings([SeriesRow("heat", 7, 1.0), SeriesRow("other", 1, 1.0)])
        pieces = list(store.readings.columns(["heat", "load", "none"]))
    assert [piece.stream for piece in pieces][:2] == ["heat", "load"]
    assert {piece.stream for piece in pieces} == {"heat", "load"}
    loads = np.concatenate([piece.slots for piece in pieces[1:]])
    values = np.concatenate([piece.values for piece in pieces[1:]])
    assert loads.tolist() == sorted(slots)
    assert (values == loads / 2).all()


def test_the_log_of_an_exclusive_store_stays_short(tmp_path):
    with DeviceStore.open(tmp_path, exclusive=True) as store:
        for number in range(200):
            store.add_readings([SeriesRow("load", number, 1.0)])
        assert (tmp_path / "device.db-wal").stat().st_size < 600_000
        assert len(store.readings) == 200


def test_an_exclusive_store_has_two_files_open_and_nobody_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr("edge_sdk.app.sqlite_file.BUSY_TIMEOUT", 0.01)
    with DeviceStore.open(tmp_path, exclusive=True) as store:
        store.add_readings([SeriesRow("load", 1, 1.0)])
        open_files = [os.path.realpath(file) for file in Path("/proc/self/fd").iterdir()]
        own = [Path(file).name for file in open_files if file.startswith(str(tmp_path))]
        assert sorted(own) == ["device.db", "device.db-wal"]
        for given in ({}, {"exclusive": True}, {"read_only": True}):
            with pytest.raises(StoreError, match="locked"):
                DeviceStore.open(tmp_path, **given)
    with DeviceStore.open(tmp_path) as store:
        assert len(store.readings) == 1
