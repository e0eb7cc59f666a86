"""Forecasts are published once, retained, and a broker that does not answer is named."""

import json
from dataclasses import replace
from itertools import count
from zoneinfo import ZoneInfo

import pytest

from aggregator.extensions.feeder.feeder import feeder_forecast
from aggregator.extensions.feeder.feeder_mqtt import publish
from aggregator.extensions.feeder.settings import FeederMqttSection
from edge_sdk.errors import LinkError
from edge_sdk.link.transport import LinkDown, LinkUp
from tests.aggregator.extensions.feeder.sums import sums_of


class Link:
    """A broker that takes two messages at a time, and confirms with the next poll."""

    def __init__(self, events, *, confirms=True):
        self.events, self.confirms = list(events), confirms
        self.is_up, self.open_ones, self.sent = False, 0, []
        self.is_closed = False

    def open(self):
        """Connect with the first poll."""

    def poll(self, _):
        self.open_ones = 0 if self.confirms else self.open_ones
        events, self.events = self.events, []
        self.is_up |= any(isinstance(event, LinkUp) for event in events)
        return events

    def room(self):
        return 2 - self.open_ones if self.is_up else 0

    def publish(self, topic, payload, *, retain):
        if not self.room():
            return False
        self.open_ones += 1
        self.sent.append((topic, payload, retain))
        return True

    def close(self):
        self.is_closed = True


@pytest.fixture(scope="module")
def forecasts():
    one = feeder_forecast(sums_of(3), "F12", ZoneInfo("UTC"))
    return [replace(one, feeder=name) for name in ("F12", "", "a/+b")]


def test_every_feeder_has_a_retained_topic_of_its_own(forecasts):
    link = Link([LinkUp(65_536)])
    publish(link, "feeders", forecasts)
    assert [topic for topic, _, _ in link.sent] == [
        "feeders/F12/forecast",
        "feeders/_all/forecast",
        "feeders/a%2F%2Bb/forecast",
    ]
    assert all(retain for _, _, retain in link.sent)
    assert json.loads(link.sent[0][1])["feeder"] == "F12"
    assert (link.open_ones, link.is_closed) == (0, True)


@pytest.mark.parametrize(
    ("link", "why"),
    [
        (Link([LinkDown("refused")]), "refused"),
        (Link([]), "3 forecasts not published"),
        (Link([LinkUp(65_536)], confirms=False), "1 forecasts not published"),
    ],
)
def test_a_broker_that_does_not_confirm_is_an_error(forecasts, link, why):
    seconds = count()
    with pytest.raises(LinkError, match=why):
        publish(link, "feeders", forecasts, lambda: float(next(seconds)))
    assert link.is_closed


def test_the_topics_of_the_fleet_are_refused():
    with pytest.raises(ValueError, match="belongs to the fleet's protocol"):
        FeederMqttSection("mqtt://127.0.0.1", "gf/north")
