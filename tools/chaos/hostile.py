"""Hostile client on the broker: publishes every kind of invalid message to every topic.

The loopback broker of the test requires no certificate, so the client may publish anything under
any name; only signatures protect the model.
"""

from __future__ import annotations

import random
import time

from edge_sdk.link.broker_options import Broker
from edge_sdk.link.mqtt import MqttLink
from edge_sdk.link.transport import LinkUp, Message
from edge_sdk.protocol import topics
from edge_sdk.protocol.envelope import PROOF_SIZE, wrap

KINDS = ("update", "offer", "chunk", "hello", "have", "receipt")
_LISTEN = 0.6  # s, to overhear what can be played again
_KEPT = 200
_BOMB = b"\x92" + b"\xdc\xff\xff" * 900
"""Nested arrays, each of which claims 65,535 elements."""


class Stranger:
    """Records and publishes messages. Each volley has its own link: the broker may have stopped."""

    def __init__(self, url: str, fleet: str, devices: list[str], seed: int) -> None:
        self._url, self._fleet, self._devices = url, fleet, devices
        self._rng = random.Random(seed)  # noqa: S311 - a storm, repeatable
        self._heard: list[tuple[str, bytes]] = []

    def volley(self, count: int) -> int:
        """Publish ``count`` payloads; return the number that the broker accepted."""
        link = MqttLink(Broker(url=self._url, client_id=f"stranger-{self._rng.getrandbits(32)}"))
        link.open()
        thrown, until = 0, time.monotonic() + _LISTEN + 0.02 * count
        try:
            while time.monotonic() < until and thrown < count:
                for happened in link.poll(0.02):
                    if isinstance(happened, LinkUp):
                        link.subscribe(f"{topics.ROOT}/{self._fleet}/+/up/#")
                    elif isinstance(happened, Message):
                        self._heard = [*self._heard[-_KEPT:], (happened.topic, happened.payload)]
                        link.acknowledge(happened)
                while link.is_up and link.room() > 0 and thrown < count:
                    thrown += bool(link.publish(*self._one()))
        finally:
            link.close()
        return thrown

    def _one(self) -> tuple[str, bytes]:
        device = self._rng.choice(self._devices)
        if not self._heard or self._rng.random() < 0.5:
            return self._made_up(device)
        topic, payload = self._rng.choice(self._heard)
        way = self._rng.randrange(3)
        if way == 0:
            return topic, payload  # word for word, later
        if way == 1:  # under another name
            where = topics.parse(topic)
            return topics.up(self._fleet, device, where.kind if where else "update"), payload
        spoilt = bytearray(payload or b"\0")
        for _ in range(3):
            spoilt[self._rng.randrange(len(spoilt))] = self._rng.randrange(256)
        return topic, bytes(spoilt)

    def _made_up(self, device: str) -> tuple[str, bytes]:
        rng = self._rng
        way = rng.randrange(3)
        if way == 0:
            return topics.up(self._fleet, device, rng.choice(KINDS)), rng.randbytes(500)
        if way == 1:
            bomb = wrap(_BOMB, kind="update", sender=device, proof=bytes(PROOF_SIZE))
            return topics.up(self._fleet, device, "update"), bomb
        noise = rng.randbytes(PROOF_SIZE)
        forged = wrap(rng.randbytes(80), kind="receipt", sender="_agg", proof=noise)
        return topics.down(self._fleet, device, "receipt"), forged
