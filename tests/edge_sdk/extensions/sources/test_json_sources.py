"""JSON of a service or a broker becomes readings; hostile JSON is refused and stops nothing."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_sdk.app.settings import SettingsError
from edge_sdk.errors import ConfigError
from edge_sdk.extensions.sources.base import RawFrame, Rejected
from edge_sdk.extensions.sources.http_poll import LARGEST, HttpPoll, HttpService
from edge_sdk.extensions.sources.json_path import MOST, JsonPath, PathError
from edge_sdk.extensions.sources.json_values import JsonValue, decoder
from edge_sdk.extensions.sources.mqtt_feed import MqttFeed
from edge_sdk.link.broker_options import Broker
from edge_sdk.link.transport import LinkDown, LinkUp, Message
from edge_sdk.sources import open_source

NOW = 1_800_000_000.0
OPEN_METEO = {
    "latitude": 52.52,
    "utc_offset_seconds": 0,
    "hourly_units": {"time": "iso8601", "temperature_2m": "°C", "wind_speed_10m": "km/h"},
    "hourly": {
        "time": ["2026-11-22T00:00", "2026-11-22T01:00", "2026-11-22T02:00"],
        "temperature_2m": [4.1, None, 3.5],
        "wind_speed_10m": [7.2, 10.8, 3.6],
    },
}
HOME_ASSISTANT = {
    "entity_id": "weather.home",
    "state": "cloudy",
    "attributes": {"temperature": 41.0, "temperature_unit": "°F", "wind_speed": 18.0},
    "last_updated": "2026-11-22T10:15:00.123456+00:00",
}
HOURLY = "$.hourly."


def value(path, stream="weather.temperature", **more):
    return JsonValue(path=path, stream=stream, **more)


def decoded(document, *values, at=NOW):
    return decoder(values)(RawFrame(json.dumps(document).encode(), at))


def test_open_meteo_gives_an_hour_each():
    samples = decoded(
        OPEN_METEO,
        value("$.hourly.temperature_2m[*]", time="$.hourly.time[*]"),
        value(
            "$.hourly.wind_speed_10m[*]", "weather.wind_speed", time="$.hourly.time[*]", unit="km/h"
        ),
    )
    midnight = 1_795_305_600.0
    assert [(s.time - midnight, s.value) for s in samples] == [
        (0.0, 4.1),
        (7200.0, 3.5),
        (0.0, 7.2),
        (3600.0, 10.8),
        (7200.0, 3.6),
    ]


def test_home_assistant_gives_its_state():
    source = open_source(
        {
            "type": "http",
            "url": "http://127.0.0.1:8123/api/states/weather.home",
            "value": [
                {
                    "path": "attributes.temperature",
                    "stream": "weather.temperature",
                    "unit": "°F",
                    "time": "last_updated",
                },
                {"path": "attributes.wind_speed", "stream": "weather.wind_speed", "unit": "km/h"},
            ],
        },
        "source[0]",
    )
    assert source.streams == {"weather.temperature", "weather.wind_speed"}
    samples = source.samples(RawFrame(json.dumps(HOME_ASSISTANT).encode(), NOW))
    readings = list(source.normaliser.normalise(samples))
    assert [(r.stream, round(r.value, 9)) for r in readings] == [
        ("weather.temperature", 5.0),
        ("weather.wind_speed", 5.0),
    ]
    assert [r.time for r in readings] == [1_795_342_500.123456, NOW]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"t": "unavailable"}', "no value"),
        (b'{"t": true}', "no value"),
        (b'{"t": NaN}', "no value"),
        (b'{"t": 1e999}', "no value"),
        (b'{"t": {"t": 1}}', "no value"),
        (b"[]", "no value"),
        (b"9" * 5000, "not JSON"),
    ],
)
def test_a_useless_document_is_rejected_with_its_reason(payload, reason):
    with pytest.raises(Rejected, match=reason):
        decoder([value("$.t")])(RawFrame(payload, NOW))


def test_times_must_be_as_many_as_values():
    document = {"t": [1, 2], "at": [NOW]}
    with pytest.raises(Rejected, match="differ in number"):
        decoded(document, value("$.t[*]", time="$.at[*]"))


def test_an_array_is_bounded():
    document = {"t": [1] * (MOST + 1), "at": [NOW] * (MOST + 1)}
    with pytest.raises(Rejected, match="no value"):
        decoded(document, value("$.t[*]", time="$.at[*]"))


def test_a_plain_number_is_a_document():
    (sample,) = decoder([value("$")])(RawFrame(b" 21.5\n", NOW))
    assert (sample.value, sample.time) == (21.5, NOW)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abt"), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(JSON)
def test_no_document_raises_anything_but_a_rejection(document):
    paths = [
        value("$.a.b"),
        value("$.t[*].a", time="$.t[*].b"),
        value("$[0][-1]"),
        value("$.a[*]", time="$.t"),
    ]
    try:
        samples = decoded(document, *paths)
    except Rejected:
        return
    assert all(isinstance(s.value, float) and isinstance(s.time, float) for s in samples)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_rejection(payload):
    try:
        decoder([value("$.t"), value("$")])(RawFrame(payload, NOW))
    except Rejected:
        return


@given(st.text(max_size=30))
@settings(max_examples=200)
def test_no_text_is_half_a_path(text):
    try:
        path = JsonPath.parse(text)
    except PathError:
        return
    assert path.steps.count(None) <= 1


@pytest.mark.parametrize(
    "text", ["$..a", "$.a[1:2]", "$.a[?(@.b)]", "$[*][*]", "$.", "$.a b", "[x]"]
)
def test_what_is_not_supported_is_refused(text):
    with pytest.raises(PathError):
        JsonPath.parse(text)


def made(**changes):
    section = {
        "type": "http",
        "url": "http://127.0.0.1/x",
        "value": [{"path": "$.t", "stream": "weather.temperature"}],
    }
    return open_source(section | changes, "source[0]")


def test_mistakes_are_named():
    def refused(error, text, **changes):
        with pytest.raises(error, match=text):
            made(**changes)

    refused(SettingsError, "value: missing|value", value=[])
    refused(SettingsError, r"value\[0\].*path: '\$\.\.t'", value=[{"path": "$..t", "stream": "x"}])
    refused(SettingsError, "time: required", value=[{"path": "$.t[*]", "stream": "x"}])
    refused(
        SettingsError, "seconds: required", value=[{"path": "t", "stream": "x", "kind": "interval"}]
    )
    refused(SettingsError, "map: not used", map={"a": "b"})
    refused(ConfigError, "is not an address", url="ftp://x")
    refused(ConfigError, "not an address|url", url="http://host:99999/")
    refused(ConfigError, "has a password", url="http://me:secret@127.0.0.1/")
    refused(ConfigError, "unencrypted", url="http://ha.local/", token_file="token")
    refused(ConfigError, "below 1s", poll_interval="10ms")
    refused(ConfigError, "unencrypted", type="mqtt", url="mqtt://ha.local", topic="a")
    refused(
        ConfigError, "belongs to the fleet", type="mqtt", url="mqtt://127.0.0.1", topic="gf/1/#"
    )
    refused(SettingsError, "topic: missing", type="mqtt", url="mqtt://127.0.0.1")


# --- over HTTP ----------------------------------------------------------------------------------


class Service(http.server.BaseHTTPRequestHandler):
    """Answers with what the test put there."""

    answer = (200, b"{}")
    asked: list = []  # noqa: RUF012 - of one test

    def do_GET(self):  # a client that leaves early is what some tests are about
        with contextlib.suppress(ConnectionError):
            self.reply()

    def reply(self):
        type(self).asked.append((self.path, self.headers.get("Authorization")))
        status, body = type(self).answer
        if status == 0:
            self.wfile.write(body)
            return
        self.send_response(status)
        self.send_header("Location", "/elsewhere")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def service():
    Service.asked = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/api?x=1"
    server.shutdown()
    server.server_close()
    thread.join()


class Clock:
    def __init__(self, tick=0.0):
        self.at, self.tick = 0.0, tick

    def monotonic(self):
        self.at += self.tick
        return self.at

    def wall(self):
        return int(NOW * 1000)


def test_an_answer_in_small_pieces_does_not_extend_the_time_limit(service):
    """Each of them arrives in time; the clock moves with every look at it."""
    headers = b"".join(b"h%d: %s\r\n" % (n, b"x" * 1000) for n in range(60))
    Service.answer = (0, b"HTTP/1.0 200 OK\r\n" + headers + b"\r\n{}")
    assert HttpPoll(HttpService(service), 60.0, 100.0, Clock(1.0)).frames(0.1)
    feed = HttpPoll(HttpService(service), 60.0, 5.0, Clock(1.0))
    with pytest.raises(TimeoutError, match="no whole answer within 5 s"):
        feed.frames(0.1)


def test_a_value_that_is_none_costs_itself_and_is_named():
    source = made(value=[{"path": f"$.{x}", "stream": "weather.temperature"} for x in "abc"])
    frame = RawFrame(b'{"a": 3, "b": "unavailable"}', NOW)
    assert [one.value for one in source.normaliser.normalise(source.samples(frame))] == [3.0]
    assert source.unused == {
        "$.b weather.temperature: no value": 1,
        "$.c weather.temperature: no value": 1,
    }


def test_a_service_is_polled_with_its_token(service, tmp_path):
    token, clock = tmp_path / "token", Clock()
    token.write_text("s3cret\nmore")
    Service.answer = (200, b'{"t": 3}')
    feed = HttpPoll(HttpService(service, token_file=token), 60.0, 10.0, clock, wait=lambda _s: None)
    (frame,) = feed.frames(0.1)
    assert (frame.payload, frame.at) == (b'{"t": 3}', NOW)
    assert feed.frames(0.1) == [], "not due"
    clock.at = 61.0
    assert len(feed.frames(0.1)) == 1
    assert Service.asked == [("/api?x=1", "Bearer s3cret")] * 2


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((302, b""), "status 302"),
        ((404, b"no"), "status 404"),
        ((500, b""), "status 500"),
        ((200, b"x" * (LARGEST + 1)), "too large"),
    ],
)
def test_an_answer_that_cannot_be_used_is_counted(service, answer, reason):
    Service.answer = answer
    feed = HttpPoll(HttpService(service), 60.0, 30.0)
    assert feed.frames(0.1) == []
    assert feed.rejected == {reason: 1}
    assert len(Service.asked) == 1, "redirects are not followed"


@pytest.mark.parametrize("body", [b"not http at all\r\n\r\n", b"", b"HTTP/1.1 200 OK\r\nX" * 4000])
def test_an_answer_that_is_not_http_is_a_lost_link(service, body):
    Service.answer = (0, body)
    with pytest.raises(OSError, match=r".*"):
        HttpPoll(HttpService(service), 60.0, 5.0).frames(0.1)


def test_a_source_survives_a_service_that_is_away(monkeypatch):
    monkeypatch.setattr("edge_sdk.extensions.sources.threaded_source._FIRST_WAIT", 0.01)
    source = made(url="http://127.0.0.1:9/")
    source.start()
    end = time.monotonic() + 60
    while source.health()["lost"] < 2:
        assert time.monotonic() < end
        time.sleep(0.01)
    source.close()


# --- over MQTT ----------------------------------------------------------------------------------


class Link:
    def __init__(self, *events):
        self.events, self.filters, self.acknowledged, self.is_open = list(events), [], [], False

    def open(self):
        self.is_open = True

    def poll(self, _timeout):
        events, self.events = self.events, []
        return events

    def subscribe(self, *filters):
        self.filters += filters

    def acknowledge(self, message):
        self.acknowledged.append(message)

    def close(self):
        self.is_open = False


def mqtt(*links, retained=False):
    waiting = list(links)
    broker = Broker(url="mqtt://127.0.0.1", client_id="x")
    return MqttFeed(broker, "t/#", retained, lambda _broker: waiting.pop(0), Clock())


def test_messages_are_acknowledged_and_stamped_at_arrival():
    link = Link(LinkUp(1), Message("t/a", b"1"), Message("t/b", b""), Message("t/a", b"2", True))
    feed = mqtt(link)
    assert feed.frames(0) == [RawFrame(b"1", NOW)]
    assert link.filters == ["t/#"]
    assert len(link.acknowledged) == 3
    assert feed.rejected == {"retained": 1}, "its age is not known"


def test_retained_messages_count_where_they_have_a_time():
    assert len(mqtt(Link(Message("t", b"2", True)), retained=True).frames(0)) == 1


def test_a_lost_connection_is_made_again():
    first, second = Link(LinkUp(1), LinkDown("gone")), Link(LinkUp(1), Message("t", b"3"))
    feed = mqtt(first, second)
    with pytest.raises(ConnectionError, match="gone"):
        feed.frames(0)
    feed.close()
    assert not first.is_open
    assert len(feed.frames(0)) == 1
