"""The device's file: one holder, ours, of no newer schema, and every commit on disk."""

from __future__ import annotations

import sqlite3

import pytest

from edge_sdk.errors import StoreBusy, StoreError, StoreNewer
from edge_sdk.forecasting.series import SeriesRow
from edge_sdk.store.schema import FILE
from edge_sdk.store.store import DeviceStore


def test_two_processes_cannot_hold_one_state(tmp_path):
    with DeviceStore.open(tmp_path):
        with pytest.raises(StoreBusy) as caught:
            DeviceStore.open(tmp_path)
        assert caught.value.exit_code == 75
    DeviceStore.open(tmp_path).close()


def test_a_reader_looks_beside_a_running_device(tmp_path):
    with DeviceStore.open(tmp_path) as store:
        store.set_facts(starts=4)
        with DeviceStore.open(tmp_path, read_only=True) as reader:
            assert reader.fact("starts") == 4


def test_a_newer_schema_is_refused_with_exit_code_3(tmp_path):
    DeviceStore.open(tmp_path).close()
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreNewer, match="newer version") as caught:
        DeviceStore.open(tmp_path)
    assert caught.value.exit_code == 3


def test_a_file_of_before_the_first_release_is_refused_unchanged(tmp_path):
    DeviceStore.open(tmp_path).close()
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("PRAGMA user_version = 1")
    db.close()
    for read_only in (False, True):
        with pytest.raises(StoreError, match=r"before the first release \(schema 1\)"):
            DeviceStore.open(tmp_path, read_only=read_only)


def test_somebody_elses_file_is_not_touched(tmp_path):
    db = sqlite3.connect(tmp_path / FILE)
    db.execute("CREATE TABLE mine (x)")
    db.commit()
    db.close()
    with pytest.raises(StoreError, match="not a device's state"):
        DeviceStore.open(tmp_path)


@pytest.mark.parametrize(
    ("offset", "length"), [(0, 4096), (3 * 4096, 8 * 4096)], ids=["first page", "tables"]
)
@pytest.mark.parametrize("read_only", [False, True])
def test_a_damaged_file_is_named_with_the_remedy(tmp_path, offset, length, read_only):
    with DeviceStore.open(tmp_path) as store:
        store.add_readings(SeriesRow("elec.import.energy", slot, 1.0) for slot in range(2000))
    raw = bytearray((tmp_path / FILE).read_bytes())
    raw[offset : offset + length] = bytes(length)
    (tmp_path / FILE).write_bytes(raw)
    with (
        pytest.raises(StoreError, match="is damaged, or no device's state") as caught,
        DeviceStore.open(tmp_path, read_only=read_only) as store,
    ):
        list(store.readings)
    assert f"mv {tmp_path / FILE} " in caught.value.hint
    (tmp_path / FILE).rename(tmp_path / "device.db.damaged")
    for beside in tmp_path.glob("device.db-*"):
        beside.unlink()
    with DeviceStore.open(tmp_path) as store:  # the lock of the failed attempt is released
        assert store.numbers().lost


def test_every_commit_is_flushed_to_disk(tmp_path):
    with DeviceStore.open(tmp_path) as store:
        assert store._db.execute("PRAGMA synchronous").fetchone()[0] == 2
        assert store._db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
