"""Random courses of a durable uplink: loss, repeats, replays, crashes, lost and restored stores.

The device is the small model of the protocol's appendix; it speaks real, signed bytes. The intake
and its store are the real ones, on disk. Checked after every step: no receipted update is lost,
none is applied twice, no number carries two bodies, no live entry is dropped, and the device's
count of releases never falls short. At the end faults stop, and the outbox must empty.
"""

import random
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from aggregator.ingress.admission_context import WelcomeTerms
from aggregator.ingress.rate_limits import RateLimits
from aggregator.store.sqlite import SqliteStore
from edge_sdk.protocol import envelope, topics
from edge_sdk.protocol.messages import OfferMessage
from tests.aggregator.rig import FLEET, Desk, Device, read, ref_of, turn_of, wide

HOLD = 2
FAR = 10**9
SPEC = wide(2100)  # 8.4 kB: two chunks of 8 KiB
GENEROUS = RateLimits(control=10**6, volume=10**12, failures=10**6, pulls=10**6)


class Killed(BaseException):
    """The power is gone before the transaction is on disk."""


class Fused(SqliteStore):
    """A store whose next transaction may be its last."""

    fuse = False

    def __init__(self, *opened):
        super().__init__(*opened)
        self.transactions.writing = partial(self._fused, self.transactions.writing)

    @contextmanager
    def _fused(self, writing):
        with writing() as db:
            yield db
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
        terms = WelcomeTerms(quotas=GENEROUS, hold=HOLD)
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

    def offer(self, update) -> OfferMessage:
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
        self.desk.store._db.execute("PRAGMA synchronous = OFF")  # no power is really cut here
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
        applied = [(e.event.round, e.event.vector[0]) for e in self.desk.store.journal.entries(1)]
        rounds = [number for number, _ in applied]
        assert len(rounds) == len(set(rounds)), "applied twice"
        assert all(number == mark for number, mark in applied), "mixed-up chunks"
        assert len(self.got) <= len(applied)
        journalled = {update.number for update in self.desk.store.journal.applied()}
        for key, ref in self.got:
            assert self.sent[key] == ref
            assert ("meter-1", *key) in journalled, "receipted update lost"
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

    # --- what may happen

    def moves(self):
        """Return the names of what can happen now."""
        return [
            "tick",
            *(["release"] if self.ready and len(self.disk.out) < HOLD else []),
            *(["hello again"] if self.ready else []),
            *(["up"] if self.up else []),
            *(["down"] if self.down else []),
            *(["replay"] if self.old else []),
            "aggregator crashes",
            "store lost",
            *(["backup"] if self.snap is None else ["restore"]),
        ]

    def move(self, name, pick, fate="once", crash=None):
        """Let one thing happen.

        Args:
            name: One of ``moves``.
            pick: Chooses an index below its argument.
            fate: Of a delivered message: ``once``, ``twice`` or ``lost``.
            crash: Of whoever acts: ``before`` its commit or ``after`` it, before it speaks.
        """
        said = []
        if name in ("up", "down"):
            box = self.up if name == "up" else self.down
            at = pick(len(box))
            message = box[at] if fate == "twice" else box.pop(at)
            if fate == "lost":
                return
            if name == "up":
                self.arrive(*message, crash=crash)
                return
            said = self.hear(read(message))
        elif name == "replay":
            self.arrive(*self.old[pick(len(self.old))], crash=crash)
            return
        else:
            said = self.act(name)
        if crash:
            self.cut_device()
        else:
            self.post(said)

    def act(self, name):
        match name:
            case "tick":
                return self.tick()
            case "release":
                return self.release()
            case "hello again":
                return self.say_hello()
            case "aggregator crashes":
                self.crash()
            case "store lost":
                self.disk = Image()
                self.cut_device()
            case "backup":
                self.snap = self.disk
            case "restore":
                self.disk, self.was_restored = self.snap, True
                self.cut_device()
        return []


FATES = st.sampled_from(["once", "once", "once", "once", "twice", "lost"])
CRASHES = st.sampled_from([None] * 8 + ["before", "after"])


class Uplink(RuleBasedStateMachine):
    """Hypothesis chooses what happens, and shrinks what went wrong."""

    @initialize()
    def begin(self):
        self.folder = tempfile.TemporaryDirectory()
        self.world = World(Path(self.folder.name))
        greeted(self.world)

    @rule(data=st.data(), fate=FATES, crash=CRASHES)
    def move(self, data, fate, crash):
        name = data.draw(st.sampled_from(self.world.moves()))
        self.world.move(name, lambda n: data.draw(st.integers(0, n - 1)), fate, crash)

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
    max_examples=15,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestUplink = Uplink.TestCase

BUDGETS = {
    "restless": {"release": 8, "crash": 4, "lost": 6, "twice": 6, "replay": 6, "hello again": 2},
    "forgetful": {"release": 8, "crash": 4, "lost": 4, "twice": 4, "replay": 8, "store lost": 3},
    "restored": {"release": 8, "crash": 2, "lost": 2, "twice": 2, "replay": 6}
    | {"backup": 1, "restore": 2, "hello again": 2},
}


def wander(world, budget, rng, steps=120):
    """Take a random course within a budget of faults; whatever is free may always happen."""
    left = {"tick": 24, "up": 10**6, "down": 10**6} | budget
    for _ in range(steps):
        names = [name for name in world.moves() if left.get(name, 0) > 0]
        if not names:
            return
        name = rng.choice(names)
        fate = rng.choice(["once", "once", "once", *(f for f in ("twice", "lost") if left[f] > 0)])
        crash = rng.choice([None] * 6 + ["before", "after"]) if left["crash"] > 0 else None
        left[name] -= 1
        if name in ("up", "down") and fate != "once":
            left[fate] -= 1
        left["crash"] -= crash is not None
        world.move(name, rng.randrange, fate, crash)
        world.check()


@pytest.mark.parametrize("kind", BUDGETS)
@pytest.mark.parametrize("seed", range(12))
def test_random_courses_within_a_budget_of_faults(tmp_path, kind, seed):
    world = World(tmp_path)
    wander(world, BUDGETS[kind], random.Random(f"{kind} {seed}"))
    world.settle()
    world.check()
    world.desk.close()


@pytest.mark.soak
@pytest.mark.parametrize("kind", BUDGETS)
def test_many_random_courses(tmp_path, kind):
    for seed in range(100):
        world = World(tmp_path / str(seed))
        wander(world, BUDGETS[kind], random.Random(f"many {kind} {seed}"))
        world.settle()
        world.check()
        world.desk.close()


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
    assert len(list(world.desk.store.journal.entries(1))) == 3
    assert world.desk.intake.counts["CLOSED"] == 1


def test_a_receipt_is_never_said_before_its_commit(world):
    greeted(world)
    world.post(world.release())
    world.arrive(*world.up.pop(0), crash="before")
    assert world.down == []
    assert list(world.desk.store.journal.entries(1)) == []
    world.settle()
    world.check()
    assert len(world.got) == 1


def test_a_welcome_is_never_said_before_its_commit(world):
    world.post(world.tick())
    world.arrive(*world.up.pop(0), crash="before")
    assert world.down == []
    assert world.desk.store.ledgers.get("meter-1").hid == b""


def test_the_model_speaks_what_the_wire_says(world):
    """The walk means nothing if its device is refused for its form."""
    greeted(world)
    for _ in range(2):
        world.post(world.release())
    world.settle()
    counts = world.desk.intake.counts
    assert counts["ACCEPTED"] == 2
    assert not {"MALFORMED", "BAD_SIGNATURE", "QUOTA"} & counts.keys()
