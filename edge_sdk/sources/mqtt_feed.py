"""Receive messages of a topic of a local MQTT broker; every message is one frame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from edge_sdk.app.clock import Clock, SystemClock
from edge_sdk.sources.base import RawFrame
from edge_sdk.wire.link.broker_options import Broker
from edge_sdk.wire.link.transport import LinkDown, LinkUp, Message, Transport


def open_link(broker: Broker) -> Transport:
    """Return a link to a broker that is not open yet.

    Raises:
        LinkError: The TLS files cannot be used.
    """
    from edge_sdk.wire.link.mqtt import MqttLink  # noqa: PLC0415 - loads paho

    return MqttLink(broker)


@dataclass(slots=True)
class MqttFeed:
    """The messages of one topic filter.

    Attributes:
        broker: Broker, with a session that ends with the connection.
        topic: Topic filter.
        takes_retained: Whether a retained message counts, whose age is not known.
        connect: Makes a link.
        clock: Clock of the machine.
        rejected: Messages that were not accepted, by reason.
    """

    broker: Broker
    topic: str
    takes_retained: bool
    connect: Callable[[Broker], Transport] = open_link
    clock: Clock = field(default_factory=SystemClock)
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
