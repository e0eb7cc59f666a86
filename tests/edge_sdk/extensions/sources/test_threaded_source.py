"""Sources at work: links that come and go, recordings, the command that tries one, the agent."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import re
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
from edge_sdk.extensions.sources.base import RawFrame, Rejected
from edge_sdk.extensions.sources.byte_links import SourceAddress
from edge_sdk.extensions.sources.modbus import BASES, ModbusClient, PollingFeed, crc16
from edge_sdk.extensions.sources.recording import record, title
from edge_sdk.extensions.sources.register_map import RegisterPoint, block
from edge_sdk.protocol import keys
from edge_sdk.sources import SOURCES
from edge_sdk.store.store import DeviceStore
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
    assert source.health()["why"] == "the other end closed the connection"
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


def test_a_packed_recording_is_refused_by_name(tmp_path):
    (tmp_path / "p1.rec").write_bytes(gzip.compress(display(0, 1000)))
    keys = {"type": "replay", "recorded_type": "p1", "path": str(tmp_path / "p1.rec")}
    source = SOURCES["replay"](keys)
    assert not list(source)
    assert source.health()["rejected"] == {"packed recording": 1}


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
    assert {"bad value", "bad time"} <= set(health["noticed"]) | set(health["rejected"])
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


def tcp(held, unit=None, late=0, silent=(), *, is_mute=False):
    """Return a device with some registers as a function of the request's bytes."""

    def answers(data):
        number, _, _, asked, function, first, _ = struct.unpack(">HHHBBHH", data)
        if first in silent:
            return b""
        said = answer(data[7:], held)
        assert function in {3, 4}
        if is_mute and said[0] & 0x80:
            return b""
        head = number - late, 0, len(said) + 1, asked if unit is None else unit
        return struct.pack(">HHHB", *head) + said

    return answers


class Device:
    """The address of a device in this process; every opening makes a new link."""

    def __init__(self, answers):
        self.answers, self.asked = answers, []

    def open(self):
        wire = Wire(self.answers)
        wire.asked = self.asked
        return wire

    def polling(self, points=(), unit=1, patience=60.0):
        return PollingFeed(self, unit, False, 0.0, patience, tuple(points))

    @property
    def requests(self):
        found = [struct.unpack(">BHH", data[7:])[1:] for data in self.asked]
        self.asked.clear()
        return found


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        (tcp(HELD, late=1), "a reply to another request"),
        (tcp(HELD, unit=255), "a reply from unit 255, not 1; see unit_id"),
        (tcp({}, silent={40_000}), "no answer from unit 1"),
    ],
)
def test_a_reply_that_is_none_to_the_request_is_refused_with_its_reason(answers, reason):
    feed = Device(answers).polling([RegisterPoint("power", 40_000)], patience=0.01)
    with pytest.raises(OSError, match=reason):
        feed.frames(0.0)
    assert feed.rejected == {reason: 1}


METER = {11_174: 500, 11_176: 230, 11_177: 3}


@pytest.mark.parametrize(
    ("points", "second", "values", "refused"),
    [
        (
            [
                RegisterPoint("import.energy", 11_174, unit="kWh"),
                RegisterPoint("power", 11_176, unit="W"),
            ],
            [(11_174, 1), (11_176, 1)],
            {"import.energy": 500.0, "power": 230.0},
            [],
        ),
        (
            [RegisterPoint(f"p{n}", n) for n in range(11_174, 11_178)],
            [(11_174, 1), (11_175, 1), (11_176, 2)],
            {"p11174": 500.0, "p11176": 230.0, "p11177": 3.0},
            ["p11175"],
        ),
        (
            [RegisterPoint("scaled", 11_174, scale_address=11_175), RegisterPoint("power", 11_176)],
            [(11_174, 1), (11_175, 1), (11_176, 1)],
            {"power": 230.0},
            ["scaled (scale)"],
        ),
        (
            [RegisterPoint("wide", 11_174, "u32"), RegisterPoint("long", 11_176, "u32")],
            [(11_174, 2), (11_176, 2)],
            {"long": 230.0 * 65_536 + 3},
            ["wide"],
        ),
    ],
)
def test_a_request_across_a_register_that_does_not_exist_is_divided(
    points, second, values, refused
):
    device = Device(tcp({"holding": METER, "input": {}}))
    feed = device.polling(points)
    (first,) = feed.frames(0.0)
    assert device.requests[0][0] == 11_174
    assert feed.frames(0.0)[0].payload == first.payload
    assert device.requests == second, "what was refused is not asked again"
    assert {x.name: x.value for x in block(first, tuple(points)) if not x.fault} == values
    reason = "refused by the device: illegal data address"
    assert feed.unused == {f"{name}: {reason}": 2 for name in refused}
    assert feed.rejected == ({reason: 2} if refused else {})


def test_a_request_without_an_answer_is_divided_and_one_that_had_an_answer_is_not():
    points = [RegisterPoint("a", 11_174), RegisterPoint("b", 11_176), RegisterPoint("c", 11_177)]
    device = Device(tcp({"holding": METER, "input": {}}, is_mute=True))
    feed = device.polling(points, patience=0.01)
    with pytest.raises(TimeoutError):
        feed.frames(0.0)
    feed.close()
    assert len(block(feed.frames(0.0)[0], tuple(points))) == 3
    device.requests.clear()
    device.answers = tcp({}, silent={11_174, 11_176})
    for _ in range(3):
        feed.close()
        with pytest.raises(TimeoutError):
            feed.frames(0.0)
    device.answers = tcp({"holding": METER, "input": {}})
    feed.close()
    assert feed.frames(0.0)
    assert device.requests[-2:] == [(11_174, 1), (11_176, 2)]


def test_a_value_that_is_not_available_is_counted_by_its_name():
    section = {"type": "modbus", "url": "tcp://h:1", "point": [{"name": "power", "address": 5}]}
    source = SOURCES["modbus"](section)
    assert (
        list(source.normaliser.normalise(source.samples(RawFrame(b"holding 5 ffff", 1.7e9)))) == []
    )
    assert source.unused == {"power: not available": 1}


@pytest.mark.parametrize("base", [40_000, 50_000, 0])
@pytest.mark.parametrize("is_silent", [True, False])
def test_a_sunspec_chain_is_found_at_each_usual_place(base, is_silent):
    """A device may refuse a register that it lacks, or not answer at all."""
    moved = {at - 40_000 + base: word for at, word in HELD["holding"].items()}
    silent = set(BASES) - {base} if is_silent else ()
    device = Device(tcp({"holding": moved, "input": {}}, silent=silent))
    feed = device.polling(patience=0.01)
    for _ in BASES:
        try:
            (frame,) = feed.frames(0.0)
            break
        except OSError:
            feed.close()
    assert {x.name: x.value for x in block(frame, ())}["import.energy"] == 3000.0


@pytest.mark.parametrize("model", [211, 212, 213, 214])
def test_a_sunspec_meter_of_floating_point_is_read_and_its_gaps_are_named(model):
    """The offsets are those of the float32 points in SunSpec's model_213.json, each of two words."""
    nothing = struct.unpack(">2H", struct.pack(">f", float("nan")))
    floats = {28: -1234.5, 60: 750.25}  # W, TotWhExp; TotWhImp at 68 has no value yet
    words = [model, 124, *nothing * 62]
    for at, value in floats.items():
        words[at : at + 2] = struct.unpack(">2H", struct.pack(">f", value))
    chain = [0x5375, 0x6E53, 1, 66, *[0] * 66, *words, 0xFFFF, 0]
    held = {"holding": {40_000 + at: word for at, word in enumerate(chain)}, "input": {}}
    (frame,) = Device(tcp(held)).polling().frames(0.0)
    found = {x.name: x for x in block(frame, ())}
    assert (found["power"].value, found["power"].unit) == (-1234.5, "W")
    assert (found["export.energy"].value, found["export.energy"].unit) == (750.25, "Wh")
    assert found["import.energy"].fault == "not available"


@pytest.mark.parametrize(
    ("chain", "reason"),
    [([], "no SunSpec chain at"), ([1, 0, 103, 0, 0xFFFF, 0], r"among models 1, 103$")],
)
def test_a_device_without_a_sunspec_meter_is_refused_with_what_it_has(chain, reason):
    words = [0x5375, 0x6E53, *chain] if chain else []
    held = {"holding": {40_000 + at: word for at, word in enumerate(words)}, "input": {}}
    feed = Device(tcp(held)).polling()
    assert feed.frames(0.0) == []
    (found,) = feed.rejected
    assert re.search(reason, found)


def test_pymodbus_reads_the_requests_and_its_answers_are_read():
    """A second oracle for the bytes of requests, values and refusals."""
    framer = pytest.importorskip("pymodbus.framer")
    pdu = pytest.importorskip("pymodbus.pdu")
    messages = pytest.importorskip("pymodbus.pdu.register_message")
    coder = framer.FramerSocket(pdu.DecodePDU(is_server=True))

    def answers(data):
        used, asked = coder.handleFrame(data, 0, 0)
        assert used == len(data)
        assert isinstance(asked, messages.ReadHoldingRegistersRequest)
        words = [METER.get(asked.address + at) for at in range(asked.count)]
        if None in words:
            said = pdu.ExceptionResponse(3, 2)
        else:
            said = messages.ReadHoldingRegistersResponse(registers=words)
        said.dev_id, said.transaction_id = asked.dev_id, asked.transaction_id
        return coder.buildFrame(said)

    points = RegisterPoint("import.energy", 11_174), RegisterPoint("power", 11_176)
    feed = Device(answers).polling(points, unit=9)
    (frame,) = feed.frames(0.0)
    assert [(x.name, x.value) for x in block(frame, points)] == [
        ("import.energy", 500.0),
        ("power", 230.0),
    ]


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
            bundle = "load-week-1"
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
    printed = capsys.readouterr()
    assert "p1 tcp://127.0.0.1:1: waits for a reading until " in printed.err
    assert "no data received within 0.2 s; its link is not open, tried " in printed.out


def test_source_test_and_check_name_what_is_not_used(device, tmp_path, capsys):
    (tmp_path / "day.p1").write_bytes(b"".join(display(n, 1000 + 250 * n) for n in range(5)))
    path = device('type = "replay"\nrecorded_type = "p1"\npath = "day.p1"\nstep = "15m"')
    assert cli.main(["source", "test", str(path), "--count", "99"]) == 0
    assert "not used: 0-0:96.14.0: not mapped (5 times)" in capsys.readouterr().out
    assert cli.main(["check", str(path)]) == 0
    assert "source[0] not used: 1-3:0.2.8: not mapped; " in capsys.readouterr().out


def test_check_names_what_the_running_agent_noted(device, tmp_path, capsys):
    path = device('type = "p1"\nurl = "tcp://127.0.0.1:1"')
    source = SOURCES["p1"]({"type": "p1", "url": "tcp://127.0.0.1:1"})
    list(source.normaliser.normalise(source.samples(RawFrame(display(0, 1)[:-6], 0.0))))
    with DeviceStore.open(tmp_path / "state") as store:
        store.file_paper("source 0 p1", source.saved())
    assert cli.main(["check", str(path)]) == 0
    assert "source[0] not used: 0-0:96.13.0: not mapped; " in capsys.readouterr().out


def test_check_and_source_test_name_the_files_of_a_folder_that_are_not_read(
    device, tmp_path, capsys
):
    (tmp_path / "pm").mkdir()
    (tmp_path / "pm" / "site.xml").write_bytes(b"<measDataFile>" + b"<a>" * 99)
    (tmp_path / "pm" / "list.csv").write_text("x")
    path = device(
        'type = "pm3gpp"\nfolder = "pm"\npoll_interval = "0.01s"\n[[source]]\ntype = "replay"\n'
        'recorded_type = "p1"\npath = "day.p1"'
    )
    (tmp_path / "day.p1").write_bytes(display(0, 1000))
    assert cli.main(["check", str(path)]) == 0
    expected = ["list.csv: name outside 'pattern'", "site.xml: nested too deep"]
    assert f"source[0] not used: {'; '.join(reversed(expected))}\n" in capsys.readouterr().out
    assert cli.main(["source", "test", str(path), "0", "--seconds", "0.5"]) == 75
    printed = capsys.readouterr().out
    assert all(f"not used: {name} (1 time)" in printed for name in expected)


def test_source_test_names_the_separator_of_a_file_without_the_wanted_columns(
    device, tmp_path, capsys
):
    (tmp_path / "a.csv").write_text("Zeit;kWh;note\n2026-01-01;1,5;x\n")
    for column, words in (
        ("kwh", "no column kwh: 1"),
        ("kWh", "not used: column 'note': not mapped"),
    ):
        path = device(f"""type = "csv"\npath = "a.csv"\ntime_column = "Zeit"
            columns = {{ {column} = "elec.import.energy" }}""")
        assert cli.main(["source", "test", str(path)]) == (75 if column == "kwh" else 0)
        printed = capsys.readouterr().out
        assert "separator ';'" in printed
        assert words in printed
    assert cli.main(["check", str(path)]) == 0
    assert "source[0] not used: column 'note'\n" in capsys.readouterr().out


@pytest.mark.chaos
def test_an_agent_killed_during_the_day_loses_and_repeats_no_energy(device, tmp_path):
    """One goodbye, one SIGKILL; what the killed one heard is left open, not guessed."""
    line, truth = tmp_path / "ttyP1", tmp_path / "truth.csv"
    command = [sys.executable, "-m", "firmware_sim", "meter", "--p1", f"pty:{line}"]
    command += ["--start", "2023-11-15T00:00Z", "--for", "24h", "--every", "60s", "--speed", "2400"]
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
