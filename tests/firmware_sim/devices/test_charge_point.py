"""A simulated charger, a back office that we did not write, and the tap between them."""

from __future__ import annotations

import contextlib
import csv
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_sdk.extensions.sources.recording import read_record
from edge_sdk.extensions.sources.spool import segments
from edge_sdk.sources import SOURCES
from firmware_sim.fleet.federation import free_port

pytest.importorskip("ocpp")
pytest.importorskip("websockets")

OFFICE = Path(__file__).parents[1] / "backoffice.py"
QUARTER = 900
BEGIN = 1_715_558_400  # 2024-05-13, a Monday
DEMAND = "ev.demand.energy"


@contextlib.contextmanager
def process(*command, reads=True) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start a program; yield its first line."""
    child = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        yield child.stdout.readline().strip() if reads else "", child
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


@contextlib.contextmanager
def office(version, log, port=0):
    with process(str(OFFICE), str(port), version, str(log)) as (found, child):
        yield int(found), child


@pytest.fixture
def config(tmp_path):
    """A device beside a charger; what a tap does not need is there for the form."""

    def write(back_office, port=0):
        path = tmp_path / "charger.toml"
        path.write_text(
            f"""
            id = "charger-1"
            fleet = "north"
            state = "state"
            bundle = "load-mlp"
            broker = {{ url = "mqtt://127.0.0.1" }}
            keys = {{ device = "device.key", root = "root.pub" }}
            privacy = {{ mechanism = {{ name = "none" }} }}
            [[source]]
            type = "ocpp"
            spool = "spool"
            listen = "tcp://127.0.0.1:{port or free_port()}"
            csms = "ws://127.0.0.1:{back_office}/ocpp"
            """,
            "utf-8",
        )
        return path

    return write


@contextlib.contextmanager
def tap(path):
    """Run the proxy; at the end it stops regularly, after recording what it has forwarded."""
    with process("-m", "edge_sdk", "tap", str(path), "--log", "error") as (url, child):
        yield url, child
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            assert child.wait(300) == 0


def charging(url, *options):
    command = [sys.executable, "-m", "firmware_sim", "charger", url, "--json", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finished(child, patience=600):
    out, _ = child.communicate(timeout=patience)
    return json.loads(out.splitlines()[-1])


def recorded(folder):
    """Count the frames that the proxy has recorded."""
    count = 0
    for path in segments(folder):
        with path.open("rb") as file:
            file.readline()
            while read_record(file) is not None:
                count += 1
    return count


def readings(folder, step=QUARTER, patience=300.0, *, sessions=None):
    """Read the tap's notes to their end, as the agent does: value by time, and the source."""
    sessions = [] if sessions is None else sessions
    count, end = recorded(folder), time.monotonic() + patience
    source = SOURCES["ocpp"]({"type": "ocpp", "spool": str(folder)})
    source.on_grid(step)
    source.start()
    found: dict[float, float] = {}
    while source.accepted + source.rejected.total() < count:
        assert time.monotonic() < end, (source.accepted, source.rejected, count)
        for reading in source.poll():
            if reading.stream == DEMAND:
                found[reading.time] = reading.value
            if reading.stream == "ev.session.energy":
                sessions.append(reading.value)
        time.sleep(0.02)
    source.close()
    return found, source


def truth(path):
    with path.open(encoding="utf-8") as file:
        rows = [(int(row["time"]), float(row["wh"])) for row in csv.DictReader(file)]
    total: dict[int, float] = {}
    for at, wh in rows:
        total[at] = total.get(at, 0.0) + wh
    return total


def heard(log):
    return log.read_text("utf-8").splitlines() if log.exists() else []


def grows(log, child, patience=300.0):
    """Wait until the back office hears more of the charger."""
    before, end = len(heard(log)), time.monotonic() + patience
    while len(heard(log)) <= before and child.poll() is None:
        assert time.monotonic() < end, "the charger did not come back"
        time.sleep(0.02)


LIFE = ("--start", "2024-05-13T00:00Z", "--site", "public", "--seed", "5", "--every", "5m")


@pytest.mark.parametrize("version", ["1.6", "2.0.1"])
def test_the_device_reads_the_energy_that_a_charger_delivers(tmp_path, config, version):
    log, true = tmp_path / "office.jsonl", tmp_path / "truth.csv"
    with office(version, log) as (port, _), tap(config(port)) as (url, listening):
        options = ("--ocpp", version, "--for", "24h", "--speed", "0", "--sockets", "2")
        told = finished(charging(f"{url}/CP-1", *LIFE, *options, "--truth", str(true)))
        listening.send_signal(signal.SIGTERM)
        assert listening.wait(60) == 0
    assert told["sessions"] > 2
    assert told["undelivered"] == 0
    rows = [json.loads(line) for line in heard(log)]
    begins = [row for row in rows if row["action"] in {"start", "Started"}]
    assert len(begins) == told["sessions"]
    sessions: list[float] = []
    found, source = readings(tmp_path / "spool", sessions=sessions)
    assert len(sessions) == told["sessions"]
    assert 1000 * sum(sessions) == pytest.approx(told["wh"], abs=1.0 * len(sessions))
    assert source.rejected.total() == 0
    wh = truth(true)
    assert sorted(found) == [BEGIN + n * QUARTER for n in range(96)]
    errors = [1000 * value - (wh[int(t) + QUARTER] - wh[int(t)]) for t, value in found.items()]
    assert abs(sum(errors)) <= 2.0  # two registers of whole Wh
    assert max(map(abs, errors)) <= 2.0 + 1e-6
    assert 1000 * sum(found.values()) == pytest.approx(told["wh"], abs=2.0)
    spoken = b"".join(path.read_bytes() for path in (tmp_path / "spool").glob("*.rec"))
    assert b"DRIVER" not in spoken


@pytest.mark.parametrize("version", ["1.6", "2.0.1"])
def test_delivered_energy_is_counted_once_under_every_fault(tmp_path, config, version):
    """A recorded site's cars; broken links, messages twice, power that fails, a clock in 1970."""
    log, true = tmp_path / "office.jsonl", tmp_path / "truth.csv"
    wrong = ("flap=0.02", "duplicate=0.1", "gap=0.05", "reboots=4", "brownouts=4", "lost_clock=1")
    faults = [word for one in wrong for word in ("--fault", one)]
    with office(version, log) as (port, _), tap(config(port)) as (url, _):
        options = ("--ocpp", version, "--for", "24h", "--speed", "0", "--like", "chargers")
        told = finished(charging(f"{url}/CP-1", *LIFE, *options, *faults, "--truth", str(true)))
    assert {"flap", "duplicate", "reboots", "brownouts", "lost_clock"} <= set(told["faults"])
    assert told["connections"] > 3
    assert told["undelivered"] == 0
    found, source = readings(tmp_path / "spool")
    assert source.normaliser.counts["clock not set"] > 0
    wh = truth(true)
    errors = [1000 * value - (wh[int(t) + QUARTER] - wh[int(t)]) for t, value in found.items()]
    assert abs(sum(errors)) < 0.02 * told["wh"] + 2.0
    assert 1000 * sum(found.values()) <= told["wh"] + 2.0


@pytest.mark.chaos
@pytest.mark.parametrize("version", ["1.6", "2.0.1"])
def test_killing_the_proxy_stops_no_session_and_duplicates_nothing(tmp_path, config, version):
    log, true = tmp_path / "office.jsonl", tmp_path / "truth.csv"
    with office(version, log) as (port, _), contextlib.ExitStack() as running:
        path = config(port)
        url, first = running.enter_context(tap(path))
        options = ("--ocpp", version, "--for", "24h", "--speed", "4000", "--truth", str(true))
        child = charging(f"{url}/CP-1", *LIFE, *options)
        taps = [first]
        for _ in range(3):
            grows(log, child)
            taps[-1].kill()
            taps[-1].wait()
            again, restarted = running.enter_context(tap(path))
            assert again == url
            taps.append(restarted)
            grows(log, child)
        told = finished(child)
    assert told["undelivered"] == 0
    assert told["connections"] > 1
    found, _ = readings(tmp_path / "spool")
    wh = truth(true)
    errors = [1000 * value - (wh[int(t) + QUARTER] - wh[int(t)]) for t, value in found.items()]
    assert 1000 * sum(found.values()) <= told["wh"] + 2.0
    assert max(errors) < 1500  # a message lost with the tap is bridged by the next register
    again, _ = readings(tmp_path / "spool")
    assert again == found


def test_an_offline_charger_delivers_its_session_later(tmp_path):
    """Nobody answers for half of the day; then the queue comes, and the schemas accept it."""
    log, port = tmp_path / "office.jsonl", free_port()
    options = ("--ocpp", "2.0.1", "--for", "24h", "--speed", "20000")
    with socket.create_server(("127.0.0.1", port)) as closed:
        closed.settimeout(300)
        child = charging(f"ws://127.0.0.1:{port}/CP-1", *LIFE, *options)
        for _ in range(3):  # its day has begun, and it has tried again for 1.5 s and more
            closed.accept()[0].close()
    with office("2.0.1", log, port):
        told = finished(child)
    rows = [json.loads(line) for line in heard(log)]
    assert told["queued"] > 10
    assert told["undelivered"] == 0
    assert any(row.get("offline") for row in rows)
    ended = [row for row in rows if row["action"] == "Ended"]
    assert len(ended) == told["sessions"]
