"""Publish forecasts to a local MQTT broker, with Home Assistant's discovery."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from edge_sdk.app.schema import Length, Matches
from edge_sdk.errors import ConfigError, LinkError
from edge_sdk.extensions.outputs.energy_managers import EntityFormat, entity, present
from edge_sdk.extensions.outputs.forecast_issuer import AgentReport, OutputPlace, OutputType
from edge_sdk.extensions.outputs.formats import json_text
from edge_sdk.extensions.outputs.home_assistant import discovery, discovery_topic
from edge_sdk.extensions.outputs.threaded_output import OutputSection, ThreadedOutput
from edge_sdk.forecasting.forecast import IssuedForecast
from edge_sdk.link.broker_options import Broker
from edge_sdk.link.transport import LinkDown, LinkUp, Transport

ONLINE, OFFLINE = b"online", b"offline"
_FAREWELL = 1.0  # s to publish ``offline`` before the connection is closed


@dataclass(frozen=True, slots=True)
class MqttTopics:
    """Topics of one device."""

    state: str  # retained forecast as JSON
    availability: str  # retained ``online`` or ``offline``; also the last will
    discovery: str  # retained discovery message; empty without Home Assistant

    @classmethod
    def of(cls, device: str, base: str, prefix: str) -> MqttTopics:
        """Return the topics below a base, and below Home Assistant's prefix.

        >>> MqttTopics.of("meter-1", "gridfed", "").state
        'gridfed/meter-1/forecast'
        """
        found = discovery_topic(prefix, device) if prefix else ""
        return cls(f"{base}/{device}/forecast", f"{base}/{device}/availability", found)

    def entity(self, form: EntityFormat) -> str:
        """Return the topic of a further sensor of Home Assistant.

        >>> MqttTopics.of("meter-1", "gridfed", "").entity("predbat")
        'gridfed/meter-1/forecast/predbat'
        """
        return f"{self.state}/{form}"


@dataclass(slots=True)
class MqttSink:
    """A connection to a broker; everything that it publishes is retained."""

    link: Transport  # link to the broker, whose last will is ``offline``
    topics: MqttTopics
    formats: tuple[EntityFormat, ...] = ()  # further sensors of Home Assistant
    clock: Callable[[], float] = time.time  # Unix seconds
    _present: int | None = field(init=False, default=None)
    _issued: IssuedForecast | None = field(init=False, default=None)
    _described: bytes = field(init=False, default=b"")
    _queue: deque[tuple[str, bytes]] = field(init=False, default_factory=deque)

    def __post_init__(self) -> None:
        self.link.open()

    def send(self, report: AgentReport, *, is_new: bool) -> bool:
        """Publish a new forecast, after its description if that is another one."""
        if not is_new:
            return True
        if not self.link.is_up:
            return False
        self._publish(report.issued)
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
                    self._publish(self._issued)
        issued = self._issued
        if issued is not None and self._present != present(issued, self.clock()):
            self._publish_entities(issued)
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

    def _publish(self, issued: IssuedForecast) -> None:
        self._issued = issued
        self._describe(issued)
        self._put(self.topics.state, json_text(issued).encode())
        self._publish_entities(issued)

    def _publish_entities(self, issued: IssuedForecast) -> None:
        now = self.clock()
        self._present = present(issued, now)
        for form in self.formats:
            text = json.dumps(entity(form, issued, now), ensure_ascii=False, allow_nan=False)
            self._put(self.topics.entity(form), text.encode())

    def _describe(self, issued: IssuedForecast) -> None:
        if not self.topics.discovery:
            return
        topics = self.topics
        entities: dict[str, str] = {form: topics.entity(form) for form in self.formats}
        found = discovery(issued, topics.state, topics.availability, entities)
        text = json.dumps(found, ensure_ascii=False).encode()
        if text != self._described:
            self._described = text
            self._put(self.topics.discovery, text)

    def _put(self, topic: str, payload: bytes) -> None:
        self._queue = deque(row for row in self._queue if row[0] != topic)
        self._queue.append((topic, payload))

    def _flush(self) -> None:
        while self._queue and self.link.is_up:
            topic, payload = self._queue[0]
            if not self.link.publish(topic, payload, retain=True):
                return
            self._queue.popleft()


def open_mqtt(
    broker: Broker, topics: MqttTopics, formats: tuple[EntityFormat, ...] = ()
) -> MqttSink:
    """Connect to a broker with the device's last will.

    Raises:
        LinkError: The TLS files cannot be used.
    """
    from edge_sdk.link.mqtt import MqttLink  # noqa: PLC0415 - loads paho

    will = topics.availability, OFFLINE, True
    return MqttSink(MqttLink(replace(broker, will=will)), topics, formats)


TopicName = Annotated[str, Matches(r"[^+#\x00/]+(/[^+#\x00/]+)*")]
TopicPrefix = Annotated[str, Matches(r"([^+#\x00/]+(/[^+#\x00/]+)*)?")]


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttOutputSection(OutputSection):
    """``type = "mqtt"``: a local broker, such as Home Assistant's; never the fleet's topics."""

    url: str  # mqtt://127.0.0.1:1883, or mqtts://host:8883
    topic: TopicName = "gridfed"  # TOPIC/DEVICE/forecast and TOPIC/DEVICE/availability
    discovery: TopicPrefix = "homeassistant"  # Home Assistant's discovery prefix; empty: none
    # further sensors: the forecast of the present interval, and documents of energy managers
    formats: Annotated[tuple[EntityFormat, ...], Length(0, 3)] = ("home-assistant",)
    username: str = ""  # user name of the broker
    password_file: Path | None = None  # file whose first line is the password
    ca_file: Path | None = None  # authority that signed the broker's certificate, for mqtts
    cert_file: Path | None = None  # certificate of this client
    key_file: Path | None = None  # private key of that certificate
    protocol: Literal[4, 5] = 5  # MQTT 5, or 4 for 3.1.1
    insecure: bool = False  # allow mqtt:// to another host

    def __post_init__(self) -> None:
        OutputSection.__post_init__(self)
        if self.topic.partition("/")[0] == "gf":
            raise ValueError(
                "topic: 'gf/...' belongs to the fleet's protocol; choose another topic"
            )


def _open(section: MqttOutputSection, place: OutputPlace) -> ThreadedOutput:
    try:
        broker = Broker(
            url=section.url,
            client_id=f"gridfed-forecast-{place.device}",
            ca_file=section.ca_file,
            cert_file=section.cert_file,
            key_file=section.key_file,
            protocol=section.protocol,
            username=section.username or None,
            password=_password(section.password_file, place.where),
            session_expiry=0,
            reconnect_max=60.0,
            insecure=section.insecure,
        )
    except LinkError as error:
        raise ConfigError(f"{place.where}: {error}") from error
    topics = MqttTopics.of(place.device, section.topic, section.discovery)
    return ThreadedOutput.of(section, place, lambda: open_mqtt(broker, topics, section.formats))


def _password(path: Path | None, where: str) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text("utf-8").partition("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}.password_file: cannot read {str(path)!r}: {error}") from error


MQTT = OutputType(MqttOutputSection, _open)
