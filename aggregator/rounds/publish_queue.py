"""What waits to be published: first come, first served, within the link's own window."""

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
"""Kinds that a broker may forget after ``EXPIRY``."""

EXPIRY = 600  # s
MOST = 50_000  # answers that wait; a device that gets none asks again
UNKEPT = frozenset(("time",))  # quality of service 0


class PublishQueue:
    """A queue in front of a link. Order is kept: slots leave before the manifest that names them.

    Whatever is lost here is asked for again: nothing correct rests on a publish.
    """

    def __init__(self, transport: Transport, metrics: Metrics) -> None:
        """Begin empty."""
        self._transport = transport
        self._metrics = metrics
        self._waiting: deque[tuple[str, bytes, bool]] = deque()

    def __len__(self) -> int:
        """How many messages wait."""
        return len(self._waiting)

    def answer(self, answers: Iterable[Reply]) -> None:
        """Queue answers for single devices; a crowd beyond ``MOST`` is dropped and asks again."""
        for one in answers:
            if len(self._waiting) < MOST:
                self._waiting.append((one.topic, one.payload, one.retain))

    def announce(self, publications: Iterable[Publication]) -> None:
        """Queue retained announcements."""
        self._waiting.extend((one.topic, one.payload, True) for one in publications)

    def rewind(self, length: int) -> None:
        """Take back what was queued since there were so many."""
        while len(self._waiting) > length:
            self._waiting.pop()

    def forget(self) -> None:
        """The link is gone, and with it whatever waited; ``LinkUp`` starts anew."""
        self._waiting.clear()

    def flush(self) -> None:
        """Publish as much as the link takes now."""
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
