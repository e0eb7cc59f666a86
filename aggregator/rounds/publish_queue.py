"""Queue of messages to publish: first in, first out, within the link's own window."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable

from aggregator.ingress.replies import Reply
from aggregator.metrics import Metrics
from aggregator.rounds.announcements import Publication
from edge_sdk.app.cli import fields
from edge_sdk.wire.errors import LinkError
from edge_sdk.wire.link.transport import Transport
from edge_sdk.wire.protocol import topics

logger = logging.getLogger(__name__)

PERISHABLE = frozenset(("chunk", "grant", "have", "part"))
"""Kinds with a message expiry interval of ``EXPIRY``."""

EXPIRY = 600  # s
MOST = 50_000  # queued replies; a device that receives none asks again
UNKEPT = frozenset(("time",))  # quality of service 0


class PublishQueue:
    """FIFO queue in front of a link: slots are published before the manifest that names them.

    A lost message is requested again: correctness never depends on a publish.
    """

    def __init__(self, transport: Transport, metrics: Metrics) -> None:
        """Start empty."""
        self._transport = transport
        self._metrics = metrics
        self._waiting: deque[tuple[str, bytes, bool]] = deque()

    def __len__(self) -> int:
        """Return the number of queued messages."""
        return len(self._waiting)

    def answer(self, answers: Iterable[Reply]) -> None:
        """Queue replies to single devices; replies beyond ``MOST`` are dropped."""
        for one in answers:
            if len(self._waiting) < MOST:
                self._waiting.append((one.topic, one.payload, one.retain))

    def announce(self, publications: Iterable[Publication]) -> None:
        """Queue retained announcements."""
        self._waiting.extend((one.topic, one.payload, True) for one in publications)

    def rewind(self, length: int) -> None:
        """Remove the messages queued after the first ``length``."""
        while len(self._waiting) > length:
            self._waiting.pop()

    def forget(self) -> None:
        """Clear the queue after the loss of the link; ``LinkUp`` publishes again."""
        self._waiting.clear()

    def flush(self) -> None:
        """Publish as much as the link accepts now."""
        while self._waiting and self._transport.is_up:
            topic, payload, retain = self._waiting[0]
            try:
                if not self._publish(topic, payload, retain=retain):
                    break
            except LinkError as error:
                logger.warning("not published %s", fields(topic=topic, why=error))
            self._waiting.popleft()
        self._metrics.waiting.set(len(self._waiting))

    def _publish(self, topic: str, payload: bytes, *, retain: bool) -> bool:
        address = topics.parse(topic)
        kind = address.kind if address else ""
        qos = 0 if kind in UNKEPT else 1
        if qos and self._transport.room() <= 0:
            return False
        expiry = EXPIRY if kind in PERISHABLE and not retain else None
        is_sent = self._transport.publish(topic, payload, retain=retain, qos=qos, expiry=expiry)
        if is_sent:
            self._metrics.sent.labels(kind).inc()
            self._metrics.payload.labels("down").inc(len(payload))
            self._metrics.volume.labels("down", kind).inc(len(payload))
        return is_sent
