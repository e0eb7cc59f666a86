"""Split learning end to end: activations over the wire, a graph in the daemon, restarts free."""

from __future__ import annotations

import random
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from aggregator.extensions.audit.recompute import recompute
from aggregator.extensions.papers.graph import Diffusion
from aggregator.extensions.papers.split.split_arrays import drawn
from aggregator.extensions.papers.split.split_types import corrected_adam
from edge_sdk import Config, Reading
from edge_sdk.shared_math.optim import adam, optimiser_step
from firmware_sim.attacks.attack_plan import HONEST, AttackPlan, AttackRoles
from firmware_sim.fleet.in_process import enlist
from firmware_sim.fleet.run_files import toml
from firmware_sim.testing.loopback import LinkFaults
from tests.fleet.conftest import SEEDS

HOURS = 24 * 21
SETTINGS = {"steps": 3, "rate": 0.003, "prox": 0.1, "credit": 0.9}
SITES = Path(__file__).with_name("line.toml")
TURNS = {"batch": 8, "deadline": 4.0, "forecast_batch_delay": 0.2}


def demand(number, hours=HOURS):
    """A charging site's hourly demand: busy by day, often nothing at all."""
    rng = np.random.default_rng(number)
    hour = np.arange(hours)
    busy = np.clip(np.sin(2 * np.pi * (hour - 6 - number % 3) / 24), 0, None)
    values = busy * (4 + number % 2) * (rng.random(hours) < 0.7) * rng.gamma(2.0, 0.5, hours)
    for at, value in enumerate(values):
        yield Reading("ev.demand.energy", 1_514_764_800.0 + 3600 * at, float(value))


def sites(
    world,
    *,
    devices=3,
    rounds=2,
    method="pfgl",
    turns=None,
    graph=None,
    faults=None,
    seed=0,
    least=None,
    admission=None,
    **said,
):
    settings = (SETTINGS if method == "pfgl" else {"steps": 3, "rate": 0.003}) | said
    settings["turns"] = TURNS | (turns or {})
    run = {
        "bundle": "chargers-1", "method": method, "quorum": devices, "rounds": rounds,
        "deadline": "600s", "settings": settings,
        "graph": {"kind": "diffusion", "capacity": 4, "sites": str(SITES)} | (graph or {}),
    }  # fmt: skip
    more = {} if faults is None else {"faults": faults, "seed": seed}
    run |= {} if least is None else {"min_updates": least}
    one = world(devices=devices, run=run, admission=admission or {"daily_bytes": 2**36}, **more)
    for path in one.folder.glob("home-*.toml"):
        table = tomllib.loads(path.read_text("utf-8")) | {"bundle": "chargers-1"}
        path.write_text(toml(table))
    return one


def start(one, number, role=HONEST):
    config = Config.load(one.folder / f"home-{number}.toml")
    one.clients[number] = enlist(
        one.fleet,
        config,
        role,
        connect=lambda config, will: one.broker.link(config.id, will),
        history=lambda: demand(number),
        clock=one.clock,
    )


def start_all(one):
    one.start_daemon()
    for number in range(one.devices):
        start(one, number)


def finish(one):
    one.until(lambda: one.daemon.is_done)
    fold = one.daemon._engine
    audit = recompute(one.daemon._store, fold.run.half, fold.run.first_state().w)
    assert audit.is_sound, audit.faults
    return one.daemon.state


def bits(state):
    held = {name: vector.tobytes() for name, vector in state.held.items()}
    return held | {"net": state.net["p"].tobytes(), "first": state.net["first"].tobytes()}


def reports(one):
    return [version.report for version in one.daemon._store.runs.versions(1) if version.moved]


def everybody(one):
    """Whether every turn of every round had every station."""
    names = sorted(f"home-{k}" for k in range(one.devices))
    lines = [line.split() for report in reports(one) for line in report["turns"].splitlines()]
    played = [line for line in lines if line[0] != "ready"]
    return len(played) == 2 * len(reports(one)) and all(line[2:] == names for line in played)


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """What an undisturbed run comes to."""
    from tests.fleet.conftest import World  # noqa: PLC0415

    def make(**options):
        return World(tmp_path_factory.mktemp("calm"), **options)

    one = sites(make, rounds=3)
    start_all(one)
    state = finish(one)
    assert everybody(one)
    one.close()
    return bits(state)


def test_a_split_round_closes_and_forecasts_use_the_graph(world):
    one = sites(world)
    start_all(one)
    state = finish(one)
    assert state.version == 2
    assert everybody(one)
    one.until(lambda: all(client.is_done for client in one.clients.values()))
    for number, client in one.clients.items():
        spec, mine = client.learner.spec, client.state
        assert mine.live is None
        assert spec.shared(mine.p).tobytes() == state.held[f"home-{number}"].tobytes()
        counts = client.status()["counts"]
        assert counts["rounds"] == 2
        assert counts["bytes up encode"] > 3 * 2 * 8 * 16 * 32 * 4
        assert counts["bytes up encode"] < 1.05 * 3 * 2 * 8 * 16 * 32 * 4


def test_an_iteration_on_the_wire_is_twice_as_small_in_float16(world):
    sizes = {}
    for half in (False, True):
        one = sites(world, turns={"float16": half})
        start_all(one)
        finish(one)
        counts = one.clients[0].status()["counts"]
        sizes[half] = sum(
            counts[f"bytes {way}"]
            for way in ("up encode", "up decode", "down decode", "down finish")
        )
    assert 0.48 < sizes[True] / sizes[False] < 0.53


def test_alternating_sends_a_small_part_of_the_bytes(world):
    sizes = {}
    for schedule in ("joint", "alternating"):
        turns = {"schedule": schedule, "server_iterations": 1, "refresh_batches": 1}
        one = sites(world, turns=turns, steps=32, rounds=1)
        start_all(one)
        assert finish(one).version == 1
        counts = one.clients[0].status()["counts"]
        sizes[schedule] = sum(
            counts.get(f"bytes {way}", 0)
            for way in ("up encode", "up decode", "down decode", "down finish", "down keep")
        )
    assert sizes["alternating"] < sizes["joint"] / 20


@pytest.mark.parametrize("seed", SEEDS)
def test_a_broker_that_duplicates_and_reorders_changes_no_bit(world, calm, seed):
    """Repeats, delays and messages that overtake others: every station is in every turn."""
    one = sites(
        world, rounds=3, faults=LinkFaults(duplicate=0.2, reorder=0.3, delay=0.4), seed=seed
    )
    start_all(one)
    state = finish(one)
    if everybody(one):
        assert bits(state) == calm
    assert state.version == 3


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lost_message_costs_one_step_and_not_the_run(world, seed):
    one = sites(world, rounds=2, faults=LinkFaults(drop=0.05), seed=seed, least=2)
    start_all(one)
    state = finish(one)
    assert state.version == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_aggregator_restarts_the_round_and_changes_no_bit(world, calm, seed):
    one, rng = sites(world, rounds=3), random.Random(seed)
    start_all(one)
    kills = 0
    while not one.daemon.is_done:
        for _ in range(rng.randint(3, 30)):
            one.turn()
        if one.daemon.state.version < 3 and kills < 8:
            one.kill_daemon()
            one.turn()
            one.start_daemon()
            kills += 1
    state = finish(one)
    assert kills >= 2
    assert everybody(one)
    assert bits(state) == calm


@pytest.mark.parametrize("seed", SEEDS)
def test_a_device_killed_in_a_round_rejoins_at_a_later_step(world, seed):
    one, rng = sites(world, rounds=3, turns={"deadline": 2.0}), random.Random(seed)
    start_all(one)
    deaths = 0
    while not one.daemon.is_done:
        for _ in range(rng.randint(2, 20)):
            one.turn()
        if deaths < 6 and one.daemon.state.version < 3:
            victim = rng.randrange(3)
            one.die(victim)
            one.turn()
            start(one, victim)
            deaths += 1
    state = finish(one)
    assert state.version == 3
    updates = [len(report["cohort"]) for report in reports(one)]
    assert updates == [3, 3, 3]
    one.until(lambda: all(client.is_done for client in one.clients.values()))
    for number, client in one.clients.items():  # whatever happened, both ends hold the same model
        mine = client.learner.spec.shared(client.state.p)
        assert mine.tobytes() == state.held[f"home-{number}"].tobytes()


def test_split_averaging_ends_with_one_model_for_all(world):
    one = sites(world, method="cnfgnn")
    start_all(one)
    state = finish(one)
    assert len({vector.tobytes() for vector in state.mixed.values()}) == 1


def test_a_device_without_its_aggregator_forecasts_without_the_graph(world):
    one = sites(world)
    start_all(one)
    finish(one)
    one.until(lambda: all(client.is_done for client in one.clients.values()))
    assert {client.forecast().source for client in one.clients.values()} == {"model"}
    one.kill_daemon()
    client = one.clients[0]
    at = 1_514_764_800.0 + 3600 * HOURS
    client.observe(Reading("ev.demand.energy", at, 1.0))
    for _ in range(40):
        one.turn()
    assert client.forecast().source == "without graph"
    one.start_daemon()
    one.until(lambda: client.forecast().source == "model")


def centralised(one, windows):
    """One machine that sees everything: the bundle's own graphs, the graph model, two optimisers.

    Returns:
        Every home's vector after one round, and the graph model's.
    """
    fold = one.daemon._engine
    settings = fold.run.config.run.settings
    graph = Diffusion(np.array([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]), 16)
    present = np.array([True, True, True, False])
    net = graph.init(fold.run.config.run.seed)
    server = corrected_adam(5e-4)
    memory = server.init(net)
    homes = [one.clients[k].learner for k in range(3)]
    manifest = homes[0].manifest
    optimiser = adam(settings["rate"], manifest.training.beta1, manifest.training.beta2)
    p = [home.bundle.initial.copy() for home in homes]
    start = homes[0].spec.shared(homes[0].bundle.initial)
    moments = [optimiser.init(vector) for vector in p]
    for ids in windows:
        h, batches = np.zeros((len(ids), 4, 16, 32)), []
        for k, home in enumerate(homes):
            here, batch = home.learnable().named(ids)
            assert here.all()
            batches.append(batch)
            h[:, k] = home.bundle.graphs["encode"](p=p[k], x=batch.x)[0]
        z, gz = graph.forward(net, h, present), np.zeros_like(h)
        told = []
        for k, home in enumerate(homes):
            feeds = {"h": h[:, k].astype(np.float32), "z": z[:, k].astype(np.float32)}
            told.append(home.bundle.graphs["decode"](p=p[k], y=batches[k].y, **feeds))
            gz[:, k] = told[k][3]
        gh, gp = graph.pullback(net, h, present, gz)
        net, memory = optimiser_step(server, net, gp, memory)
        for k, home in enumerate(homes):
            back = told[k][2] + gh[:, k].astype(np.float32)
            (ge,) = home.bundle.graphs["encode_vjp"](p=p[k], x=batches[k].x, gh=back)
            pull = np.float32(settings["prox"]) * home.spec.lift(home.spec.shared(p[k]) - start)
            p[k], moments[k] = optimiser_step(optimiser, p[k], told[k][1] + ge + pull, moments[k])
    return p, net


@pytest.mark.parametrize(
    "faults", [LinkFaults(), LinkFaults(duplicate=0.2, reorder=0.4, delay=0.5)]
)
def test_split_training_over_messages_equals_centralised_training(world, monkeypatch, faults):
    """Float32 arrays through envelopes, pieces and an unkind broker, against one machine."""
    windows = []

    def noted(act, score):
        windows.append(drawn(act, score))
        return windows[-1]

    monkeypatch.setattr("aggregator.extensions.papers.split.split_rounds.drawn", noted)
    one = sites(world, rounds=1, faults=faults, turns={"clip_factor": 0.0})
    start_all(one)
    state = finish(one)
    assert everybody(one)
    p, net = centralised(one, windows)
    np.testing.assert_allclose(state.net["p"], net, atol=1e-5)
    for k in range(3):
        np.testing.assert_allclose(state.held[f"home-{k}"], p[k], atol=1e-5)


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ({"admission": {"daily_bytes": 500_000}}, r"admission\.daily_bytes: .*bytes in one round"),
        ({"graph": {"capacity": 4000}, "turns": {"batch": 1024}}, r"run\.graph\.capacity"),
        ({"model_selection": "own"}, "model_selection"),
        ({"final_tuning": True, "rounds": None}, "final_tuning"),
    ],
)
def test_an_invalid_split_configuration_is_refused_before_connecting(world, said, key, capsys):
    with pytest.raises(AssertionError):
        sites(world, **said)
    assert re.search(key, capsys.readouterr().err)


def test_the_fleet_selects_a_round_by_held_back_windows(world):
    """Over the wire: a daemon is killed on the way, and what is served is the chosen round's."""
    one = sites(
        world, rounds=3, turns={"validation_batches": 2}, model_selection="fleet", final_tuning=True
    )
    for path in one.folder.glob("home-*.toml"):
        table = tomllib.loads(path.read_text("utf-8")) | {"training": {"holdout_fraction": 0.2}}
        path.write_text(toml(table))
    start_all(one)
    one.until(lambda: one.daemon.state.version == 1)
    one.kill_daemon()
    one.start_daemon()
    state = finish(one)
    losses = [report["validation"] for report in reports(one)]
    assert state.kept == 1 + int(np.argmin(losses))
    one.until(lambda: all(client.is_done for client in one.clients.values()))
    is_last = state.kept == 3  # the one of which no round tells any more
    for client in one.clients.values():
        one.until(lambda c=client: (c.state.chosen.tobytes() == c.state.p.tobytes()) == is_last)
        one.until(lambda c=client: c.forecast().source == "model")
        assert client.status()["counts"]["bytes down judge"] > 3 * 2 * 8 * 16 * 32 * 4


def lied(world, attack, *, options=None, guard=3.0, rounds=2):
    """A fleet of four in which the first one lies; its state and reports at the end."""
    one = sites(world, devices=4, rounds=rounds, turns={"clip_factor": guard})
    ids = [f"home-{number}" for number in range(4)]
    plan = AttackPlan(attack, byzantine=0.25 if attack else 0.0, options=options or {})
    cast = AttackRoles.of(plan, ids, one.clock.monotonic) if attack else None
    one.start_daemon()
    for number, name in enumerate(ids):
        start(one, number, HONEST if cast is None else cast.role(name))
    state = finish(one)
    return state, reports(one)


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["signal_scale", "signal_flip"])
def test_poisoned_activations_and_gradients_are_clipped(world, attack):
    options = {"factor": 1e6} if attack == "signal_scale" else {}
    calm, _ = lied(world, "")
    held, told = lied(world, attack, options=options)
    assert [report["cohort"] for report in told] == [sorted(calm.held)] * 2
    apart = max(np.abs(held.held[n] - calm.held[n]).max() for n in calm.held if n != "home-0")
    assert apart < 2 * SETTINGS["rate"] * 6  # six steps of Adam, either way
    assert np.isfinite(held.net["p"]).all()
    if options:
        bare, _ = lied(world, attack, options=options, guard=0.0)
        net = [np.abs(one.net["second"] - calm.net["second"]).max() for one in (held, bare)]
        assert net[1] > 1e6 * net[0]  # what the graph's own descent was told


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["flipping", "gaussian", "ipm"])
def test_a_byzantine_model_is_excluded_from_models_and_graph(world, attack):
    options = {"epsilon": 2.0} if attack == "ipm" else {}
    state, told = lied(world, attack, options=options, rounds=3)
    assert state.masked == {"home-0": True}
    lengths = {name: float(np.linalg.norm(held)) for name, held in state.held.items()}
    assert lengths["home-0"] <= 4 * np.median([*lengths.values()])
    for report in told[1:]:
        assert set(report["dropped"]) == {"home-0"}
        if report["dropped"]["home-0"] == "out of range":  # its last good weights stand for it
            continue
        for name, row in report["credit"].items():
            assert name == "home-0" or "home-0" not in row


@pytest.mark.slow
def test_a_near_copy_gets_less_than_half_of_the_weight(world):
    """The limit that the documents state: nearness is rewarded."""
    _, told = lied(world, "near_copy", rounds=3)
    victim = told[-1]["credit"]["home-1"]
    assert sorted(victim, key=victim.get)[-2:] == ["home-0", "home-1"]
    assert victim["home-0"] < 0.5


@pytest.mark.parametrize("half", [False, True])
def test_a_forecast_sends_one_window_each_way(world, half):
    one = sites(world, turns={"float16": half}, rounds=1)
    start_all(one)
    finish(one)
    one.until(lambda: all(client.is_done for client in one.clients.values()))
    client = one.clients[0]
    one.until(lambda: client.forecast().source == "model")
    before = dict(client.status()["counts"])
    client.observe(Reading("ev.demand.energy", 1_514_764_800.0 + 3600 * HOURS, 1.0))
    one.until(lambda: client.forecast().source == "model")
    after = client.status()["counts"]
    assert after["graph asked"] == before["graph asked"] + 1
    window = 16 * 32 * (2 if half else 4)
    for way in ("bytes up serve", "bytes down serve"):
        assert window < after[way] - before[way] < window + 200, way
