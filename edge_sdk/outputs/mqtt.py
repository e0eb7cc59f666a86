"""Publish forecasts to a local MQTT broker, with Home Assistant's discovery."""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import dataclass, field, replace

from edge_sdk.forecasting.issued_forecast import IssuedForecast
from edge_sdk.outputs.base import AgentReport
from edge_sdk.outputs.formats import json_text
from edge_sdk.outputs.home_assistant import discovery, discovery_topic
from edge_sdk.wire.errors import LinkError
from edge_sdk.wire.link.broker_options import Broker
from edge_sdk.wire.link.transport import LinkDown, LinkUp, Transport

ONLINE, OFFLINE = b"online", b"offline"
_FAREWELL = 1.0  # s to publish ``offline`` before the connection is closed


@dataclass(frozen=True, slots=True)
class MqttTopics:
    """Topics of one device.

    Attributes:
        state: Retained forecast as JSON.
        availability: Retained ``online`` or ``offline``; also the last will.
        discovery: Retained discovery message; empty without Home Assistant.
    """

    state: str
    availability: str
    discovery: str

    @classmethod
    def of(cls, device: str, base: str, prefix: str) -> MqttTopics:
        """Return the topics below a base, and below Home Assistant's prefix.

        >>> MqttTopics.of("meter-1", "gridfed", "").state
        'gridfed/meter-1/forecast'
        """
        found = discovery_topic(prefix, device) if prefix else ""
        return cls(f"{base}/{device}/forecast", f"{base}/{device}/availability", found)


@dataclass(slots=True)
class MqttSink:
    """A connection to a broker; everything that it publishes is retained.

    Attributes:
        link: Link to the broker, whose last will is ``offline``.
        topics: Topics of the device.
    """

    link: Transport
    topics: MqttTopics
    _issued: IssuedForecast | None = field(init=False, default=None)
    _described: bytes = field(init=False, default=b"")
    _queue: deque[tuple[str, bytes]] = field(init=False, default_factory=deque)

    def __post_init__(self) -> None:
        """Start connecting."""
        self.link.open()

    def send(self, report: AgentReport, *, is_new: bool) -> bool:
        """Publish a new forecast, after its description if that is another one."""
        if not is_new:
            return True
        if not self.link.is_up:
            return False
        self._issued = report.issued
        self._describe()
        self._put(self.topics.state, json_text(report.issued).encode())
        self._flush()
        return True

    def serve(self, patience: float) -> None:
        """Serve the link; after a connect publish everything again.

        Raises:
            LinkError: The connection was lost or refused; the link tries again by itself.
        """
        for event in self.link.poll(patience):
            if isinstance(event, LinkDown):
                raise LinkError(event.why)
            if isinstance(event, LinkUp):
                self._queue.clear()
                self._described = b""
                self._put(self.topics.availability, ONLINE)
                if self._issued is not None:
                    self._describe()
                    self._put(self.topics.state, json_text(self._issued).encode())
        self._flush()

    def close(self) -> None:
        """Publish ``offline``, and disconnect."""
        if self.link.is_up:
            self._put(self.topics.availability, OFFLINE)
            end = time.monotonic() + _FAREWELL
            while self._queue and self.link.is_up and time.monotonic() < end:
                self._flush()
                self.link.poll(0.05)
            self.link.poll(0.05)
        self.link.close()

    def _describe(self) -> None:
        """Publish the discovery message if it is not the one published last."""
        if not self.topics.discovery or self._issued is None:
            return
        found = discovery(self._issued, self.topics.state, self.topics.availability)
        text = json.dumps(found, ensure_ascii=False).encode()
        if text != self._described:
            self._described = text
            self._put(self.topics.discovery, text)

    def _put(self, topic: str, payload: bytes) -> None:
        """Queue a message instead of an older one on its topic."""
        self._queue = deque(row for row in self._queue if row[0] != topic)
        self._queue.append((topic, payload))

    def _flush(self) -> None:
        while self._queue and self.link.is_up:
            topic, payload = self._queue[0]
            if not self.link.publish(topic, payload, retain=True):
                return
            self._queue.popleft()


def open_mqtt(broker: Broker, topics: MqttTopics) -> MqttSink:
    """Connect to a broker with the device's last will.

    Raises:
        LinkError: The TLS files cannot be used.
    """
    from edge_sdk.wire.link.mqtt import MqttLink  # noqa: PLC0415 - loads paho

    will = topics.availability, OFFLINE, True
    return MqttSink(MqttLink(replace(broker, will=will)), topics)
