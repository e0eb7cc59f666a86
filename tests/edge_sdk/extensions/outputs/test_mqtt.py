"""The MQTT output on a link that the test turns by hand."""

from __future__ import annotations

import json
from collections import deque

import pytest

from edge_sdk.app.settings import SettingsError
from edge_sdk.errors import ConfigError, LinkError
from edge_sdk.extensions.outputs.forecast_issuer import AgentReport, open_output
from edge_sdk.extensions.outputs.mqtt import MqttSink, MqttTopics
from edge_sdk.link.transport import LinkDown, LinkUp
from tests.edge_sdk.extensions.outputs.conftest import issued_forecast

TOPICS = MqttTopics.of("meter-1", "gridfed", "homeassistant")
STATE, PRESENCE, CONFIG = TOPICS.state, TOPICS.availability, TOPICS.discovery


class Link:
    """A link that publishes into a list, with so much room."""

    def __init__(self, room=100):
        self.is_up, self.room, self.sent, self.events = False, room, [], deque()

    def open(self):
        self.events.append(LinkUp(65_536))

    def poll(self, _timeout):
        events, self.events = tuple(self.events), deque()
        for event in events:
            self.is_up = isinstance(event, LinkUp)
        return events

    def publish(self, topic, payload, *, retain=False, **_):
        assert retain
        if self.room <= 0:
            return False
        self.room -= 1
        self.sent.append((topic, payload))
        return True

    def close(self):
        self.is_up = False

    @property
    def topics(self):
        return [topic for topic, _ in self.sent]


def test_everything_is_retained_and_described_once():
    link = Link()
    sink = MqttSink(link, TOPICS)
    report = AgentReport(issued_forecast())
    assert not sink.send(report, is_new=True), "before the connection it waits"
    sink.serve(0)
    assert sink.send(report, is_new=True)
    assert sink.send(AgentReport(issued_forecast(version=8)), is_new=True)
    assert sink.send(report, is_new=False)
    assert link.topics == [PRESENCE, CONFIG, STATE, STATE]
    assert link.sent[0][1] == b"online"
    described = json.loads(link.sent[1][1])
    assert described["state_topic"] == STATE
    assert described["availability_topic"] == PRESENCE
    assert json.loads(link.sent[3][1])["model"]["version"] == 8


def test_after_a_loss_everything_is_published_again():
    link = Link()
    sink = MqttSink(link, TOPICS)
    sink.serve(0)
    sink.send(AgentReport(issued_forecast()), is_new=True)
    link.events.append(LinkDown("gone"))
    with pytest.raises(LinkError, match="gone"):
        sink.serve(0)
    link.sent.clear()
    link.events.append(LinkUp(65_536))
    sink.serve(0)
    assert link.topics == [PRESENCE, CONFIG, STATE]


def test_a_full_window_keeps_the_newest_of_each_topic():
    link = Link(room=1)
    sink = MqttSink(link, TOPICS)
    sink.serve(0)
    for version in range(5):
        sink.send(AgentReport(issued_forecast(version=version)), is_new=True)
    link.room = 10
    sink.serve(0)
    assert link.topics == [PRESENCE, CONFIG, STATE]
    assert json.loads(link.sent[-1][1])["model"]["version"] == 4


def test_closing_says_offline():
    link = Link()
    sink = MqttSink(link, TOPICS)
    sink.serve(0)
    sink.close()
    assert link.sent[-1] == (PRESENCE, b"offline")


def test_without_a_prefix_nothing_is_described():
    link = Link()
    sink = MqttSink(link, MqttTopics.of("meter-1", "home/energy", ""))
    sink.serve(0)
    sink.send(AgentReport(issued_forecast()), is_new=True)
    assert link.topics == ["home/energy/meter-1/availability", "home/energy/meter-1/forecast"]


def refused(section, error, text):
    with pytest.raises(error, match=text):
        open_output(section, 0, "meter-1")


def test_mistakes_are_named(tmp_path):
    good = {"type": "mqtt", "url": "mqtt://127.0.0.1"}
    assert open_output(good, 0, "meter-1").name == "0 mqtt"
    refused({"type": "fax"}, ConfigError, r"output\[0\].type: unknown 'fax'; known: file, http, m")
    refused({"type": "mqtt"}, SettingsError, "url: missing")
    refused(good | {"url": "mqtt://ha.local"}, ConfigError, "insecure = true")
    refused(good | {"topic": "gf/1/north"}, SettingsError, "belongs to the fleet")
    refused(good | {"topic": "a/#"}, SettingsError, "topic")
    refused(good | {"interval": "10ms"}, SettingsError, "below 1s")
    absent = tmp_path / "password"
    refused(good | {"password_file": str(absent)}, ConfigError, "password_file")
    refused(
        {"type": "file", "path": str(absent), "format": "prometheus", "mode": "append"},
        SettingsError,
        "mode",
    )
