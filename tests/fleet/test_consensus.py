"""Consensus methods on loopback: devices keep weights of their own, through any restart."""

from __future__ import annotations

import random
import tomllib

import numpy as np
import pytest

from aggregator.extensions.audit.recompute import recompute
from firmware_sim.fleet.run_files import toml
from tests.fleet.conftest import SEEDS

ROUNDS = 6
SETTINGS = {
    "aspire_ease": {"steps": 2, "rate": 0.01, "check_every": 2, "cut_every": 2},
    "bsfdp": {"steps": 2, "rate": 0.003, "regulariser": "off", "check_every": 2},
    "rsa": {"steps": 2, "rate": 0.01},
    "rsa_weights": {"steps": 2, "rate": 0.01},
}


def fleet_of(world, method, rounds=ROUNDS, **options):
    run = {"method": method, "quorum": 3, "rounds": rounds, "settings": SETTINGS[method]}
    return world(run=run | options.pop("run", {}), **options)


def finish(one, rounds=ROUNDS):
    one.until(lambda: one.version >= rounds)
    fold = one.daemon._engine
    audit = recompute(one.daemon._store, fold.run.half, fold.run.first_state().w)
    assert audit.is_sound, audit.faults
    return one.consensus()


def undisturbed(world, method):
    one = fleet_of(world, method)
    one.start_all()
    return finish(one)


@pytest.mark.parametrize("method", sorted(SETTINGS))
def test_a_fleet_converges_and_every_device_ends_with_the_consensus(world, method):
    one = fleet_of(world, method, rounds=12)
    one.start_all()
    before = one.consensus()
    finish(one, 12)
    one.until(lambda: all(client.is_done for client in one.clients.values()))
    assert not np.array_equal(one.consensus(), before)
    assert one.daemon.metrics.refusals() == {}
    spec = one.clients[0].learner.spec
    for client in one.clients.values():
        shared = spec.shared(client.state.p)
        assert shared.tobytes() == one.consensus().astype(np.float32).tobytes()


@pytest.mark.parametrize("method", sorted(SETTINGS))
@pytest.mark.parametrize("seed", SEEDS)
def test_power_cuts_on_either_side_change_no_bit(world, method, seed):
    wanted = undisturbed(world, method)
    one, rng = fleet_of(world, method, run={"deadline": "600s"}), random.Random(seed)
    one.start_all()
    one.cut_power_until(lambda: one.version >= ROUNDS, rng)
    assert finish(one).tobytes() == wanted.tobytes()


def test_the_duals_are_equal_on_both_ends_without_being_sent(world):
    one, compared = fleet_of(world, "bsfdp"), 0
    one.start_all()
    while one.version < ROUNDS:
        one.turn()
        state = one.daemon.state
        for number, client in one.clients.items():
            if state.version and client.state.answered == state.version + 1:  # at the same firing
                np.testing.assert_array_equal(client.state.dual, state.dual[f"home-{number}"])
                compared += 1
    assert compared >= ROUNDS
    assert all(np.abs(dual).max() > 0 for dual in one.daemon.state.dual.values())


def test_half_of_the_fleet_closes_a_round_and_a_lost_store_restarts(world):
    settings = SETTINGS["bsfdp"]
    one = world(run={"method": "bafdp", "quorum": 2, "rounds": 20, "settings": settings})
    one.start_all()
    one.until(lambda: one.version >= 5)
    one.die(1)
    (one.folder / "home-1" / "device.db").unlink()
    one.start(1)
    finish(one, 20)
    cohorts = [version.report["cohort"] for version in one.daemon._store.runs.versions(1)]
    assert any("home-1" in cohort for cohort in cohorts[8:])


@pytest.mark.parametrize("name", ["sign_flip", "sign_gaussian"])
def test_signs_are_noisy_and_use_one_bit_each(world, name):
    one = world(run={"method": "dp_rsa", "quorum": 3, "rounds": 4, "settings": SETTINGS["rsa"]})
    noise = {
        "sign_flip": {"epsilon": 3.0},
        "sign_gaussian": {"clip_norm": 1.0, "noise_multiplier": 0.5},
    }[name]
    mechanism = {"name": name, "point": "sign"} | noise
    for path in one.folder.glob("home-*.toml"):
        table = tomllib.loads(path.read_text("utf-8"))
        budget = {"epsilon": 1e9}  # a message of many signs costs so many times as much as one
        privacy = {"mode": "honest", "mechanism": mechanism, "budget": budget}
        accept = {"methods": ["dp_rsa"]}  # no other method's answers are signs
        path.write_text(toml(table | {"privacy": privacy, "accept": accept}))
    one.start_all()
    finish(one, 4)
    assert one.daemon.metrics.refusals() == {}
    norms = [v.report["norms"] for v in one.daemon._store.runs.versions(1)]
    size = one.clients[0].learner.spec.shared_size
    assert {round(norm**2) for report in norms for norm in report.values()} == {size}


def test_a_device_without_a_sign_mechanism_refuses_one_bit_signs(world):
    one = world(run={"method": "dp_rsa", "quorum": 3, "rounds": 4, "settings": SETTINGS["rsa"]})
    one.start_all()
    for _ in range(60):
        one.turn()
    assert one.version == 0
    assert {client.learner.role.method for client in one.clients.values()} != {"dp_rsa"}


WAITING = {"method": "bsfdp", "quorum": 2, "rounds": 12, "settings": SETTINGS["bsfdp"]}


def test_a_device_that_left_during_a_restart_is_not_waited_for(world):
    one = world(run=WAITING)
    one.start_all()
    one.until(lambda: one.version >= 3)
    one.kill_daemon()
    one.die(2)
    for _ in range(5):
        one.turn()
    one.start_daemon()
    finish(one, 12)
    assert one.daemon._store.runs.versions(1)[-1].report["cohort"] == ["home-0", "home-1"]


def test_a_revoked_device_is_neither_waited_for_nor_asked(world):
    one = world(run=WAITING)
    one.start_all()
    one.until(lambda: one.version >= 3)
    one.daemon._registry.quarantine("home-2", "a forgery")
    asked = one.daemon._store.tasks.get("home-2", 1)
    finish(one, 12)
    assert one.daemon._store.runs.versions(1)[-1].report["cohort"] == ["home-0", "home-1"]
    assert one.daemon._store.tasks.get("home-2", 1).turn == asked.turn
