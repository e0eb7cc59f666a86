"""The recorder of Home Assistant, over a WebSocket that the test serves by its documented messages."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import socket
import threading
from dataclasses import replace
from datetime import datetime

import pytest

from edge_sdk.app.settings import SettingsError
from edge_sdk.errors import ConfigError
from edge_sdk.extensions.sources import home_assistant, websocket_client
from edge_sdk.extensions.sources.base import RawFrame, Rejected
from edge_sdk.extensions.sources.source_test import lines
from edge_sdk.extensions.sources.websocket import MessageStream
from edge_sdk.sources import open_source

HOUR = 3600
NOW = 1_761_440_400  # 2025-10-26 01:00 UTC: that night Central Europe's clocks go back
MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Recorder:
    """A recorder behind a WebSocket: the messages of Home Assistant's developer documentation.

    ``rows`` has begin in seconds and value by statistic; ``kinds`` its class and unit.
    """

    def __init__(self):
        self.token = "good"
        self.rows, self.kinds, self.asked, self.attempts = {}, {}, [], 0
        self.answer = self.upgrade = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def add(self, name, rows, kind="energy", unit="kWh", *, has_sum=True):
        self.rows[name], self.kinds[name] = rows, (kind, unit, has_sum)

    def close(self):
        self._listener.close()

    def _serve(self):
        while True:
            try:
                channel, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(channel,), daemon=True).start()

    def _talk(self, channel):
        with channel, contextlib.suppress(OSError):
            self._answer_all(channel)

    def _answer_all(self, channel):
        head = b""
        while b"\r\n\r\n" not in head:
            head += channel.recv(4096)
        fields = dict(x.split(": ", 1) for x in head.decode().split("\r\n")[1:] if ": " in x)
        key = fields["Sec-WebSocket-Key"].encode()
        accept = base64.b64encode(hashlib.sha1(key + MAGIC).digest()).decode()
        answer = self.upgrade or (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"sec-websocket-accept: {accept}\r\n\r\n"
        )
        # the first message comes in one piece with the answer
        channel.sendall(answer.encode() + frame({"type": "auth_required", "ha_version": "2026.8"}))
        ear = MessageStream()
        while data := channel.recv(65536):
            for text in ear.feed(data):
                said = json.loads(text)
                self.asked.append(said)
                channel.sendall(b"\x89\x00" + (self.answer or self._answer)(said))

    def _answer(self, said):
        if said["type"] == "auth":
            self.attempts += 1
            is_good = said["access_token"] == self.token
            return frame({"type": "auth_ok" if is_good else "auth_invalid"})
        if said["type"] == "recorder/list_statistic_ids":
            found = [
                {
                    "statistic_id": name,
                    "unit_class": kind,
                    "statistics_unit_of_measurement": unit,
                    "has_sum": has_sum,
                }
                for name, (kind, unit, has_sum) in self.kinds.items()
            ]
            return frame({"id": said["id"], "type": "result", "success": True, "result": found})
        assert said["type"] == "recorder/statistics_during_period"
        begin, end = (seconds(said[key]) for key in ("start_time", "end_time"))
        length = {"hour": 3600, "5minute": 300}[said["period"]]
        found = {
            name: [
                {"start": 1000 * at, "end": 1000 * (at + length), kind: value}
                for at, value in self.rows[name]
                if begin <= at < end
                for kind in (("sum" if self.kinds[name][2] else "mean"),)
            ]
            for name in said["statistic_ids"]
        }
        result = {name: rows for name, rows in found.items() if rows}
        return frame({"id": said["id"], "type": "result", "success": True, "result": result})


def seconds(text):
    return int(datetime.fromisoformat(text).timestamp())


def frame(document):
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    size = len(data)
    length = bytes([size]) if size < 126 else b"\x7f" + size.to_bytes(8)
    return b"\x81" + length + data


class Clock:
    def __init__(self):
        self.now = 0.0

    def wall(self):
        return int(1000 * (NOW + self.now))

    def monotonic(self):
        return self.now


@pytest.fixture
def recorder():
    one = Recorder()
    yield one
    one.close()


@pytest.fixture
def made(recorder, tmp_path):
    """Returns a source of the recorder, on a clock that the test sets."""
    token = tmp_path / "token"
    token.write_text("good\nsecond line")

    opened = []

    def make(statistics=None, **more):
        keys = {"statistics": statistics or {"sensor.grid": "elec.import.energy"}}
        section = {"type": "home-assistant", "url": recorder.url, "token_file": str(token)}
        source = open_source(section | keys | more, "source[0]")
        feed = replace(source.feed, clock=Clock(), wait=lambda _: None)
        source.feed = feed
        source.on_grid(HOUR)
        opened.append(source)
        return source

    yield make
    for source in opened:
        source.feed.close()


def polled(source):
    """All readings of one poll: every span up to now."""
    found = []
    while True:
        for one in source.feed.frames(0.0):
            found += source.normaliser.normalise(source.samples(one))
        if source.feed.clock.monotonic() < source.feed._next:
            return found


def hours(count, begin=None, kwh=lambda n: 0.5 + n % 24 / 24):
    """Rows of a sum that rises hour by hour, and the energy of each hour by its begin."""
    begin = NOW - count * HOUR if begin is None else begin
    rows, energy, total = [], {}, 1000.0
    for number in range(count):
        at = begin + number * HOUR
        total += kwh(number)
        energy[at] = kwh(number)
        rows.append((at, total))
    return rows, energy


def test_a_year_becomes_intervals_without_a_year_of_waiting(recorder, made):
    rows, energy = hours(8760)
    recorder.add("sensor.grid", rows)
    readings = polled(made())
    assert {r.stream for r in readings} == {"elec.import.energy"}
    assert [r.time for r in readings] == sorted(energy)[1:], "the first sum has no hour before it"
    assert [r.value for r in readings] == pytest.approx([energy[r.time] for r in readings])
    asked = [x for x in recorder.asked if x["type"] == "recorder/statistics_during_period"]
    assert len(asked) == 3
    assert asked[0]["units"]["energy"] == "kWh"
    assert asked[0]["statistic_ids"] == ["sensor.grid"]


def test_missing_hours_stay_open_and_a_restart_loses_one(recorder, made):
    rows, energy = hours(60)
    rows = [(at, total - (900.0 if n >= 40 else 0.0)) for n, (at, total) in enumerate(rows)]
    del rows[10:13]
    recorder.add("sensor.grid", rows)
    source = made()
    found = {r.time: r.value for r in polled(source)}
    begins = sorted(energy)
    lacking = {begins[n] for n in (0, 10, 11, 12, 13, 40)}
    assert set(energy) - set(found) == lacking
    assert all(found[at] == pytest.approx(energy[at]) for at in found)
    assert source.normaliser.counts["gap"] == 1
    assert source.normaliser.counts["reset"] == 1


def test_one_impossible_sum_costs_itself(recorder, made):
    rows, energy = hours(20)
    rows[7] = rows[7][0], 99_999.0
    recorder.add("sensor.grid", rows)
    source = made()
    found = {r.time: r.value for r in polled(source)}
    assert sorted(energy)[7] not in found
    assert max(found.values()) < 2
    assert source.normaliser.counts["implausible"] == 1


def test_later_polls_bring_new_hours_only(recorder, made):
    rows, energy = hours(30)
    recorder.add("sensor.grid", rows[:28])
    source = made()
    first = polled(source)
    assert source.feed.frames(0.0) == [], "the next poll is not due"
    recorder.rows["sensor.grid"] = rows
    source.feed.clock.now += 600.0
    second = polled(source)
    assert [r.time for r in second] == sorted(energy)[28:]
    assert not {r.time for r in first} & {r.time for r in second}


def test_tariffs_are_added_and_other_streams_kept_apart(recorder, made):
    rows, energy = hours(12)
    double, _ = hours(12, kwh=lambda _: 2.0)
    recorder.add("sensor.low", rows)
    recorder.add("sensor.high", double)
    recorder.add("sensor.back", double)
    recorder.add("sensor.out", [(at, 50.0) for at, _ in rows], "temperature", "°F", has_sum=False)
    streams = {
        "sensor.low": "elec.import.energy",
        "sensor.high": "elec.import.energy",
        "sensor.back": "elec.export.energy",
        "sensor.out": "weather.temperature",
    }
    found = {(r.stream, r.time): r.value for r in polled(made(streams))}
    for at in sorted(energy)[1:]:
        assert found["elec.import.energy", at] == pytest.approx(energy[at] + 2.0)
        assert found["elec.export.energy", at] == pytest.approx(2.0)
    assert found["weather.temperature", rows[0][0]] == 50.0, "Home Assistant has converted it"
    asked = recorder.asked[-1]
    assert asked["units"]["temperature"] == "°C"


def test_a_statistic_that_arrives_days_late_is_read(recorder, made):
    rows, energy = hours(100)
    recorder.add("sensor.grid", rows)
    recorder.add("opower:use", rows[:50])
    source = made({"sensor.grid": "elec.import.energy", "opower:use": "elec.export.energy"})
    polled(source)
    recorder.rows["opower:use"] = rows
    source.feed.clock.now += 600.0
    late = polled(source)
    assert {r.stream for r in late} == {"elec.export.energy"}
    assert [r.time for r in late] == sorted(energy)[50:]


def test_a_unit_without_a_class_is_converted_or_refused(recorder, made):
    rows, energy = hours(5)
    recorder.add("sensor.grid", [(at, 1000 * x) for at, x in rows], None, "Wh")
    found = polled(made())
    assert found[0].value == pytest.approx(energy[found[0].time])
    recorder.add("sensor.grid", rows, None, "EUR")
    source = made()
    assert polled(source) == []
    assert source.normaliser.counts["foreign unit"] == 5


def test_quarters_of_an_hour_come_from_values_of_five_minutes(recorder, made):
    begin = NOW - 2 * HOUR
    recorder.add("sensor.grid", [(begin + 300 * n, 0.1 * n) for n in range(24)])
    found = polled(made(step="15m", days=4000))
    assert [r.value for r in found] == pytest.approx([0.3] * len(found))
    assert [r.seconds for r in found] == [900] * 7
    asked = [x for x in recorder.asked if x["type"] == "recorder/statistics_during_period"]
    assert {x["period"] for x in asked} == {"5minute"}
    assert len(asked) == 1, "the recorder keeps ten days of them"


def test_hours_are_not_divided_for_a_finer_grid(recorder, made):
    rows, _ = hours(5)
    recorder.add("sensor.grid", rows)
    source = made()
    source.on_grid(900)
    assert {r.seconds for r in polled(source)} == {HOUR}


def test_a_refused_token_is_tried_once(recorder, made, tmp_path):
    rows, _ = hours(5)
    recorder.add("sensor.grid", rows)
    recorder.token = "other"
    source = made()
    for _ in range(3):
        with pytest.raises(PermissionError, match="the token is refused"):
            source.feed.frames(0.0)
        source.feed.close()
    assert recorder.attempts == 1, "Home Assistant counts failed logins"
    (tmp_path / "token").write_text("other")
    assert polled(source)


def test_an_unknown_statistic_is_answered_with_those_that_fit(recorder, made):
    recorder.add("sensor.meter_import", [])
    recorder.add("sensor.power", [], "energy", "kWh", has_sum=False)
    recorder.add("sensor.water", [], "volume", "m³")
    with pytest.raises(ConnectionError) as refused:
        made().feed.frames(0.0)
    assert str(refused.value) == (
        "sensor.grid: no such statistic; those with kWh are: sensor.meter_import"
    )
    with pytest.raises(ConnectionError, match=r"it has no sum; those with kWh are: sensor\.meter"):
        made({"sensor.power": "elec.import.energy"}).feed.frames(0.0)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (frame({"type": "auth_ok"})[:5], "no whole message within"),
        (frame(b"[1]"), "not Home Assistant's"),
        (frame(b"no json"), "not Home Assistant's"),
        (frame({"type": "event"}) * 100, "not Home Assistant's"),
        (b"\x81\x7f" + (8 << 20).to_bytes(8), "longer than 4 MiB"),
        (b"\xc1\x00", "an extension that was not negotiated"),
    ],
    ids=["cut", "list", "text", "others", "long", "extension"],
)
def test_a_wrong_answer_is_a_lost_link(recorder, made, answer, why):
    recorder.answer = lambda _: answer
    with pytest.raises(OSError, match=why):
        made(timeout="300ms").feed.frames(0.0)


def test_a_failed_command_is_named(recorder, made):
    def refuse(said):
        if said["type"] == "auth":
            return frame({"type": "auth_ok"})
        error = {"code": "unknown_command", "message": "Unknown command."}
        return frame({"id": said["id"], "type": "result", "success": False, "error": error})

    recorder.answer = refuse
    with pytest.raises(ConnectionError, match="list_statistic_ids is refused: Unknown command"):
        made().feed.frames(0.0)


@pytest.mark.parametrize(
    ("upgrade", "why"),
    [
        ("HTTP/1.1 404 Not Found\r\n\r\n", "no WebSocket at /api/websocket: HTTP/1.1 404"),
        (
            "HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: x\r\n\r\n",
            "belongs to another request",
        ),
        ("x" * 20_000, "too long"),
    ],
    ids=["404", "accept", "long"],
)
def test_what_is_no_websocket_is_refused(recorder, made, upgrade, why):
    recorder.upgrade = upgrade
    with pytest.raises(OSError, match=why):
        made().feed.frames(0.0)


def test_the_thread_reads_history_and_shows_why_it_waits(recorder, made):
    rows, _ = hours(100)
    recorder.add("sensor.grid", rows)
    source = made()
    source.feed.wait = threading.Event().wait
    source.start()
    try:
        found, end = [], threading.Event()
        for _ in range(200):
            found += source.poll()
            if len(found) == 99:
                break
            end.wait(0.05)
        assert len(found) == 99
        assert source.health()["linked"]
    finally:
        source.close()


def test_without_a_clock_nothing_is_asked(recorder, made):
    source = made()
    source.feed.clock.now = -float(NOW)
    assert source.feed.frames(0.0) == []
    assert recorder.asked == []


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"url": "http://192.168.1.5:8123"}, "would send the token"),
        ({"url": "ws://127.0.0.1"}, "is not an address"),
        ({"poll_interval": "100ms"}, "below 1s"),
        ({"map": {"a": "site.power"}}, "statistics names the stream"),
        ({"statistics": {}}, "statistics"),
        ({"days": 0}, "days"),
    ],
)
def test_mistakes_are_named(tmp_path, keys, why):
    section = {
        "type": "home-assistant",
        "token_file": str(tmp_path / "token"),
        "statistics": {"sensor.grid": "elec.import.energy"},
    }
    with pytest.raises((ConfigError, SettingsError), match=why):
        open_source(section | keys, "source[0]")


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b'{"rows": {"a": [[1]]}, "units": {}}'])
def test_a_damaged_recording_is_rejected(payload):
    with pytest.raises(Rejected):
        home_assistant.decode(RawFrame(payload, 0.0))


def test_long_messages_are_sent_whole(recorder, made, monkeypatch):
    heard = []
    recorder.answer = lambda said: heard.append(said) or frame({"type": "auth_ok"})
    service = made().feed.service
    link = websocket_client.WebSocketClient(service, "/api/websocket", 5.0)
    assert json.loads(link.receive())["type"] == "auth_required"
    for size in (10, 1000, 70_000):
        link.send(json.dumps({"type": "x" * size}))
        assert json.loads(link.receive()) == {"type": "auth_ok"}
    link.close()
    assert [len(said["type"]) for said in heard] == [10, 1000, 70_000]


def test_a_test_of_the_source_prints_the_newest_values(recorder, made):
    rows, _ = hours(150)
    recorder.add("sensor.grid", rows)
    source = made(days=30)
    (one,) = source.feed.frames(0.0)
    values = [
        {
            "name": sample.name,
            "value": sample.value,
            "unit": sample.unit,
            "stream": "elec.import.energy",
            "fault": "",
        }
        for sample in source.samples(one)
    ]
    printed = list(lines({"values": values, "readings": [], "rejected": {}}))
    assert printed[0] == "the newest 100 values; 50 before"
    assert len(printed) == 101
