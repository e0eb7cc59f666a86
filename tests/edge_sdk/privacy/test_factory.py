"""What each mechanism does to what passes it; an attacker learns no more than it claims."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from edge_sdk.app.settings import from_table
from edge_sdk.extensions.noise_points.input_noise import InputNoise
from edge_sdk.forecasting.series import Reading, Series
from edge_sdk.privacy import PrivacySection
from edge_sdk.privacy.mechanism import mechanism_of
from edge_sdk.privacy.noise_calibration import DeviceFacts, NoisePlan
from edge_sdk.privacy.validation import plan_of
from edge_sdk.protocol.contract.manifest import (
    Feature,
    Golden,
    GraphFile,
    Loss,
    Manifest,
    Target,
    Training,
    Window,
)
from edge_sdk.protocol.contract.method import Update

STREAM = "elec.import.energy"
HOUR = 3600
TRIALS = 10_000
DELTA = 1e-5


class Shelf:
    """A store's two tables, in memory."""

    def __init__(self, since=0):
        self.rows, self.charges, self.since = {}, [], since

    def noised(self):
        return dict(self.rows)

    def add_noised(self, rows, charge):
        for row in rows:
            self.rows.setdefault((row.stream, row.slot), row.value)
        self.charges.append(charge)

    def noised_since(self):
        return self.since


@pytest.fixture
def entropy():
    return np.random.default_rng(20261121).bytes


@pytest.fixture
def make(entropy, manifest):
    def made(mechanism, *, epsilon=1e300, mode="honest", shelf=None, real=False, **budget):
        table = {"mechanism": mechanism, "mode": mode, "budget": {"epsilon": epsilon, **budget}}
        if mode == "none":
            del table["budget"]
        facts = DeviceFacts(manifest, keep=8760, max_steps=4, shared=3)
        plan = plan_of(from_table(PrivacySection, table, "privacy"), facts)
        source = {} if real else {"entropy": entropy}
        names = frozenset({"n", "loss"})
        return mechanism_of(plan, shelf or Shelf(), lambda: 7, measured=names, **source)

    return made


def answer(*vector, **values):
    return Update("meter-1", 3, 2, np.array(vector, np.float32), values)


def series(values, first=100):
    made = Series(HOUR, [STREAM, "weather.temperature"])
    for hour, value in enumerate(values, first):
        made.add(Reading(STREAM, hour * HOUR, value))
        made.add(Reading("weather.temperature", hour * HOUR, 20.0))
    return made


# --- the update -----------------------------------------------------------------------------------


UPDATE = {"name": "gaussian", "point": "update", "clip_norm": 1.0, "noise_multiplier": 2.0}


def test_no_mechanism_leaves_the_update_unchanged(make):
    update = answer(3.0, 4.0, loss=0.5, n=8.0)
    mechanism = make({"name": "none"}, mode="none")
    assert mechanism.release(update) is update
    (charge,) = mechanism.cost(1, 1)
    assert (charge.mechanism, charge.multiplier, charge.releases) == ("none", 0.0, 1)


def test_an_update_is_clipped_before_noise_and_never_after(make):
    quiet = make(UPDATE | {"noise_multiplier": 1e-9})
    assert quiet.release(answer(3.0, 4.0, 0.0)).vector == pytest.approx([0.6, 0.8, 0.0], abs=1e-6)
    assert quiet.release(answer(0.3, 0.4, 0.0)).vector == pytest.approx([0.3, 0.4, 0.0], abs=1e-6)
    loud = make(UPDATE | {"noise_multiplier": 100.0})
    assert np.linalg.norm(loud.release(answer(3.0, 4.0, 0.0)).vector) > 10.0


def test_measured_numbers_are_withheld(make):
    update = answer(1.0, loss=0.5, n=8.0, steps=4.0)
    assert make(UPDATE).release(update).values == {"steps": 4.0}
    told = make(INPUT, epsilon=1.0)
    assert told.release(update).values == update.values


def test_a_non_finite_update_is_replaced_and_protected(make):
    for bad in (math.nan, math.inf):
        assert np.isfinite(make(UPDATE).release(answer(bad, 1.0)).vector).all()


def test_update_noise_has_the_charged_size(make):
    mechanism = make(UPDATE)
    drawn = mechanism.release(Update("m", 0, 0, np.zeros(200_000, np.float32))).vector
    assert drawn.std() == pytest.approx(2.0, rel=0.01)
    (charge,) = mechanism.cost(1, 1)
    assert (charge.multiplier, charge.unit, charge.count) == (1.0, "device", 1)


def test_laplace_clips_the_l1_norm(make):
    quiet = make(UPDATE | {"name": "laplace", "noise_multiplier": 1e-9})
    assert quiet.release(answer(3.0, -1.0)).vector == pytest.approx([0.75, -0.25], abs=1e-6)
    loud = make(UPDATE | {"name": "laplace"})
    drawn = loud.release(Update("m", 0, 0, np.zeros(200_000, np.float32))).vector
    assert np.abs(drawn).mean() == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize(
    ("given", "is_on_grid"), [({}, True), ({"grid": True}, True), ({"grid": False}, False)]
)
def test_every_value_is_on_the_grid_unless_the_device_turns_it_off(make, given, is_on_grid):
    drawn = make(UPDATE | given).release(answer(0.3, 0.4, 0.5)).vector
    assert np.array_equal(drawn * 2.0**20, np.rint(drawn * 2.0**20)) == is_on_grid


def test_two_releases_are_never_the_same(make):
    mechanism = make(UPDATE, real=True)
    first, second = (mechanism.release(answer(0.0, 0.0)).vector for _ in range(2))
    assert (first != second).all()


def test_paper_mode_makes_no_claim(make):
    paper = {"name": "gaussian", "point": "update", "clip_norm": 1.0, "epsilon": 10.0}
    paper |= {"calibration": "nbafl", "formula": {"samples": 1000}}
    assert "no formal DP claim" in make(paper, mode="paper", epsilon=None).plan.guarantee
    assert (
        "no formal DP claim"
        in make({"name": "gaussian", "point": "input"}, mode="paper").plan.guarantee
    )


# --- signs ----------------------------------------------------------------------------------------


def test_a_flipped_sign_is_kept_with_the_stated_probability(make):
    mechanism = make({"name": "sign_flip", "point": "sign", "epsilon": 1.0})
    signs = mechanism.release(Update("m", 0, 0, np.full(200_000, -0.3, np.float32))).vector
    assert set(np.unique(signs)) == {-1.0, 1.0}
    assert np.mean(signs == -1.0) == pytest.approx(0.73105858, abs=4e-3)
    assert (signs.mean() * 2.16395341) == pytest.approx(-1.0, abs=0.02)


@pytest.mark.parametrize("reach", ["coordinate_bound", "clip_norm"])
def test_without_noise_a_sign_is_exact_and_that_of_zero_random(make, reach):
    mechanism = make(
        {"name": "sign_gaussian", "point": "sign", reach: 1.0, "noise_multiplier": 1e-12}
    )
    signs = mechanism.release(answer(0.5, -0.1, 9.0)).vector
    np.testing.assert_array_equal(signs, [1.0, -1.0, 1.0])
    coins = make({"name": "sign_flip", "point": "sign", "epsilon": 30.0}).release(
        Update("m", 0, 0, np.zeros(10_000, np.float32))
    )
    assert abs(coins.vector.mean()) < 0.05


def test_a_sign_with_much_noise_is_random(make):
    mechanism = make(
        {"name": "sign_gaussian", "point": "sign", "coordinate_bound": 1.0, "noise_multiplier": 1e6}
    )
    signs = mechanism.release(Update("m", 0, 0, np.full(100_000, 1.0, np.float32))).vector
    assert abs(signs.mean()) < 0.02


# --- the gradient ---------------------------------------------------------------------------------


GRADIENT = {"name": "gaussian", "point": "gradient", "clip_norm": 2.0, "noise_multiplier": 1e-9}
GRADIENT["range"] = [0.0, 5.0]


def graphs(seen):
    def clipped(p, x, y, bound):
        seen.append(bound)
        each = x[:, :, 0]
        sizes = np.maximum(np.linalg.norm(each, axis=1, keepdims=True), 1e-12)
        return np.float32(0.5), (each * np.minimum(1.0, bound / sizes)).sum(0)

    return {"gradient": None, "clipped_gradient": clipped, "forecast": "same"}


def test_the_noisy_gradient_is_a_mean_of_clipped_ones_and_every_step_is_charged(make):
    seen = []
    mechanism = make(GRADIENT)
    lent = mechanism.graphs(graphs(seen))
    mechanism.begin()
    x = np.array([[[30.0], [40.0]], [[0.3], [0.4]]], np.float32)
    for _ in range(3):
        loss, g = lent["gradient"](p=np.zeros(2), x=x, y=np.zeros((2, 1)))
    assert g == pytest.approx([(1.2 + 0.3) / 2, (1.6 + 0.4) / 2], rel=2e-3)
    assert (loss, g.dtype, set(lent)) == (0.5, np.float32, set(graphs([])))
    assert lent["forecast"] == "same"
    assert all(0.998 * 2.0 < bound < 2.0 for bound in seen)
    (charge,) = mechanism.cost(1, 1)
    assert (charge.count, charge.releases, charge.unit) == (3, 1, "window")


def test_unsent_kept_steps_are_charged_and_abandoned_ones_are_not(make):
    mechanism = make(GRADIENT)
    lent = mechanism.graphs(graphs([]))
    x = np.ones((2, 2, 1), np.float32)
    lent["gradient"](p=0, x=x, y=0)
    mechanism.begin()
    assert mechanism.cost(1, 0) == ()
    lent["gradient"](p=0, x=x, y=0)
    (charge,) = mechanism.cost(1, 0)
    assert (charge.count, charge.releases) == (1, 0)


def test_gradient_noise_is_new_every_step_and_has_the_charged_size(make):
    mechanism = make(GRADIENT | {"noise_multiplier": 3.0})
    lent = mechanism.graphs(graphs([]))
    x = np.zeros((8, 100_000, 1), np.float32)
    first, second = (lent["gradient"](p=0, x=x, y=0)[1] for _ in range(2))
    assert first.std() == pytest.approx(3.0 * 2.0 / 8, rel=0.01)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02
    assert mechanism.scale == (0.0, 5.0)


# --- the input ------------------------------------------------------------------------------------


INPUT = {"name": "gaussian", "point": "input", "range": [0.0, 5.0]}
INPUT["public_streams"] = ["weather.temperature"]


def test_readings_are_perturbed_once_and_public_streams_are_not(make):
    shelf = Shelf()
    mechanism = make(INPUT, epsilon=30.0, shelf=shelf, real=True)
    clean = series([1.0, math.nan, 3.0])
    seen = mechanism.learnable(clean)
    values = seen.values(STREAM)
    assert (np.isnan(values) == [False, True, False]).all()
    assert (values[[0, 2]] != [1.0, 3.0]).all()
    assert (seen.values("weather.temperature") == 20.0).all()
    assert [charge.count for charge in shelf.charges] == [2]
    np.testing.assert_array_equal(mechanism.learnable(clean).values(STREAM), values)
    assert len(shelf.charges) == 1


def test_a_restart_and_a_correction_keep_the_first_noisy_value(make):
    shelf = Shelf()
    first = make(INPUT, epsilon=30.0, shelf=shelf).learnable(series([1.0, 2.0])).values(STREAM)
    corrected = series([1.0, 4.0, 3.0])
    again = make(INPUT, epsilon=30.0, shelf=shelf, real=True).learnable(corrected).values(STREAM)
    np.testing.assert_array_equal(again[:2], first)
    assert len(again) == 3


def test_readings_older_than_a_lost_store_get_no_new_noise(make):
    shelf = Shelf(since=102 * HOUR - 1)
    seen = make(INPUT, epsilon=30.0, shelf=shelf).learnable(series([1.0, 2.0, 3.0, 4.0]))
    assert sorted(slot for _, slot in shelf.rows) == [102, 103]
    assert np.isnan(seen.values(STREAM)[:2]).all()


def test_input_noise_has_the_size_of_the_table_and_readings_stay_in_range(make):
    mechanism = make(INPUT, epsilon=1.0)
    drawn = mechanism.learnable(series(np.full(20_000, 1e9))).values(STREAM)[-8000:]
    assert drawn.mean() == pytest.approx(5.0, abs=1.0)
    assert drawn.std() == pytest.approx(3.730632 * 5.0, rel=0.03)


def test_a_rising_epsilon_costs_its_final_value(make):
    """All looser versions are computed from the final one, which alone is a release."""
    shelf = Shelf()
    clean = series(np.full(4000, 2.5))
    seen = {}
    for epsilon in (1.0, 3.0, None, 1.0):
        now = INPUT if epsilon is None else INPUT | {"epsilon": epsilon}
        mechanism = make(now, epsilon=10.0, shelf=shelf, real=True)
        values = mechanism.learnable(clean).values(STREAM)
        if epsilon in seen:
            np.testing.assert_array_equal(values, seen[epsilon])
        seen[epsilon] = values
    sizes = {epsilon: (values - 2.5).std() / 5.0 for epsilon, values in seen.items()}
    assert sizes[1.0] == pytest.approx(3.730632, rel=0.06)
    assert sizes[None] == pytest.approx(0.499889, rel=0.06)
    assert [charge.count for charge in shelf.charges if not charge.is_free] == [4000]
    assert abs(np.corrcoef(seen[1.0] - seen[None], seen[None] - 2.5)[0, 1]) < 0.06


def test_updates_from_noisy_readings_are_free(make):
    mechanism = make(INPUT, epsilon=1.0)
    (charge,) = mechanism.cost(1, 1)
    assert charge.is_free
    assert charge.releases == 1


def test_paper_input_noise_is_new_for_every_window(make):
    mechanism = make({"name": "gaussian", "point": "input"}, mode="paper", epsilon=10.0)
    seen = []
    lent = mechanism.graphs({"gradient": lambda x, y: (seen.append(x), y), "forecast": 3})
    x = np.zeros((50, 40, 1), np.float32)
    for _ in range(2):
        assert lent["gradient"](x=x, y="clean")[1] == "clean"
    assert seen[0].std() == pytest.approx(0.484481, rel=0.05)
    assert (seen[0] != seen[1]).all()
    assert lent["forecast"] == 3


# --- what an attacker learns ----------------------------------------------------------------------


def told_apart(first, second, delta):
    """The largest ε that 10 000 looks at each of two inputs prove, with 99.9 % confidence.

    The attacker says "first" above a threshold; exact binomial bounds of both rates, for the best
    of 21 thresholds (so each is held to a 21st of the doubt).
    """
    beta = pytest.importorskip("scipy.stats").beta
    doubt, best = 1e-3 / 42, 0.0
    for at in np.quantile(np.concatenate([first, second]), np.linspace(0.01, 0.99, 21)):
        hits, false = int((first > at).sum()), int((second > at).sum())
        least = beta.ppf(doubt, hits, len(first) - hits + 1) if hits else 0.0
        most = beta.ppf(1 - doubt, false + 1, len(second) - false) if false < len(second) else 1.0
        if least > delta:
            best = max(best, math.log((least - delta) / most))
    return best


def looks(release, direction):
    """What an attacker sees of two opposite inputs, along the line on which they differ."""
    return [np.array([release(sign) @ direction for _ in range(TRIALS)]) for sign in (1.0, -1.0)]


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_an_attack_on_an_update_stays_below_the_claimed_epsilon(make, name, epsilon):
    mechanism = make(
        {"name": name, "point": "update", "clip_norm": 1.0, "epsilon": epsilon}, epsilon=epsilon
    )
    worst = np.array([5.0, 0.0, 0.0])  # opposite answers, as far apart as clipping leaves them
    found = told_apart(
        *looks(lambda sign: mechanism.release(answer(*(sign * worst))).vector, worst), DELTA
    )
    assert found <= epsilon
    assert found > 0.0  # the attack is one; the next test shows how sharp


def test_the_attack_catches_noise_that_is_too_small(make):
    mechanism = make({"name": "gaussian", "point": "update", "clip_norm": 1.0, "epsilon": 3.0})
    weak = dataclasses.replace(mechanism, plan=halved(mechanism.plan))
    found = told_apart(
        *looks(lambda sign: weak.release(answer(sign * 5.0, 0.0)).vector, np.array([1.0, 0.0])),
        DELTA,
    )
    assert found > 3.0


def halved(plan: NoisePlan) -> NoisePlan:
    return dataclasses.replace(plan, noise=plan.noise / 4)


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_an_attack_on_a_noisy_reading_stays_below_the_claimed_epsilon(make, name):
    seen = []
    for value in (5.0, 0.0):
        mechanism = make(INPUT | {"name": name}, epsilon=1.0, shelf=Shelf())
        seen.append(mechanism.learnable(series(np.full(TRIALS, value))).values(STREAM))
    found = told_apart(*seen, DELTA)
    assert 0.15 < found <= 1.0


def test_an_attack_on_a_step_stays_below_the_claimed_epsilon(make):
    gradient = GRADIENT | {"clip_norm": 1.0, "epsilon": 1.0}
    del gradient["noise_multiplier"]
    mechanism = make(gradient, epsilon=3.0)
    run = mechanism.graphs(graphs([]))["gradient"]
    rest = np.zeros((4, 2, 1), np.float32)

    def step(sign):
        x = rest.copy()
        x[0, 0, 0] = sign * 9.0
        return run(p=0, x=x, y=0)[1]

    found = told_apart(*looks(step, np.array([1.0, 0.0])), DELTA)
    assert 0.15 < found <= 1.0


def test_an_attack_on_signs_stays_below_the_claimed_epsilon(make):
    mechanism = make({"name": "sign_flip", "point": "sign", "epsilon": 0.5}, epsilon=1.5)
    ones = np.ones(3)
    found = told_apart(
        *looks(lambda sign: mechanism.release(answer(*(sign * ones))).vector, ones), 0.0
    )
    assert 0.5 < found <= 1.5


def test_repeated_noise_averages_out_and_stored_noise_does_not(make):
    """A thousand new draws of epsilon 30 give a reading away; one draw, asked again, does not."""
    clean = series([2.5])
    redrawn = [
        make(INPUT, epsilon=30.0, shelf=Shelf()).learnable(clean).values(STREAM)[0]
        for _ in range(1000)
    ]
    kept = make(INPUT, epsilon=30.0, shelf=Shelf())
    assert isinstance(kept, InputNoise)
    again = [kept.learnable(clean).values(STREAM)[0] for _ in range(1000)]
    assert abs(np.mean(redrawn) - 2.5) < 0.15
    assert len(set(again)) == 1


@pytest.fixture
def manifest():
    signatures = {
        "gradient": (("p", "x", "y"), ("loss", "g")),
        "forecast": (("p", "x"), ("yhat",)),
        "clipped_gradient": (("p", "x", "y", "bound"), ("loss", "g")),
    }
    weather = Feature("t", "stream", "°C", stream="weather.temperature", low=-20.0, high=40.0)
    return Manifest(
        name="linear",
        version=1,
        min_sdk="0.1.0",
        layers=(("body", (3,)),),
        shared=("",),
        window=Window(4, 1, HOUR),
        features=(Feature("load", "target", "kWh"), weather),
        target=Target(STREAM, "kWh", "level", "device"),
        loss=Loss("mse"),
        training=Training(optimiser="sgd", rate=0.1, batch=8, steps=3, minibatch="fresh"),
        graphs={name: GraphFile(f"{name}.onnx", *of) for name, of in signatures.items()},
        golden=Golden(((0.0, 0.0),) * 4, (0.0,)),
    )
