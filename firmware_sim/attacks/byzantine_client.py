"""Byzantine client and tampering link: their differences from the product."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from edge_sdk import Client
from edge_sdk.wire.contract.method import Task
from edge_sdk.wire.link.transport import Happening, Message, Transport
from edge_sdk.wire.protocol import topics
from edge_sdk.wire.protocol.codec import decode, encode
from edge_sdk.wire.protocol.envelope import AGGREGATOR, digest, prove
from edge_sdk.wire.protocol.messages import UpdateMessage
from firmware_sim.attacks import BoundAttack
from firmware_sim.attacks.byzantine_halves import ByzantineHalves

SPOILT = frozenset({"update", "offer", "chunk"})
"""Kinds of message that a tampering link changes: those of an upload."""


class ByzantineClient(Client):
    """A real client of a Byzantine device: it may delay its update, and change what it seals.

    Args:
        config: As for any client.
        liar: Halves of the attack.
        options: As for any client, except ``methods``.
    """

    def __init__(self, config: Any, *, liar: ByzantineHalves, **options: Any) -> None:  # noqa: ANN401 - the SDK's own
        """Start like an honest client, with Byzantine halves."""
        self._liar = liar
        liar.features = lambda: self.learner.manifest.features
        super().__init__(config, methods=liar.methods(), **options)

    def _is_answerable(self, task: Task) -> bool:
        return super()._is_answerable(task) and self._liar.may_answer(task)

    def _sealed(self, *given: Any, **named: Any) -> Any:  # noqa: ANN401 - the SDK's own entry
        honest = super()._sealed(*given, **named)
        if self._liar.bound.attack.kind != "body" or not self._liar.is_lying(honest.round):
            return honest
        said: UpdateMessage = self._liar.bound.act(decode(UpdateMessage, honest.body))
        body = encode(said)
        proof = prove(
            digest(body),
            kind=said.kind,
            sender=self.config.id,
            recipient=AGGREGATOR,
            fleet=self.config.fleet,
            signer=self._signer,
        )
        return replace(honest, body=body, proof=proof, base=said.base)


@dataclass(order=True)
class _Held:
    due: float
    number: int
    topic: str = field(compare=False)
    payload: bytes = field(compare=False)
    options: dict[str, Any] = field(compare=False)


class TamperingLink:
    """A link that tampers with uploads. Other messages pass unchanged."""

    def __init__(
        self,
        link: Transport,
        bound: BoundAttack,
        *,
        clock: Callable[[], float],
        rng: np.random.Generator,
    ) -> None:
        """Wrap a link.

        Args:
            link: The real link.
            bound: A link attack.
            clock: Monotonic seconds.
            rng: Generator of the attack's draws.
        """
        self._link, self._bound, self._clock, self._rng = link, bound, clock, rng
        self._held: list[_Held] = []
        self._count = 0

    @property
    def is_up(self) -> bool:
        """Return True if the broker has accepted the connection."""
        return self._link.is_up

    def open(self) -> None:
        """Start connecting."""
        self._link.open()

    def poll(self, timeout: float) -> Sequence[Happening]:
        """Send delayed messages that are due, then serve the link."""
        while self._held and self._held[0].due <= self._clock():
            held = self._held[0]
            if self._link.is_up and not self._link.publish(
                held.topic, held.payload, **held.options
            ):
                break
            heapq.heappop(self._held)
        return self._link.poll(min(timeout, 0.05) if self._held else timeout)

    def subscribe(self, *filters: str) -> None:
        """Subscribe to these topics."""
        self._link.subscribe(*filters)

    def unsubscribe(self, *filters: str) -> None:
        """Unsubscribe from these topics."""
        self._link.unsubscribe(*filters)

    def publish(self, topic: str, payload: bytes, **options: Any) -> bool:  # noqa: ANN401 - as the link's
        """Tamper with an upload, or publish any other message unchanged."""
        where = topics.parse(topic)
        if where is None or where.direction != "up" or where.kind not in SPOILT:
            return self._link.publish(topic, payload, **options)
        if self._link.room() <= 0:
            return False
        for wait, spoilt in self._bound.act(payload, self._rng):
            self._count += 1
            held = _Held(self._clock() + wait, self._count, topic, spoilt, options)
            heapq.heappush(self._held, held)
        return True

    def room(self) -> int:
        """Return the number of further publishes that the link accepts."""
        return self._link.room()

    def acknowledge(self, message: Message) -> None:
        """Acknowledge a message that is stored here."""
        self._link.acknowledge(message)

    def close(self) -> None:
        """Close the link; delayed messages are lost."""
        self._link.close()
