"""Publish replies and announcements through one queue, and count them."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from aggregator.ingress.replies import Reply
from aggregator.metrics import Metrics
from aggregator.rounds.announcements import Publication
from edge_sdk.app.cli import fields
from edge_sdk.errors import LinkError
from edge_sdk.link.transport import EXPIRY, PERISHABLE, PublishQueue, QueuedPublish, Transport
from edge_sdk.protocol import topics

logger = logging.getLogger(__name__)

CAPACITY = 50_000  # queued messages beyond which replies are dropped; devices request again
QOS_0 = frozenset(("time",))


class Publisher(PublishQueue):
    """Publishes in order: the slots of a model leave before the manifest that names them."""

    def __init__(self, transport: Transport, metrics: Metrics) -> None:
        super().__init__(on_published=self._count, on_refused=_log_refused)
        self._transport, self._metrics = transport, metrics

    def reply(self, replies: Iterable[Reply]) -> None:
        """Queue replies to single devices; replies beyond ``CAPACITY`` are dropped."""
        for one in replies:
            if len(self) < CAPACITY:
                self._append(one.topic, one.payload, retain=one.retain)

    def announce(self, publications: Iterable[Publication]) -> None:
        for one in publications:
            self._append(one.topic, one.payload, retain=True)

    def publish(self) -> None:
        """Publish as much as the link accepts now."""
        self.flush(self._transport)
        self._metrics.waiting.set(len(self))

    def _append(self, topic: str, payload: bytes, *, retain: bool) -> None:
        kind = _kind_of(topic)
        qos = 0 if kind in QOS_0 else 1
        expiry = EXPIRY if kind in PERISHABLE and not retain else None
        self.append(QueuedPublish(topic, payload, retain, qos, expiry))

    def _count(self, message: QueuedPublish) -> None:
        kind, size = _kind_of(message.topic), len(message.payload)
        self._metrics.sent.labels(kind).inc()
        self._metrics.payload.labels("down").inc(size)
        self._metrics.volume.labels("down", kind).inc(size)


def _kind_of(topic: str) -> str:
    address = topics.parse(topic)
    return address.kind if address else ""


def _log_refused(message: QueuedPublish, error: LinkError) -> None:
    logger.warning("publish failed %s", fields(topic=message.topic, why=error))
