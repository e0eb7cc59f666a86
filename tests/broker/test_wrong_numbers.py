"""Real programs over TLS: a wrong clock at the aggregator, and the largest numbers on disk."""

from __future__ import annotations

import sqlite3
import subprocess
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.extensions.authority.access.broker_process import mosquitto_program
from edge_sdk import Config
from edge_sdk.app.clock import DAY
from edge_sdk.errors import StoreError
from edge_sdk.store.store import DeviceStore
from firmware_sim.fleet.federation import free_port
from firmware_sim.fleet.processes import ProcessGroup, command
from tests.broker.authority import Authority
from tests.broker.test_federation import ENDLESS, Secured, files, rewrite

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(300)]

PATIENCE = 600.0
AHEAD = """
import time
shift = 40 * 86400
real, real_ns = time.time, time.time_ns
time.time = lambda: real() + shift
time.time_ns = lambda: real_ns() + shift * 10**9
"""


class Town:
    """A secured broker, one device, and an aggregator whose clock may be wrong."""

    def __init__(self, folder: Path, family: ProcessGroup):
        self.family, self.folder = family, folder
        (folder / "certificates").mkdir()
        authority = Authority(folder / "certificates", "authority")
        self.site = Secured(folder / "broker", authority, free_port())
        self.site.start(family)
        self.prepared = files(folder, replace(ENDLESS, devices=1), "mqtt://127.0.0.1:1")
        rewrite(self.prepared.aggregator, "broker", **self.site.link("_agg"))
        (device,) = self.prepared.devices
        rewrite(device.config, "broker", **self.site.link(device.id))
        self.device = device
        self.state = Config.load(device.config).state
        (folder / "ahead").mkdir()
        (folder / "ahead" / "sitecustomize.py").write_text(AHEAD)

    def aggregator(self, *, is_ahead: bool = False):
        environ = {"PYTHONPATH": str(self.folder / "ahead")} if is_ahead else {}
        words = command("gridfed-aggregator", "run", str(self.prepared.aggregator))
        return self.family.start("aggregator", words, environ=environ)

    def agent(self):
        words = command("gridfed-edge", "run", str(self.device.config))
        return self.family.start("device", words)

    def fact(self, name: str) -> int:
        try:
            with DeviceStore.open(self.state, read_only=True) as store:
                return store.fact(name)
        except StoreError:  # not made yet, or being made just now
            return 0

    def accepted(self) -> int:
        """How many updates of the device the aggregator has in its journal."""
        database = next(self.prepared.aggregator.parent.rglob("aggregator.db"))
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
            return db.execute("SELECT count(*) FROM journal WHERE kind = 'update'").fetchone()[0]

    def until(self, done):
        end = time.monotonic() + PATIENCE
        while not done():
            self.family.require_running()
            if time.monotonic() > end:
                logs = "\n".join(f"{one.name}:\n{one.tail(12)}" for one in self.family.members)
                pytest.fail(f"not within {PATIENCE:.0f} s\n{logs}")
            time.sleep(0.1)

    def end(self, *running):
        self.family.stop(running)
        for one in running:
            self.family.members.remove(one)

    def said(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*words), capture_output=True, text=True, timeout=60, check=False
        )


@pytest.fixture
def town(tmp_path):
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")
    with ProcessGroup(tmp_path / "logs") as family:
        yield Town(tmp_path, family)


def test_a_wrong_time_is_corrected_by_the_next_welcome(town):
    wrong, device = town.aggregator(is_ahead=True), town.agent()
    town.until(lambda: town.fact("floor") > time.time() * 1000 + 39 * DAY)
    town.end(device, wrong)
    check = town.said("gridfed-edge", "check", str(town.device.config), "--broker")
    assert check.returncode == 0, check.stdout + check.stderr
    assert "39 days ahead: one of them is wrong" in check.stdout
    town.aggregator()
    written = len(device.log.read_text("utf-8"))
    device = town.agent()
    town.until(lambda: 0 < town.fact("floor") < time.time() * 1000 + DAY)
    log = device.log.read_text("utf-8")[written:]
    assert 'certificate_dates_by="machine\'s clock"' in log
    assert "stored time changed" in log
    before = town.accepted()
    town.until(lambda: town.accepted() > before)


def test_the_largest_stored_and_commanded_numbers_do_not_stop_a_device(town):
    aggregator, device = town.aggregator(), town.agent()
    town.until(lambda: town.accepted() > 0)
    told = ("gridfed-aggregator", "command", town.device.id, "budget", "--releases")
    config = ("--config", str(town.prepared.aggregator))
    for releases in ("99999999999999999999", str(2**63), "-1"):
        done = town.said(*told, releases, *config)
        assert done.returncode == 2, done
        assert "expected 0 to 2147483647, got" in done.stderr
    assert town.said(*told, "1000000", *config).returncode == 0
    town.until(lambda: town.fact("releases allowed") == 1_000_000)
    town.end(device)
    with closing(sqlite3.connect(town.state / "device.db")) as db, db:
        db.execute("UPDATE numbers SET life = ?, spent = ?", (2**63 - 1, 2**63 - 1))
        names = ("floor", "serial", "command", "releases allowed", "conn")
        db.executemany(
            "INSERT OR REPLACE INTO facts VALUES (?, ?)", [(name, 2**63 - 1) for name in names]
        )
    before, device = town.accepted(), town.agent()
    town.until(lambda: town.accepted() > before)
    check = town.said("gridfed-edge", "check", str(town.device.config))
    assert "out of bounds and not used" in check.stdout
    assert "spent (9223372036854775807)" in check.stdout
    town.end(aggregator)
    database = next(town.prepared.aggregator.parent.rglob("aggregator.db"))
    with closing(sqlite3.connect(database)) as db, db:
        db.execute("UPDATE ledgers SET cur = ?, hid_life = ?, spent = ?", (2**63 - 1,) * 3)
    aggregator = town.aggregator()
    town.until(lambda: "stored number rejected" in aggregator.log.read_text("utf-8"))
    town.end(device)
    key = Config.load(town.device.config).keys.device
    key.unlink()
    line = town.said("gridfed-edge", "enrol", str(town.device.config)).stdout.split("\n")[2]
    name, public, proof = line.split(",")
    enrol = ("gridfed-aggregator", "enrol", name, "--public", public, "--proof", proof)
    done = town.said(*enrol, *config)
    assert "the aggregator's count of releases changes from" in done.stdout
    written = len(device.log.read_text("utf-8"))
    device = town.agent()
    town.until(lambda: "welcome received life=" in device.log.read_text("utf-8")[written:])
