"""Forecasts of the installed agent, seen from outside: broker, HTTP, files, and a process killed."""

from __future__ import annotations

import csv
import json
import re
import signal
import socket
import time
from pathlib import Path

import pytest

from firmware_sim.fleet.federation import free_port
from tests.broker.single_meter import PATIENCE, fetched

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_a_small_device_serves_idle_connections_within_its_memory(meter):
    """Class B has 128 MB of data; a thread for each of eight connections must fit in."""
    port = free_port()
    one = meter(
        f"""
[[output]]
type = "http"
listen = "127.0.0.1:{port}"
[limits]
device_class = "B"
"""
    )
    unit = (EXAMPLES / "gridfed-edge.service").read_text("utf-8")
    one.start(
        **dict(re.findall(r"(OMP_NUM_THREADS|OPENBLAS_NUM_THREADS|MALLOC_ARENA_MAX)=(\d+)", unit))
    )
    one.until(lambda: fetched(port, "/forecast")[0] == 200)
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(12)]
    one.until(lambda: fetched(port, "/forecast")[0] == 200)
    for connection in idle:
        connection.close()
    one.stop()
    assert "MemoryError" not in one.said
    assert "output failed" not in one.said
