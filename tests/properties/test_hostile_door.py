"""Whatever arrives at the aggregator's door is taken or refused by name, and nothing is kept of it.

Half of the messages come from outside: bytes that nobody signed. The other half come from enrolled
devices that went bad: their bodies are mutated first and signed properly after, so that what stands
behind the signature is met too.
"""

from __future__ import annotations

import gc
import logging
import random
import sys
import tempfile
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aggregator.ingress.admission_context import WelcomeTerms
from aggregator.ingress.rate_limits import RateLimits
from edge_sdk.errors import Reason, Refused
from edge_sdk.link.transport import Message
from edge_sdk.protocol import codec, envelope, topics
from edge_sdk.protocol.messages import (
    KINDS,
    LARGEST,
    RELEASES_LEAP,
    RELEASES_LIMIT,
    WAIT_LIMIT,
    ChunkMessage,
    HaveMessage,
    HelloMessage,
    MetricsMessage,
    OfferMessage,
    ReceiptMessage,
    RefusalMessage,
    StatusMessage,
    UpdateMessage,
)
from tests.aggregator.rig import FLEET, Desk, Device, ref_of, wide

NAMES = tuple(f"meter-{i}" for i in range(1, 6))
SPEC = wide(3000)  # 12 kB: an offer of two chunks
REFUSALS = {reason.name for reason in Reason if reason} | {"IGNORED", "STRAY", "PULLS_DELAYED"}
MARKERS = bytes([0x80, 0x90, 0xA0, 0xC0, 0xC3, 0xC4, 0xC6, 0xCB, 0xCF, 0xDF, 0xFF])
TOPICS = (
    "gf/1/north/meter-1/down/welcome",
    "gf/1/north/_all/model",
    "gf/1/north/_agg/up/update",
    "gf/1/south/meter-1/up/update",
    "gf/2/north/meter-1/up/update",
    "gf/1/north/meter-1/up/task",
    "gf/1/north/meter-1/up/Update",
    "gf/1/north/meter-1/up/update/w1",
    "gf/1/north/meter-1/peer/meter-2",
    "gf/1/north/stranger/up/hello",
    "gf/1/north//up/hello",
    "",
)


def mutate(rng: random.Random, raw: bytes) -> bytes:
    """Flip, mark, cut, insert or repeat a few bytes, most of them near the head."""
    out = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(min(len(out), rng.choice((40, 300, 20_000))) + 1)
        match rng.randrange(5):
            case 0 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(out):
                out[at] = rng.choice(MARKERS)
            case 2:
                del out[at : at + rng.randrange(1, 9)]
            case 3:
                out[at:at] = rng.randbytes(rng.randrange(1, 9))
            case _:
                out[at:at] = out[at : at + rng.randrange(1, 40)]
    return bytes(out)


class Crowd:
    """Five enrolled devices, their latest honest words, and everything they can do wrong."""

    def __init__(self, desk: Desk, seed: int):
        self.rng = random.Random(seed)
        self.desk = desk
        self.devices = [Device(desk, name) for name in NAMES]
        self.loud: Device | None = None
        self.said: dict[str, list[tuple[str, bytes]]] = {name: [] for name in NAMES}

    def honest(self) -> tuple[str, str, bytes]:
        """Return who says what: a valid kind and body, new or said before."""
        rng = self.rng
        device = self.loud or rng.choice(self.devices)
        said = self.said[device.name]
        if said and rng.random() < 0.3:
            return device.name, *rng.choice(said)
        message = self._word(device)
        said.append((message.kind, codec.encode(message)))
        del said[:-8]
        return device.name, *said[-1]

    def _word(self, device: Device):  # noqa: PLR0911 - one line per kind
        rng = self.rng
        device.life = self.desk.store.ledgers.get(device.name).hid_life
        match rng.randrange(9):
            case 0:
                device.seq = 0
                return device.hello(open=((max(1, device.life), 1),))
            case 1 | 2 | 3:
                return self._update(device)
            case 4:
                update = self._update(device)
                body = [(piece.kind, codec.encode(piece)) for piece in device.chunks(update)]
                self.said[device.name] += body
                return device.offer(update)
            case 5:
                return device.status(rng.choice(("online", "offline", "lost")), rng.randrange(9))
            case 6:
                return HaveMessage(rng.choice((bytes(16), ref_of(device.status()))), b"", 8)
            case 7:
                return rng.choice(
                    (ReceiptMessage(0, 1, bytes(16), 0, 0, 0), RefusalMessage(65, 0, id=bytes(16)))
                )
            case _:
                return MetricsMessage(*rng.choices((0, 1, LARGEST), k=9))

    def _update(self, device: Device) -> UpdateMessage:
        return device.update(np.full(SPEC.size, self.rng.random(), "<f4"), life=max(1, device.life))

    def next(self) -> Message:
        """Return the next message for the door, wrong in one of five ways, or right."""
        rng = self.rng
        name, kind, body = self.honest()
        topic = topics.status(FLEET, name) if kind == "status" else topics.up(FLEET, name, kind)
        match rng.randrange(16):
            case 0 | 1 | 2:
                return Message(topic, mutate(rng, self.seal(name, kind, body)))
            case 3:
                return Message(rng.choice(TOPICS), self.seal(name, kind, body))
            case 4:
                other = topics.up(FLEET, rng.choice(NAMES), rng.choice([*KINDS, "task"]))
                return Message(other, self.seal(name, kind, body))
            case 5:
                return Message(topic, rng.choice((b"", rng.randbytes(rng.randrange(200)))))
            case 6 | 7 | 8 | 9 | 10:
                return Message(topic, self.seal(name, kind, mutate(rng, body)))
        return Message(topic, self.seal(name, kind, body))

    def seal(self, name: str, kind: str, body: bytes) -> bytes:
        facts = {"kind": kind, "sender": name, "recipient": "_agg", "fleet": FLEET}
        return envelope.seal(body, signer=self.devices[NAMES.index(name)].key, **facts)


def is_sound(message: Message, desk: Desk) -> bool:
    """Whether topic, signature and form are right, judged without the door."""
    address = topics.parse(message.topic)
    if address is None or address.fleet != FLEET or address.direction not in ("up", "status"):
        return False
    try:
        sealed = envelope.unseal(
            message.payload,
            kind=address.kind,
            sender=address.id,
            recipient="_agg",
            fleet=FLEET,
            key_of=desk.registry.key_of,
        )
        codec.decode(KINDS[address.kind], sealed.body)
    except Refused:
        return False
    return True


class Door:
    """An intake and the books of what went through it."""

    def __init__(self, folder: Path, quotas: RateLimits | None = None):
        terms = WelcomeTerms(quotas=quotas or RateLimits())
        self.desk = Desk(folder, NAMES, terms=terms)
        self.round = 0
        self.results: Counter[str] = Counter()
        self.open()

    def open(self):
        self.round += 1
        self.desk.open(spec=SPEC, round_number=self.round)

    def take(self, message: Message) -> None:
        """Throw one message; exactly one thing may come of it, and it is counted."""
        counts = self.desk.intake.counts
        before = counts.copy()
        answers = self.desk.take(message.topic, message.payload)
        happened = counts - before
        refused = sum(happened[name] for name in REFUSALS)
        replayed = happened["REPLAYED"]
        assert refused + replayed <= 1, happened
        if not is_sound(message, self.desk):
            assert refused == 1, (message.topic, happened)
        settled = [a for a in answers if isinstance(a, ReceiptMessage)]
        if any(isinstance(a, RefusalMessage) for a in answers) or any(a.code for a in settled):
            assert refused or replayed, answers
        if self.desk.taken.entries or self.desk.taken.member:
            assert not refused, happened
        self.results["refused" if refused else "replayed" if replayed else "accepted"] += 1
        self.results["answers"] += len(answers)


def storm(door: Door, crowd: Crowd, count: int) -> None:
    rng = crowd.rng
    for number in range(count):
        is_burst = number % 500 < 100  # then one of them talks without pause
        crowd.loud = crowd.devices[number // 500 % len(NAMES)] if is_burst else None
        door.desk.clock.seconds += rng.choice((0.0, 0.01) if is_burst else (1.0, 5.0))
        if number % 250 == 100:
            door.open()
            door.desk.clock.seconds += 700.0  # who was ignored may try again
        if number % 97 == 0:
            door.desk.tick()
            for name in NAMES:
                door.desk.registry.release(name)  # an operator looked at forks
        door.take(crowd.next())


def check_books(door: Door, count: int) -> None:
    counts, results = door.desk.intake.counts, door.results
    assert sum(counts[name] for name in REFUSALS) == results["refused"]
    assert results["accepted"] + results["replayed"] + results["refused"] == count
    for reached in (
        "ACCEPTED", "REPLAYED", "BAD_SIGNATURE", "UNKNOWN_KIND", "MALFORMED", "STRAY",
        "SAY_HELLO", "NOT_FOUND", "FORK", "TWICE_IN_ROUND", "WRONG_SENDER", "EXPIRED",
    ):  # fmt: skip
        assert counts[reached] > 0, (reached, counts)


@pytest.fixture
def door(tmp_path):
    door = Door(tmp_path)
    yield door
    door.desk.close()


def test_three_thousand_mutants_are_each_accepted_or_counted(door):
    storm(door, Crowd(door.desk, seed=1), 3_000)
    check_books(door, 3_000)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_mutants_leave_no_state(door, caplog):
    caplog.set_level(
        logging.CRITICAL, "aggregator.ingress.registry"
    )  # what pytest keeps of a log grows
    crowd = Crowd(door.desk, seed=2)
    storm(door, crowd, 20_000)
    gc.collect()
    blocks = sys.getallocatedblocks()
    storm(door, crowd, 55_000)
    tracemalloc.start()  # slow, so the last quarter only; blocks are counted free
    storm(door, crowd, 1_000)
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    storm(door, crowd, 24_000)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    grown = sys.getallocatedblocks() - blocks
    assert after - before < 128 * 1024, after - before
    assert grown < 4_000, grown
    check_books(door, 100_000)


def test_repeated_forgeries_are_dropped_without_verification(door):
    crowd = Crowd(door.desk, seed=3)
    for _ in range(1_000):
        name, kind, body = crowd.honest()
        payload = crowd.seal(name, kind, body)
        door.take(Message(topics.up(FLEET, name, kind), payload[:-1] + bytes([payload[-1] ^ 1])))
    counts = door.desk.intake.counts
    assert door.results["refused"] == counts["BAD_SIGNATURE"] + counts["IGNORED"] == 1_000
    assert counts["BAD_SIGNATURE"] == len(NAMES) * (door.desk.terms.quotas.failures + 1)
    assert door.results["answers"] == len(NAMES)


def test_a_flood_of_one_device_does_not_block_others(door):
    flood, calm = Device(door.desk, "meter-1"), Device(door.desk, "meter-2")
    status = flood.seal(flood.status())
    for _ in range(500):
        door.take(Message(topics.status(FLEET, "meter-1"), status))
    assert door.desk.intake.counts["QUOTA"] == 500 - door.desk.terms.quotas.control
    assert [answer.kind for answer in calm.greet()] == ["welcome"]


# --- what an enrolled device may say is any value that the form allows ----------------------------

whole = st.sampled_from((0, 1, 2, 3, 2**31, 2**32, LARGEST - 1, LARGEST))
ordinal = st.sampled_from((1, 2, 3, 2**32, LARGEST - 1, LARGEST))
releases = st.sampled_from((0, 1, 2**16, RELEASES_LEAP, RELEASES_LIMIT))
small = st.integers(0, 255)
refs = st.sampled_from((bytes(16), b"\xff" * 16))
vector = np.zeros(SPEC.size, "<f4").tobytes()
blobs = st.sampled_from((b"", vector, vector[:-4], b"\xff" * len(vector)))
scalars = st.dictionaries(
    st.sampled_from(("loss", "n", "steps", "")),
    st.sampled_from((0.0, -1.0, 1e308, 5e-324)),
    max_size=2,
)
sizes = st.sampled_from((1, 8_191, 8_192, 24_576, 8 * 1024 * 1024))
specs = st.sampled_from((SPEC.digest, bytes(16)))
numbers = {"run": ordinal, "round": whole, "base": whole, "spec": specs}
own = {"life": ordinal, "seq": ordinal, "spent": releases}
words = st.one_of(
    st.builds(
        HelloMessage,
        life=ordinal,
        nonce=refs,
        spent=releases,
        lost=st.booleans(),
        open=st.lists(st.tuples(ordinal, ordinal), max_size=3).map(tuple),
        wire=st.sampled_from(((1, 1), (2, 3), (255, 1))),
        caps=st.just(()),
        sdk=st.just("0"),
        conn=st.sampled_from((0, 2**32 - 1)),
    ),
    st.builds(
        StatusMessage, st.sampled_from(("online", "lost")), whole, st.sampled_from((0, 2**32 - 1))
    ),
    st.builds(
        UpdateMessage,
        part=st.sampled_from(("delta", "grad")),
        enc=st.sampled_from(("f4", "f2", "i1")),
        n=whole,
        vals=scalars,
        blob=blobs,
        **numbers,
        **own,
    ),
    st.builds(
        OfferMessage,
        of=st.sampled_from(("update", "status")),
        digest=st.just(bytes(32)),
        size=sizes,
        chunk=st.sampled_from((1, 8_192, 32_768)),
        sig=st.just(bytes(72)),
        **numbers,
        **own,
    ),
    st.builds(
        ChunkMessage, refs, small, ordinal | st.none(), ordinal | st.none(), st.just(bytes(8_192))
    ),
    st.builds(
        HaveMessage, refs, st.sampled_from((b"", b"\x01", b"\xff" * 32)), st.sampled_from((1, 256))
    ),
    st.builds(ReceiptMessage, whole, ordinal, refs, st.sampled_from((0, 65535)), whole, whole),
    st.builds(
        RefusalMessage,
        st.sampled_from((0, 64, 65535)),
        st.sampled_from((0, WAIT_LIMIT)),
        refs | st.none(),
        refs | st.none(),
    ),
    st.builds(MetricsMessage, *[whole] * 9),
)


def lost_hello(life: int) -> HelloMessage:
    return HelloMessage(life, bytes(16), life * RELEASES_LEAP, True, (), (1, 1), (), "0", 0)


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(NAMES[:2]), words), max_size=12))
@example([("meter-1", lost_hello(1)), ("meter-1", lost_hello(2))])  # an account that is full
@settings(max_examples=150)
def test_any_sequence_of_well_formed_messages_is_answered(course):
    with tempfile.TemporaryDirectory() as folder:
        door = Door(Path(folder))
        try:
            devices = {name: Device(door.desk, name) for name in NAMES}
            for name, word in course:
                topic = topics.up(FLEET, name, word.kind)
                topic = topics.status(FLEET, name) if word.kind == "status" else topic
                door.take(Message(topic, devices[name].seal(word)))
        finally:
            door.desk.close()


@given(st.text(max_size=40) | st.sampled_from(TOPICS), st.binary(max_size=120))
@settings(max_examples=200)
def test_any_topic_with_any_bytes_is_refused(shared_door, topic, raw):
    before = shared_door.results["refused"]
    shared_door.take(Message(topic, raw))
    assert shared_door.results["refused"] == before + 1


@pytest.fixture(scope="module")
def shared_door(tmp_path_factory):
    door = Door(tmp_path_factory.mktemp("door"))
    yield door
    door.desk.close()
