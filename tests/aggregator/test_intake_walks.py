"""Random courses of a durable uplink: loss, repeats, replays, crashes, lost and restored stores.

The device is the small model of the protocol's appendix; it speaks real, signed bytes. The intake
and its store are the real ones, on disk. Checked after every step: no receipted update is lost,
none is applied twice, no number carries two bodies, no live entry is dropped, and the device's
count of releases never falls short. At the end faults stop, and the outbox must empty.
"""

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aggregator.intake import Terms
from aggregator.quotas import Quotas
from aggregator.store import SqliteStore
from edge_sdk.wire import codec, envelope, topics
from edge_sdk.wire.messages import Offer
from tests.aggregator.rig import FLEET, OFFERED, Desk, Device, read, ref_of, turn_of, wide

HOLD = 2
FAR = 10**9
SPEC = wide(2100)  # 8.4 kB: two chunks of 8 KiB
GENEROUS = Quotas(control=10**6, volume=10**12, failures=10**6, pulls=10**6)


class Killed(BaseException):
    """The power is gone before the transaction is on disk."""


class Fused(SqliteStore):
    """A store whose next transaction may be its last."""

    fuse = False

    @contextmanager
    def _writing(self):
        with super()._writing():
            yield
            if self.fuse:
                raise Killed


@dataclass(frozen=True)
class Image:
    """What a device keeps on its disk."""

    life: int = 0
    seq: int = 0
    spent: int = 0
    lost: bool = True
    out: dict = field(default_factory=dict)  # key -> update


class World:
    """One device, one aggregator, and a link that does what it likes."""

    def __init__(self, folder):
        turn = turn_of(round_number=FAR, spec=SPEC)
        turn = replace(turn, limits=replace(turn.limits, max_staleness=FAR))
        terms = Terms(quotas=GENEROUS, hold=HOLD)
        self.desk = Desk(folder, terms=terms, turn=turn)
        self._fuse()
        self.voice = Device(self.desk)
        self.disk = Image()
        self.ready, self.hello = False, None
        self.up, self.down, self.old = [], [], []
        self.fresh = self.truth = 0
        self.sent: dict = {}  # key -> ref, for ever
        self.got: set = set()  # refs of bodies with receipt 0
        self.forgot: list = []
        self.snap = None
        self.was_restored = False

    # --- the device

    def post(self, messages):
        for message in messages:
            key = (getattr(message, "life", 0), getattr(message, "seq", 0))
            if message.kind in ("update", "offer"):
                ref = envelope.ref(message.digest) if message.kind == "offer" else ref_of(message)
                assert self.sent.setdefault(key, ref) == ref, "two bodies under one number"
            kind = message.kind
            self.up.append((topics.up(FLEET, "meter-1", kind), self.voice.seal(message)))
        self.old = (self.old + self.up[-len(messages) :])[-200:] if messages else self.old

    def say_hello(self, at_least=0):
        self.disk = replace(self.disk, life=max(self.disk.life, at_least) + 1)
        disk, self.ready = self.disk, False
        self.voice.nonce = self.fresh = self.fresh + 1
        self.hello = self.voice.hello(
            life=disk.life, spent=disk.spent, lost=disk.lost, open=tuple(sorted(disk.out))
        )
        return [self.hello]

    def release(self):
        disk = self.disk
        key = (disk.life, disk.seq + 1)
        self.fresh, self.truth = self.fresh + 1, self.truth + 1
        self.voice.life, self.voice.seq, self.voice.spent = disk.life, disk.seq, disk.spent
        update = self.voice.update(
            np.full(2100, self.fresh, np.float32), round=self.fresh, run=1, base=0
        )
        self.disk = replace(disk, seq=key[1], spent=disk.spent + 1, out={**disk.out, key: update})
        return [update if key[1] % 2 else self.offer(update)]

    def offer(self, update) -> Offer:
        return self.voice.offer(update)

    def tick(self):
        self.desk.clock.seconds += 10
        if not self.ready:
            return [self.hello] if self.hello else self.say_hello()
        return [self.offer(update) for _, update in sorted(self.disk.out.items())]

    def hear(self, message):
        disk = self.disk
        match message.kind:
            case "welcome" if self.is_ours(message):
                self.ready = True
                spent = max(disk.spent, message.spent)
                self.disk = replace(disk, seq=0, spent=spent, lost=False)
            case "floor" if self.is_ours(message):
                return self.say_hello(message.life)
            case "grant" | "have" if self.ready:
                for update in disk.out.values():
                    if ref_of(update) == message.id:
                        had = int.from_bytes(message.have, "little")
                        chunks = self.voice.chunks(update)
                        return [c for c in chunks if not had >> c.i & 1]
            case "receipt":
                self.settle_entry(message)
        return []

    def is_ours(self, message):
        return self.hello and message.hello == ref_of(self.hello) and not self.ready

    def settle_entry(self, receipt):
        key = (receipt.life, receipt.seq)
        update = self.disk.out.get(key)
        if update is None or ref_of(update) != receipt.ref:
            return
        out = {k: v for k, v in self.disk.out.items() if k != key}
        self.disk = replace(self.disk, out=out)
        if receipt.code == 0:
            self.got.add((key, receipt.ref))
        elif not self.was_restored:
            self.forgot.append((key, receipt.code))

    def cut_device(self):
        self.ready, self.hello = False, None

    # --- the aggregator

    def _fuse(self):
        self.desk.store.close()
        self.desk.store = Fused.open(self.desk.path)
        self.desk._begin()

    def crash(self):
        self._fuse()

    def arrive(self, topic, payload, crash=None):
        """Let a message arrive; ``crash`` before its commit, or after it and before the answer."""
        self.desk.store.fuse = crash == "before"
        try:
            self.desk.take(topic, payload)
        except Killed:
            self.crash()
            return
        self.desk.store.fuse = False
        if crash:
            self.crash()
        else:
            self.down += self.desk.taken.answers

    # --- what must hold

    def check(self):
        applied = [(e.event.round, e.event.vector[0]) for e in self.desk.store.journal(1)]
        rounds = [number for number, _ in applied]
        assert len(rounds) == len(set(rounds)), "applied twice"
        assert all(number == mark for number, mark in applied), "mixed-up chunks"
        assert len(self.got) <= len(applied)
        for key, ref in self.got:
            assert self.sent[key] == ref
            row = self.desk.store._one(
                "SELECT 1 FROM journal WHERE device = 'meter-1' AND life = ? AND seq = ?", *key
            )
            assert row, "receipted update lost"
        assert not self.forgot, "live outbox entry dropped or refused"
        if self.ready and not self.was_restored:
            assert self.disk.spent >= self.truth, "releases under-counted"

    def settle(self):
        for _ in range(12):
            while self.up or self.down:
                if self.up:
                    self.arrive(*self.up.pop(0))
                if self.down:
                    self.post(self.hear(read(self.down.pop(0))))
            if self.ready and not self.disk.out:
                return
            self.post(self.tick())
        raise AssertionError("outbox never empties")


class Uplink(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.folder = tempfile.TemporaryDirectory()
        self.world = World(Path(self.folder.name))

    @rule()
    def tick(self):
        self.world.post(self.world.tick())

    @precondition(lambda self: self.world.ready and len(self.world.disk.out) < HOLD)
    @rule(is_cut=st.booleans())
    def release(self, is_cut):
        said = self.world.release()
        self.world.post([] if is_cut else said)
        if is_cut:
            self.world.cut_device()

    @precondition(lambda self: self.world.ready)
    @rule()
    def hello_again(self):
        self.world.post(self.world.say_hello())

    @precondition(lambda self: self.world.up)
    @rule(
        data=st.data(),
        fate=st.sampled_from(["once", "once", "once", "twice", "lost"]),
        crash=st.sampled_from([None, None, None, None, "before", "after"]),
    )
    def deliver_up(self, data, fate, crash):
        at = data.draw(st.integers(0, len(self.world.up) - 1))
        message = self.world.up[at] if fate == "twice" else self.world.up.pop(at)
        if fate != "lost":
            self.world.arrive(*message, crash=crash)

    @precondition(lambda self: self.world.down)
    @rule(
        data=st.data(),
        fate=st.sampled_from(["once", "once", "once", "twice", "lost"]),
        is_cut=st.sampled_from([False, False, False, True]),
    )
    def deliver_down(self, data, fate, is_cut):
        at = data.draw(st.integers(0, len(self.world.down) - 1))
        answer = self.world.down[at] if fate == "twice" else self.world.down.pop(at)
        if fate != "lost":
            said = self.world.hear(read(answer))
            self.world.post([] if is_cut else said)
        if is_cut:
            self.world.cut_device()

    @precondition(lambda self: self.world.old)
    @rule(data=st.data())
    def replay(self, data):
        self.world.arrive(*data.draw(st.sampled_from(self.world.old)))

    @rule()
    def aggregator_crashes(self):
        self.world.crash()

    @rule()
    def lose_the_store(self):
        self.world.disk = Image()
        self.world.cut_device()

    @rule()
    def back_up_the_image(self):
        assume(self.world.snap is None)
        self.world.snap = self.world.disk

    @precondition(lambda self: self.world.snap is not None)
    @rule()
    def restore_the_image(self):
        self.world.disk, self.world.was_restored = self.world.snap, True
        self.world.cut_device()

    @invariant()
    def holds(self):
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self):
        if hasattr(self, "world"):
            self.world.settle()
            self.world.check()
            self.world.desk.close()
            self.folder.cleanup()


Uplink.TestCase.settings = settings(
    max_examples=30,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestUplink = Uplink.TestCase


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    yield world
    world.desk.close()


def greeted(world):
    world.post(world.tick())
    world.settle()


def test_a_restored_image_cannot_have_an_entry_applied_again(world):
    """The script that random walks miss: free re-opening would apply (1, 1) twice."""
    greeted(world)
    world.post(world.release())  # (1, 1)
    image = world.disk
    world.settle()
    world.post(world.say_hello())
    world.settle()
    world.post(world.release())  # (2, 1)
    world.settle()
    world.disk, world.was_restored = image, True
    world.cut_device()
    world.post(world.tick())  # hello 2, floor, hello 3 with (1, 1) in the outbox
    while not world.ready:
        while world.up:
            world.arrive(*world.up.pop(0))
        world.post(world.hear(read(world.down.pop(0))))
    assert world.disk.life == 3
    world.post(world.release())  # (3, 1) promotes
    world.settle()
    world.check()
    assert len(list(world.desk.store.journal(1))) == 3


def test_a_receipt_is_never_said_before_its_commit(world):
    greeted(world)
    world.post(world.release())
    world.arrive(*world.up.pop(0), crash="before")
    assert world.down == []
    assert list(world.desk.store.journal(1)) == []
    world.settle()
    world.check()
    assert len(world.got) == 1


def test_a_welcome_is_never_said_before_its_commit(world):
    world.post(world.tick())
    world.arrive(*world.up.pop(0), crash="before")
    assert world.down == []
    assert world.desk.store.ledger("meter-1").hid == b""


def test_the_model_speaks_what_the_wire_says(world):
    """The walk means nothing if its device is refused for its form."""
    greeted(world)
    for _ in range(2):
        world.post(world.release())
    world.settle()
    counts = world.desk.intake.counts
    assert counts["ACCEPTED"] == 2
    assert not {"MALFORMED", "BAD_SIGNATURE", "QUOTA"} & counts.keys()
    assert codec.encode(world.offer(world.voice.update(run=1, base=0)))
    assert OFFERED
