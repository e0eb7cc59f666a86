"""Small fleets on loopback converge, wait for nobody for ever, and survive a bad link."""

from __future__ import annotations

import numpy as np

from firmware_sim.testing.loopback import LinkFaults

ROUNDS = 6


def finish(one, rounds=ROUNDS):
    one.until(lambda: one.version >= rounds)
    return one.consensus()


def undisturbed(world, deadline="30s", **options):
    one = world(run={"rounds": ROUNDS, "deadline": deadline}, **options)
    one.start_all()
    return finish(one), one


def test_training_in_rounds_lowers_the_loss(world):
    one = world(run={"rounds": 30, "settings": {"steps": 16, "rate": 0.01}})
    one.start_all()
    finish(one, 30)
    losses = [v.report["loss"] for v in one.daemon._store.runs.versions(1)]
    assert np.mean(losses[-5:]) < 0.6 * losses[0]  # what is left is the readings' own noise
    assert one.daemon.metrics.refusals() == {}


def test_shared_layers_become_equal_and_personal_ones_do_not(world):
    _, one = undisturbed(world)
    one.until(lambda: all(c.is_done for c in one.clients.values()))
    spec = one.clients[0].learner.spec
    vectors = [client.state.p for client in one.clients.values()]
    assert len({spec.shared(p).tobytes() for p in vectors}) == 1
    assert len({spec.personal(p).tobytes() for p in vectors}) == len(vectors)
    np.testing.assert_allclose(spec.shared(vectors[0]), one.consensus(), rtol=1e-6)


def test_two_runs_of_the_same_fleet_agree_to_the_bit(world):
    first, _ = undisturbed(world)
    second, _ = undisturbed(world)
    assert first.tobytes() == second.tobytes()


def test_duplicates_reordering_and_delays_change_nothing(world):
    calm, _ = undisturbed(world)
    for seed in range(3):
        faults = LinkFaults(duplicate=0.5, reorder=0.5, delay=0.6)
        stormy, _ = undisturbed(world, faults=faults, seed=seed, deadline="600s")
        assert stormy.tobytes() == calm.tobytes()


def test_lost_messages_cost_only_time(world):
    calm, _ = undisturbed(world)
    lossy, one = undisturbed(world, faults=LinkFaults(drop=0.1, duplicate=0.1, reorder=0.2), seed=5)
    moved = [v.moved for v in one.daemon._store.runs.versions(1)]
    if all(moved):  # no round was abandoned: then not one bit may differ
        assert lossy.tobytes() == calm.tobytes()
    assert one.broker.dropped > 0
    spent = [client.status()["spent"] for client in one.clients.values()]
    assert all(count <= ROUNDS + moved.count(False) + 1 for count in spent)


def test_a_missing_device_does_not_stop_the_others(world):
    one = world(devices=3, run={"rounds": 4, "quorum": 3, "min_updates": 2, "deadline": "5s"})
    one.start_daemon()
    one.start(0)
    one.start(1)
    finish(one, 4)
    assert [len(v.report["cohort"]) for v in one.daemon._store.runs.versions(1)] == [2] * 4


def test_too_few_devices_close_no_round(world):
    one = world(devices=3, run={"quorum": 3, "deadline": "5s"})
    one.start_daemon()
    one.start(0)
    before = one.consensus()
    one.until(lambda: one.daemon.state.round >= 3)
    assert one.version == 0
    assert one.consensus().tobytes() == before.tobytes()


def test_a_late_device_participates_from_then_on(world):
    one = world(devices=3, run={"quorum": 3, "min_updates": 2, "deadline": "5s", "rounds": 8})
    one.start_daemon()
    one.start(0)
    one.start(1)
    one.until(lambda: one.version >= 2)
    one.start(2)
    finish(one, 8)
    cohorts = [len(v.report["cohort"]) for v in one.daemon._store.runs.versions(1)]
    assert sorted(cohorts) == cohorts
    assert cohorts[-1] == 3
