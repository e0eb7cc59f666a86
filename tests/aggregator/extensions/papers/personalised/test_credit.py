"""Credit attention: worked numbers, what always holds, and its limits."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from aggregator.extensions.papers.personalised.credit import Credit, credited, likeness, modules_of
from aggregator.rules import Rows
from edge_sdk.protocol.contract.parameter_layout import ParamSpec

MODELS = np.array([[1.0, 0.0], [1.0, 0.1], [0.9, 0.2], [-1.0, 0.0]])
EDGES = [(0, 1), (1, 2), (0, 3)]
NAMES = ("a", "b", "c", "d", "e", "f")


def adjacent(n, edges=()):
    out = np.zeros((n, n), np.bool_)
    for i, j in edges:
        out[i, j] = out[j, i] = True
    return out


def rows(models):
    return Rows.of(dict(zip(NAMES, models, strict=False)))


def mix(models=MODELS, edges=EDGES, sigma=0.8, modules=None, **how):
    models = np.asarray(models)
    n, d = models.shape
    near = edges if isinstance(edges, np.ndarray) else adjacent(n, edges)
    parts = modules or (np.arange(d),)
    return credited(rows(models), np.broadcast_to(sigma, n), near, parts, Credit(**how))


def values(mixed):
    return np.stack([mixed.values[name] for name in sorted(mixed.values)])


def alike(models=MODELS, sigma=0.8, **how):
    one = rows(models)
    return likeness(one.distances(), one.norms(), np.full(len(one), sigma), Credit(**how))


class TestNumbers:
    """As calculated by hand in the specification."""

    def test_likeness(self):
        wanted = [
            [1, 0.8, 0.32768, 0],
            [0.8, 1, 0.64, 0],
            [0.5724334, 0.8, 1, 0],
            [0.78306398, 0.7825854, 0.8, 1],
        ]
        np.testing.assert_allclose(alike(), wanted, atol=1e-8)

    def test_likeness_alone(self):
        wanted = [
            [0.46999549, 0.37599639, 0.15400812, 0],
            [0.32786885, 0.40983607, 0.26229508, 0],
            [0.24128534, 0.33720652, 0.42150814, 0],
        ]
        np.testing.assert_allclose(mix(alpha=1.0).weights[:3], wanted, atol=1e-8)

    def test_likeness_and_neighbourhood(self):
        wanted = [
            [0.47428185, 0.39371119, 0.13200696, 0],
            [0.32896175, 0.39453552, 0.27650273, 0],
            [0.19302827, 0.36976521, 0.43720652, 0],
            [0.28613085, 0.18601709, 0.19015647, 0.33769559],
        ]
        mixed = mix()
        np.testing.assert_allclose(mixed.weights, wanted, atol=1e-8)
        models = [
            [0.9867993, 0.06577251],
            [0.97234973, 0.0947541],
            [0.95627935, 0.12441782],
            [0.30559318, 0.056633],
        ]
        np.testing.assert_allclose(values(mixed), models, atol=1e-8)

    @pytest.mark.parametrize(
        ("sigma", "wanted"),
        [
            (0.6, [0.59603281, 0.35761968, 0.04634751, 0]),
            (0.9, [0.40152741, 0.36137467, 0.23709792, 0]),
            (0.95, [0.36713672, 0.34877988, 0.2840834, 0]),
            (1e-9, [1, 0, 0, 0]),
        ],
    )
    def test_other_credits(self, sigma, wanted):
        np.testing.assert_allclose(mix(sigma=sigma, alpha=1.0).weights[0], wanted, atol=1e-8)

    def test_as_printed_the_nearest_has_not_its_credit(self):
        printed = alike(scale="printed")
        assert printed[0, 1] == pytest.approx(0.97793277, abs=1e-8)
        assert printed[0, 3] == pytest.approx(1.3e-4, abs=5e-6)

    def test_as_printed_rows_do_not_sum_to_one(self):
        mixed = mix(adjacency="printed", drop="likeness", sums="printed")
        np.testing.assert_allclose(mixed.weights.sum(axis=1), [1.2, 1.2, 1.0, 1.0])
        assert mixed.weights[0, 3] == pytest.approx(0.2)  # the liar next door is back

    def test_a_near_copy_isolates_its_victim(self):
        models = [*MODELS[:3], [1.001, 0.0]]
        mixed = mix(models, edges=(), alpha=1.0)
        wanted = [0.55555556, 0, 0, 0.44444444]
        np.testing.assert_allclose(mixed.weights[0], wanted, atol=1e-8)
        np.testing.assert_allclose(mixed.values["a"], [1.00044444, 0], atol=1e-8)

    def test_less_so_with_the_floor_against_sybils(self):
        models = [*MODELS[:3], [1.001, 0.0]]
        first = alike(models, anti_sybil=True)[0]
        np.testing.assert_allclose(first, [1, 0.4096, 0.01152922, 0.99991075], atol=1e-8)
        mixed = mix(models, edges=(), alpha=1.0, anti_sybil=True)
        wanted = [0.41304564, 0.16918349, 0.00476209, 0.41300877]
        np.testing.assert_allclose(mixed.weights[0], wanted, atol=1e-8)
        np.testing.assert_allclose(mixed.values["a"], [0.9999368, 0.01787077], atol=1e-8)


class TestAlways:
    """Invariants of the specification."""

    models = arrays(
        np.float64, st.tuples(st.integers(2, 6), st.integers(1, 4)), elements=st.floats(-10, 10)
    )

    @given(models, st.integers(0, 2**15 - 1), st.floats(0.05, 0.98), st.floats(0, 1))
    def test_rows_sum_to_one_and_who_is_dropped_has_no_weight(self, models, bits, sigma, alpha):
        pairs = itertools.combinations(range(len(models)), 2)
        edges = [pair for k, pair in enumerate(pairs) if bits >> k & 1]
        mixed = mix(models, edges, sigma, alpha=alpha)
        np.testing.assert_allclose(mixed.weights.sum(axis=1), 1.0, rtol=1e-12)
        assert (mixed.weights[~mixed.let_in] == 0.0).all()
        assert mixed.let_in.diagonal().all()

    @given(models, st.sampled_from([-3.0, -1.0, 0.25, 1000.0]))
    def test_scaling_all_models_changes_no_weight(self, models, factor):
        squares = rows(models).distances()
        assume((squares[~np.eye(len(models), dtype=bool)] > 1e-6).all())
        near = alike(models)
        assume((np.abs(near - 0.01) > 1e-9).all())  # else rounding decides who is let in
        here, there = mix(models, ()), mix(factor * models, ())
        np.testing.assert_allclose(here.weights, there.weights, rtol=1e-6, atol=1e-12)

    @given(st.permutations(range(4)))
    def test_the_order_in_which_answers_came_changes_not_one_bit(self, order):
        given_ = {NAMES[i]: MODELS[i] for i in order}
        part = (np.arange(2),)
        again = credited(Rows.of(given_), np.full(4, 0.8), adjacent(4, EDGES), part, Credit())
        np.testing.assert_array_equal(values(again), values(mix()))

    @given(st.permutations(range(4)))
    def test_renaming_clients_renames_the_mixtures(self, order):
        order = list(order)
        near = adjacent(4, EDGES)[np.ix_(order, order)]
        other, one = mix(MODELS[order], near), mix()
        np.testing.assert_allclose(values(other), values(one)[order], rtol=1e-12)
        np.testing.assert_allclose(
            other.weights, one.weights[np.ix_(order, order)], rtol=1e-12, atol=1e-15
        )

    def test_without_credit_everybody_keeps_its_own(self):
        np.testing.assert_array_equal(values(mix(sigma=1e-9)), MODELS)

    def test_without_likeness_the_neighbours_let_in_are_averaged(self):
        mixed = mix(alpha=0.0)
        wanted = [[0.5, 0.5, 0, 0], [1 / 3, 1 / 3, 1 / 3, 0], [0, 0.5, 0.5, 0], [0.5, 0, 0, 0.5]]
        np.testing.assert_allclose(mixed.weights, wanted, rtol=1e-12)

    @pytest.mark.parametrize("scale", ["squared", "printed"])
    def test_equal_models_are_mixed_evenly_and_stay_as_they_are(self, scale):
        mixed = mix(np.tile([0.3, -0.7], (5, 1)), (), alpha=1.0, scale=scale)
        np.testing.assert_allclose(mixed.weights, 0.2)
        np.testing.assert_allclose(values(mixed), np.tile([0.3, -0.7], (5, 1)))

    def test_models_of_nothing_are_equal_too(self):
        np.testing.assert_array_equal(values(mix(np.zeros((3, 2)), ())), np.zeros((3, 2)))

    def test_one_client_is_its_own_mixture(self):
        np.testing.assert_array_equal(values(mix([[2.0, 3.0]], ())), [[2.0, 3.0]])

    @pytest.mark.parametrize("sigma", [0.6, 0.8, 0.9, 0.95])
    def test_the_reach_of_a_credit_is_what_the_least_likeness_says(self, sigma):
        """A_min = 0.01 lets in squared distances up to 9.0, 20.6, 43.7, 89.8 times the nearest."""
        reach = np.log(0.01) / np.log(sigma)
        for ratio, let_in in ((0.999 * reach, True), (1.001 * reach, False)):
            models = [[0.0], [1.0], [-np.sqrt(ratio)]]
            assert mix(models, (), sigma, alpha=1.0).let_in[0, 2] == let_in


def test_modules_are_judged_one_by_one():
    """A poisoned decoder hides behind a large encoder, unless it is compared by itself."""
    spec = ParamSpec.of([("encoder.w", (2,)), ("decoder.w", (1,))])
    models = np.array([[100.0, 0, 1], [101.0, 0, 1.1], [100.0, 1, 0.9], [101.0, 1, -1.0]])
    whole = mix(models, (), alpha=1.0)
    assert (whole.weights[:3, 3] > 0.05).all()
    apart = mix(models, (), alpha=1.0, modules=modules_of(spec))
    assert not apart.let_in[:3, 3].any()
    decoder = mix(models[:, 2:], (), alpha=1.0)
    np.testing.assert_allclose(values(apart)[:, 2:], values(decoder), rtol=1e-12)
    encoder = mix(models[:, :2], (), alpha=1.0)
    np.testing.assert_allclose(values(apart)[:, :2], values(encoder), rtol=1e-12)
    np.testing.assert_allclose(apart.weights, (decoder.weights + encoder.weights) / 2, rtol=1e-12)


@pytest.mark.parametrize("huge", [1e6, 3e38])
def test_one_huge_row_does_not_take_the_digits_of_the_others(huge):
    models = 1.0 + 1e-6 * np.arange(12.0).reshape(4, 3) ** 2
    models[3] = huge
    calm = mix(models[:3], (), alpha=1.0)
    loud = mix(models, (), alpha=1.0)
    np.testing.assert_allclose(loud.weights[:3, :3], calm.weights, rtol=1e-6)
    assert (loud.weights[:3, 3] == 0.0).all()


def test_every_client_may_have_a_credit_of_its_own():
    sigma = np.array([0.6, 0.8, 0.8, 0.8])
    mixed = mix(sigma=sigma, edges=(), alpha=1.0)
    np.testing.assert_array_equal(mixed.weights[1:], mix(edges=(), alpha=1.0).weights[1:])
    np.testing.assert_array_equal(mixed.weights[0], mix(edges=(), alpha=1.0, sigma=0.6).weights[0])


def test_options_are_each_their_own():
    base = mix().weights
    for change in ({"scale": "printed"}, {"adjacency": "printed"}, {"drop": "likeness"}):
        assert not np.allclose(mix(**change).weights, base), change
    assert replace(Credit(), sums="printed") != Credit()
