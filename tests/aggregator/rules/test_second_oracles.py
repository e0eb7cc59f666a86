"""The same rules in other packages, with what is known to differ said aloud.

ByzFL counts n - f - 1 neighbours for Krum, stops its geometric median early by default, remembers
in CenteredClipping, and writes into what it is given. Flower's older interface counts as we do.
"""

import numpy as np
import pytest

from aggregator.extensions.rules.fltrust import two_clusters
from aggregator.rules import bind
from aggregator.rules.parameters import uniform
from aggregator.rules.preaggregation import grouped, nnm, norm_clipping
from edge_sdk.shared_math.fedavg import by_samples

SIZES = [(7, 3), (11, 40), (30, 500)]


@pytest.fixture(scope="module", params=SIZES, ids=lambda size: "x".join(map(str, size)))
def matrix(request):
    n, d = request.param
    out = np.random.default_rng(n).normal(size=(n, d))
    out[: n // 5] *= 30
    return out


@pytest.fixture(scope="module")
def flower():
    return pytest.importorskip("flwr.server.strategy.aggregate")


def ours(rows_of, matrix, name, **parameters):
    return bind(name, **parameters)(rows_of(matrix), uniform(len(matrix))).value


class TestByzfl:
    def test_median_and_trimmed_mean(self, byzfl, rows_of, matrix):
        f = len(matrix) // 5
        median = byzfl.Median()(matrix.copy())
        np.testing.assert_allclose(ours(rows_of, matrix, "median"), median, rtol=1e-9)
        trimmed = byzfl.TrMean(f=f)(matrix.copy())
        np.testing.assert_allclose(
            ours(rows_of, matrix, "trimmed_mean", f=f), trimmed, rtol=1e-9, atol=1e-12
        )

    def test_krum_with_one_neighbour_more(self, byzfl, rows_of, matrix):
        """Theirs with f + 1 counts as many neighbours as ours with f."""
        f = max(len(matrix) // 5 - 1, 0)
        theirs = byzfl.Krum(f=f + 1)(matrix.copy())
        np.testing.assert_allclose(ours(rows_of, matrix, "krum", f=f), theirs, rtol=1e-9)

    def test_krum_picks_another_row_where_the_neighbours_decide(self, byzfl, rows_of):
        line = np.array([[0.0], [1.0], [2.0], [4.0], [5.0]])
        assert byzfl.Krum(f=1)(line.copy()) == [2.0]
        assert ours(rows_of, line, "krum", f=1) == [1.0]

    def test_geometric_median_run_to_its_end(self, byzfl, rows_of, matrix):
        theirs = byzfl.GeometricMedian(nu=1e-10, T=5000)(matrix.copy())
        np.testing.assert_allclose(
            ours(rows_of, matrix, "geometric_median"), theirs, rtol=1e-5, atol=1e-6
        )

    def test_geometric_median_as_it_comes_is_not_at_its_end(self, byzfl, cross):
        early = byzfl.GeometricMedian()(cross.copy())
        assert early == pytest.approx((1.142453, 0.512650), rel=1e-5)

    @pytest.mark.parametrize(("steps", "radius"), [(1, 1.0), (3, 2.5)])
    def test_centred_clipping(self, byzfl, rows_of, matrix, steps, radius):
        theirs = byzfl.CenteredClipping(L=steps, tau=radius)(matrix.copy())
        found = ours(rows_of, matrix, "centred_clipping", steps=steps, radius=radius)
        np.testing.assert_allclose(found, theirs, rtol=1e-9, atol=1e-12)

    def test_centred_clipping_remembers_as_theirs_does(self, byzfl, rows_of, matrix):
        theirs = byzfl.CenteredClipping(L=1, tau=1.0)
        rule, memory = bind("centred_clipping", steps=1, radius=1.0), {}
        for number in range(4):
            shifted = matrix + 0.1 * number
            verdict = rule(rows_of(shifted), uniform(len(matrix)), memory)
            memory = verdict.memory
            np.testing.assert_allclose(verdict.value, theirs(shifted.copy()), rtol=1e-9, atol=1e-12)

    def test_mixing(self, byzfl, rows_of, matrix):
        f, width = len(matrix) // 5, matrix.shape[1]
        theirs = byzfl.NNM(f=f)(matrix.copy())
        found = nnm(rows_of(matrix), f=f).block(0, width)
        np.testing.assert_allclose(found, theirs, rtol=1e-9, atol=1e-9)

    def test_buckets_of_one_order(self, byzfl, rows_of, matrix, monkeypatch):
        order = np.random.default_rng(5).permutation(len(matrix))
        monkeypatch.setattr(np.random, "permutation", lambda rows: rows[order])
        theirs = byzfl.Bucketing(s=2)(matrix.copy())
        found = grouped(rows_of(matrix), order, 2).block(0, matrix.shape[1])
        np.testing.assert_allclose(found, theirs, rtol=1e-9, atol=1e-12)

    def test_clipping(self, byzfl, rows_of, matrix):
        theirs = byzfl.Clipping(c=2.0)(matrix.copy())
        found = norm_clipping(rows_of(matrix), radius=2.0).block(0, matrix.shape[1])
        np.testing.assert_allclose(found, theirs, rtol=1e-9)


class TestFlower:
    def results(self, matrix, counts=None):
        counts = counts or [1] * len(matrix)
        return [([row.copy()], n) for row, n in zip(matrix, counts, strict=True)]

    def test_mean(self, flower, rows_of):
        matrix, counts = np.random.default_rng(5).normal(size=(6, 7)), [3, 1, 4, 1, 5, 9]
        theirs = flower.aggregate(self.results(matrix, counts))[0]
        found = bind("mean")(rows_of(matrix), by_samples(counts, cap=1e9)).value
        np.testing.assert_allclose(found, theirs, rtol=1e-12)

    def test_median(self, flower, rows_of, matrix):
        theirs = flower.aggregate_median(self.results(matrix))[0]
        np.testing.assert_allclose(ours(rows_of, matrix, "median"), theirs, rtol=1e-12)

    def test_trimmed_mean(self, flower, rows_of, matrix):
        f = len(matrix) // 5
        theirs = flower.aggregate_trimmed_avg(self.results(matrix), f / len(matrix) + 1e-9)[0]
        found = ours(rows_of, matrix, "trimmed_mean", f=f)
        np.testing.assert_allclose(found, theirs, rtol=1e-9, atol=1e-12)

    def test_krum_and_multi_krum(self, flower, rows_of, matrix):
        n, f = len(matrix), len(matrix) // 5
        one = flower.aggregate_krum(self.results(matrix), f, 0)[0]
        np.testing.assert_allclose(ours(rows_of, matrix, "krum", f=f), one, rtol=1e-12)
        many = flower.aggregate_krum(self.results(matrix), f, n - f)[0]
        found = ours(rows_of, matrix, "multi_krum", f=f)
        np.testing.assert_allclose(found, many, rtol=1e-9, atol=1e-12)

    def test_bulyan_of_the_specification(self, flower, rows_of):
        seven = np.array([[1, 0], [0, 1], [1, 1], [2, 1], [1, 2], [0, 0], [10, -10.0]])
        krum = flower.aggregate_krum
        theirs = flower.aggregate_bulyan(self.results(seven), 1, krum, to_keep=0)[0]
        np.testing.assert_allclose(ours(rows_of, seven, "bulyan", f=1), theirs)


def test_clusters_are_those_of_scikit_learn():
    cluster = pytest.importorskip("sklearn.cluster")
    for seed in range(20):
        points = np.random.default_rng(seed).normal(size=(12, 4))
        apart = np.linalg.norm(points[:, None] - points[None, :], axis=2)
        fit = cluster.AgglomerativeClustering(2, metric="precomputed", linkage="average")
        theirs = fit.fit(apart).labels_
        labels = two_clusters(apart)
        assert np.array_equal(labels, theirs) or np.array_equal(labels, 1 - theirs)
