"""One device in an hourly and a quarter-hourly run: real daemon, real agent, real broker, kill -9."""

from __future__ import annotations

import json
import math
import shutil
import signal
import time

import pytest

from edge_sdk.config import Config
from edge_sdk.errors import StoreError
from edge_sdk.privacy.ledger import compose
from edge_sdk.store.store import DeviceStore
from firmware_sim.fleet.federation import free_port
from firmware_sim.fleet.processes import command, run
from tests.broker.single_meter import fetched
from tests.broker.test_fleet_weather import Site

pytestmark = [pytest.mark.broker, pytest.mark.slow]

EPSILON, DELTA, QUARTER = 4.0, 1e-6, 900
AGGREGATOR = """
fleet = "north"
state = "fleet"
broker = { url = "URL" }
http = { listen = "off" }
pacing = { jitter = "0s" }
"""
RUN = """
[[run]]
name = "NAME"
cohort = { grid = "NAME" }
bundle = "BUNDLE"
method = "fedavg"
quorum = 1
min_updates = 1
deadline = "20s"
rounds = 8
schedule = { rounds_per_day = "continuous" }
settings = { steps = 2, rate = 0.003 }
"""
DEVICE = """
interval_seconds = 900
[[participation]]
id = "meter-1-hour"
bundle = "load-week-1"
[[output]]
type = "http"
listen = "127.0.0.1:PORT_0"
[[output]]
type = "http"
listen = "127.0.0.1:PORT_1"
participation = "meter-1-hour"
"""
PRIVACY = """
[privacy]
mode = "honest"
mechanism = { name = "gaussian", point = "update", clip_norm = 1.0, epsilon = 1.0 }
budget = { epsilon = 4.0, delta = 1e-6 }
"""


class Meter(Site):
    """One daemon with two runs, and one meter with a quarter-hourly record."""

    def __init__(self, folder, meter, url, ports):
        self.folder, self.config, self.daemon = folder, folder / "aggregator.toml", None
        runs = (("quarter", "load-quarter-hour-1"), ("hour", "load-week-1"))
        text = AGGREGATOR.replace("URL", url)
        for name, bundle in runs:
            text += RUN.replace("NAME", name).replace("BUNDLE", bundle)
        self.config.write_text(text)
        more = DEVICE.replace("PORT_0", str(ports[0])).replace("PORT_1", str(ports[1]))
        self.meter = meter("", bundle="load-quarter-hour-1")
        toml = self.meter.config.read_text().replace("mqtt://127.0.0.1:1", url)
        toml = toml.replace('privacy = { mechanism = { name = "none" } }', "") + more + PRIVACY
        self.meter.config.write_text(toml)
        now = int(time.time()) // 3600 * 3600
        rows = [
            f"{now - QUARTER * i},{0.25 + math.sin(i / 96 * math.tau) / 8:.3f}\n"
            for i in range(9 * 96, 0, -1)
        ]
        (folder / "load.csv").write_text("time,kwh\n" + "".join(rows))
        self.say("init", str(self.config))
        shutil.copy(folder / "fleet" / "root.pub", folder / "root.pub")
        lines = self.meter.edge("enrol").stdout.splitlines()[-2:]
        assert lines[1].endswith(",device=meter-1")
        claims = folder / "devices.csv"
        labelled = [f"{lines[0]},grid=quarter", f"{lines[1]};grid=hour"]
        claims.write_text("id,public,proof,labels\n" + "\n".join(labelled) + "\n")
        self.say("enrol", "--from-file", str(claims), "--config", str(self.config))

    def ledgers(self):
        """Return the charges of each participation, as the files hold them."""
        found = []
        for one in Config.load(self.meter.config).participants():
            try:
                with DeviceStore.open(one.state, read_only=True) as store:
                    found.append(list(store.ledger()))
            except StoreError:
                found.append([])  # not made yet
        return found


@pytest.fixture
def site(tmp_path, meter, mosquitto):
    made = []

    def make(ports):
        made.append(Meter(tmp_path, meter, mosquitto.url, ports))
        return made[-1]

    yield make
    for one in made:
        one.stop(signal.SIGKILL)


def test_two_runs_of_one_meter_share_a_record_and_a_budget_that_outlives_kill_9(site):
    ports = free_port(), free_port()
    one = site(ports)
    meter = one.meter
    check = meter.edge("check")
    assert check.returncode == 0, check.stderr
    assert "participation meter-1-hour: load-week-1 version 1" in check.stdout
    one.start()
    for releases in (2, 4, 6):
        meter.start()
        meter.until(lambda at=releases: sum(map(len, one.ledgers())) >= at)
        meter.stop(signal.SIGKILL)
    one.stop(signal.SIGKILL)
    one.start()
    meter.start()
    meter.until(lambda: meter.said.count("privacy budget exhausted") == 2)
    own, further = one.ledgers()
    assert own
    assert further
    spent = compose([*own, *further], DELTA)
    assert 0.5 * EPSILON < spent <= EPSILON
    assert spent > max(compose(own, DELTA), compose(further, DELTA))

    # what the device shows, of each run and of all together
    status = json.loads(meter.edge("status", "--json").stdout)
    hourly = status["participations"]["meter-1-hour"]
    assert [status["bundle"], hourly["bundle"]] == ["load-quarter-hour-1", "load-week-1"]
    assert {status["run"], hourly["run"]} == {1, 2}
    assert [status["readings"], hourly["readings"]] == [9 * 96, 9 * 24]
    for shown in (status, hourly):
        assert spent * (1.0 - 1e-9) <= shown["budget"]["epsilon"] <= EPSILON
        assert shown["stopped"] == "budget"
    spending = meter.edge("budget", "--json", "--participation", "meter-1-hour")
    assert spending.returncode == 1
    assert json.loads(spending.stdout)["releases"] >= len(own) + len(further)
    bundles = []
    for port in ports:
        meter.until(lambda at=port: fetched(at, "/forecast")[0] == 200)
        bundles.append(json.loads(fetched(port, "/forecast")[1])["model"]["bundle"])
        assert b"gridfed_edge_can_forecast" in fetched(port, "/metrics")[1]
    assert bundles == ["load-quarter-hour-1", "load-week-1"]
    forecast = json.loads(
        meter.edge("forecast", "--json", "--participation", "meter-1-hour").stdout
    )
    assert forecast["source"] != "none"
    meter.stop()

    # what the operator sees, and what the journal holds
    listed = one.say("list", str(one.config))
    assert "device=meter-1" in listed
    assert "grid=hour" in listed
    one.stop()
    assert run(command("gridfed-aggregator", "audit", str(one.config), "--all"))
    said = one.say("revoke", "meter-1", "--config", str(one.config))
    assert "meter-1 and meter-1-hour are revoked" in said
