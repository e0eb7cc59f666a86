"""Fifty devices with large updates at once: the device's own uplink machine against the intake."""

from __future__ import annotations

import random
from collections import Counter, deque

import numpy as np
import pytest

from aggregator.ingress.admission_context import WelcomeTerms
from aggregator.ingress.uploads import KEEP, UploadCapacity
from edge_sdk.link.transport import Message
from edge_sdk.protocol import codec, envelope, outbox, topics
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.protocol.messages import CHUNK_LIMIT
from edge_sdk.protocol.outbox import Outbox
from edge_sdk.protocol.outbox_state import OutboxEntry, SendChunk, StepInputs
from tests.aggregator.rig import FLEET, Desk, Device, read, turn_of

SPEC = ParamSpec.of([("head", (39_500,))])
COUNT = 50
STEP = 0.05  # s of virtual time from one visit of every device to the next


class Meter:
    """One device: its uplink machine, and hands that sign what it says."""

    def __init__(self, herd, number):
        self.herd, self.rng = herd, random.Random(number)
        self.hands = Device(herd.desk, f"meter-{number}")
        self.mail, self.up = herd.mail[self.hands.name], Outbox()
        self.is_mute = False
        self.follow(outbox.linked(self.up, self.chance(), max_payload=65_536, conn=1))

    def chance(self):
        return StepInputs(
            self.rng.random, lambda: self.rng.randbytes(16), self.herd.desk.clock.seconds
        )

    def follow(self, turn):
        self.up = turn.outbox
        for say in turn.messages:
            message = say.chunk if isinstance(say, SendChunk) else say
            if not (self.is_mute and message.kind == "chunk"):
                self.herd.said(self.hands, message)

    def release(self):
        """Have an update for the open round ready."""
        hands = self.hands
        hands.life, hands.seq, hands.spent = self.up.numbers.life, 0, self.up.numbers.spent
        said = hands.update(self.rng.random() * np.ones(SPEC.shared_size))
        body = codec.encode(said)
        proof = envelope.prove(
            envelope.digest(body),
            kind="update",
            sender=hands.name,
            recipient="_agg",
            fleet=FLEET,
            signer=hands.key,
        )
        place = (said.run, said.round, said.base, said.spec, said.spent)
        entry = OutboxEntry(said.life, said.seq, body, proof, *place)
        self.follow(outbox.release(self.up, entry, self.chance()))

    def visit(self):
        while self.mail:
            self.follow(outbox.receive(self.up, self.mail.popleft(), self.chance()))
        self.follow(outbox.tick(self.up, self.chance()))


class Herd:
    """Devices that share one thread, as in a simulator, and an intake beside them."""

    def __init__(self, folder, room):
        names = [f"meter-{i}" for i in range(COUNT)]
        terms = WelcomeTerms(room=room)
        self.room, self.counts = room, Counter()
        self.desk = Desk(folder, devices=names, terms=terms, turn=turn_of(spec=SPEC))
        self.mail = {name: deque() for name in names}
        self.meters = {name: Meter(self, number) for number, name in enumerate(names)}
        self.turn()
        for meter in self.meters.values():
            assert meter.up.is_ready
            meter.release()

    def said(self, hands, message):
        self.counts[message.kind] += 1
        topic = topics.up(FLEET, hands.name, message.kind)
        self.route(self.desk.intake.receive(Message(topic, hands.seal(message))).answers)

    def route(self, answers):
        for answer in answers:
            message = read(answer)
            self.counts[message.kind] += 1
            self.mail[topics.parse(answer.topic).id].append(message)

    def turn(self):
        for meter in self.meters.values():
            meter.visit()
        self.route(self.desk.intake.tick().answers)
        chunks, size = self.desk.intake._uploads.in_flight
        assert chunks <= self.room.messages
        assert size <= self.room.in_flight
        self.desk.clock.seconds += STEP

    def until(self, done, limit):
        """Let virtual time pass until it has come about; return how long it took."""
        began = self.desk.clock.seconds
        while not done():
            assert self.desk.clock.seconds - began < limit
            self.turn()
        return self.desk.clock.seconds - began

    @property
    def applied(self):
        return len({update.sender for update in self.desk.journalled()})


@pytest.fixture
def herd(tmp_path):
    made = []

    def make(**room):
        made.append(Herd(tmp_path, UploadCapacity(**room)))
        return made[-1]

    yield make
    for one in made:
        one.desk.close()


def left(herd, but=()):
    return [n for n, meter in herd.meters.items() if meter.up.entries and n not in but]


def test_offers_wait_their_turn_and_nobody_is_refused(herd):
    fleet = herd(in_flight=8 * 5 * CHUNK_LIMIT)
    fleet.until(lambda: not left(fleet), 10.0)
    assert fleet.applied == COUNT
    assert fleet.counts["refusal"] < COUNT / 10
    assert fleet.counts["chunk"] == 5 * COUNT  # none twice
    assert fleet.counts["offer"] < 1.2 * COUNT


def test_devices_that_stall_lose_their_places_and_come_back(herd):
    fleet = herd(in_flight=4 * 5 * CHUNK_LIMIT)
    silent = ["meter-0", "meter-1", "meter-2", "meter-3"]  # offered first: they have all places
    for name in silent:
        fleet.meters[name].is_mute = True
    took = fleet.until(lambda: not left(fleet, silent), 2 * KEEP)
    assert took > KEEP
    for name in silent:
        fleet.meters[name].is_mute = False
    fleet.until(lambda: not left(fleet), 200.0)
    assert fleet.applied == COUNT
    assert fleet.counts["refusal"] < COUNT / 10


def test_devices_that_are_refused_busy_come_back_and_are_served(herd):
    fleet = herd(in_flight=2 * 5 * CHUNK_LIMIT, waiting=3)
    fleet.until(lambda: not left(fleet), 900.0)
    assert fleet.counts["refusal"] > 0
    assert fleet.applied == COUNT
