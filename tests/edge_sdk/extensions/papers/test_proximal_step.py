"""One step under a pull, and the radius of the regulariser."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.extensions.papers.consensus_dual import next_dual
from edge_sdk.extensions.papers.proximal_step import (
    PROX,
    SIGN,
    consensus_pull,
    dual_ascent,
    l1_penalty,
    soft_threshold,
)
from edge_sdk.extensions.papers.wasserstein_radius import (
    WassersteinGuard,
    noise_constant,
    sampled_radius,
)
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.shared_math.optim import adam, chain, optimiser_step, sgd

TWO = ParamSpec.of([("body", (2,)), ("head", (1,))], ["body"])


def pull(optimiser, z=(0.0, 0.0), dual=(0.0, 0.0), reach=0.0, mode=PROX, **more):
    smooth = consensus_pull(TWO, np.array(z), np.array(dual), **more)
    return chain(smooth, optimiser), l1_penalty(TWO, np.array(z), reach, mode)


def stepped(one, p, g=(0.0, 0.0, 0.0)):
    p, (optimiser, after) = np.array(p), one
    return optimiser_step(optimiser, p, np.array(g), optimiser.init(p), after)[0]


@pytest.mark.parametrize("mode", [PROX, SIGN])
def test_a_personal_layer_is_pulled_by_nothing(mode):
    one = pull(sgd(0.1), dual=(0.3, -0.3), reach=0.2, mode=mode, prox=2.0)
    assert stepped(one, (1.0, 1.0, 5.0))[2] == 5.0


def test_adam_does_not_rescale_the_l1_term():
    """Without gradient and dual it takes no step at all; the l1 term moves by its reach."""
    one = pull(adam(0.1), reach=1e-3, mode=SIGN)
    assert stepped(one, (1.0, -1.0, 0.0)) == pytest.approx([0.999, -0.999, 0.0])


def test_the_quadratic_pull_and_the_weight_of_the_loss():
    one = pull(sgd(0.1), z=(1.0, 0.0), dual=(0.5, 0.0), prox=2.0, weight=3.0)
    # d = 3 (1, 0) + 2 (w - z) - dual = (3 - 2 - 0.5, 0)
    assert stepped(one, (0.0, 0.0, 0.0), (1.0, 0.0, 0.0)) == pytest.approx([-0.05, 0.0, 0.0])


@given(st.floats(-5, 5), st.floats(0, 3))
def test_a_proximal_step_never_passes_the_consensus(x, reach):
    (found,) = soft_threshold(np.array([x]), reach)
    assert abs(found) <= abs(x)
    assert found * x >= 0.0
    assert abs(found) == pytest.approx(max(abs(x) - reach, 0.0), abs=1e-12)


def test_single_precision_stays_single():
    z, p = np.zeros(2, np.float32), np.ones(3, np.float32)
    smooth = chain(consensus_pull(TWO, z, z, prox=0.5), sgd(0.1)).update(p, sgd(0.1).init(p), p)[0]
    assert smooth.dtype == np.float32
    assert l1_penalty(TWO, z, 0.1).update(p, {}, p)[0].dtype == np.float32


def test_a_task_that_names_no_bound_has_none():
    free = dual_ascent({"cons_rate": 0.1})
    assert next_dual(np.zeros(1), np.full(1, 1e6), np.zeros(1), 0, free) == [1e5]


def test_numbers_of_a_task_never_raise():
    """A server may say anything within the contract's ranges."""
    assert dual_ascent({"cons_rate": 1e3, "kappa_min": 1e9}).least == pytest.approx(1e-3, rel=1e-2)


class TestGuard:
    """The radius, and the budget that climbs to its cap."""

    def test_the_radius_of_the_worked_example(self):
        guard = WassersteinGuard.of({"radius": 0.2, "noise": 1.0, "radius_scale": 1.0}, 10, 1)
        assert [guard.rho(eps) for eps in (1.0, 2.0)] == pytest.approx([1.2, 0.7])

    def test_missing_numbers_are_computed_from_the_devices_own(self):
        level = math.log(2 / 0.05)
        said = {"radius_level": level, "noise": 4.84480526, "noise_by_width": 1.0}
        guard = WassersteinGuard.of(said, 1000, 7)
        assert guard.eta == pytest.approx(sampled_radius(1000, 7, level))
        assert guard.noise == pytest.approx(noise_constant(7, 4.84480526))

    def test_both_parts_of_the_radius_are_scaled_and_so_is_the_step_of_the_budget(self):
        whole = WassersteinGuard(0.2, 1.0, 1.0, rate=0.5, dual=0.0, lowest=0.01, cap=10.0)
        small = WassersteinGuard(0.2, 1.0, 0.1, rate=0.5, dual=0.0, lowest=0.01, cap=10.0)
        assert small.rho(2.0) == pytest.approx(0.1 * whole.rho(2.0))
        assert small.next_eps(1.0, 1.0) - 1.0 == pytest.approx(
            0.1 * (whole.next_eps(1.0, 1.0) - 1.0)
        )

    @given(st.floats(1e-9, 1e6), st.floats(0.0, 1e30), st.floats(0.0, 1e9))
    def test_a_budget_stays_in_its_range(self, eps, slope, dual):
        guard = WassersteinGuard(0.0, 1.0, 1.0, rate=10.0, dual=dual, lowest=0.01, cap=10.0)
        assert 0.01 <= guard.next_eps(guard.clipped(eps), slope) <= 10.0

    def test_one_sample_has_the_widest_ball(self):
        radii = [sampled_radius(n, 7, math.log(40)) for n in (1, 3, 4, 100, 10**6)]
        assert radii == sorted(radii, reverse=True)
