"""FedDA end to end: averaged weeks, profiles whose owners allow them, and power cuts half-way."""

from __future__ import annotations

import random
import tomllib

import numpy as np
import pytest

from firmware_sim.fleet.run_files import toml
from tests.fleet.test_methods import check_journal, disturbed, finish

WEEKS = 24 * 7 * 7
SETTINGS = {
    "steps": 2,
    "rate": 0.003,
    "clustering": "profiles",
    "cluster_count": 2,
    "quasi": "weeks",
    "quasi_rounds": 2,
}
ALLOWED = {"weekly_profile": True}


def run(**more):
    return {"method": "fedda", "settings": SETTINGS, "rounds": 4, "deadline": "600s"} | more


@pytest.mark.slow
def test_profiles_make_clusters_and_the_run_completes(world):
    one = world(run=run(), accept=ALLOWED, hours=WEEKS)
    one.start_all()
    finish(one)
    assert one.daemon.metrics.refusals() == {}
    members = [name for names in one.daemon.state.clusters.values() for name in names]
    assert sorted(members) == ["home-0", "home-1", "home-2"]
    assert len(one.daemon.state.clusters) == 2
    assert np.isfinite(one.consensus()).all()
    check_journal(one)


@pytest.mark.slow
def test_without_permission_no_profile_leaves_a_device(world):
    one = world(run=run(), hours=WEEKS)
    one.start_all()
    finish(one)
    assert one.daemon.state.clusters == {}
    assert set(one.daemon.state.memory) == {"cluster-unlisted", "strayed"}


@pytest.mark.slow
def test_noise_at_the_update_withholds_the_profile(world):
    one = world(run=run(), accept=ALLOWED, hours=WEEKS)
    noisy = {"name": "gaussian", "point": "update", "clip_norm": 30.0, "noise_multiplier": 0.01}
    for path in one.folder.glob("home-*.toml"):
        table = tomllib.loads(path.read_text("utf-8"))
        table["privacy"] = {"mode": "paper", "mechanism": noisy}
        path.write_text(toml(table))
    one.start_all()
    finish(one)
    assert one.daemon.state.clusters == {}


@pytest.mark.slow
def test_kills_of_devices_and_daemon_change_no_bit(world):
    calm, one = (
        world(run=run(), accept=ALLOWED, hours=WEEKS),
        world(run=run(), accept=ALLOWED, hours=WEEKS),
    )
    calm.start_all()
    wanted, clusters = finish(calm), calm.daemon.state.clusters
    found = disturbed(one, random.Random(7))
    assert found.tobytes() == wanted.tobytes()
    assert one.daemon.state.clusters == clusters
    check_journal(one)
