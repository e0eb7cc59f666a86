"""Forecasts of the installed agent, seen from outside: broker, HTTP, files, and a process killed."""

from __future__ import annotations

import csv
import http.client
import json
import math
import re
import signal
import subprocess
import sys
import time

import pytest

from edge_sdk.wire import keys
from firmware_sim.fleet.federation import free_port

PATIENCE = 120.0
HOUR = 3600

TOML = """
id = "meter-1"
fleet = "north"
state = "state"
bundle = "load-week-1"
heartbeat = "beat"
broker = { url = "mqtt://127.0.0.1:1" }
keys = { device = "meter.key", root = "root.pub" }
privacy = { mechanism = { name = "none" } }
[[source]]
type = "csv"
path = "load.csv"
time_format = "epoch"
columns = { kwh = "elec.import.energy" }
"""


class Meter:
    """A folder with a configuration, eight days of readings, and the agent on it."""

    def __init__(self, folder, outputs):
        self.folder, self.config = folder, folder / "meter.toml"
        self.config.write_text(TOML + outputs)
        keys.save_public(folder / "root.pub", keys.from_seed(b"r" * 32).public)
        self.end = int(time.time()) // HOUR * HOUR
        rows = [
            f"{self.end - HOUR * i},{1 + math.sin(i / 24 * math.tau) / 2:.3f}\n"
            for i in range(8 * 24, 0, -1)
        ]
        (folder / "load.csv").write_text("time,kwh\n" + "".join(rows))
        assert self.edge("enrol").returncode == 0
        self.process = None

    def edge(self, *words):
        return subprocess.run(
            [sys.executable, "-m", "edge_sdk", *words[:1], str(self.config), *words[1:]],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )

    def start(self):
        self.log = (self.folder / "log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "edge_sdk", "run", str(self.config)],
            stdout=self.log,
            stderr=self.log,
        )

    def stop(self, number=signal.SIGTERM):
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(PATIENCE)
            self.process = None
            self.log.close()

    @property
    def said(self):
        return (self.folder / "log").read_text()

    def until(self, done, serve=lambda: time.sleep(0.05)):
        end = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < end, self.said
            assert self.process.poll() is None, self.said
            serve()


@pytest.fixture
def meter(tmp_path):
    made = []

    def make(outputs):
        made.append(Meter(tmp_path, outputs))
        return made[-1]

    yield make
    for one in made:
        one.stop(signal.SIGKILL)


def fetched(port, path):
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        link.request("GET", path)
        answer = link.getresponse()
        return answer.status, answer.read()
    except OSError:
        return 0, b""
    finally:
        link.close()


@pytest.mark.broker
def test_home_assistant_finds_the_forecast_and_sees_the_agent_die(meter, mosquitto, room):
    one = meter(f'[[output]]\ntype = "mqtt"\nurl = "{mosquitto.url}"\n')
    one.start()
    early = room.join(mosquitto.url, "early", "gridfed/#", "homeassistant/#")
    one.until(
        lambda: any(m.topic.endswith("/forecast") for m in early.messages),
        lambda: room.serve(0.1),
    )
    late = room.join(mosquitto.url, "late", "gridfed/#", "homeassistant/#")
    room.until(lambda: len(late.messages) >= 3)
    found = {m.topic: m for m in late.messages}
    assert all(m.retained for m in late.messages)
    state = found["gridfed/meter-1/forecast"]
    assert found["gridfed/meter-1/availability"].payload == b"online"
    described = json.loads(found["homeassistant/device/gridfed_meter-1/config"].payload)
    assert described["state_topic"] == state.topic
    forecast = json.loads(state.payload)
    assert forecast["source"] == "model"
    assert forecast["model"] == {
        "bundle": "load-week-1",
        "bundle_version": 1,
        "run": 0,
        "version": -1,
    }
    assert forecast["quality"]["candidate"] == "fleet"
    assert [row["start"] for row in forecast["values"]] == [
        time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(one.end))
    ]
    first = forecast["values"][0]
    assert first["lower"] <= first["value"] <= first["upper"]
    one.stop(signal.SIGKILL)
    room.until(lambda: late.messages[-1].payload == b"offline")


def test_files_http_and_health_work_beside_broken_outputs(meter, tmp_path):
    port, nowhere = free_port(), free_port()
    gone = tmp_path / "gone"
    gone.mkdir()
    one = meter(
        f"""
[[output]]
type = "mqtt"
url = "mqtt://127.0.0.1:{nowhere}"
[[output]]
type = "file"
path = "gone/forecast.csv"
[[output]]
type = "http"
listen = "127.0.0.1:{port}"
[[output]]
type = "file"
path = "forecast.csv"
[[output]]
type = "file"
path = "history.line"
format = "line"
mode = "append"
"""
    )
    check = one.edge("check")
    assert check.returncode == 0, check.stderr
    assert "outputs: 0 mqtt, 1 file, 2 http, 3 file, 4 file" in check.stdout
    assert one.edge("health").returncode == 1
    gone.rmdir()
    assert "output[1].path: no such folder" in one.edge("check").stderr
    one.start()
    one.until(lambda: fetched(port, "/forecast")[0] == 200)
    one.until((tmp_path / "forecast.csv").exists)
    one.until((tmp_path / "history.line").exists)
    one.until(lambda: 'output="0 mqtt"' in one.said and 'output="1 file"' in one.said)
    served = json.loads(fetched(port, "/forecast")[1])
    rows = list(csv.DictReader((tmp_path / "forecast.csv").read_text().splitlines()))
    assert [row["start"] for row in rows] == [row["start"] for row in served["values"]]
    assert rows[0]["value"] == f"{served['values'][0]['value']:.9g}"
    assert (tmp_path / "history.line").read_text().startswith("gridfed_forecast,device=meter-1,")
    metrics = fetched(port, "/metrics")[1].decode()
    assert 'gridfed_edge_can_forecast{device="meter-1",fleet="north"} 1' in metrics
    assert one.edge("health").returncode == 0
    failures = re.compile(r'output_failures_total\{[^}]*output="1 file"\} [1-9]')
    one.until(lambda: failures.search(fetched(port, "/metrics")[1].decode()))
    gone.mkdir()
    one.until((gone / "forecast.csv").exists)
    one.until(lambda: 'output restored output="1 file"' in one.said)
    one.stop()
    assert one.said.count('output failed output="1 file"') == 1
    assert one.said.count('output failed output="0 mqtt"') == 1
    dead = one.edge("health")
    assert dead.returncode == 1
    assert "no heartbeat" in dead.stdout


def test_health_sees_a_killed_agent_and_one_that_hangs(meter):
    one = meter("")
    one.start()
    one.until(lambda: one.edge("health").returncode == 0)
    one.process.send_signal(signal.SIGSTOP)
    end = time.monotonic() + PATIENCE
    while one.edge("health", "--max-age", "1s").returncode == 0:
        assert time.monotonic() < end
    one.process.send_signal(signal.SIGCONT)
    one.stop(signal.SIGKILL)
    end = time.monotonic() + PATIENCE
    while one.edge("health", "--max-age", "2s").returncode == 0:
        assert time.monotonic() < end
