"""The numbers of the specification, calculated there by hand and by a second implementation."""

import numpy as np
import pytest

from aggregator.extensions.rules.geometric_median import water_level
from aggregator.rules import RULES, Rows, bind
from aggregator.rules.krum import bulyan_selection, krum_scores
from aggregator.rules.parameters import uniform
from aggregator.rules.preaggregation import grouped
from edge_sdk.shared_math.fedavg import by_samples

EXACT = {"rel": 1e-8, "abs": 1e-8}
SEVEN = np.array([[1, 0], [0, 1], [1, 1], [2, 1], [1, 2], [0, 0], [10, -10.0]])


@pytest.mark.parametrize(
    ("name", "parameters", "expected"),
    [
        ("mean", {}, (2.8, -1.4)),
        ("median", {}, (1, 1)),
        ("trimmed_mean", {"f": 1}, (1.33333333, 0.66666667)),
        ("krum", {"f": 1}, (1, 1)),
        ("multi_krum", {"f": 1, "m": 2}, (1, 0.5)),
        ("multi_krum", {"f": 1, "m": 4}, (1, 0.75)),
        ("multi_krum", {"f": 1}, (1, 0.75)),
        ("centred_clipping", {"radius": 1.0, "steps": 1}, (0.66172815, 0.28944272)),
        ("centred_clipping", {"radius": 1.0, "steps": 3}, (1.11800511, 0.51515582)),
        ("centred_clipping", {"radius": 1.0}, (1.11800511, 0.51515582)),
        ("centred_clipping", {"radius": 2.0, "steps": 1}, (1.04061359, 0.29604273)),
        (
            "mean",
            {"preaggregation": [{"name": "norm_clipping", "radius": 2.0}]},
            (1.04061359, 0.29604273),
        ),
        ("mean", {"preaggregation": ["norm_clipping"]}, (0.85298221, 0.32649111)),
        ("median", {"f": 1, "preaggregation": ["nnm"]}, (1, 0.75)),
        ("clipped_clustering", {}, (0.81622777, 0.65811388)),
        ("autogm", {"spread": 5.0}, (1, 1)),
        ("autogm", {"spread": 20.0}, (1, 1)),
    ],
)
def test_the_cross(rows_of, cross, name, parameters, expected):
    verdict = bind(name, **parameters)(rows_of(cross), uniform(5))
    assert verdict.value == pytest.approx(np.array(expected), **EXACT)


def test_geometric_median_and_its_objective(rows_of, cross):
    verdict = bind("geometric_median")(rows_of(cross), uniform(5))
    assert verdict.value == pytest.approx((1.15329697, 0.57592523), rel=1e-7)
    assert 5 * verdict.report["objective"] == pytest.approx(17.0108656, rel=1e-8)


def test_mean_by_shares():
    rows = Rows.of({"a": np.array([1.0]), "b": np.array([2.0]), "c": np.array([4.0])})
    assert bind("mean")(rows, by_samples([1, 1, 2])).value == pytest.approx([2.75])
    assert bind("mean")(rows, uniform(3)).value == pytest.approx([2.3333333333])


def test_even_median_is_the_mean_of_the_two_middle_values(rows_of):
    rows = rows_of(np.array([[1.0], [2.0], [3.0], [10.0]]))
    assert bind("median")(rows, uniform(4)).value == [2.5]


def test_krum_scores(rows_of, cross):
    assert krum_scores(rows_of(cross).distances(), 1) == pytest.approx([3, 3, 2, 3, 366])


def test_krum_counts_two_fewer_neighbours_than_there_are_honest_rows(rows_of):
    line = rows_of(np.array([[0.0], [1], [2], [4], [5]]))
    assert bind("krum", f=1)(line, uniform(5)).value == [1.0]


def test_bulyan_selects_one_after_another(rows_of):
    rows = rows_of(SEVEN)
    assert (bulyan_selection(rows.distances(), 1) + 1).tolist() == [3, 1, 2, 4, 5]
    assert bind("bulyan", f=1)(rows, uniform(7)).value == pytest.approx((1, 1))


def test_nearest_neighbour_mixing(rows_of, cross):
    rows = rows_of(cross)
    mixed = bind("mean", f=1, preaggregation=["nnm"])._mixed(rows, 0)
    expected = np.array([[1, 0.75]] * 4 + [[3.5, -2]])
    np.testing.assert_allclose(mixed.block(0, 2), expected, rtol=1e-12)


def test_buckets_of_the_given_order(rows_of, cross):
    buckets = grouped(rows_of(cross), np.arange(5), 2)
    np.testing.assert_allclose(buckets.block(0, 2), [[0.5, 0.5], [1.5, 1], [10, -10]])
    assert RULES["median"].function(buckets).value.tolist() == [1.5, 0.5]


def test_fltrust(rows_of, cross):
    rows = Rows.of({f"m{i}": x for i, x in enumerate(cross)} | {"root": np.array([1.0, 1.0])})
    verdict = bind("fltrust", root="root")(rows, uniform(6))
    assert verdict.value == pytest.approx((0.95156055, 0.77314295), **EXACT)
    trust = np.array([verdict.weights[f"m{i}"] for i in range(5)]) * verdict.report["trust"]
    assert trust == pytest.approx((0.70710678, 0.70710678, 1, 0.9486833, 0), **EXACT)


def test_clipped_clustering_drops_the_other_direction(rows_of, cross):
    verdict = bind("clipped_clustering")(rows_of(cross), uniform(5))
    assert verdict.report["clipped_to"] == pytest.approx(2**0.5)
    assert verdict.dropped == {"m004": "other_cluster"}


@pytest.mark.parametrize(
    ("spread", "weights", "objective"),
    [(5.0, (0.2, 0.2, 0.4, 0.2, 0), 1.3), (20.0, (0.2375, 0.2375, 0.2875, 0.2375, 0), None)],
)
def test_autogm_weights(rows_of, cross, spread, weights, objective):
    verdict = bind("autogm", spread=spread)(rows_of(cross), uniform(5))
    assert list(verdict.weights.values()) == pytest.approx(weights, **EXACT)
    assert sum(verdict.weights.values()) == pytest.approx(1.0, rel=1e-12)
    if objective:
        assert verdict.report["objective"] == pytest.approx(objective, **EXACT)


def test_water_level_gives_the_farthest_nothing():
    distances = np.array([1, 1, 0, 1, 14.2126704])
    assert water_level(distances, 5.0) == pytest.approx((0.2, 0.2, 0.4, 0.2, 0), **EXACT)


class TestAHugeLiar:
    """Replacing the fifth row by (1e9, -1e9) moves a robust rule by little."""

    def moved(self, rows_of, cross, name, **parameters):
        before = bind(name, **parameters)(rows_of(cross), uniform(5)).value
        cross[4] = (1e9, -1e9)
        return np.linalg.norm(bind(name, **parameters)(rows_of(cross), uniform(5)).value - before)

    @pytest.mark.parametrize(
        ("name", "parameters"),
        [
            ("median", {}),
            ("krum", {"f": 1}),
            ("multi_krum", {"f": 1}),
            ("trimmed_mean", {"f": 1}),
            ("centred_clipping", {}),
            ("clipped_clustering", {}),
            ("autogm", {}),
            ("mean", {"f": 1, "preaggregation": ["norm_clipping"]}),
        ],
    )
    def test_robust_rules_move_less_than_one(self, rows_of, cross, name, parameters):
        assert self.moved(rows_of, cross, name, **parameters) < 1

    def test_the_geometric_median_moves_less_than_a_fifth(self, rows_of, cross):
        assert self.moved(rows_of, cross, "geometric_median") < 0.2

    def test_bulyan_does_not_move(self, rows_of):
        seven, huge = SEVEN.copy(), SEVEN.copy()
        huge[6] = (1e9, -1e9)
        one, other = (bind("bulyan", f=1)(rows_of(m), uniform(7)).value for m in (seven, huge))
        assert np.linalg.norm(one - other) < 1

    def test_the_mean_does(self, rows_of, cross):
        assert self.moved(rows_of, cross, "mean") > 1e8


class TestLimits:
    """Where a parameter takes the robustness away, the mean is left."""

    @pytest.fixture
    def some(self, rows_of):
        return rows_of(np.random.default_rng(2).normal(size=(9, 5)))

    def test_trimming_nothing(self, some):
        value = bind("trimmed_mean", f=0)(some, uniform(9)).value
        np.testing.assert_allclose(value, some.values.mean(axis=0), rtol=1e-12)

    def test_clipping_at_no_length(self, some):
        rule = bind("centred_clipping", radius=1e30, steps=1)
        np.testing.assert_allclose(
            rule(some, uniform(9)).value, some.values.mean(axis=0), atol=1e-12
        )

    def test_buckets_of_one_are_the_rows_in_another_order(self, some):
        mixed = bind("median", preaggregation=[{"name": "bucketing", "size": 1}])._mixed(some, 0)
        assert sorted(mixed.block(0, 5).tolist()) == sorted(some.values.tolist())

    def test_mixing_with_everybody(self, some):
        mixed = bind("mean", f=0, preaggregation=["nnm"])._mixed(some, 0)
        everybody = np.tile(some.values.mean(axis=0), (9, 1))
        np.testing.assert_allclose(mixed.block(0, 5), everybody, atol=1e-12)

    def test_multi_krum_of_all_but_no_liar(self, some):
        value = bind("multi_krum", f=0)(some, uniform(9)).value
        np.testing.assert_allclose(value, some.values.mean(axis=0), atol=1e-12)
