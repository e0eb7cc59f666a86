"""Receive messages of a topic of a local MQTT broker; every message is one frame."""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from edge_sdk.app.clock import Clock, SystemClock
from edge_sdk.app.schema import Length, Matches
from edge_sdk.errors import ConfigError, LinkError
from edge_sdk.extensions.sources.base import FramedLink, RawFrame
from edge_sdk.extensions.sources.interface import Interface
from edge_sdk.extensions.sources.json_values import JsonSourceSection, json_decoder, json_names
from edge_sdk.link.broker_options import Broker
from edge_sdk.link.transport import LinkDown, LinkUp, Message, Transport


def open_link(broker: Broker) -> Transport:
    """Return a link to a broker that is not open yet.

    Raises:
        LinkError: The TLS files cannot be used.
    """
    from edge_sdk.link.mqtt import MqttLink  # noqa: PLC0415 - loads paho

    return MqttLink(broker)


@dataclass(slots=True)
class MqttFeed:
    """The messages of one topic filter."""

    broker: Broker  # broker, with a session that ends with the connection
    topic: str
    takes_retained: bool  # whether a retained message counts, whose age is not known
    connect: Callable[[Broker], Transport] = open_link  # makes a link
    clock: Clock = field(default_factory=SystemClock)
    # messages that were not accepted, by reason
    rejected: Counter[str] = field(default_factory=Counter)
    _link: Transport | None = None

    def frames(self, patience: float) -> list[RawFrame]:
        """Wait up to ``patience`` seconds; return the messages that arrived.

        Raises:
            OSError: The connection is lost or refused.
        """
        if self._link is None:
            self._link = self.connect(self.broker)
            self._link.open()
        found: list[RawFrame] = []
        for event in self._link.poll(patience):
            if isinstance(event, LinkUp):
                self._link.subscribe(self.topic)
            elif isinstance(event, LinkDown):
                raise ConnectionError(event.why)
            elif isinstance(event, Message):
                self._link.acknowledge(event)
                if event.retained and not self.takes_retained:
                    self.rejected["retained"] += 1
                elif event.payload:
                    found.append(RawFrame(event.payload, self.clock.wall() / 1000))
        return found

    def close(self) -> None:
        """Disconnect; the next call of ``frames`` connects again."""
        if self._link is not None:
            self._link.close()
            self._link = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttSourceSection(JsonSourceSection):
    """``type = "mqtt"``: JSON messages, or plain numbers, of a local broker."""

    topic: Annotated[str, Matches(r"[^\x00]{1,512}")]  # topic filter; + and # are wildcards
    retained: bool = False  # accept retained messages without a time of their own
    username: str = ""  # user name of the broker
    password_file: Path | None = None  # file whose first line is the password
    cert_file: Path | None = None  # certificate of this client
    key_file: Path | None = None  # private key of that certificate
    client_id: Annotated[str, Length(0, 64)] = ""  # empty: one made from the topic
    protocol: Literal[4, 5] = 5  # MQTT 5, or 4 for 3.1.1


def _feed(section: MqttSourceSection) -> FramedLink:
    topic = section.topic
    if topic.startswith("gf/"):
        raise ConfigError("source mqtt: topic: 'gf/...' belongs to the fleet's protocol")
    name = hashlib.sha256(topic.encode()).hexdigest()[:12]
    try:
        broker = Broker(
            url=section.url,
            client_id=section.client_id or f"gridfed-source-{name}-{secrets.token_hex(4)}",
            ca_file=section.ca_file,
            cert_file=section.cert_file,
            key_file=section.key_file,
            protocol=section.protocol,
            username=section.username or None,
            password=_password(section.password_file),
            session_expiry=0,
            insecure=section.insecure,
        )
    except LinkError as error:
        raise ConfigError(f"source mqtt: {error}") from error
    has_times = all(value.time for value in section.value)
    return MqttFeed(broker, topic, takes_retained=section.retained or has_times)


def _password(path: Path | None) -> str | None:
    try:
        return None if path is None else path.read_text("utf-8").partition("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"source mqtt: password_file: cannot read {str(path)!r}") from error


MQTT = Interface("mqtt", MqttSourceSection, _feed, json_decoder, names=json_names)
