"""The examples of a household's gateway and of a charger, with simulated devices at their ports."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from edge_sdk import Config
from edge_sdk.commands import main as cli
from edge_sdk.errors import StoreError
from edge_sdk.protocol import keys
from edge_sdk.store.store import DeviceStore
from firmware_sim.fleet.federation import free_port

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
DAYS = 9  # the bundles look a week back
DAY = 86_400


@pytest.fixture
def example(tmp_path, monkeypatch):
    """One example in a folder of its own, enrolled; its broker is not there, and not needed."""
    monkeypatch.setenv("GRIDFED_EDGE_BROKER", '{ url = "mqtt://127.0.0.1:1" }')

    def begin(name, **changes):
        path = tmp_path / name
        text = (EXAMPLES / name).read_text("utf-8")
        for old, new in changes.values():
            assert old in text
            text = text.replace(old, new)
        path.write_text(text, "utf-8")
        keys.save_public(tmp_path / "root.pub", keys.from_seed(b"r" * 32).public)
        assert cli.main(["enrol", str(path)]) == 0
        return path

    return begin


@contextlib.contextmanager
def program(*words):
    """Run one of our programs beside the test; yield it."""
    child = subprocess.Popen([sys.executable, "-m", *words], stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.terminate()
        child.communicate(timeout=300)


def midnight():
    return int(time.time()) // DAY * DAY


def iso(moment):
    return datetime.fromtimestamp(moment, UTC).isoformat()


def forecast(path, capsys):
    capsys.readouterr()
    assert cli.main(["forecast", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    return datetime.fromisoformat(told["times"][0]).timestamp(), told


@pytest.mark.slow
def test_the_gateway_reads_its_meter_and_forecasts_the_next_hour(example, tmp_path, capsys):
    begin, end = midnight() - DAYS * DAY, midnight()
    rows = (f"{at},{8 + at // 3600 % 5},3" for at in range(begin, end, 3600))
    (tmp_path / "weather.csv").write_text("time,temperature,wind\n" + "\n".join(rows) + "\n")
    line = tmp_path / "ttyP1"
    where = ("serial:///dev/ttyUSB0?baud=115200", f"serial://{line}")
    epoch = ('path = "weather.csv" ', 'time_format = "epoch"\npath = "weather.csv" ')
    path = example("gateway.toml", url=where, form=epoch)
    assert cli.main(["check", str(path)]) == 0
    life = ("--start", iso(begin), "--for", f"{DAYS}d", "--every", "5m", "--speed", "0")
    with program("firmware_sim", "meter", "--p1", f"pty:{line}", *life) as meter:
        while not os.path.lexists(line):
            time.sleep(0.05)
        with program("edge_sdk", "run", str(path), "--log", "error") as agent:
            assert meter.wait(600) == 0
            wait_until_idle(agent.pid)
            agent.terminate()
            assert agent.wait(300) == 0
    at, told = forecast(path, capsys)
    assert at == end
    assert told["source"] == "model"
    assert told["unit"] == "kWh"


@pytest.mark.slow
def test_the_charger_is_recorded_and_its_demand_forecast(example, tmp_path, capsys):
    pytest.importorskip("ocpp")
    pytest.importorskip("websockets")
    office = Path(__file__).with_name("firmware_sim") / "backoffice.py"
    begin, end = midnight() - DAYS * DAY, midnight()
    command = [sys.executable, str(office), "0", "1.6", str(tmp_path / "office.jsonl")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as back:
        try:
            port = back.stdout.readline().strip()
            path = example(
                "charger.toml",
                csms=("wss://backoffice.example/ocpp", f"ws://127.0.0.1:{port}/ocpp"),
                listen=("tcp://127.0.0.1:9000", f"tcp://127.0.0.1:{free_port()}"),
            )
            assert cli.main(["check", str(path)]) == 0
            overheard(path, begin)
        finally:
            back.kill()
    for life in range(1, 11):  # until it has read all that was overheard, however busy the machine
        with program("edge_sdk", "run", str(path), "--log", "error") as agent:
            while starts(path) < life:  # before that it knows no signal
                assert agent.poll() is None
                time.sleep(0.1)
            time.sleep(6)
            agent.terminate()
            assert agent.wait(300) == 0
        at, told = forecast(path, capsys)
        if at == end:
            break
    assert at == end
    assert told["source"] == "model"


def wait_until_idle(pid, looks=100, patience=300.0):
    """Wait until no thread of a process has run or wanted to run at so many looks in a row."""
    quiet, end = 0, time.monotonic() + patience
    while quiet < looks:
        assert time.monotonic() < end, "the agent still works"
        states = [
            path.read_text("ascii", errors="replace").rpartition(")")[2].split()[0]
            for path in Path(f"/proc/{pid}/task").glob("*/stat")
        ]
        quiet = quiet + 1 if states and set(states) == {"S"} else 0
        time.sleep(0.03)


def starts(path):
    """How often an agent began to work there."""
    with (
        contextlib.suppress(StoreError, sqlite3.Error),
        DeviceStore.open(Config.load(path).state, read_only=True) as store,
    ):
        return store.fact("starts")
    return 0


def overheard(path, begin):
    """A charger's nine days, through the tap."""
    with program("edge_sdk", "tap", str(path), "--log", "error") as tap:
        url = tap.stdout.readline().strip()
        life = ("--start", iso(begin), "--for", f"{DAYS}d", "--every", "15m", "--speed", "0")
        with program("firmware_sim", "charger", f"{url}/CP-1", *life) as charger:
            assert charger.wait(200) == 0
