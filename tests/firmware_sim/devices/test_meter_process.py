"""A simulated meter, read by the SDK and by clients that we did not write."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from edge_sdk.sources import SOURCES
from firmware_sim.commands.main import main
from firmware_sim.devices.faults import FaultRates
from firmware_sim.devices.meter_process import MeterSettings, run
from firmware_sim.ports.line import open_line
from firmware_sim.samples import sample_set

QUARTER = 900


@contextmanager
def metering(*options) -> Iterator[tuple[dict[str, str], subprocess.Popen[str]]]:
    """Start the command; yield its addresses."""
    command = [sys.executable, "-m", "firmware_sim", "meter", "--json", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            yield json.loads(child.stdout.readline()), child
        finally:
            child.terminate()


def heard(source, until, step=QUARTER):
    """Listen until a reading at or after ``until`` came; return value by time."""
    readings: dict[float, float] = {}
    source.on_grid(step)
    source.start()
    turns = threading.Event()
    try:
        for _ in range(12_000):
            for reading in source.poll():
                if reading.stream == "elec.import.energy":
                    assert readings.setdefault(reading.time, reading.value) == reading.value
            if readings and max(readings) >= until:
                return readings
            turns.wait(0.01)
    finally:
        source.close()
    raise AssertionError(f"the meter fell silent: {source.health()}")


def truth(path, column="wh"):
    with path.open(encoding="utf-8") as file:
        return {int(row["time"]): float(row[column]) for row in csv.DictReader(file)}


@pytest.mark.parametrize(
    ("day", "quarters"), [("2024-03-31", 92), ("2023-10-29", 100), ("2024-05-14", 96)]
)
@pytest.mark.parametrize("line", ["pty", pytest.param("tcp://127.0.0.1:0", marks=pytest.mark.slow)])
def test_a_day_of_telegrams_gives_a_day_of_intervals_at_clock_changes(
    tmp_path, day, quarters, line
):
    """Local midnight to local midnight in Amsterdam: 23, 25 and 24 hours."""
    midnight = {"2024-03-31": "2024-03-30T23:00Z", "2023-10-29": "2023-10-28T22:00Z"}
    start = midnight.get(day, "2024-05-13T22:00Z")
    begin = int(datetime.fromisoformat(start).timestamp())
    hours = f"{quarters * 15}m"
    true = tmp_path / "truth.csv"
    options = ("--start", start, "--for", hours, "--every", "30s", "--speed", "0", "--p1", line)
    with metering(*options, "--truth", str(true), "--solar", "2") as (where, child):
        source = SOURCES["p1"]({"type": "p1", "url": where["p1"]})
        readings = heard(source, begin + (quarters - 1) * QUARTER)
        child.wait(60)
    assert sorted(readings) == [begin + n * QUARTER for n in range(quarters)]
    assert source.rejected.total() == 0
    end, energy = begin + quarters * QUARTER, 1000 * sum(readings.values())
    wh, shown = truth(true), truth(true, "shown")
    assert energy == pytest.approx(shown[end] - shown[begin], abs=1e-6)
    assert energy == pytest.approx(wh[end] - wh[begin], abs=2.0)  # two registers of whole Wh
    assert all(value >= 0 for value in readings.values())


@pytest.mark.parametrize("start", ["2024-03-30T23:00Z", "2023-10-28T22:00Z"])
def test_the_client_of_dsmr_parser_reads_the_same_energy_on_a_pty(start):
    """Both days on which the clock changes, 25 hours each. What came before it listened is lost."""
    clients = pytest.importorskip("dsmr_parser.clients")
    specifications = pytest.importorskip("dsmr_parser.telegram_specifications")
    parsed, threads = [], []

    def listen(where):
        device = where["p1"].removeprefix("serial://")
        reader = clients.SerialReader(device, clients.SERIAL_SETTINGS_V5, specifications.V5)
        with contextlib.suppress(OSError):  # the meter hangs up
            parsed.extend(reader.read())

    def begin(where):
        threads.append(threading.Thread(target=listen, args=(where,), daemon=True))
        threads[0].start()
        threads[0].join(1.0)

    moment = datetime.fromisoformat(start).timestamp()
    order = MeterSettings(moment, 25 * 3600, every=300, speed=0, p1="pty")
    told = run(order, begin)
    threads[0].join(60)
    times = [p.P1_MESSAGE_TIMESTAMP.value.astimezone(UTC).timestamp() for p in parsed]
    assert len(parsed) > 0.9 * told.telegrams
    assert times == [moment + 300.0 * n for n in range(301 - len(times), 301)]

    def total(p):
        return 1000 * float(p.ELECTRICITY_USED_TARIFF_1.value + p.ELECTRICITY_USED_TARIFF_2.value)

    meter = order.meter()
    shown = [sum(meter.display(time).imported) for time in times]
    assert list(map(total, parsed)) == pytest.approx(shown, abs=1e-6)


def test_line_faults_create_no_energy(tmp_path):
    """Duplicates, changed order, gaps, noise, turned bits, cut telegrams, a fast clock, reboots."""
    true = tmp_path / "truth.csv"
    faults = FaultRates(0.05, 0.05, 0.05, 0.1, 0.1, 0.05, reboots=6, lost_clock=0.5)
    begin = 1_700_006_400
    order = MeterSettings(
        begin, 86_400, 30, 0, "tcp://127.0.0.1:0", seed=3, faults=faults, truth=true
    )
    told = []
    source, ready = [], threading.Event()

    def say(where):
        source.append(SOURCES["p1"]({"type": "p1", "url": where["p1"]}))
        ready.set()

    thread = threading.Thread(target=lambda: told.append(run(order, say)), daemon=True)
    thread.start()
    assert ready.wait(60)
    readings = heard(source[0], begin + 95 * QUARTER)
    thread.join(30)
    assert set(told[0].faults) == {
        *("duplicate", "reorder", "gap", "noise", "flip", "cut", "reboots", "lost_clock")
    }
    wh = truth(true)
    errors = [1000 * value - (wh[int(t) + QUARTER] - wh[int(t)]) for t, value in readings.items()]
    assert len(readings) >= 90
    assert abs(sum(errors)) < 2.0 * len(readings)
    assert max(map(abs, errors)) < 60  # what two minutes without a telegram may shift
    assert source[0].rejected["wrong checksum"] == 0  # counted by the framer
    assert source[0].health()["rejected"]["wrong checksum"] > 50
    assert source[0].health()["noticed"]["clock not set"] > 0


@pytest.mark.parametrize("line", ["pty:{}/ttyP1", "tcp://127.0.0.1:{}"])
def test_link_breaks_and_power_failures_lose_no_energy(tmp_path, line, monkeypatch):
    """The line goes away and comes back; a telegram ends where the power did."""
    monkeypatch.setattr("edge_sdk.extensions.sources.threaded_source._FIRST_WAIT", 0.01)
    true, begin = tmp_path / "truth.csv", 1_700_006_400
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    where = line.format(tmp_path if line.startswith("pty") else port)
    faults = FaultRates(flap=0.005, brownouts=12, lost_clock=1.0)
    order = MeterSettings(begin, 86_400, 30, 0, where, seed=3, faults=faults, truth=true)
    told, source, ready = [], [], threading.Event()

    def say(found):
        source.append(SOURCES["p1"]({"type": "p1", "url": found["p1"], "max_gap": "1h"}))
        ready.set()

    thread = threading.Thread(target=lambda: told.append(run(order, say)), daemon=True)
    thread.start()
    assert ready.wait(10)
    readings = heard(source[0], begin + 95 * QUARTER)
    thread.join(60)
    assert {"flap", "brownouts", "lost_clock"} == set(told[0].faults)
    health, wh = source[0].health(), truth(true)
    assert health["lost"] > 0
    assert health["noticed"]["clock not set"] > 0
    errors = [1000 * value - (wh[int(t) + QUARTER] - wh[int(t)]) for t, value in readings.items()]
    assert len(readings) >= 90
    assert abs(sum(errors)) < 100  # a register bridges what was not said


@pytest.mark.parametrize(
    ("kind", "fault"), [("charger", "noise"), ("charger", "reorder"), ("meter", "late")]
)
def test_an_unknown_meter_fault_is_refused(capsys, kind, fault):
    words = [kind, "--fault", f"{fault}=0.1"]
    assert main([*words, "ws://127.0.0.1:1/CP"] if kind == "charger" else words) == 2
    assert f"--fault {fault}: unknown; known: " in capsys.readouterr().err


def test_a_meter_continues_without_a_reader():
    line = open_line("pty")
    took = [line.send(b"x" * 1000, waits=False) for _ in range(100)]
    line.close()
    assert took[0]
    assert not took[-1]


def test_pymodbus_and_the_sdk_read_the_same_registers():
    client_module = pytest.importorskip("pymodbus.client")
    options = ("--p1", "", "--modbus", "tcp://127.0.0.1:0", "--for", "1h", "--every", "1s")
    with metering(*options, "--start", "2024-05-14T12:00Z", "--business") as (where, _):
        host, port = where["modbus"].removeprefix("tcp://").split(":")
        client = client_module.ModbusTcpClient(host, port=int(port))
        assert client.connect()
        marker = client.read_holding_registers(40_000, count=2)
        energy = client.read_holding_registers(40_070 + 46, count=2)
        wh = client.convert_from_registers(energy.registers, client.DATATYPE.UINT32)
        assert bytes.fromhex("".join(f"{word:04x}" for word in marker.registers)) == b"SunS"
        assert client.write_register(40_000, 1).isError()
        client.close()
        section = {
            "type": "modbus",
            "url": where["modbus"],
            "poll_interval": "100ms",
            "sunspec": True,
        }
        sunspec = _first(SOURCES["modbus"](section))
        assert sunspec["import.energy"] == pytest.approx(wh, abs=50)
        points = [
            {
                "name": "import.energy",
                "address": 1000,
                "data_type": "u32",
                "table": "input",
                "unit": "Wh",
            },
            {
                "name": "export.energy",
                "address": 1002,
                "data_type": "u32",
                "table": "input",
                "unit": "Wh",
            }
            | {"word_order": "little"},
            {"name": "power", "address": 1004, "data_type": "i16", "table": "input", "unit": "W"},
            {"name": "weather", "address": 1005, "data_type": "i16", "table": "input"},
        ]
        section = {
            "type": "modbus",
            "url": where["modbus"],
            "poll_interval": "100ms",
            "point": points,
        }
        own = _first(SOURCES["modbus"](section))
        assert own["import.energy"] == pytest.approx(wh, abs=50)
        assert own["export.energy"] == sunspec["export.energy"]
        assert "weather" not in own  # 0x8000: not implemented


def _first(source):
    source.start()
    try:
        for _ in range(500):
            for samples, _ in source.turn():
                return {sample.name: sample.value for sample in samples if not sample.fault}
            threading.Event().wait(0.01)
    finally:
        source.close()
    raise AssertionError(source.health())


def test_a_meter_of_a_recorded_home_shows_the_recorded_energy():
    """The first device of the shipped homes, on a day inside its record."""
    sample = sample_set("homes").samples[0]
    times, kwh = sample.column(sample_set("homes").target)
    begin = int(times[24 * 10]) // 86_400 * 86_400
    order = MeterSettings(begin, 86_400, 3600, 0, "", recorded=f"homes/{sample.device}")
    meter = order.meter()
    shown = [meter.wh(begin + hour * 3600) for hour in range(24)]
    hourly = {int(t): v for t, v in zip(times, kwh, strict=True)}
    for hour, (a, b) in enumerate(itertools.pairwise(shown)):
        assert b - a == pytest.approx(1000 * hourly[begin + hour * 3600], abs=1e-6)
