"""A direct simulation gives the bits of real clients and a real daemon over a broker of lists."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from aggregator.config import AggregatorConfig, binding
from aggregator.daemon import Daemon
from aggregator.store.row_file import pending_rows
from aggregator.store.state_codec import digest
from edge_sdk import Config
from edge_sdk.app.settings import SettingsError
from edge_sdk.protocol.contract.method import END, Update
from firmware_sim.attacks.attack_plan import HONEST, AttackPlan, AttackRoles
from firmware_sim.direct.fleet import DirectFleet
from firmware_sim.fleet.in_process import Fleet, enlist, readings
from firmware_sim.fleet.run_files import prepare
from firmware_sim.samples import sample_set
from firmware_sim.scenario import RunSettings, Scenario
from firmware_sim.testing.loopback import LoopbackBroker
from tests.fleet.conftest import SlowClock

DEVICES = 4
STEPS = {"steps": 2, "rate": 0.003}
SETTINGS = {
    "fedavg": STEPS,
    "fedprox": STEPS | {"prox": 0.1},
    "afl": STEPS,
    "fedasync": STEPS,
    "fedbuff": STEPS,
    "rsa_weights": {"steps": 2},
    "pfl": {"steps": 2},
}
PLFL = {"bundle": "load-week-1", "shared": ("body.",)}


def scenario_of(method, *, bundle="load-mlp", rounds=3, quorum=None, **more):
    settings = more.pop("settings", SETTINGS.get(method, STEPS))
    run = RunSettings(method, rounds=rounds, settings=settings, quorum=quorum, **more)
    chosen = Scenario("direct", devices=DEVICES, bundle=bundle, run=run)
    return chosen.first_days(21, sample_set("homes"))


class Brokered:
    """The same scenario with signatures, stores and a broker; devices answer in a given order."""

    def __init__(self, folder, chosen, order, attack_plan=None):
        samples, self.clock, self.order = sample_set("homes"), SlowClock(), order
        prepared = prepare(
            folder, "sim", chosen, samples, broker="mqtt://127.0.0.1:1", page="off",
            choose_best=False,
        )  # fmt: skip
        broker = LoopbackBroker(clock=self.clock.monotonic)
        config = AggregatorConfig.load(prepared.aggregator)
        link, rng = broker.link("_agg"), random.Random(0)
        self.daemon = Daemon(config, transport=link, clock=self.clock, rng=rng)
        self.daemon.open()
        self.fleet = Fleet()
        ids = [device.id for device in prepared.devices]
        roles = attack_plan and AttackRoles.of(attack_plan, ids, self.clock.monotonic)
        for device in prepared.devices:
            client = enlist(
                self.fleet,
                Config.load(device.config),
                roles.role(device.id) if roles else HONEST,
                connect=lambda config, will: broker.link(config.id, will),
                history=partial(readings, device.sample, samples, chosen),
                clock=self.clock,
            )
            may_answer = partial(self.is_next, device.id, client._given.may_answer)
            client._given = replace(client._given, may_answer=may_answer)

    @property
    def admitted(self):
        return sum(
            isinstance(entry.event, Update) for entry in self.daemon._store.journal.entries(1)
        )

    def is_next(self, device, may_answer, task):
        if task.ask == END:
            return True
        if any(client.status()["run"] != 1 for client in self.fleet.clients):
            return False  # all join before the first update
        number = self.admitted
        return number < len(self.order) and self.order[number] == device and may_answer(task)

    def run(self, turns=6000):
        for _ in range(turns):
            if self.daemon.is_done and all(client.is_done for client in self.fleet.clients):
                return self
            self.daemon.turn(0.0)
            self.fleet.turn(0.0)
            self.clock.now += 0.1
        pytest.fail(f"the run did not end: version {self.daemon.state.version}")

    def close(self):
        self.fleet.close()
        self.daemon.close()


def check_equal(direct, brokered):
    """Compare the server's state, and every device's, personal layers included."""
    assert digest(brokered.daemon.state).hex() == direct.server.digest
    assert [version.moved for version in brokered.daemon._store.runs.versions(1)] == [
        one.moved for one in direct.server.rounds
    ]
    for client in brokered.fleet.clients:
        own = direct.devices[client.config.id].state.arrays()
        for name, array in client.state.arrays().items():
            assert np.asarray(array).tobytes() == np.asarray(own[name]).tobytes(), name


def simulated(chosen, seed=5, **options):
    """A direct simulation that has ended."""
    made = DirectFleet.of(chosen, sample_set("homes"), seed=seed, **options).simulation()
    made.run()
    return made


def test_updates_beyond_the_memory_of_a_round_are_kept_in_a_file(monkeypatch):
    """The folder in which the configuration was bound is gone by then."""
    chosen = scenario_of("fedavg")
    usual = simulated(chosen)
    kept = []

    def in_a_file(folder, _limit):
        kept.append(folder)
        return pending_rows(folder, 1)

    monkeypatch.setattr(binding, "pending_rows", in_a_file)
    assert simulated(chosen).server.digest == usual.server.digest
    assert kept[0].is_dir()


CASES = [
    ("fedavg", PLFL),
    ("fedavg", {"encoding": "q4", "rule": {"name": "trimmed_mean", "f": 1}}),
    ("fedasync", {"rounds": 9}),
    ("rsa_weights", {}),
]
OTHERS = [("fedprox", {}), ("afl", {}), ("fedbuff", {"rounds": 5, "quorum": 2}), ("pfl", {})]


@pytest.mark.parametrize(
    ("method", "more"),
    [*CASES, *(pytest.param(*other, marks=pytest.mark.slow) for other in OTHERS)],
    ids=lambda x: x if isinstance(x, str) else "-".join(x),
)
def test_direct_and_brokered_runs_give_the_same_bits(tmp_path, method, more):
    chosen = scenario_of(method, **more)
    direct = simulated(chosen)
    brokered = Brokered(tmp_path / "fleet", chosen, direct.order)
    try:
        check_equal(direct, brokered.run())
    finally:
        brokered.close()


@pytest.mark.parametrize("attack", ["alie", pytest.param("label_flip", marks=pytest.mark.slow)])
def test_an_attack_gives_the_same_bits(tmp_path, attack):
    chosen = scenario_of("fedavg", rule={"name": "median", "f": 1})
    plan = AttackPlan(attack, 0.25, timeout="60s")
    direct = simulated(chosen, attack_plan=plan)
    brokered = Brokered(tmp_path / "fleet", chosen, direct.order, plan)
    try:
        check_equal(direct, brokered.run())
    finally:
        brokered.close()
    assert simulated(chosen).server.digest != direct.server.digest


@pytest.mark.parametrize("method", ["fedasync", "fedbuff"])
def test_the_seed_decides_the_order_of_arrival(method):
    chosen = scenario_of(method, rounds=6, quorum=2 if method == "fedbuff" else None)
    one, again, other = (simulated(chosen, seed) for seed in (1, 1, 2))
    assert one.order == again.order
    assert one.server.rounds == again.server.rounds
    assert one.server.digest == again.server.digest
    assert one.order != other.order
    assert one.server.digest != other.server.digest


def test_a_too_stale_device_is_asked_again():
    chosen = scenario_of("fedasync", rounds=24, settings={**STEPS, "max_staleness": 1})
    direct = simulated(chosen)
    assert direct.server.refused["TOO_STALE"] > 0
    assert direct.server.is_done
    assert set(direct.order[-12:]) == set(direct.devices)


def test_a_round_that_no_update_can_close_is_abandoned_at_its_deadline():
    chosen = scenario_of("fedavg", quorum=DEVICES, deadline="600s", rounds=1)
    fleet = DirectFleet.of(chosen, sample_set("homes"))
    made = fleet.simulation()
    silent = min(made.devices)
    made.may_answer = {silent: lambda _task: made.server.state.round > 1}
    made.run()
    assert [one.moved for one in made.server.rounds] == [False, True]
    assert made.clock.now > 600


def test_devices_share_graphs_readings_and_channels():
    chosen = replace(scenario_of("fedavg", rounds=1), devices=40)
    direct = simulated(chosen)
    learners = [device.learner for device in direct.devices.values()]
    files = len(sample_set("homes").samples)
    assert len({id(learner.bundle) for learner in learners}) == 1
    assert len({id(learner.mechanism) for learner in learners}) == 1
    assert len({id(learner.series) for learner in learners}) == files
    assert len({id(learner.frame()) for learner in learners}) == files


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"run": RunSettings("cnfgnn")}, "activations"),
        (
            {"run": RunSettings("dfl_sgd", rule={"name": "median"})},
            "combines updates without a rule",
        ),
        ({"privacy": {"mechanism": {"name": "gaussian"}}}, "store"),
    ],
)
def test_what_needs_a_broker_or_a_store_is_refused(change, words):
    with pytest.raises(SettingsError, match=words):
        DirectFleet.of(replace(scenario_of("fedavg"), **change), sample_set("homes"))


def test_an_attack_on_the_link_is_refused():
    with pytest.raises(SettingsError, match="link"):
        DirectFleet.of(scenario_of("fedavg"), sample_set("homes"), attack_plan=AttackPlan("delay"))
