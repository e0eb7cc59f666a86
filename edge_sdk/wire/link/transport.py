"""Define the interface between the shells and any broker link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


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
        """Return how many more QoS 1 publishes the link accepts now (its in-flight window)."""

    def acknowledge(self, message: Message) -> None:
        """Acknowledge a message after it is stored; until then it occupies its window."""

    def close(self) -> None:
        """Disconnect cleanly (the will is not sent) and free the socket."""
