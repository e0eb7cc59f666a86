"""Nothing on a device grows for ever: a year stays within its bytes, every table has a bound."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from edge_sdk import client as client_module
from edge_sdk.forecasting.series import Reading
from edge_sdk.protocol.contract.manifest import Window
from edge_sdk.store.schema import FILE
from edge_sdk.store.store import DeviceStore
from edge_sdk.training import bootstrap
from edge_sdk.training.run_role import history_of
from tests.edge_sdk.conftest import LOOKBACK
from tests.edge_sdk.test_client import W0
from tests.edge_sdk.training.test_retention import NOISE

ROOT = Path(__file__).resolve().parents[2]
STREAM, STEP, DAY = "elec.import.energy", 900, 96
BEGIN = 1_700_000_000 // 86_400 * 86_400
REST = 150_000  # bytes of all that is no reading: tables, one state, announcements, the ledger
LOG = 1100 * 4120  # the write-ahead log is merged at a thousand pages


def tables(path):
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        found = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {name for (name,) in found} - {"sqlite_sequence"}


def bounded(page, heading):
    """Return what the first column of the tables below a heading names."""
    text = (ROOT / "docs" / page).read_text("utf-8").partition(f"\n{heading}\n")[2]
    text = re.split(r"\n##+ ", text)[0]
    return set(
        re.findall(r"`([a-z_]+)`", "".join(re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)))
    )


def test_every_table_of_a_device_has_a_documented_bound(tmp_path):
    DeviceStore.open(tmp_path).close()
    missing = tables(tmp_path / FILE) - bounded("devices.md", "### Size limits")
    assert not missing, f"say in docs/devices.md what bounds {missing}"


@pytest.fixture
def numpy_bundle(numpy_bundle, monkeypatch):
    """The bundle of the other tests, on quarters of an hour."""
    manifest = replace(numpy_bundle.manifest, window=Window(LOOKBACK, 1, STEP))
    bundle = replace(numpy_bundle, manifest=manifest)
    for module in (client_module, bootstrap):
        monkeypatch.setattr(module, "open_bundle", lambda _config, _announced: bundle)
    return bundle


@pytest.mark.soak
def test_a_year_of_operation_stays_within_the_size_bounds(make, numpy_bundle):
    fleet = make(training={"history_days": 45.0}, privacy=NOISE, accept={"max_steps": 3})
    client = fleet.device.start()
    client._store._db.execute("PRAGMA synchronous = OFF")  # what is written is the same
    history = history_of(fleet.device.config, numpy_bundle.manifest)
    file, sizes = fleet.device.config.state / FILE, []
    for day in range(365):
        for slot in range(day * DAY, (day + 1) * DAY):
            at = BEGIN + slot * STEP
            client.observe(Reading(STREAM, at, 1.0 + 0.1 * (slot % 7)))
        client.flush()
        if day % 30 == 29:
            fleet.server.open_round(day // 30, day // 30, W0)
            fleet.run(20, seconds=0.05)
        if day % 60 == 59:
            client._store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            sizes.append(file.stat().st_size)
        assert client._store.size() <= history.bytes + REST + LOG
    client._store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert len(fleet.server.updates) == 12
    assert len(client._store.readings) <= (history.slots + history.batch)
    assert client._store.size() <= history.bytes + REST
    assert sizes[-1] <= 1.1 * sizes[1], sizes
