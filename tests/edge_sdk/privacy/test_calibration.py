"""Noise for a guarantee and back: the specification's table, scipy, and dp-accounting."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.extensions.analytic.private_release import sensitivity
from edge_sdk.extensions.noise_points.classical_noise import classical_sigma, extra_sigma
from edge_sdk.extensions.noise_points.sign_noise import epsilon_of_sign, keep_probability
from edge_sdk.extensions.sums.discrete_noise import discrete_gaussian
from edge_sdk.extensions.sums.messages import SumContract
from edge_sdk.privacy import BudgetSection, MechanismSection, PrivacySection
from edge_sdk.privacy.ledger import advanced_composition
from edge_sdk.privacy.noise import (
    _delta,
    cdf,
    epsilon_of,
    log_cdf,
    sigma_for,
)
from edge_sdk.privacy.noise_calibration import DeviceFacts
from edge_sdk.privacy.validation import plan_of

DELTA = 1e-5
TABLE = [  # epsilon, classical, analytic, true epsilon and true delta of the classical one
    (0.1, 48.448053, 30.749566, 0.0607, 2.6e-9),
    (0.5, 9.689611, 7.031827, 0.3526, 1.6e-8),
    (1, 4.844805, 3.730632, 0.7510, 4.1e-8),
    (2, 2.422403, 1.993812, 1.6103, 1.3e-7),
    (5, 0.968961, 0.891868, 4.5401, 1.3e-6),
    (10, 0.484481, 0.499889, 10.3939, 2.3e-5),
    (30, 0.161494, 0.214720, 44.822, 2.9e-2),
    (50, 0.096896, 0.149761, 96.434, 0.586),
    (70, 0.069212, 0.119383, 165.12, 0.989),
]


def dp_accounting():
    """Google's accountant, with the sub-modules that it does not load itself."""
    for module in ("rdp", "pld", "pld.common", "pld.privacy_loss_mechanism"):
        pytest.importorskip(f"dp_accounting.{module}", reason="make oracles installs it")
    return pytest.importorskip("dp_accounting")


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"epsilon {row[0]}")
def test_noise_for_a_guarantee_agrees_with_the_table(row):
    epsilon, classical, analytic, true_epsilon, true_delta = row
    sigma = classical_sigma(epsilon, DELTA)
    assert sigma == pytest.approx(classical, abs=6e-7)
    assert sigma_for(epsilon, DELTA) == pytest.approx(analytic, abs=6e-7)
    assert epsilon_of(sigma, DELTA) == pytest.approx(true_epsilon, rel=1e-4)
    assert _delta(sigma, epsilon)[0] == pytest.approx(true_delta, rel=0.05)


@pytest.mark.parametrize(
    ("sigma", "epsilon"), [(0.05, 284.39), (0.1, 91.817), (0.2, 33.104), (0.5, 9.9973), (1, 4.3772)]
)
def test_guarantee_of_a_noise_agrees_with_the_table(sigma, epsilon):
    assert epsilon_of(sigma, DELTA) == pytest.approx(epsilon, rel=2e-5)


@pytest.mark.parametrize(("readings", "sigma"), [(1, 3.7306), (48, 25.85), (35_040, 698.3)])
def test_more_readings_at_one_epsilon_need_more_noise(readings, sigma):
    assert sigma_for(1.0, DELTA, math.sqrt(readings)) == pytest.approx(sigma, rel=5e-4)


@pytest.mark.parametrize(("epsilon", "passes"), [(1.0, 4), (8.0, 4), (3.0, 1)])
def test_dp_accounting_agrees_with_the_noise_of_a_runs_statistics(epsilon, passes):
    dp = dp_accounting()

    mechanism = MechanismSection("gaussian", "statistic", range=(0.0, 5.0), clip_norm=3.0)
    budget = BudgetSection(epsilon, DELTA, max_releases=passes)
    manifest = Bundle.open("load-analytic", trust=TrustedKeys()).manifest
    facts = DeviceFacts(manifest, keep=17_568, max_steps=64, shared=448)
    plan = plan_of(PrivacySection(mechanism, "honest", budget), facts)
    accountant = dp.pld.PLDAccountant()
    accountant.compose(dp.GaussianDpEvent(plan.noise / sensitivity(3)), passes)
    assert accountant.get_epsilon(DELTA) == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.parametrize(
    ("z", "times", "epsilon"),
    [(1, 1, 4.37718), (1, 10, 17.85659), (1, 100, 91.8173), (4, 100, 13.2067), (10, 1000, 17.8566)],
)
def test_many_gaussian_releases_compose_as_one_with_less_noise(z, times, epsilon):
    assert epsilon_of(z / math.sqrt(times), DELTA) == pytest.approx(epsilon, rel=1e-5)


@given(st.floats(1e-3, 300), st.floats(1e-12, 0.4))
def test_calibration_errs_to_the_safe_side_and_no_further(epsilon, delta):
    sigma = sigma_for(epsilon, delta)
    assert _delta(sigma, epsilon)[0] <= delta
    assert _delta(sigma * (1 - 1e-6), epsilon)[0] > delta
    assert epsilon_of(sigma, delta) == pytest.approx(epsilon, rel=1e-5)


def test_the_log_of_the_tail_agrees_with_scipy_far_out():
    stats = pytest.importorskip("scipy.stats")
    points = [-1e6, -400.0, -40.0, -35.0001, -34.9999, -20.0, -5.0, -0.3, 0.0, 0.7, 6.0, 9.0]
    ours = [log_cdf(x) for x in points]
    np.testing.assert_allclose(ours, stats.norm.logcdf(points), rtol=1e-13)
    assert cdf(1.3) == pytest.approx(stats.norm.cdf(1.3), rel=1e-15)


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 30.0, 300.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.1])
def test_the_noise_agrees_with_a_root_found_by_scipy(epsilon, delta):
    stats, optimize = pytest.importorskip("scipy.stats"), pytest.importorskip("scipy.optimize")

    def excess(sigma):
        half, shift = 0.5 / sigma, epsilon * sigma
        second = math.exp(epsilon + stats.norm.logcdf(-half - shift))
        return stats.norm.cdf(half - shift) - second - delta

    root = optimize.brentq(excess, 1e-3, 1e4, rtol=1e-13, xtol=1e-14)
    assert sigma_for(epsilon, delta) == pytest.approx(root, rel=1e-7)


@pytest.mark.slow
def test_calibration_and_composition_agree_with_dp_accounting():
    dp = dp_accounting()

    wanted = dp.pld.common.DifferentialPrivacyParameters(1.0, DELTA)
    noise = dp.pld.privacy_loss_mechanism.GaussianPrivacyLoss.from_privacy_guarantee(
        wanted, sensitivity=1.0
    )
    assert sigma_for(1.0, DELTA) == pytest.approx(noise.standard_deviation, rel=1e-6)
    for z, times in ((1, 10), (4, 100), (5, 100)):
        accountant = dp.pld.PLDAccountant()
        accountant.compose(dp.GaussianDpEvent(z), times)
        exact = epsilon_of(z / math.sqrt(times), DELTA)
        assert exact == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-4)


@pytest.mark.parametrize(
    ("z", "times", "epsilon"),
    [(1, 1, 4.72851), (1, 10, 19.0536), (1, 100, 96.1163), (4, 100, 14.1322), (5, 100, 10.7255)],
)
def test_exact_composition_is_never_above_the_renyi_bound(z, times, epsilon):
    dp = dp_accounting()

    accountant = dp.rdp.RdpAccountant()
    accountant.compose(dp.GaussianDpEvent(z), times)
    bound = accountant.get_epsilon(DELTA)
    assert bound == pytest.approx(epsilon, rel=1e-5)
    assert epsilon_of(z / math.sqrt(times), DELTA) < bound


def test_amplification_by_sampling_is_not_claimed():
    """Poisson sampling at 1 % would give 1.83; what takes part here is no secret: 139."""
    dp = dp_accounting()

    event = dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0))
    amplified = dp.pld.PLDAccountant()
    amplified.compose(event, 1000)
    assert amplified.get_epsilon(DELTA) == pytest.approx(1.82824, rel=1e-3)
    renyi = dp.rdp.RdpAccountant()
    renyi.compose(event, 1000)
    assert renyi.get_epsilon(DELTA) == pytest.approx(2.10137, rel=1e-4)
    assert epsilon_of(1.0 / math.sqrt(1000), DELTA) > 100 * amplified.get_epsilon(DELTA)


def test_pure_mechanisms_agree_with_their_formulas():
    assert advanced_composition(0.1, 100, 1e-5) == pytest.approx(5.85024, abs=1e-5)
    assert keep_probability(1.0) == pytest.approx(0.73105858, abs=1e-8)


def test_the_cost_of_one_sign_agrees_with_its_formula():
    assert epsilon_of_sign(0.1, 1.0) == pytest.approx(0.15965, abs=1e-5)
    assert epsilon_of_sign(1.0, 1.0) == pytest.approx(1.66827, abs=1e-5)
    for ratio in (0.1, 0.5, 3.0):  # the definition, to full precision
        exact = math.log(cdf(ratio) / cdf(-ratio))
        assert epsilon_of_sign(ratio, 1.0) == pytest.approx(exact, rel=1e-12)


def test_additional_noise_gives_the_wanted_total():
    assert extra_sigma(0.5, 0.3) == pytest.approx(0.4, rel=1e-12)
    with pytest.raises(ValueError, match="cannot become"):
        extra_sigma(0.3, 0.5)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: sigma_for(0.0, DELTA),
        lambda: sigma_for(1.0, 0.0),
        lambda: sigma_for(1.0, 1.0),
        lambda: epsilon_of(0.0, DELTA),
        lambda: epsilon_of(1.0, DELTA, sensitivity=0.0),
        lambda: sigma_for(-1.0, DELTA),
        lambda: sigma_for(math.nan, DELTA),
        lambda: sigma_for(math.inf, DELTA),
        lambda: sigma_for(1.0, -0.1),
    ],
)
def test_out_of_range_arguments_are_refused(wrong):
    with pytest.raises(ValueError, match=r"epsilon|delta|sigma|sensitivity"):
        wrong()


def test_a_sum_of_discrete_gaussians_has_the_loss_of_one_by_dp_accounting():
    """A tenth of 20 devices adds no noise, so the sum has at least the variance of the contract."""
    dp = dp_accounting()

    contract = SumContract("one", "scores", "error-ratio", "devices", 8, 0.0, 1.0, 0.01, 86_400_000,
                           90_000_000, 20, bytes(32), Norm=1.0, Noise=6.0)  # fmt: skip
    steps = contract.own_noise * math.sqrt(18)
    moved = contract.Noise / contract.multiplier / contract.resolution
    assert steps == pytest.approx(contract.Noise / contract.resolution)
    assert moved == pytest.approx(100 * (math.sqrt(2) + 0.01 * math.sqrt(8)))
    accountant = dp.pld.PLDAccountant()
    accountant.compose(dp.GaussianDpEvent(steps / moved), 30)
    exact = epsilon_of(contract.multiplier / math.sqrt(30), DELTA)
    assert exact == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-4)
    discrete = dp.pld.privacy_loss_distribution.from_discrete_gaussian_mechanism(
        steps, sensitivity=round(moved)
    )
    once = epsilon_of(contract.multiplier, DELTA)
    assert discrete.get_epsilon_for_delta(DELTA) == pytest.approx(once, rel=5e-3)


@pytest.mark.parametrize("sigma", [2.0, 4.0, 1e3, 2.0**36])
def test_discrete_gaussians_have_their_variance_and_no_mean(sigma):
    drawn = discrete_gaussian(200_000, sigma, np.random.default_rng(3).bytes)
    assert drawn.dtype == np.int64
    assert drawn.std() == pytest.approx(sigma, rel=0.01)
    assert abs(drawn.mean()) < 5 * sigma / math.sqrt(200_000)


def test_discrete_gaussians_have_the_shares_of_their_definition():
    drawn = discrete_gaussian(400_000, 1.5, np.random.default_rng(5).bytes)
    k = np.arange(-12, 13)
    wanted = np.exp(-(k**2) / 4.5)
    wanted /= wanted.sum()
    found = np.array([(drawn == one).mean() for one in k])
    assert abs(found - wanted).max() < 5 * math.sqrt(0.27 * 0.73 / 400_000)
    assert len(discrete_gaussian(0, 2.0)) == 0
