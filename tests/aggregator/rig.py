"""A device that speaks the protocol by hand, and an intake to speak to: no broker, no training."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np

from aggregator.ingress.admission_context import AdmissionContext, WelcomeTerms
from aggregator.ingress.admission_policy import Limits, OpenRound
from aggregator.ingress.message_bodies import MessageBodies
from aggregator.ingress.message_ingress import MessageIngress
from aggregator.ingress.registry import Registry
from aggregator.ingress.replies import IngressParts, ReplySealer
from aggregator.store.opener import open_store
from aggregator.store.types import EnrolledDevice
from edge_sdk.link.transport import Message
from edge_sdk.protocol import codec, envelope, keys, topics
from edge_sdk.protocol.contract.method import CONTRACTS
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.protocol.messages import (
    KINDS,
    ChunkMessage,
    HelloMessage,
    OfferMessage,
    StatusMessage,
    UpdateMessage,
)

FLEET = "north"
SIGNER = keys.from_seed(bytes(range(32, 64)))
SPEC = ParamSpec.of([("w", (2,))])
START = 1_760_000_000_000


class Hands:
    """A clock that only moves when told."""

    def __init__(self):
        self.seconds = 0.0

    def wall(self):
        return START + int(self.seconds * 1000)

    def monotonic(self):
        return self.seconds


def key_of(name):
    return keys.from_seed(name.encode().ljust(32, b"\0"))


def turn_of(round_number=1, version=0, run=1, spec=SPEC, **changes):
    limits = Limits(
        spec=spec.digest,
        size=spec.shared_size,
        contract=CONTRACTS["fedavg"]["train"],
        max_norm=1e6,
    )
    is_open = changes.pop("is_open", True)
    return AdmissionContext(
        OpenRound(run, round_number, version, is_open=is_open), limits, **changes
    )


class Desk:
    """A store on disk and an intake over it; ``crash`` loses all but the disk."""

    def __init__(self, folder: Path, devices=("meter-1",), terms=None, turn=None):
        self.path = folder / "fleet.db"
        self.clock = Hands()
        self.terms = terms or WelcomeTerms()
        self.now = turn or turn_of()
        self.store = open_store(self.path)
        for name in devices:
            self.store.devices.save(EnrolledDevice(name, (key_of(name).public,)))
        self._begin()

    def _begin(self):
        self.registry = Registry(self.store)
        self.bodies = MessageBodies(FLEET)
        sealer = ReplySealer(self.bodies, SIGNER)
        parts = IngressParts(self.store, self.registry, sealer, self.clock)
        self.intake = MessageIngress(parts, self.terms, rng=random.Random(1))
        if self.now is not None:
            self.intake.open(self.now)

    def crash(self):
        self.store.close()
        self.store = open_store(self.path)
        self._begin()

    def open(self, **changes):
        self.now = turn_of(**changes)
        self.intake.open(self.now)

    def take(self, topic, payload):
        """Give the intake a message; return what it answers, read as the device would."""
        self.taken = self.intake.receive(Message(topic, payload))
        return [read(answer) for answer in self.taken.answers]

    def tick(self):
        return [read(answer) for answer in self.intake.tick().answers]

    def journalled(self):
        return [entry.event for entry in self.store.journal.entries(1)]

    def close(self):
        self.store.close()


def read(answer):
    """Open one answer as its device does: the signature must be the aggregator's."""
    address = topics.parse(answer.topic)
    sealed = envelope.unseal(
        answer.payload,
        kind=address.kind,
        sender="_agg",
        recipient=address.id,
        fleet=FLEET,
        key_of=lambda _sender, _kid: SIGNER.public,
    )
    return codec.decode(KINDS[address.kind], sealed.body)


class Device:
    """Says what it is told to say, properly signed."""

    def __init__(self, desk, name="meter-1"):
        self.desk, self.name, self.key = desk, name, key_of(name)
        self.life = self.seq = self.spent = self.nonce = 0

    def seal(self, message, **changes):
        facts = {"kind": message.kind, "sender": self.name, "recipient": "_agg", "fleet": FLEET}
        return envelope.seal(codec.encode(message), signer=self.key, **(facts | changes))

    def say(self, message, worker=None):
        kind = message.kind
        topic = (
            topics.status(FLEET, self.name)
            if kind == "status"
            else topics.up(FLEET, self.name, kind, worker)
        )
        return self.desk.take(topic, self.seal(message))

    def hello(self, **changes):
        self.nonce += 1
        facts = {
            "life": self.life + 1,
            "nonce": self.nonce.to_bytes(16, "big"),
            "spent": self.spent,
            "lost": self.life == 0,
            "open": (),
            "wire": (1, 1),
            "caps": (),
            "sdk": "0.1.0",
            "conn": 1,
        } | changes
        return HelloMessage(**facts)

    def greet(self, **changes):
        """Say hello and obey the welcome."""
        hello = self.hello(**changes)
        answers = self.say(hello)
        if answers and answers[0].kind == "welcome":
            self.life, self.seq = hello.life, 0
            self.spent = max(self.spent, answers[0].spent)
        return answers

    def update(self, vector=(0.5, -1.25), **changes):
        self.seq += 1
        self.spent += 1
        now = self.desk.now.opened if self.desk.now else OpenRound(1, 1, 0)
        facts = {
            "run": now.run,
            "round": now.round,
            "base": now.version,
            "life": self.life,
            "seq": self.seq,
            "spent": self.spent,
            "spec": self.desk.now.limits.spec if self.desk.now else SPEC.digest,
            "part": "delta",
            "enc": "f4",
            "n": 64,
            "blob": np.asarray(vector, "<f4").tobytes(),
        } | changes
        return UpdateMessage(**facts)

    def offer(self, update, chunk=8192, **changes):
        body = codec.encode(update)
        proof = envelope.prove(
            envelope.digest(body),
            kind="update",
            sender=self.name,
            recipient="_agg",
            fleet=FLEET,
            signer=self.key,
        )
        facts = {
            "of": "update",
            "digest": envelope.digest(body),
            "size": len(body),
            "chunk": chunk,
            "sig": proof,
        } | {key: getattr(update, key) for key in OFFERED}
        return OfferMessage(**(facts | changes))

    def chunks(self, update, chunk=8192):
        body = codec.encode(update)
        ref = envelope.ref(envelope.digest(body))
        return [
            ChunkMessage(ref, i, life=update.life, seq=update.seq, blob=body[at : at + chunk])
            for i, at in enumerate(range(0, len(body), chunk))
        ]

    def status(self, state="online", conn=1, life=None):
        return StatusMessage(state, self.life if life is None else life, conn)


OFFERED = ("run", "round", "base", "spec", "life", "seq", "spent")


def ref_of(message):
    return envelope.ref(envelope.digest(codec.encode(message)))


def wide(scalars=6000):
    """A layout whose updates need several chunks of 8 KiB."""
    return ParamSpec.of([("w", (scalars,))])


__all__ = ["Desk", "Device", "Hands", "read", "ref_of", "replace", "turn_of", "wide"]
