"""Rollout messages that are damaged, signed by the wrong side, old, repeated or lies: refused, or without effect.

A device follows what the root and the aggregator signed and nothing else; the aggregator counts members'
days once, whatever order, repetition and invention a device chooses.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from aggregator.audit_log import Initiator
from aggregator.extensions.rollouts import rollout_control as control
from aggregator.extensions.rollouts.rollout_table import RolloutTable
from aggregator.rounds.announcements import Ends
from aggregator.store.opener import open_store
from aggregator.store.types import EnrolledDevice
from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.rollouts.messages import RolloutMessage, StageMessage, TrialMessage
from edge_sdk.extensions.rollouts.rollout_inbox import RolloutInbox, saved_rollout
from edge_sdk.extensions.rollouts.rollout_roles import role
from edge_sdk.protocol import codec, topics
from edge_sdk.protocol.envelope import digest, ref
from edge_sdk.protocol.keys import from_seed
from edge_sdk.store.store import DeviceStore
from tests.properties.test_hostile_bytes import mutate

FLEET, FIRST, DEVICES = "north", 20_780, 40
PLAN = RolloutMessage(
    serial=1, name="load", version=2, digest=b"t" * 32, size=900, served=b"s" * 32, salt=bytes(16),
    waves=(0.01, 0.05, 0.25, 1.0), shadow=0.5, days=3, least=5, margin=0.02, bound=0.01,
)  # fmt: skip
OF = ref(digest(codec.encode(PLAN)))
MESSAGES = (
    PLAN,
    replace(PLAN, waves=(1.0,), shadow=0.0, margin=0.0, days=31),
    StageMessage(9, OF, "run", 0),
    StageMessage(10, OF, "return", 4),
    TrialMessage(OF, "serve", FIRST, (1, 2, 0)),
    TrialMessage(OF, "declined", 0, ()),
)


def require_valid(message):
    """Fail unless a message is within the bounds that PROTOCOL.md states."""
    if isinstance(message, RolloutMessage):
        assert message.digest != message.served
        assert 1 <= len(message.waves) <= 8
        assert all(a < b for a, b in zip((0.0, *message.waves), message.waves, strict=False))
        assert message.waves[-1] <= 1.0
        assert 0.0 <= message.margin <= 0.5
        assert 1e-6 <= message.bound <= 0.5
        assert 1 <= message.days <= 31
    elif isinstance(message, StageMessage):
        assert message.phase in ("run", "pause", "return", "done")
        assert 0 <= message.stage <= 8
    else:
        assert message.state in ("score", "serve", "returned", "declined")
        assert len(message.lost) <= min(7, message.day + 1)
        assert set(message.lost) <= {0, 1, 2}


def fuzz(count, seed):
    rng, accepted = random.Random(seed), 0
    bodies = [(one.kind, codec.encode(one)) for one in MESSAGES]
    for _ in range(count):
        kind, body = rng.choice(bodies)
        try:
            found = codec.decode(kind, mutate(rng, body))
        except Refused:
            continue
        accepted += 1
        require_valid(found)
        assert codec.decode(kind, codec.encode(found)) == found
    return accepted


def test_mutants_are_refused_or_valid_and_encode_to_themselves():
    assert fuzz(6_000, seed=1) > 100, "the mutator never reaches the fields: it tests nothing"


@pytest.mark.soak
def test_a_hundred_thousand_mutants_are_refused_or_valid():
    fuzz(100_000, seed=2)


class Uptime:
    """The part of a device's clock that the inbox reads."""

    uptime = 0.0


class NoDownloads:
    """A downloader that is never asked."""

    manifest = None


def inbox_of(store):
    return RolloutInbox(store, NoDownloads(), Uptime(), pause=60.0)


@pytest.mark.parametrize("seed", range(5))
def test_a_device_follows_the_newest_of_any_sequence_also_after_restarts(tmp_path, seed):
    """Descriptions and stages arrive old, repeated, of each other's rollouts, and in any order."""
    rng = random.Random(seed)
    plans = [replace(PLAN, serial=serial, version=1 + serial) for serial in range(1, 5)]
    bodies = {one.serial: codec.encode(one) for one in plans}
    refs = [ref(digest(body)) for body in bodies.values()]
    plan_serial = stage_serial = 0
    with DeviceStore.open(tmp_path / "device.db") as store:
        inbox = inbox_of(store)
        for _ in range(300):
            if rng.random() < 0.1:
                inbox = inbox_of(store)  # the process was killed
            if rng.random() < 0.4:
                plan = rng.choice(plans)
                body = bodies[plan.serial]
                if rng.random() < 0.2:
                    plan = replace(plan, name="other")  # the same number, other content
                    body = codec.encode(plan)
                is_old = plan.serial < plan_serial or (
                    plan.serial == plan_serial and body != store.paper("rollout")
                )
                receive = inbox.receive_plan
            else:
                plan = StageMessage(rng.randrange(1, 60), rng.choice(refs), "run", rng.randrange(5))
                body = codec.encode(plan)
                is_old = plan.serial < stage_serial or (
                    plan.serial == stage_serial and body != store.paper("rollout stage")
                )
                receive = inbox.receive_stage
            if is_old:
                with pytest.raises(Refused) as refused:
                    receive(plan, body)
                assert refused.value.reason is Reason.ROLLBACK
            else:
                receive(plan, body)
                if isinstance(plan, StageMessage):
                    stage_serial = plan.serial
                else:
                    plan_serial = plan.serial
            assert inbox.followed == saved_rollout(store)
            if inbox.followed is not None:
                assert inbox.followed.stage.of == inbox.followed.of
                assert inbox.followed.plan.serial == plan_serial


class Noon:
    """A wall clock that stands at noon of a day."""

    day = FIRST

    def wall(self):
        return self.day * control.DAY + control.DAY // 2


def draw_report(rng, today):
    """Return a report as any device may sign it: of this rollout or not, of any days, repeated."""
    of = OF if rng.random() < 0.9 else rng.randbytes(16)
    day = rng.choice((today - 1, today, today + 1, FIRST - 1, rng.randrange(0, 2_000_000)))
    lost = tuple(rng.randrange(3) for _ in range(rng.randrange(min(8, day + 2))))
    state = rng.choice(("score", "serve", "returned", "declined"))
    return codec.decode("trial", codec.encode(TrialMessage(of, state, day, lost)))


@pytest.mark.parametrize("seed", range(3))
def test_reports_count_once_for_members_and_days_of_the_rollout(tmp_path, seed):
    rng, clock = random.Random(seed), Noon()
    ids = [f"meter-{i:02}" for i in range(DEVICES)]
    with open_store(tmp_path / "fleet.db") as store:
        for i, name in enumerate(ids):
            store.devices.save(EnrolledDevice(name, (bytes([i] * 32),)))
        ends = Ends(FLEET, from_seed(bytes(32)))
        described = {
            topics.common(FLEET, "rollout"): Ends(FLEET, from_seed(b"r" * 32)).to_all(PLAN, "_root")
        }
        state = control.RolloutState(since=FIRST, why="start")
        by, now = Initiator("command", "ann"), clock.wall()
        control._save(store, ends, OF, "load version 2", state, by=by, now=now, more=described)
        found = control.RolloutControl(store, ends, clock, lambda _: None)
        counted = {}
        for _ in range(400):
            if rng.random() < 0.02:
                clock.day += 1
            if rng.random() < 0.05:
                found = control.RolloutControl(store, ends, clock, lambda _: None)
            name, report = rng.choice([*ids, "stranger"]), draw_report(rng, clock.day)
            is_member = role(PLAN, found.state.stage, name) != "none"
            is_counted = report.of == OF and is_member and report.day <= clock.day
            assert found.record(name, report) == is_counted
            for back, word in enumerate(report.lost if is_counted else ()):
                if word and report.day - back >= FIRST:
                    counted.setdefault(
                        (name, report.day - back), (word == 2, report.state == "serve")
                    )
        stored = {
            (one.device, day): result
            for one in store.table(RolloutTable).trials(OF)
            for day, result in one.results.items()
        }
        assert stored == counted
        assert len(stored) <= (DEVICES + 1) * (clock.day - FIRST + 1)
        found.advance()
        assert found.state.phase in ("run", "return")
