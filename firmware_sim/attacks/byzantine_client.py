"""Byzantine client and tampering link: their differences from the product."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from edge_sdk import Client, Config
from edge_sdk.session.identity import load_signer
from edge_sdk.training.error_feedback import UplinkEncoding
from edge_sdk.training.model_runtime import ModelRuntime
from edge_sdk.training.outbox_entry import SignedSealer, signed
from edge_sdk.wire.contract.method import Task, Update
from edge_sdk.wire.keys import Signer
from edge_sdk.wire.link.transport import Happening, Message, Transport
from edge_sdk.wire.protocol import topics
from edge_sdk.wire.protocol.codec import decode
from edge_sdk.wire.protocol.messages import UpdateMessage
from edge_sdk.wire.protocol.outbox_state import OutboxEntry, UplinkCounters
from firmware_sim.attacks import BoundAttack
from firmware_sim.attacks.byzantine_halves import ByzantineHalves

TAMPERED = frozenset({"update", "offer", "chunk"})
"""Kinds of message that a tampering link changes: those of an upload."""


def byzantine_client(config: Config, *, attacker: ByzantineHalves, **options: Any) -> Client:  # noqa: ANN401 - the SDK's own
    """Return a real client of a Byzantine device: it may delay its update, and change its body.

    Args:
        config: As for any client.
        attacker: Halves of the attack.
        options: As for any client, except ``methods``, ``sealer`` and ``may_answer``.
    """
    client = Client(
        config,
        methods=attacker.methods(),
        sealer=ByzantineSealer(config, load_signer(config), attacker),
        may_answer=attacker.may_answer,
        **options,
    )
    attacker.read_features(lambda: client.learner.manifest.features)
    return client


class ByzantineSealer:
    """Seals like an honest device, and signs a changed body while a ``body`` attack is on.

    Args:
        config: Configuration of the device.
        signer: Signing key of the device.
        attacker: Halves of the attack.
    """

    def __init__(self, config: Config, signer: Signer, attacker: ByzantineHalves) -> None:
        self._config, self._signer, self._attacker = config, signer, attacker
        self._sealer = SignedSealer(config, signer)

    def seal(
        self,
        update: Update,
        task: Task,
        numbers: UplinkCounters,
        *,
        run: int,
        learner: ModelRuntime,
        encoding: UplinkEncoding,
        encrypt_to: bytes | None = None,
    ) -> OutboxEntry:
        """Seal an update; the entry keeps the honest numbers, whatever its body says."""
        attacker = self._attacker
        is_changed = attacker.bound.attack.kind == "body" and attacker.is_attacking(update.round)
        honest = self._sealer.seal(
            update,
            task,
            numbers,
            run=run,
            learner=learner,
            encoding=encoding,
            encrypt_to=None if is_changed else encrypt_to,
        )
        if not is_changed:
            return honest
        changed: UpdateMessage = attacker.bound.act(decode(UpdateMessage, honest.body))
        body, proof = signed(
            changed, config=self._config, signer=self._signer, encrypt_to=encrypt_to
        )
        return replace(honest, body=body, proof=proof, base=changed.base)


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
        if where is None or where.direction != "up" or where.kind not in TAMPERED:
            return self._link.publish(topic, payload, **options)
        if self._link.room() <= 0:
            return False
        for wait, changed_payload in self._bound.act(payload, self._rng):
            self._count += 1
            held = _Held(self._clock() + wait, self._count, topic, changed_payload, options)
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
