"""Sources at work: links that come and go, recordings, the command that tries one, the agent."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import struct
import subprocess
import sys
import threading
import time
import tty
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from edge_sdk.app.settings import SettingsError
from edge_sdk.commands import main as cli
from edge_sdk.errors import ConfigError, StoreError
from edge_sdk.sources import SOURCES
from edge_sdk.sources.base import RawFrame, Rejected
from edge_sdk.sources.byte_links import SourceAddress
from edge_sdk.sources.modbus import ModbusClient, crc16
from edge_sdk.sources.recording import record, title
from edge_sdk.store.store import DeviceStore
from edge_sdk.wire import keys
from firmware_sim.devices.meter_process import MeterSettings, run
from firmware_sim.ports.line import Port
from firmware_sim.ports.modbus import answer, registers
from firmware_sim.ports.p1 import MeterDisplay, checksum, telegram

HOME = ZoneInfo("Europe/Amsterdam")
BEGIN = 1_700_006_400


def display(n, wh):
    return telegram(MeterDisplay(BEGIN + n * 900.0, (wh, 0)), HOME)


def until(condition, patience=120.0):
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


# --- links and recordings ---------------------------------------------------------------------


def test_a_lost_link_is_reopened():
    first = Port("127.0.0.1", 0)
    port = int(first.url.rpartition(":")[2])
    source = SOURCES["p1"]({"type": "p1", "url": first.url})
    source.start()
    first.send(display(0, 1000)[:100], waits=True)
    first.close()
    until(lambda: source.lost)
    second = Port("127.0.0.1", port)
    readings = []
    second.send(display(0, 1000), waits=True)
    second.send(display(1, 1500), waits=True)
    until(lambda: readings.extend(source.poll()) or len(readings) >= 5)
    source.close()
    second.close()
    assert [r.value for r in readings if r.stream == "elec.import.energy"] == [0.5]
    assert source.rejected.total() == 0


def test_a_missing_pty_is_waited_for(tmp_path):
    link = tmp_path / "ttyP1"
    source = SOURCES["p1"]({"type": "p1", "url": f"serial://{link}"})
    source.start()
    until(lambda: source.lost)
    master, slave = os.openpty()
    tty.setraw(slave)
    link.symlink_to(os.ttyname(slave))
    os.write(master, display(0, 1000))
    until(lambda: list(source.poll()))
    source.close()
    os.close(master)
    os.close(slave)


@pytest.mark.parametrize(
    "url",
    ["", "tcp://host", "serial:ttyUSB0", "serial:///dev/x?baud=7", "udp://h:1", "tcp://h:99999"],
)
def test_an_invalid_address_is_a_configuration_error(url):
    with pytest.raises(ConfigError):
        SourceAddress.parse(url)


@pytest.mark.parametrize(
    "section",
    [
        {"type": "p1"},
        {"type": "p1", "url": "tcp://h:1", "step": "soon"},
        {
            "type": "p1",
            "url": "tcp://h:1",
            "map": {"x": {"stream": "y", "kind": "register", "z": 1}},
        },
        {"type": "modbus", "url": "tcp://h:1", "point": [{"name": "a", "address": 70_000}]},
    ],
)
def test_an_invalid_source_section_is_refused(section):
    with pytest.raises(SettingsError):
        SOURCES[section["type"]](section)


@pytest.mark.parametrize("is_plain", [True, False])
def test_a_recording_is_replayed(tmp_path, is_plain):
    path = tmp_path / "p1.rec"
    telegrams = [display(n, 1000 + 250 * n) for n in range(5)]
    if is_plain:
        path.write_bytes(b"noise" + b"".join(telegrams))
    else:
        frames = [RawFrame(text[:-6], BEGIN + n) for n, text in enumerate(telegrams)]
        path.write_bytes(title("p1") + b"".join(map(record, frames)) + b"torn")
    source = SOURCES["replay"]({"type": "replay", "recorded_type": "p1", "path": str(path)})
    values = [r.value for r in source if r.stream == "elec.import.energy"]
    assert values == [0.25] * 4
    assert source.health()["rejected"] == ({} if is_plain else {"torn recording": 1})


@pytest.mark.slow
def test_ten_thousand_damaged_telegrams_keep_the_link_open_and_memory_flat():
    """Their checksums are right; between them there is noise. Every one is accounted for."""
    chance, good = random.Random(7), display(0, 1000)
    port = Port("127.0.0.1", 0)
    source = SOURCES["p1"]({"type": "p1", "url": port.url})
    stream = [spoilt(good, chance) + chance.randbytes(chance.randrange(60)) for _ in range(10_000)]
    sender = threading.Thread(target=lambda: [port.send(piece, waits=True) for piece in stream])
    source.start()
    sender.start()
    sizes, total, quiet = [], 0, 0
    while quiet < 100:  # what is on its way in sockets and queue counts, too
        list(source.poll())
        sizes.append(resident())
        before, total = total, source.accepted + source.rejected.total()
        quiet = 0 if sender.is_alive() or total > before else quiet + 1
        time.sleep(0.01)
    sender.join()
    assert source.is_linked
    health = source.health()
    accounted = source.accepted + sum(health["rejected"].values())
    port.send(good, waits=True)
    taken = source.accepted
    until(lambda: list(source.poll()) or source.accepted > taken)
    source.close()
    port.close()
    assert health["lost"] == 0
    assert max(sizes) - sizes[len(sizes) // 4] < 5 << 20
    assert {"bad value", "bad time"} <= set(health["rejected"])
    assert accounted > 9_000  # a few lose their end, and go with the one that follows
    assert "undecodable" not in health["rejected"]


def resident():
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def spoilt(good, chance):
    """Change a few bytes inside a telegram, and seal it again."""
    body = bytearray(good[:-6])
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(20, len(body) - 3)
        body[at] = chance.choice(b"0123456789NaN().*:xSW\xff\r\n")
    body = bytes(body)
    return body + b"%04X\r\n" % checksum(body)


# --- registers over two framings --------------------------------------------------------------


class Wire:
    """A device at the other end of a link, as plain functions."""

    def __init__(self, answers):
        self.answers, self.asked, self.waiting = answers, [], b""

    def write(self, data):
        self.asked.append(data)
        self.waiting += self.answers(data)

    def read(self, patience):
        if not self.waiting:
            time.sleep(min(patience, 0.01))
        piece, self.waiting = self.waiting[:3], self.waiting[3:]
        return piece

    def close(self):
        pass


HELD = registers(MeterDisplay(0.0, (1000, 2000), (5, 6), -7))


def serial(data):
    said = data[:1] + answer(data[1:-2], HELD)
    return said + crc16(said).to_bytes(2, "little")


def test_modbus_rtu_requests_only_read():
    wire = Wire(serial)
    master = ModbusClient(wire, 17, is_serial=True, patience=60.0)
    assert master.read("holding", 40_000, 2) == [0x5375, 0x6E53]
    assert wire.asked == [bytes.fromhex("11039c400002e91f")]
    with pytest.raises(Rejected, match="refused"):
        master.read("input", 0, 1)
    assert {request[1] for request in wire.asked} <= {3, 4}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda said: said[:-1] + bytes([said[-1] ^ 1]),
        lambda said: b"\x12" + said[1:],
        lambda _: b"",
        lambda said: said[:4],
    ],
)
def test_a_damaged_reply_closes_the_link_and_yields_no_value(spoil):
    master = ModbusClient(Wire(lambda data: spoil(serial(data))), 17, is_serial=True, patience=0.05)
    with pytest.raises(OSError):  # noqa: PT011 - every kind of it is retried alike
        master.read("holding", 40_000, 2)


def test_a_reply_to_another_request_is_refused():
    def late(data):
        number = struct.unpack(">H", data[:2])[0]
        said = answer(data[7:], HELD)
        return struct.pack(">HHHB", number - 1, 0, len(said) + 1, 1) + said

    master = ModbusClient(Wire(late), 1, is_serial=False, patience=60.0)
    with pytest.raises(ConnectionError):
        master.read("holding", 40_000, 2)


# --- the command and the agent ----------------------------------------------------------------


@pytest.fixture
def device(tmp_path):
    """A configuration that the agent can start from, without a broker to be reached."""
    keys.save_signing_key(tmp_path / "device.key", keys.generate())
    keys.save_public(tmp_path / "root.pub", keys.generate().public)

    def write(source):
        path = tmp_path / "meter.toml"
        path.write_text(
            f"""
            id = "meter-1"
            fleet = "north"
            state = "state"
            bundle = "load-lstm-week"
            broker = {{ url = "mqtt://127.0.0.1:1" }}
            keys = {{ device = "device.key", root = "root.pub" }}
            privacy = {{ mechanism = {{ name = "none" }} }}
            [[source]]
            {source}
            """,
            "utf-8",
        )
        return path

    return write


def test_source_test_prints_the_values_of_a_meter(device, tmp_path, capsys):
    where = []
    ready = threading.Event()

    def say(found):
        where.append(found["p1"])
        ready.set()

    order = MeterSettings(BEGIN, 3600, every=60, speed=0, p1=f"pty:{tmp_path / 'ttyP1'}")
    thread = threading.Thread(target=run, args=(order, say), daemon=True)
    thread.start()
    assert ready.wait(60)
    path = device(f'type = "p1"\nurl = "{where[0]}"\nstep = "15m"')
    kept = tmp_path / "kept.rec"
    command = ["source", "test", str(path), "--json", "--count", "40", "--record", str(kept)]
    assert cli.main([*command, "--seconds", "20"]) == 0
    thread.join(10)
    found = json.loads(capsys.readouterr().out)
    streams = {value["name"]: value["stream"] for value in found["values"]}
    assert streams["1-0:1.8.1"] == "elec.import.energy"
    assert streams["1-0:32.7.0"] is None
    assert any(r["stream"] == "elec.import.energy" for r in found["readings"])
    replayed = device(f'type = "replay"\nrecorded_type = "p1"\npath = "{kept.name}"\nstep = "15m"')
    assert cli.main(["source", "test", str(replayed)]) == 0
    assert "elec.import" in capsys.readouterr().out


def test_source_test_on_a_silent_line_exits_with_the_temporary_code(device, capsys):
    path = device('type = "p1"\nurl = "tcp://127.0.0.1:1"')
    assert cli.main(["source", "test", str(path), "--seconds", "0.2"]) == 75
    assert "no data received within" in capsys.readouterr().out


@pytest.mark.chaos
def test_an_agent_killed_during_the_day_loses_and_repeats_no_energy(device, tmp_path):
    """One goodbye, one SIGKILL; what the killed one heard is left open, not guessed."""
    line, truth = tmp_path / "ttyP1", tmp_path / "truth.csv"
    command = [sys.executable, "-m", "firmware_sim", "meter", "--p1", f"pty:{line}"]
    command += ["--start", "2023-11-15T00:00Z", "--for", "24h", "--every", "60s", "--speed", "1200"]
    section = f'type = "p1"\nurl = "serial://{line}"\n[limits]\ncommit_interval = "1s"'
    path, store, meter = device(section), tmp_path / "state" / "device.db", None
    ends = ((5, signal.SIGTERM), (7, signal.SIGKILL), (24, signal.SIGTERM))
    for number, (least, end) in enumerate(ends, 1):
        agent = [sys.executable, "-m", "edge_sdk", "run", str(path), "--log", "error"]
        child = subprocess.Popen(agent, stdout=subprocess.DEVNULL)
        until(lambda number=number: starts(tmp_path / "state") == number)
        if meter is None:  # a day begins once the first agent listens
            meter = subprocess.Popen([*command, "--truth", str(truth)], stdout=subprocess.DEVNULL)
        until(lambda: meter.poll() is not None or len(hours(store)) >= least, 300.0)  # noqa: B023
        child.send_signal(end)
        assert child.wait(300) in {0, -signal.SIGKILL}
    assert meter.wait(300) == 0
    kept, wh = hours(store), rows(truth)
    assert len(kept) > 4
    for slot, value in kept.items():
        assert 1000 * value == pytest.approx(wh[slot * 3600 + 3600] - wh[slot * 3600], abs=150)
    assert 1000 * sum(kept.values()) <= wh[max(wh)] - wh[min(wh)] + 2.0


def starts(state):
    """How often an agent began to work there: before that it knows no signal."""
    with (
        contextlib.suppress(StoreError, sqlite3.Error),
        DeviceStore.open(state, read_only=True) as store,
    ):
        return store.fact("starts")
    return 0


def hours(path):
    """What the device kept: kWh by hour since 1970."""
    query = "SELECT slot, value FROM readings WHERE stream = 'elec.import.energy'"
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return dict(db.execute(query))


def rows(path):
    lines = (line.split(",") for line in path.read_text("utf-8").splitlines()[1:])
    return {int(at): float(wh) for at, wh, _ in lines}
