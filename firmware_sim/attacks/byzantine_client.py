"""Byzantine client and tampering link: their differences from the product."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from edge_sdk import Client, Config
from edge_sdk.client import ClientParts
from edge_sdk.link.transport import Happening, Message, Transport
from edge_sdk.protocol import topics
from edge_sdk.protocol.keys import Signer
from edge_sdk.protocol.messages import UpdateMessage
from edge_sdk.protocol.outbox_state import OutboxEntry
from edge_sdk.session.identity import load_signer
from edge_sdk.training.training_transaction import UpdateSealer
from firmware_sim.attacks import BoundAttack
from firmware_sim.attacks.byzantine_halves import ByzantineHalves

# kinds of message that a tampering link changes: those of an upload
TAMPERED = frozenset({"update", "offer", "chunk"})


def byzantine_client(
    config: Config,
    *,
    attacker: ByzantineHalves,
    parts: ClientParts,
    **options: Any,  # noqa: ANN401 - the SDK's own
) -> Client:
    """Return a real client of a Byzantine device: it may delay its update, and change its body.

    Args:
        parts: Parts of any client; the attacker replaces ``sealer`` and ``may_answer``.
        options: As for any client, except ``methods``.
    """
    client = Client(
        config,
        methods=attacker.methods(),
        parts=replace(
            parts,
            sealer=ByzantineSealer(config, load_signer(config), attacker),
            may_answer=attacker.may_answer,
        ),
        **options,
    )
    attacker.read_features(lambda: client.learner.manifest.features)
    return client


class ByzantineSealer(UpdateSealer):
    """Seals like an honest device, and signs a changed body while a ``body`` attack is on."""

    def __init__(self, config: Config, signer: Signer, attacker: ByzantineHalves) -> None:
        super().__init__(config, signer)
        self._attacker = attacker

    def seal(
        self, message: UpdateMessage, encrypt: Callable[[bytes], bytes] = bytes
    ) -> OutboxEntry:
        """Seal an update; the entry keeps the honest numbers, whatever its body says."""
        attacker = self._attacker
        if attacker.bound.attack.kind == "body" and attacker.is_attacking(message.round):
            message = attacker.bound.act(message)
        return super().seal(message, encrypt)


@dataclass(order=True)
class _Held:
    due: float
    number: int
    topic: str = field(compare=False)
    payload: bytes = field(compare=False)
    options: dict[str, Any] = field(compare=False)


class WrappedLink:
    """A link around another one. All calls pass unchanged."""

    def __init__(self, link: Transport) -> None:
        self._link = link

    @property
    def is_up(self) -> bool:
        return self._link.is_up

    def open(self) -> None:
        self._link.open()

    def poll(self, timeout: float) -> Sequence[Happening]:
        return self._link.poll(timeout)

    def subscribe(self, *filters: str) -> None:
        self._link.subscribe(*filters)

    def unsubscribe(self, *filters: str) -> None:
        self._link.unsubscribe(*filters)

    def publish(self, topic: str, payload: bytes, **options: Any) -> bool:  # noqa: ANN401 - as the link's
        return self._link.publish(topic, payload, **options)

    def room(self) -> int:
        return self._link.room()

    def renew_session(self, why: str) -> None:
        self._link.renew_session(why)

    def acknowledge(self, message: Message) -> None:
        self._link.acknowledge(message)

    def close(self) -> None:
        self._link.close()


class TamperingLink(WrappedLink):
    """A link that tampers with uploads. Other messages pass unchanged. Delayed ones are lost at its end."""

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
            clock: Monotonic seconds.
            rng: Generator of the attack's draws.
        """
        super().__init__(link)
        self._bound, self._clock, self._rng = bound, clock, rng
        self._held: list[_Held] = []
        self._count = 0

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

    def publish(self, topic: str, payload: bytes, **options: Any) -> bool:  # noqa: ANN401 - as the link's
        """Tamper with an upload, or publish any other message unchanged."""
        where = topics.parse(topic)
        if where is None or where.direction != "up" or where.kind not in TAMPERED:
            return self._link.publish(topic, payload, **options)
        if self._link.room() <= 0:
            return False
        for wait, changed_payload in self._bound.act(payload, self._rng):
            self._count += 1
            held = _Held(self._clock() + wait, self._count, topic, changed_payload, options)
            heapq.heappush(self._held, held)
        return True
