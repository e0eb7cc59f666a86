"""The seam between the shells and any broker: what a link must be able to do, and nothing more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Message:
    """One publish that arrived. ``receipt`` is the link's own handle for acknowledging it."""

    topic: str
    payload: bytes
    retained: bool = False
    receipt: object = None


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The broker accepted the connection. Subscribe now, whatever the broker remembers."""

    max_payload: int  # largest payload the link will carry, in bytes
    dates_by: str = ""  # by which time the broker's certificate is valid; empty without TLS


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The connection is gone; the link reconnects by itself, with jitter."""

    why: str


Happening = Message | LinkUp | LinkDown


class Transport(Protocol):
    """A link to a broker. Single-threaded: everything happens inside ``poll``.

    The link delivers at least once, in no particular order, and may lose what the broker lost:
    nothing above it believes a broker's acknowledgement.
    """

    @property
    def is_up(self) -> bool:
        """Whether the broker has accepted us and the connection stands."""

    def open(self) -> None:
        """Start connecting. Returns at once; ``poll`` reports ``LinkUp``."""

    def poll(self, timeout: float) -> Sequence[Happening]:
        """Serve the socket for at most ``timeout`` seconds and return what happened."""

    def subscribe(self, *filters: str) -> None:
        """Ask for these topics. Must be repeated after every ``LinkUp``."""

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
        """Hand one message to the link; False if it has no room now (nothing was sent).

        ``expiry`` in seconds is used where the broker speaks MQTT 5 and ignored elsewhere.
        """

    def room(self) -> int:
        """How many more QoS 1 publishes the link takes right now (its in-flight window)."""

    def acknowledge(self, message: Message) -> None:
        """Tell the broker that the message is safe here; until then it fills its window."""

    def close(self) -> None:
        """Say goodbye (the will is not sent) and free the socket."""
