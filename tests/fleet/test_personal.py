"""PFL end to end: every home has its own mixture, liars count nothing, restarts cost nothing."""

from __future__ import annotations

import json
import random
import tomllib

import numpy as np
import pytest

from aggregator.commands import main as cli
from aggregator.extensions.audit.recompute import recompute
from edge_sdk.app.settings import SettingsError
from firmware_sim.attacks.attack_plan import AttackPlan, AttackRoles
from firmware_sim.fleet.run_files import toml
from tests.fleet.conftest import SEEDS

ROUNDS = 4
SETTINGS = {"steps": 4, "rate": 0.003, "credit": 0.9}
SITES = {f"home-{k}": [46.0 + 0.1 * k, 7.0] for k in range(4)}


def personal(world, devices=4, rounds=ROUNDS, settings=None, holdout=0.2, **more):
    settings = SETTINGS | (settings or {})
    run = {"method": "pfl", "quorum": devices, "rounds": rounds, "settings": settings}
    one = world(devices=devices, run=run | {"deadline": "600s"} | more)
    for path in one.folder.glob("home-*.toml"):
        table = tomllib.loads(path.read_text("utf-8")) | {"training": {"holdout_fraction": holdout}}
        path.write_text(toml(table))
    return one


def finish(one):
    one.until(lambda: one.daemon.is_done)
    fold = one.daemon._engine
    audit = recompute(one.daemon._store, fold.run.half, fold.run.first_state().w)
    assert audit.is_sound, audit.faults
    assert one.daemon.metrics.refusals() == {}
    return one.daemon.state


def reports(one):
    return [version.report for version in one.daemon._store.runs.versions(1) if version.moved]


def bits(state):
    return {name: vector.tobytes() for name, vector in state.mixed.items()}


def test_every_device_gets_its_own_mixture_and_continues_from_its_model(world):
    one = personal(world, settings={"sites": SITES, "threshold": 15.0})
    one.start_all()
    one.until(lambda: one.version >= 2)
    state = one.daemon.state
    for name in state.mixed:
        asked = one.daemon._store.tasks.get(name, 1)
        body = one.daemon._store.contents.get(asked.content).body
        assert state.mixed[name].astype("<f4").tobytes() in body
    assert len(set(bits(state).values())) == 4
    state = finish(one)
    one.until(lambda: all(client.is_done for client in one.clients.values()))
    for number, client in one.clients.items():
        spec, mine = client.learner.spec, client.state
        assert mine.answered == ROUNDS
        assert spec.shared(mine.chosen).tobytes() != state.mixed[f"home-{number}"].tobytes()
        assert client.learner.judged(mine.chosen) is not None
        assert np.isfinite(client.forecast().values).all()
    told = reports(one)
    assert [sorted(report["credit"]) for report in told] == [sorted(state.held)] * ROUNDS
    for report in told:
        for row in report["credit"].values():
            assert sum(row.values()) == pytest.approx(1.0, abs=1e-5)
    assert sorted(state.credits) == [1, 2, 3, 4]


def test_a_device_forecasts_with_its_best_model_on_held_back_windows(world):
    one, last = (
        personal(world),
        personal(world, settings={"model_selection": "last", "final_tuning": False}),
    )
    for world_ in (one, last):
        world_.start_all()
        finish(world_)
        world_.until(lambda w=world_: all(client.is_done for client in w.clients.values()))
    for number, client in one.clients.items():
        other = last.clients[number]
        best, plain = (c.learner.judged(c.state.chosen) for c in (client, other))
        assert best <= plain
    for number, client in last.clients.items():
        mine = client.learner.spec.shared(client.state.chosen)
        assert mine.tobytes() == last.daemon.state.held[f"home-{number}"].tobytes()


def test_without_held_back_windows_the_last_model_is_selected(world):
    one = personal(world, holdout=0.0, settings={"model_selection": "fleet", "final_tuning": False})
    one.start_all()
    state = finish(one)
    assert state.kept == 0
    assert all(client.learner.judged(client.state.p) is None for client in one.clients.values())


def test_the_fleet_selects_a_round(world):
    one = personal(world, settings={"model_selection": "fleet", "final_tuning": False})
    one.start_all()
    state = finish(one)
    told = reports(one)
    losses = [report["validation"] for report in told]
    assert state.kept == 1 + int(np.argmin(losses))
    assert told[-1]["kept"] == state.kept
    one.until(lambda: all(client.is_done for client in one.clients.values()))
    for number, client in one.clients.items():
        mine = client.learner.spec.shared(client.state.chosen)
        is_last = mine.tobytes() == state.held[f"home-{number}"].tobytes()
        assert is_last == (state.kept == ROUNDS)


def test_byzantine_devices_have_no_weight_from_the_second_round_on(world):
    one = personal(world, devices=5, rounds=5)
    ids = [f"home-{number}" for number in range(5)]
    cast = AttackRoles.of(AttackPlan("flipping", byzantine=0.2), ids, one.clock.monotonic)
    one.start_daemon()
    for number, name in enumerate(ids):
        one.start(number, cast.role(name))
    liars = {"home-0"}
    state = finish(one)
    for version in range(2, 6):
        for name in set(ids) - liars:
            assert not state.credits[version][name].keys() & liars, (version, name)
    assert set(reports(one)[-1]["dropped"]) == liars
    assert sum(state.credits[5][name].keys() != {name} for name in set(ids) - liars) >= 3


@pytest.mark.parametrize("seed", SEEDS)
def test_power_cuts_on_either_side_change_no_bit(world, seed):
    calm = personal(world, settings={"sites": SITES})
    calm.start_all()
    wanted = finish(calm)
    one, rng = personal(world, settings={"sites": SITES}), random.Random(seed)
    one.start_all()
    one.cut_power_until(lambda: one.daemon.is_done, rng)
    state = finish(one)
    assert bits(state) == bits(wanted)
    assert state.credits == wanted.credits
    for each in (one, calm):
        each.until(lambda w=each: all(client.is_done for client in w.clients.values()))
    for number, client in one.clients.items():
        assert client.state.chosen.tobytes() == calm.clients[number].state.chosen.tobytes()


def test_an_absent_device_is_dropped_and_stops_no_round(world):
    one = personal(world, rounds=8, settings={"stale_after": 3}, min_updates=3, deadline="5s")
    one.start_all()
    one.until(lambda: one.version >= 2)
    one.die(3)
    state = finish(one)
    assert set(state.mixed) == {"home-0", "home-1", "home-2"}
    assert [report["silent"] for report in reports(one)].count(["home-3"]) == 1


def beside(tmp_path):
    """Settings that name a file, from where the configuration lies."""
    lines = [f"{name},{x},{y}" for name, (x, y) in SITES.items()]
    text = "\n".join(["client,latitude,longitude", *lines])
    (tmp_path / "near.csv").write_text(text, "utf-8")
    return {"neighbours": "../near.csv", "threshold": 15.0}


def test_neighbours_come_from_a_file_relative_to_the_configuration(world, tmp_path):
    one = personal(world, settings=beside(tmp_path))
    table = personal(world, settings={"sites": SITES, "threshold": 15.0})
    one.start_all()
    table.start_all()
    assert bits(finish(one)) == bits(finish(table))


def test_a_file_that_is_missing_is_refused_before_anything_connects(world, tmp_path):
    one = personal(world, settings=beside(tmp_path))
    (tmp_path / "near.csv").unlink()
    with pytest.raises(SettingsError, match=r"run\.settings\.neighbours: expected a readable CSV"):
        one.start_daemon()


def test_with_update_noise_no_held_back_loss_is_sent(world):
    one = personal(world, settings={"model_selection": "fleet"})
    noisy = {"name": "gaussian", "point": "update", "clip_norm": 30.0, "epsilon": 1.0}
    for path in one.folder.glob("home-*.toml"):
        table = tomllib.loads(path.read_text("utf-8"))
        path.write_text(toml(table | {"privacy": {"mode": "paper", "mechanism": noisy}}))
    one.start_all()
    state = finish(one)
    assert state.kept == 0
    assert all("validation" not in report for report in reports(one))


def test_status_and_metrics_show_the_credit_between_devices(world, capsys):
    one = personal(world, rounds=2)
    one.start_all()
    state = finish(one)
    one.turn()
    wanted = state.credits[2]
    assert one.daemon.snapshot.status["credit"] == wanted
    text = one.daemon.metrics.text().decode()
    from_others = sum(row.get("home-0", 0.0) for name, row in wanted.items() if name != "home-0")
    (line,) = [one for one in text.splitlines() if 'gridfed_credit{device="home-0"}' in one]
    assert float(line.split()[-1]) == pytest.approx(from_others / 3, abs=1e-5)
    capsys.readouterr()
    one.kill_daemon()
    assert cli.main(["status", str(one.config), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["credit"]
    assert told == {n: pytest.approx(row, abs=2e-6) for n, row in wanted.items()}


def test_the_credit_heat_map_marks_a_byzantine_device(world, capsys, tmp_path):
    one = personal(world)
    ids = [f"home-{number}" for number in range(4)]
    cast = AttackRoles.of(AttackPlan("flipping", byzantine=0.25), ids, one.clock.monotonic)
    one.start_daemon()
    for number, name in enumerate(ids):
        one.start(number, cast.role(name))
    finish(one)
    one.turn()
    assert one.daemon.snapshot.status["credit"] == one.daemon.state.credit
    assert "gridfed_devices_excluded 1.0" in one.daemon.metrics.text().decode()
    capsys.readouterr()
    one.kill_daemon()
    picture = tmp_path / "heat.svg"
    assert cli.main(["credit", str(one.config), "--out", str(picture), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["excluded"] == ["home-0"]
    assert sorted(map(int, told["credit"])) == list(range(1, ROUNDS + 1))
    assert picture.read_text("utf-8").count("#b42318") == ROUNDS
    assert cli.main(["credit", str(one.config), "--by", "home-1"]) == 0
    assert "weight that home-1 gives" in capsys.readouterr().out
    assert cli.main(["credit", str(one.config), "--by", "nobody"]) == 2


def test_other_methods_show_no_credit(world):
    one = world(run={"rounds": 1})
    one.start_all()
    one.until(lambda: one.version >= 1)
    one.turn()
    assert "credit" not in one.daemon.snapshot.status
    assert "gridfed_credit{" not in one.daemon.metrics.text().decode()
    one.kill_daemon()
    assert cli.main(["credit", str(one.config)]) == 2
