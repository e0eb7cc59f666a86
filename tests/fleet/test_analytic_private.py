"""Closed form with noise on its statistics: config, device, ledger, aggregator, power cuts."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from edge_sdk.extensions.analytic.private_release import released
from edge_sdk.extensions.analytic.statistics import from_vector, to_vector
from edge_sdk.privacy import noise
from edge_sdk.privacy.ledger import PrivacyAccount
from edge_sdk.privacy.noise import sigma_for
from edge_sdk.protocol.contract.method import Task
from tests.fleet.conftest import SEEDS

PASSES, C = 4, 3.0
PUBLIC = ["weather.temperature", "weather.wind_speed"]
BUDGET = {"epsilon": 20.0, "delta": 1e-5, "unit": "window", "max_releases": PASSES}
NOISY = {
    "mode": "honest",
    "mechanism": {"name": "gaussian", "point": "statistic", "clip_norm": C, "range": [0.0, 10.0]},
    "budget": BUDGET,
}


def noise_of(budget):
    return float(np.sqrt(4.5 * 3 * PASSES)) * sigma_for(budget["epsilon"], budget["delta"])


def private(world, *, budget=BUDGET, settings=None, **more):
    given = {"noise": noise_of(BUDGET), "clip_norm": C} if settings is None else settings
    run = {"bundle": "load-analytic", "method": "analytic", "quorum": 3, "deadline": "600s"}
    run |= {"settings": given} | more.pop("run", {})
    protected = {"privacy": NOISY | {"budget": budget}, "accept": {"methods": ["analytic"]}}
    return world(devices=3, run=run, **protected, **more)


def done(one):
    one.until(lambda: one.daemon._engine.is_done)
    one.until(lambda: all(client.is_done for client in one.clients.values()))


@pytest.mark.slow
def test_every_pass_is_charged_before_it_leaves_and_the_budget_is_just_spent(world):
    one = private(world)
    one.start_all()
    done(one)
    assert one.version == PASSES
    assert one.daemon.metrics.refusals() == {}
    for client in one.clients.values():
        lines = list(client._store.ledger())
        assert [(line.point, line.mechanism, line.unit) for line in lines] == [
            ("statistic", "gaussian", "window")
        ] * PASSES
        told = client.status()["budget"]
        assert told["epsilon"] == pytest.approx(20.0, rel=1e-6)
        assert (told["releases"], told["left"]) == (PASSES, 0)
        account = PrivacyAccount.of(lines, client.learner.mechanism.plan.limit)
        assert account.is_kept
        assert client.forecast().source == "model"
        assert np.isfinite(client.forecast().values).all()


def test_what_leaves_has_the_noise_and_no_sum_without_it(world):
    one = private(world)
    one.start_all()
    one.until(lambda: one.version >= 3)
    section = one.daemon._engine.run.bundle.manifest.analytic
    for vector in one.daemon.state.held.values():
        sent = from_vector(vector, 3, section.width)
        assert not sent.squares.any()
        assert not sent.residuals.any()
        # The rows are shorter than C, so most of a matrix's entries are noise.
        spread = float(np.median(np.abs(sent.gram))) / 0.6745
        assert spread > 0.5 * noise_of(BUDGET) * C**2


@pytest.mark.parametrize("seed", SEEDS)
def test_a_power_cut_neither_charges_nor_sends_twice(world, seed):
    """After every cut the ledger has as many releases as there are numbered updates."""
    one, rng = private(world), random.Random(seed)
    one.start_all()
    bodies = {}
    while not one.daemon._engine.is_done:
        for _ in range(rng.randint(1, 9)):
            one.turn()
        victim = rng.randrange(3)
        waiting = {e.seq: e.body for e in one.clients[victim]._session.outbox.entries}
        one.die(victim)
        client = one.start(victim)
        kept = {e.seq: e.body for e in client._session.outbox.entries}
        for seq, body in (waiting | kept).items():
            assert bodies.setdefault((victim, seq), body) == body
        spent = client._session.outbox.numbers.spent
        assert sum(line.releases for line in client._store.ledger()) == spent
    done(one)
    for client in one.clients.values():
        assert sum(line.releases for line in client._store.ledger()) == PASSES


def test_a_budget_for_fewer_passes_stops_the_device_not_the_forecast(world):
    one = private(world, budget=BUDGET | {"max_releases": 2, "epsilon": 60.0},
                  run={"quorum": 3, "deadline": "5s"})  # fmt: skip
    one.start_all()
    client = one.clients[0]
    one.until(lambda: client.why_stopped == "budget")
    assert client._session.outbox.numbers.spent == 2
    assert client.forecast().source == "model"


def test_a_run_that_does_not_know_of_noise_refuses_it(world):
    one = private(world, settings={})
    one.start_all()
    one.until(lambda: "NORM_EXCEEDED" in one.daemon.metrics.refusals())
    assert one.version == 0


def test_more_than_noise_can_explain_is_refused(world):
    one = private(world, run={"quorum": 2})
    one.start_daemon()
    for number in range(3):
        one.start(number)
    one.until(lambda: one.clients[2].learner.role.run)
    mechanism = one.clients[2].learner.mechanism

    class Louder:
        def __getattr__(self, name):
            return getattr(mechanism, name)

        def release(self, update):
            said = mechanism.release(update)
            louder = np.append(1000.0 * said.vector[:-1], said.vector[-1])
            return replace(said, vector=louder.astype(np.float32))

    one.clients[2]._active.accountant.mechanism = Louder()
    one.until(lambda: "NORM_EXCEEDED" in one.daemon.metrics.refusals())
    assert "home-2" not in one.daemon.state.held


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"noise": 5.0}, "noise, clip_norm: expected both, or neither"),
        ({"clip_norm": 5.0}, "noise, clip_norm: expected both, or neither"),
        ({"noise": 5.0, "clip_norm": 3.0, "combine": "votes"}, "expected 'sum' with noise"),
    ],
)
def test_settings_that_do_not_fit_are_refused_with_a_sentence(world, capsys, settings, words):
    with pytest.raises(AssertionError):
        private(world, settings=settings)
    assert words in capsys.readouterr().err


def test_the_release_of_one_device_is_that_of_the_arithmetic(world):
    one = private(world)
    one.start_daemon()
    client = one.start(0)
    one.until(lambda: client.learner.role.method == "analytic")
    mechanism = client.learner.mechanism
    draws = random.Random(1)
    mechanism.entropy = draws.randbytes
    learner = client.learner
    learner._fix_scale()
    task = Task(
        "home-0", 1, "train", values={"weighted": 0.0}, arrays={"w": learner.bundle.initial}
    )
    _, (update,) = learner.half.apply(learner.first_state(), task)
    sent = mechanism.release(update)
    draws = random.Random(1)
    section = learner.manifest.analytic
    wanted = released(
        from_vector(update.vector, 3, section.width), mechanism.plan.noise,
        row=C, target=section.clip, normal=lambda n: noise.normal(n, draws.randbytes),
    )  # fmt: skip
    np.testing.assert_array_equal(sent.vector, to_vector(wanted))
    assert "loss" not in sent.values
    assert "n" not in sent.values
