"""Define the interface between the shells and any broker link, and the queue in front of one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import LinkError


@dataclass(frozen=True, slots=True)
class Message:
    """One publish that was received. ``receipt`` is the link's own handle for acknowledging it."""

    topic: str
    payload: bytes
    retained: bool = False
    receipt: object = None


@dataclass(frozen=True, slots=True)
class LinkUp:
    """An event: the broker accepted the connection. Subscribe again, whatever the broker stored."""

    max_payload: int  # largest payload the link can carry, in bytes
    dates_by: str = ""  # moment at which the broker's certificate is valid; empty without TLS
    is_limited: bool = False  # the dates cannot be judged yet: only the time may be learnt
    shares: bool = True  # False if the broker has said that it has no shared subscriptions
    retains: bool = True  # False if the broker has said that it keeps no retained messages


@dataclass(frozen=True, slots=True)
class LinkDown:
    """An event: the connection is lost; the link reconnects by itself, with jitter."""

    why: str


Happening = Message | LinkUp | LinkDown


class Transport(Protocol):
    """A link to a broker. Single-threaded: everything happens inside ``poll``.

    The link delivers at least once, in no particular order, and may lose messages that the broker
    lost; the layers above do not rely on a broker's acknowledgement.
    """

    @property
    def is_up(self) -> bool:
        """Return whether the broker has accepted this client and the connection is up."""

    def open(self) -> None:
        """Start connecting. Returns at once; ``poll`` reports ``LinkUp``."""

    def poll(self, timeout: float) -> Sequence[Happening]:
        """Serve the socket for at most ``timeout`` seconds and return the events."""

    def subscribe(self, *filters: str) -> None:
        """Subscribe to these topics. Must be repeated after every ``LinkUp``."""

    def unsubscribe(self, *filters: str) -> None:
        """Stop receiving these topics."""

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        retain: bool = False,
        qos: int = 1,
        expiry: int | None = None,
    ) -> bool:
        """Pass one message to the link; return False if it has no room now (nothing was sent).

        ``expiry`` in seconds is used where the broker supports MQTT 5 and ignored elsewhere.
        """

    def room(self) -> int:
        """Return the number of QoS 1 publishes that the link still accepts (its in-flight window)."""

    def acknowledge(self, message: Message) -> None:
        """Acknowledge a message after it is stored; until then it occupies its window."""

    def renew_session(self, why: str) -> None:
        """Connect again with a new session; the broker discards this client's queue.

        Does nothing where the link cannot do it, as with MQTT 3.1.1, or while it is down.
        """

    def close(self) -> None:
        """Disconnect cleanly (the will is not sent) and free the socket."""


@runtime_checkable
class RenewableLink(Protocol):
    """A link that reads its TLS files again at each connection, as ``MqttLink`` does."""

    @property
    def is_up(self) -> bool:
        """Return whether the broker has accepted this client and the connection is up."""

    @property
    def has_current_files(self) -> bool:
        """Return whether the connection was made with the files as they are now."""

    @property
    def refusals(self) -> int:
        """Return the number of connections that the broker ended before it accepted this client."""

    def reconnect(self, why: str) -> None:
        """Connect again with the files as they are now."""


class NoLink:
    """A link that never connects; nothing is sent and nothing arrives."""

    is_up = False

    def open(self) -> None:
        """Connect to nothing."""

    def poll(self, timeout: float) -> Sequence[Happening]:
        time.sleep(max(0.0, timeout))
        return ()

    def subscribe(self, *filters: str) -> None:
        """Do nothing."""

    def unsubscribe(self, *filters: str) -> None:
        """Do nothing."""

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        retain: bool = False,
        qos: int = 1,
        expiry: int | None = None,
    ) -> bool:
        """Return False: there is no room, now or later."""
        del topic, payload, retain, qos, expiry
        return False

    def room(self) -> int:
        """Return 0."""
        return 0

    def acknowledge(self, message: Message) -> None:
        """Acknowledge nothing: no message arrives."""

    def renew_session(self, why: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Close nothing."""


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


class PublishQueue(deque[QueuedPublish]):
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
        super().__init__()
        self._on_published, self._on_refused = on_published, on_refused

    def truncate(self, length: int) -> None:
        """Remove the messages queued after the first ``length``."""
        while len(self) > length:
            self.pop()

    def flush(self, link: Transport) -> None:
        """Publish as much as the link accepts now; messages without room wait in order."""
        while self and link.is_up:
            message = self[0]
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
            self.popleft()
