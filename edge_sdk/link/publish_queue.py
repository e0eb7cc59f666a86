"""Queue of messages to publish: first in, first out, within the link's window."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import LinkError
from edge_sdk.link.transport import Transport

EXPIRY = 600  # s, message expiry interval of perishable messages
PERISHABLE = frozenset(("chunk", "grant", "have", "part", "signal"))
"""Kinds with a message expiry interval: a broker may drop them after ``EXPIRY``."""


@dataclass(frozen=True, slots=True)
class QueuedPublish:
    """One message to publish, with its MQTT options."""

    topic: str
    payload: bytes
    retain: bool = False
    qos: int = 1
    expiry: int | None = None  # s


class PublishQueue:
    """FIFO queue in front of a link; both ends use it.

    Correctness never depends on a publish: a lost message is requested or sent again.

    Args:
        on_refused: Called with every message that the link can never carry; it is dropped.
    """

    def __init__(
        self,
        *,
        on_published: Callable[[QueuedPublish], None],
        on_refused: Callable[[QueuedPublish, LinkError], None],
    ) -> None:
        self._on_published, self._on_refused = on_published, on_refused
        self._waiting: deque[QueuedPublish] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def append(self, message: QueuedPublish) -> None:
        self._waiting.append(message)

    def truncate(self, length: int) -> None:
        """Remove the messages queued after the first ``length``."""
        while len(self._waiting) > length:
            self._waiting.pop()

    def clear(self) -> None:
        """Remove all messages, after the loss of the connection."""
        self._waiting.clear()

    def flush(self, link: Transport) -> None:
        """Publish as much as the link accepts now; messages without room wait in order."""
        while self._waiting and link.is_up:
            message = self._waiting[0]
            if message.qos and link.room() <= 0:
                return
            try:
                if not link.publish(
                    message.topic,
                    message.payload,
                    retain=message.retain,
                    qos=message.qos,
                    expiry=message.expiry,
                ):
                    return
            except LinkError as error:
                self._on_refused(message, error)
            else:
                self._on_published(message)
            self._waiting.popleft()
