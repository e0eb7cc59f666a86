"""What a wipe erases, what it keeps, and what is there after a kill at any statement of it."""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from edge_sdk.errors import ConfigError
from edge_sdk.extensions.lifecycle.erasure import leave_fleet, wipe_device, wipe_state
from edge_sdk.forecasting.series import SeriesRow
from edge_sdk.privacy.ledger import PrivacyCharge
from edge_sdk.protocol.outbox_state import OutboxEntry, UplinkCounters
from edge_sdk.store import (
    WIPE_ORDERED,
    WIPED,
    end_wipe,
    fleet_of,
    is_wipe_due,
    refuse_state,
    state_folders,
)
from edge_sdk.store.rows import LearnedState
from edge_sdk.store.schema import FILE
from edge_sdk.store.store import DeviceStore

NOW = 1_800_000_000
SECRET = 12345.678901234  # a reading that is to be found nowhere afterwards
CHARGE = PrivacyCharge(NOW, "device", "update", "gaussian", 1.0, 1.0, 1, 1)


def fill(folder, fleet="north"):
    """Write a state with readings, a model, an unsent update, a charge, facts and records."""
    with DeviceStore.open(folder) as store:
        store.own(b"kid-old!", fleet)
        rows = [SeriesRow("power", slot, SECRET + slot, 0) for slot in range(500)]
        store.add_readings(rows)
        store.add_noised(rows[:3], CHARGE)
        state = {"half": {"p": np.full(64, SECRET, np.float64)}}
        store.save(
            learned=LearnedState(3, 4, 5, b"w" * 16, state),
            numbers=UplinkCounters(7, 2, 2, lost=False),
            entry=OutboxEntry(7, 2, b"body", b"p" * 72, 3, 4, 4, b"s" * 16, spent=2),
            charges=[CHARGE],
        )
        store.file_paper("source 0 csv", b"line 500")
        store.file_paper("commands", b"executed", command=9)
        store.file_paper("bundle", b"announced", serial=4, floor=NOW * 1000, used=77, day=20000)


def secret_bytes(folder):
    """Return the slots whose readings are found in the bytes of the folder's files."""
    raw = b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
    return [slot for slot in range(500) if struct.pack(">d", SECRET + slot) in raw]


def test_a_wipe_leaves_no_reading_in_the_file_and_keeps_what_was_charged(tmp_path):
    fill(tmp_path)
    assert len(secret_bytes(tmp_path)) == 500
    with DeviceStore.open(tmp_path) as store:
        ledger, numbers = list(store.ledger()), store.numbers()
    wipe_state(tmp_path, NOW)
    assert secret_bytes(tmp_path) == []
    assert struct.pack("<d", SECRET) not in (tmp_path / FILE).read_bytes()
    with DeviceStore.open(tmp_path) as store:
        assert (len(store.readings), store.learned(), store.outbox(), store.noised()) == (
            *(0, None, ()),
            {},
        )
        assert list(store.ledger()) == ledger == [CHARGE, CHARGE]
        assert store.numbers() == numbers
        assert (store.fact("command"), store.paper("commands")) == (9, b"executed")
        assert [store.fact(name) for name in ("serial", "floor", "used")] == [0, 0, 0]
        assert store.paper("source 0 csv") is None
        assert store.noised_since() == NOW


def test_a_state_that_is_wiped_again_stays_as_it_is(tmp_path):
    fill(tmp_path)
    wipe_state(tmp_path, NOW)
    wipe_state(tmp_path, NOW - 9)
    with DeviceStore.open(tmp_path) as store:
        assert (store.fact(WIPED), store.noised_since()) == (NOW, NOW)


_VICTIM = """
    import os, signal, sqlite3, sys
    from pathlib import Path
    from edge_sdk.app import sqlite_file
    from edge_sdk.extensions.lifecycle import erasure

    left = int(sys.argv[2])

    def count(statement):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    connect = sqlite_file.connect

    def counting(path, **options):
        db = connect(path, **options)
        db.set_trace_callback(count)
        return db

    sqlite_file.connect = counting
    erasure.wipe_device(Path(sys.argv[1]), [Path(sys.argv[1]) / "device.key"], 1_800_000_000)
    os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.slow
def test_a_kill_at_any_statement_leaves_the_whole_state_or_a_wiped_one(tmp_path):
    seen = set()
    for after in range(60):
        folder = tmp_path / str(after)
        folder.mkdir()
        fill(folder)
        with DeviceStore.open(folder) as store:
            store.set_facts(**{WIPE_ORDERED: 1})
        key = folder / "device.key"
        key.write_text("key")
        words = [sys.executable, "-c", textwrap.dedent(_VICTIM), str(folder), str(after)]
        done = subprocess.run(words, check=False, timeout=60)
        with DeviceStore.open(folder) as store:
            found = len(store.readings), store.fact(WIPED), key.exists()
            assert len(list(store.ledger())) == 2
        assert found[:2] in {(500, 0), (0, NOW)}
        seen.add(found)
        assert is_wipe_due(folder, [key]) == found[2]
        if done.returncode == -signal.SIGTERM:
            break
        wipe_device(folder, [key], NOW)
        assert not is_wipe_due(folder, [key])
        assert secret_bytes(folder) == []
    assert seen == {(500, 0, True), (0, NOW, True), (0, NOW, False)}


def test_every_participation_is_wiped_the_former_ones_too(tmp_path):
    folders = [tmp_path, tmp_path / "participations" / "a", tmp_path / "participations" / "b"]
    for folder in folders:
        fill(folder)
    (tmp_path / "bundle" / "ab").mkdir(parents=True)
    (tmp_path / f"{FILE}.schema-1").write_bytes(b"older file")
    assert state_folders(tmp_path) == folders
    wipe_device(tmp_path, [tmp_path / "no.key"], NOW)
    assert secret_bytes(tmp_path) == []
    assert not (tmp_path / "bundle").exists()
    assert not (tmp_path / f"{FILE}.schema-1").exists()


def test_a_wiped_state_is_refused_until_the_device_has_a_new_key(tmp_path):
    fill(tmp_path)
    wipe_state(tmp_path, NOW)
    with (
        DeviceStore.open(tmp_path) as store,
        pytest.raises(ConfigError, match="wiped") as caught,
    ):
        refuse_state(store, "north")
    assert "gridfed-edge enrol" in caught.value.hint
    assert end_wipe(tmp_path)
    with DeviceStore.open(tmp_path) as store:
        refuse_state(store, "north")
        assert len(list(store.ledger())) == 2


def test_another_fleet_is_refused_until_the_state_has_left_the_former_one(tmp_path):
    fill(tmp_path)
    with (
        DeviceStore.open(tmp_path) as store,
        pytest.raises(ConfigError, match="belongs to fleet 'north'"),
    ):
        refuse_state(store, "south")
    leave_fleet(tmp_path)
    with DeviceStore.open(tmp_path) as store:
        refuse_state(store, "south")
        assert len(store.readings) == 500
        assert len(store.noised()) == 3
        assert len(list(store.ledger())) == 2
        assert store.numbers().spent == 2
        assert store.paper("source 0 csv") == b"line 500"
        assert (store.learned(), store.outbox(), store.paper("bundle")) == (None, (), None)
        assert [store.fact(name) for name in ("command", "serial", "floor", "used")] == [
            0,
            0,
            0,
            77,
        ]
        store.own(b"kid-old!", "south")
        assert fleet_of(store) == "south"
