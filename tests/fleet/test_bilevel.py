"""BiG-FL end to end: two questions a round over the wire, through power cuts and a bad link."""

from __future__ import annotations

import random

import numpy as np
import pytest

from aggregator.extensions.audit.recompute import recompute
from aggregator.extensions.papers.bilevel.bilevel_math import normalised
from firmware_sim.testing.loopback import LinkFaults
from tests.fleet.conftest import SEEDS

ROUNDS = 2
HOMES = [f"home-{number}" for number in range(4)]
ROAD = {name: [40.0, -105.0 + 0.01 * number] for number, name in enumerate(HOMES)}
SETTINGS = {"steps": 2, "rate": 0.01, "sites": ROAD, "threshold": 1.0, "iterations": 3}
SETTINGS |= {"map_rate": 0.5, "smooth": 0.3}


def bilevel(world, rounds=ROUNDS, settings=None, faults=None, seed=0, **more):
    settings = SETTINGS | (settings or {})
    run = {"method": "bigfl", "quorum": 4, "rounds": rounds, "settings": settings}
    link = {"faults": faults or LinkFaults(), "seed": seed}
    return world(devices=4, run=run | {"deadline": "600s"} | more, **link)


def finish(one, rounds=ROUNDS):
    one.until(lambda: one.version >= rounds)
    fold = one.daemon._engine
    audit = recompute(one.daemon._store, fold.run.half, fold.run.first_state().w)
    assert audit.is_sound, audit.faults
    state = one.daemon.state
    return {**{f"phi {k}": v for k, v in state.phi.items()}, **state.held}


@pytest.mark.parametrize(
    "settings", [{}, {"map": "low_rank", "rank": 2}, {"solver": "neumann"}, {"coupled_solves": 1}]
)
def test_every_round_moves_the_map_and_no_update_is_refused(world, settings):
    one = bilevel(world, settings=settings)
    one.start_all()
    finish(one)
    state = one.daemon.state
    assert state.moved == ROUNDS
    assert one.daemon.metrics.refusals() == {}
    reports = [version.report for version in one.daemon._store.runs.versions(1)]
    assert [report["solved"] for report in reports] == [HOMES] * ROUNDS
    assert all(report["cohort"] == HOMES for report in reports)
    assert all(report["map"] > 0.0 for report in reports)
    questions = 2 + settings.get("coupled_solves", 0)
    assert state.round == questions * ROUNDS


def test_a_device_receives_its_neighbours_and_keeps_its_own_model(world):
    one = bilevel(world)
    one.start_all()
    one.until(lambda: one.version >= 1)
    state, near = one.daemon.state, np.eye(4, k=1, dtype=bool) | np.eye(4, k=-1, dtype=bool)
    graph = normalised(near)
    asked = one.daemon._store.tasks.get("home-1", 1)
    body = one.daemon._store.contents.get(asked.content).body
    theta = np.stack([state.held[name].astype(np.float64) for name in HOMES])
    around = graph[1] @ theta - graph[1, 1] * theta[1]
    assert around.astype("<f4").tobytes() in body
    assert state.phi["scale"].astype("<f4").tobytes() in body
    assert asked.values["own"] == pytest.approx(graph[1, 1])
    finish(one)
    one.until(lambda: all(client.is_done for client in one.clients.values()))
    held = one.daemon.state.held
    for number, client in one.clients.items():
        mine = client.learner.spec.shared(client.state.p)
        assert mine.tobytes() == held[f"home-{number}"].tobytes()


@pytest.mark.parametrize("seed", SEEDS)
def test_power_cuts_on_either_side_change_no_bit(world, seed):
    calm = bilevel(world)
    calm.start_all()
    wanted = finish(calm)
    one, rng = bilevel(world), random.Random(seed)
    one.start_all()
    one.cut_power_until(lambda: one.version >= ROUNDS, rng)
    found = finish(one)
    for name, leaf in wanted.items():
        np.testing.assert_array_equal(found[name], leaf)


def test_a_link_that_drops_duplicates_and_reorders_changes_no_bit(world):
    calm = bilevel(world)
    calm.start_all()
    wanted = finish(calm)
    faults = LinkFaults(drop=0.1, duplicate=0.2, reorder=0.2)
    one = bilevel(world, faults=faults, seed=5)
    one.start_all()
    found = finish(one)
    for name, leaf in wanted.items():
        np.testing.assert_array_equal(found[name], leaf)


def test_an_offline_device_does_not_delay_the_solve(world):
    one = bilevel(world, deadline="60s")
    one.start_all()
    one.until(lambda: one.daemon.state.turn == 1)
    one.die(3)
    one.until(lambda: one.version >= 1)
    (report,) = [version.report for version in one.daemon._store.runs.versions(1)][:1]
    assert set(report["unsolved"]) <= {"home-3"}
    one.start(3)
    finish(one)
