"""Clusters end to end: every home works from the centre it belongs to, through any restart."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from aggregator.commands import main as cli
from aggregator.extensions.audit.recompute import recompute
from firmware_sim.testing.loopback import LinkFaults
from tests.fleet.conftest import SEEDS

ROUNDS = 4
HOMES = [f"home-{number}" for number in range(4)]
SETTINGS = {"centres": 2, "first_steps": 8, "steps": 4, "rate": 0.01, "mu": 0.001}


def clustered(world, rounds=ROUNDS, settings=None, faults=None, seed=0, **more):
    settings = SETTINGS | (settings or {})
    run = {"method": "fesem", "quorum": 4, "rounds": rounds, "settings": settings}
    link = {"faults": faults or LinkFaults(), "seed": seed}
    return world(devices=4, run=run | {"deadline": "600s"} | more, **link)


def finish(one, rounds=ROUNDS):
    one.until(lambda: one.version >= rounds)
    fold = one.daemon._engine
    audit = recompute(one.daemon._store, fold.run.half, fold.run.first_state().w)
    assert audit.is_sound, audit.faults
    return one.daemon.state.centres.copy()


def everybody(one):
    """Everybody who counts, once each."""
    return sorted(name for names in one.daemon.state.clusters.values() for name in names)


def status(one, capsys):
    capsys.readouterr()
    assert cli.main(["status", str(one.config), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_device_is_in_one_cluster_and_the_clusters_differ(world):
    one = clustered(world)
    one.start_all()
    finish(one)
    assert everybody(one) == HOMES
    assert one.daemon.metrics.refusals() == {}
    first, second = one.daemon.state.centres
    assert (first != second).any()
    reports = [version.report for version in one.daemon._store.runs.versions(1)]
    assert all(len(report["cohort"]) == 4 for report in reports)
    assert all(set(report["spread"]) == {"0", "1"} for report in reports)


def test_every_device_trains_from_its_centre_and_keeps_its_model(world):
    one = clustered(world)
    one.start_all()
    one.until(lambda: one.version >= 2)
    state = one.daemon.state
    for number in range(4):
        name = f"home-{number}"
        asked = one.daemon._store.tasks.get(name, 1)
        body = one.daemon._store.contents.get(asked.content).body
        centre = state.centres[state.labels[name]].astype("<f4")
        assert asked.base == state.version
        assert centre.tobytes() in body
    finish(one)
    one.until(lambda: all(client.is_done for client in one.clients.values()))
    held = one.daemon.state.held
    for number, client in one.clients.items():
        spec = client.learner.spec
        mine = spec.shared(client.state.p)
        assert mine.tobytes() == held[f"home-{number}"].tobytes()
        assert (mine != one.consensus().astype(np.float32)).any()


def test_status_page_metrics_and_command_list_the_clusters(world, capsys):
    one = clustered(world)
    one.start_all()
    finish(one)
    one.turn()
    wanted = {label: list(names) for label, names in one.daemon.state.clusters.items()}
    assert one.daemon.snapshot.status["clusters"] == wanted
    text = one.daemon.metrics.text().decode()
    for label, names in wanted.items():
        assert f'gridfed_cluster_devices{{cluster="{label}"}} {len(names)}.0' in text
    one.kill_daemon()
    assert status(one, capsys)["clusters"] == wanted
    assert cli.main(["status", str(one.config)]) == 0
    assert f"cluster 0: {', '.join(wanted['0'])}" in capsys.readouterr().out


def test_other_methods_list_no_clusters(world, capsys):
    one = world(run={"rounds": 1})
    one.start_all()
    one.until(lambda: one.version >= 1)
    one.turn()
    assert "clusters" not in one.daemon.snapshot.status
    assert "gridfed_cluster_devices{" not in one.daemon.metrics.text().decode()
    one.kill_daemon()
    assert "clusters" not in status(one, capsys)


@pytest.mark.parametrize("seed", SEEDS)
def test_power_cuts_on_either_side_change_no_bit(world, seed):
    calm = clustered(world)
    calm.start_all()
    wanted = finish(calm)
    one, rng = clustered(world), random.Random(seed)
    one.start_all()
    one.cut_power_until(lambda: one.version >= ROUNDS, rng)
    assert finish(one).tobytes() == wanted.tobytes()
    assert one.daemon.state.clusters == calm.daemon.state.clusters


@pytest.mark.parametrize("seed", SEEDS)
def test_a_link_that_drops_duplicates_and_reorders_changes_no_bit(world, seed):
    calm = clustered(world)
    calm.start_all()
    wanted = finish(calm)
    faults = LinkFaults(drop=0.1, duplicate=0.2, reorder=0.3, delay=0.3)
    one = clustered(world, faults=faults, seed=seed)
    one.start_all()
    assert finish(one).tobytes() == wanted.tobytes()
    assert one.daemon.state.clusters == calm.daemon.state.clusters
    assert one.broker.dropped > 0


def test_an_absent_device_counts_for_some_rounds_and_returns_to_its_cluster(world):
    one = clustered(world, 12, {"stale_after": 3}, min_updates=3, quorum=4, deadline="5s")
    one.start_all()
    one.until(lambda: one.version >= 2)
    one.die(3)
    one.until(lambda: one.version >= 4)
    assert everybody(one) == HOMES
    one.until(lambda: one.version >= 8)
    assert everybody(one) == HOMES[:3]
    silent = [version.report["silent"] for version in one.daemon._store.runs.versions(1)]
    assert silent.count(["home-3"]) == 1
    one.start(3)
    finish(one, 12)
    assert everybody(one) == HOMES


def test_one_cluster_with_a_rule_equals_the_common_model(world):
    one = clustered(world, settings={"centres": 1}, rule={"name": "median"})
    one.start_all()
    centres = finish(one)
    assert centres.shape[0] == 1
    np.testing.assert_array_equal(one.consensus(), centres[0])
