"""Power cuts on either side, at any turn: the run ends where the undisturbed one ends."""

from __future__ import annotations

import random

import pytest

from tests.fleet.conftest import SEEDS

ROUNDS = 6


def undisturbed(world):
    one = world(run={"rounds": ROUNDS})
    one.start_all()
    one.until(lambda: one.version >= ROUNDS)
    return one.consensus()


def accounts(one):
    """How often every update was counted: never twice, none that was receipted forgotten."""
    return [set(version.report["cohort"]) for version in one.daemon._store.runs.versions(1)]


@pytest.mark.parametrize("seed", SEEDS)
def test_killed_devices_resume_to_the_same_bits(world, seed):
    wanted = undisturbed(world)
    one, rng = world(run={"rounds": ROUNDS, "deadline": "600s"}), random.Random(seed)
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
    assert all(len(cohort) == one.devices for cohort in accounts(one))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_aggregator_resumes_to_the_same_bits(world, seed):
    wanted = undisturbed(world)
    one, rng = world(run={"rounds": ROUNDS, "deadline": "600s"}), random.Random(seed)
    one.start_all()
    while one.version < ROUNDS:
        for _ in range(rng.randint(2, 15)):
            one.turn()
        one.kill_daemon()
        for _ in range(rng.randint(0, 5)):
            one.turn()
        one.start_daemon()
    assert one.consensus().tobytes() == wanted.tobytes()
    assert all(len(cohort) == one.devices for cohort in accounts(one))


def test_a_broker_without_its_state_costs_only_time(world):
    wanted = undisturbed(world)
    one = world(run={"rounds": ROUNDS, "deadline": "600s"})
    one.start_all()
    for round_ in range(1, ROUNDS):
        one.until(lambda wanted=round_: one.version >= wanted)
        one.broker.restart(forget=True)
    one.until(lambda: one.version >= ROUNDS)
    assert one.consensus().tobytes() == wanted.tobytes()


def test_personal_layers_survive_a_power_cut(world):
    one = world(run={"rounds": ROUNDS, "deadline": "600s"})
    one.start_all()
    one.until(lambda: one.version >= 3)
    one.until(lambda: not one.clients[1]._session.outbox.entries)
    spec, before = one.clients[1].learner.spec, one.clients[1].state.p.copy()
    one.die(1)
    one.start(1)
    assert spec.personal(one.clients[1].state.p).tobytes() == spec.personal(before).tobytes()


def test_certificates_are_not_checked_against_a_clock_at_1970(world):
    one = world()
    one.start_all()
    one.until(lambda: one.version >= 1)
    session, welcomed = one.clients[0]._session, one.clock.wall()
    assert session.time.certificate_time() is None
    one.clock.begun = -one.clock.now
    assert one.clock.wall() == 0
    assert session.time.certificate_time() == pytest.approx(welcomed / 1000, abs=1)
    one.die(0)
    again = one.start(0)._session.time.certificate_time()
    assert welcomed / 1000 - 3600 <= again <= welcomed / 1000 + 1
