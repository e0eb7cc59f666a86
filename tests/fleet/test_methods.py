"""The averaging kin end to end: real daemon, real clients, and power cuts half-way."""

from __future__ import annotations

import random
import tomllib

import numpy as np
import pytest

from aggregator.extensions.audit.recompute import recompute
from firmware_sim.fleet.run_files import toml

STEPS = {"steps": 4, "rate": 0.003}
SYNCHRONOUS = {
    "afl": {},
    "fedatt": {},
    "fedda": {"clusters": {"north": ["home-0"], "south": ["home-1", "home-2"]}, "quasi": "start"},
    "nbafl": {"weights_clip_norm": 30.0, "epsilon": 50.0, "min_samples": 300},
    "udp": {"update_clip_norm": 0.5, "crd": True},
}
RECURRENT = {"fedgru": "load-gru", "fedntp": "load-lstm-week"}
BUFFER = {"fedasync": 1, "fedbuff": 2, "cached": 2}
ROUNDS = 4


def run(method, **more):
    settings = STEPS | SYNCHRONOUS.get(method, {})
    return {"method": method, "settings": settings, "rounds": ROUNDS, "deadline": "600s"} | more


def asynchronous(method, **more):
    return run(method, quorum=BUFFER[method], rounds=9, **more)


def finish(one):
    one.until(lambda: one.daemon.is_done)
    return one.consensus()


def disturbed(one, rng):
    """Let devices and daemon die now and then until the run is over."""
    one.start_all()
    while not one.daemon.is_done:
        for _ in range(rng.randint(3, 15)):
            one.turn()
        if rng.random() < 0.5:
            one.kill_daemon()
            one.turn()
            one.start_daemon()
        else:
            victim = rng.randrange(one.devices)
            one.die(victim)
            one.turn()
            one.start(victim)
    return one.consensus()


def check_journal(one):
    """Fold the run's journal again: every round must come out as it was announced."""
    fold = one.daemon._engine
    audit = recompute(
        one.daemon._store, fold.run.half, fold.run.bundle.initial[: len(fold.state.w)]
    )
    assert audit.faults == ()
    assert audit.moved == one.version


@pytest.mark.parametrize("method", SYNCHRONOUS)
def test_every_method_completes_its_run(world, method):
    one = world(run=run(method))
    one.start_all()
    start = one.consensus()
    finish(one)
    assert one.version > 0
    assert np.isfinite(one.consensus()).all()
    assert (one.consensus() != start).any()
    assert one.daemon.metrics.refusals() == {}
    check_journal(one)


@pytest.mark.parametrize("method", sorted(SYNCHRONOUS.keys() - {"nbafl"}))
def test_kills_of_devices_and_daemon_change_no_bit(world, method):
    calm = world(run=run(method))
    calm.start_all()
    wanted = finish(calm)
    one = world(run=run(method))
    assert disturbed(one, random.Random(method)).tobytes() == wanted.tobytes()
    check_journal(one)


def test_replaying_the_journal_draws_the_same_downlink_noise(world):
    one, other = world(run=run("nbafl")), world(run=run("nbafl"))
    disturbed(one, random.Random(3))
    check_journal(one)
    other.start_all()
    assert (finish(other) != one.consensus()).all()  # another run, another secret


PAPER = {
    "nbafl": {
        "clip_norm": 30.0,
        "epsilon": 50.0,
        "calibration": "nbafl",
        "formula": {"samples": 300},
    },
    "udp": {
        "clip_norm": 0.5,
        "epsilon": 10.0,
        "calibration": "udp",
        "formula": {"samples": 300, "rate": 0.003, "steps": 4, "rounds": 4},
    },
}


@pytest.mark.parametrize("method", PAPER)
def test_a_fleet_with_device_noise_completes_its_run(world, method):
    quiet = {"downlink_noise": False} if method == "nbafl" else {}
    said = run(method, settings=STEPS | SYNCHRONOUS[method] | quiet)
    calm, one = world(run=said), world(run=said)
    noisy = {"name": "gaussian", "point": "update"} | PAPER[method]
    for path in one.folder.glob("home-*.toml"):
        table = tomllib.loads(path.read_text("utf-8"))
        table["privacy"] = {"mode": "paper", "mechanism": noisy}
        path.write_text(toml(table))
    calm.start_all()
    one.start_all()
    assert (finish(one) != finish(calm)).any()
    assert one.daemon.metrics.refusals() == {}
    assert all(client.status()["spent"] >= ROUNDS for client in one.clients.values())
    check_journal(one)


@pytest.mark.parametrize("method", BUFFER)
def test_asynchronous_rounds_wait_for_no_device_and_count_every_update(world, method):
    one = world(run=asynchronous(method))
    one.start_all()
    finish(one)
    reports = [version.report for version in one.daemon._store.runs.versions(1)]
    assert [len(report["cohort"]) for report in reports] == [BUFFER[method]] * 9
    assert {name for report in reports for name in report["cohort"]} == {
        f"home-{number}" for number in range(3)
    }
    assert any(late > 0 for report in reports for late in report["staleness"].values())
    check_journal(one)


@pytest.mark.parametrize("method", BUFFER)
def test_asynchronous_runs_continue_after_power_cuts(world, method):
    one = world(run=asynchronous(method))
    disturbed(one, random.Random(method))
    assert one.version == 9
    check_journal(one)


@pytest.mark.parametrize("method", BUFFER)
def test_an_absent_device_does_not_stop_the_run(world, method):
    one = world(run=asynchronous(method))
    one.start_all()
    one.until(lambda: one.version >= 2)
    one.die(0)
    finish(one)
    assert one.version == 9


@pytest.mark.slow
@pytest.mark.parametrize("method", RECURRENT)
def test_recurrent_models_train_with_half_of_the_devices_per_round(world, method):
    more = {
        "bundle": RECURRENT[method],
        "quorum": 3,
        "min_updates": 1,
        "client_fraction": 0.5,
        "deadline": "20s",
    }
    one = world(run=run(method, settings=STEPS | {"steps": 1}, rounds=3) | more)
    for path in one.folder.glob("home-*.toml"):
        path.write_text(path.read_text("utf-8").replace("load-mlp", RECURRENT[method]))
    one.start_all()
    finish(one)
    assert one.version == 3
    check_journal(one)


@pytest.mark.parametrize(("method", "key"), [("fedgru", "run.bundle"), ("fedntp", "run.bundle")])
def test_a_recurrent_method_refuses_another_model(world, method, key):
    one = world(run=run("fedavg"))
    text = one.config.read_text("utf-8").replace('"fedavg"', f'"{method}"')
    one.config.write_text(text)
    with pytest.raises(Exception, match=key.replace(".", r"\.")):
        one.start_daemon()
