"""Asynchronous fleets on loopback: every device is asked by itself, nobody waits for a slow one."""

from __future__ import annotations

import random

import numpy as np
import pytest

from aggregator.extensions.audit.recompute import recompute
from aggregator.store.errors import DatabaseFullError
from edge_sdk.protocol.contract.method import Member
from firmware_sim.testing.loopback import LinkFaults
from tests.fleet.conftest import SEEDS

ROUNDS = 6
LONG = {"run": {"deadline": "600s"}}


def fleet_of(world, method="fedbuff", quorum=2, rounds=ROUNDS, **options):
    run = {"method": method, "quorum": quorum, "rounds": rounds} | options.pop("run", {})
    return world(run=run, **options)


def finish(one, rounds=ROUNDS):
    one.until(lambda: one.version >= rounds)
    return one.consensus()


def together(world):
    """What a fleet ends with whose every firing waits for everybody: no staleness, one result."""
    one = fleet_of(world, quorum=3)
    one.start_all()
    return finish(one)


def history(one):
    """The closed rounds, after a check that the journal gives every one of them to the bit."""
    fold = one.daemon._engine
    audit = recompute(one.daemon._store, fold.run.half, fold.run.first_state().w)
    assert audit.is_sound, audit.faults
    return one.daemon._store.runs.versions(1)


def answers(one):
    """How often every device's answer moved the model, and none of them twice for one task."""
    counts = {}
    for version in history(one):
        for name in version.report["cohort"]:
            counts[name] = counts.get(name, 0) + 1
    return counts


@pytest.mark.parametrize(("method", "quorum"), [("fedasync", 1), ("fedbuff", 2)])
def test_asynchronous_devices_train_one_model(world, method, quorum):
    one = fleet_of(world, method, quorum, rounds=20)
    one.start_all()
    finish(one, 20)
    one.until(lambda: all(client.is_done for client in one.clients.values()))
    assert one.daemon.metrics.refusals() == {}
    assert [len(version.report["cohort"]) for version in history(one)] == [quorum] * 20
    spec = one.clients[0].learner.spec
    shared = {spec.shared(client.state.p).tobytes() for client in one.clients.values()}
    assert shared == {one.consensus().astype(np.float32).tobytes()}


def test_replaying_the_journal_gives_the_same_bits(world):
    assert together(world).tobytes() == together(world).tobytes()


@pytest.mark.parametrize("seed", SEEDS)
def test_killed_devices_train_every_task_once(world, seed):
    wanted = together(world)
    one, rng = fleet_of(world, quorum=3, **LONG), random.Random(seed)
    one.start_all()
    while one.version < ROUNDS:
        for _ in range(rng.randint(1, 12)):
            one.turn()
        victim = rng.randrange(one.devices)
        one.die(victim)
        for _ in range(rng.randint(0, 5)):
            one.turn()
        one.start(victim)
    assert one.consensus().tobytes() == wanted.tobytes()
    assert set(answers(one).values()) == {ROUNDS}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_aggregator_resumes_its_tasks(world, seed):
    wanted = together(world)
    one, rng = fleet_of(world, quorum=3, **LONG), random.Random(seed)
    one.start_all()
    while one.version < ROUNDS:
        for _ in range(rng.randint(2, 15)):
            one.turn()
        one.kill_daemon()
        for _ in range(rng.randint(0, 5)):
            one.turn()
        one.start_daemon()
    assert one.consensus().tobytes() == wanted.tobytes()
    assert set(answers(one).values()) == {ROUNDS}


def test_tasks_lost_by_the_broker_are_sent_again(world):
    wanted = together(world)
    one = fleet_of(world, quorum=3, **LONG)
    one.start_all()
    for number in range(1, ROUNDS):
        one.until(lambda wanted=number: one.version >= wanted)
        one.broker.restart(forget=True)
    assert finish(one).tobytes() == wanted.tobytes()


@pytest.mark.slow
def test_a_link_that_drops_duplicates_and_reorders_costs_only_time(world):
    wanted = together(world)
    faults = LinkFaults(drop=0.1, duplicate=0.2, reorder=0.3, delay=0.3)
    one = fleet_of(world, quorum=3, faults=faults, seed=4, **LONG)
    one.start_all()
    assert finish(one).tobytes() == wanted.tobytes()
    assert one.broker.dropped > 0


def slowed(one, number, every):
    """Let one device have its turn only now and then; return what gives everybody theirs."""
    slow = one.clients[number]
    one.fleet.clients.remove(slow)
    turns = iter(range(10**9))

    def turn():
        one.turn()
        if next(turns) % every == 0:
            slow.tick(0.0)

    return turn


def test_a_straggler_delays_no_round_and_its_update_counts(world):
    one = fleet_of(world, rounds=20)
    one.start_all()
    one.until(lambda: len(one.daemon._store.tasks.of_run(1)) == 3)
    turn = slowed(one, 2, every=25)
    while one.version < 20:
        turn()
    stale = [version.report["staleness"] for version in history(one)]
    late = [behind["home-2"] for behind in stale if "home-2" in behind]
    assert late
    assert max(late) >= 2
    assert max(behind.get("home-0", 0) for behind in stale) <= 1
    assert "TOO_STALE" not in one.daemon.metrics.refusals()


def test_a_too_stale_update_is_refused_and_its_device_gets_a_new_task(world):
    one = fleet_of(world, rounds=40, run={"settings": {"steps": 1, "max_staleness": 1}})
    one.start_all()
    one.until(lambda: len(one.daemon._store.tasks.of_run(1)) == 3)
    turn = slowed(one, 2, every=40)
    while one.version < 40:
        turn()
    assert one.daemon.metrics.refusals()["TOO_STALE"] >= 1
    counts = one.clients[2]._session.counts
    assert counts["refused TOO_STALE"] >= 1
    assert counts["rounds"] >= 2
    assert all(max(v.report["staleness"].values()) <= 1 for v in history(one))


def test_a_reconnected_device_keeps_its_task(world):
    one = fleet_of(world, rounds=12)
    one.start_all()
    one.until(lambda: len(one.daemon._store.tasks.of_run(1)) == 3)
    slow = one.clients[2]
    one.fleet.clients.remove(slow)
    asked = one.daemon._store.tasks.get("home-2", 1)
    while one.version < 5:
        one.turn()
    one.broker.cut("home-2")
    for _ in range(30):
        slow.tick(0.0)
        one.turn()
    assert one.daemon._store.runs.versions(1)[-1].version > 5
    staleness = [v.report["staleness"].get("home-2") for v in history(one)]
    assert asked.base == 0
    assert max(one for one in staleness if one is not None) >= 4


def test_a_late_device_gets_a_task_and_one_without_readings_waits(world):
    one = fleet_of(world, rounds=30)
    one.start_daemon()
    one.start(0)
    one.start(1)
    one.until(lambda: one.version >= 3)
    one.start(2)
    finish(one, 30)
    assert answers(one)["home-2"] > 0


def test_a_pause_keeps_every_task(world):
    one = fleet_of(world, rounds=ROUNDS, quorum=3)
    one.start_all()
    one.until(lambda: one.version >= 2)
    one.daemon._publisher.announce(one.daemon._engine.pause(is_paused=True))
    one.daemon._ingress.open(one.daemon._engine.context)
    for _ in range(100):
        one.turn()
    assert one.version <= 3
    held = one.version
    one.daemon._publisher.announce(one.daemon._engine.pause(is_paused=False))
    one.daemon._ingress.open(one.daemon._engine.context)
    assert finish(one).tobytes() == together(world).tobytes()
    assert held < ROUNDS


def test_a_device_that_joined_on_a_full_disk_gets_a_task_later(world, monkeypatch):
    one = fleet_of(world)
    one.start_daemon()
    store, left = one.daemon._store, iter(range(4))
    record = store.journal.append

    def full(run, event):
        if isinstance(event, Member) and next(left, None) is not None:
            raise DatabaseFullError("no space")
        return record(run, event)

    monkeypatch.setattr(store.journal, "append", full)
    for number in range(one.devices):
        one.start(number)
    finish(one)
    assert next(left, None) is None
    assert set(answers(one)) == {"home-0", "home-1", "home-2"}
