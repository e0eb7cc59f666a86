"""MeaMed, MDA and MoNNA against every subset, another package, and what they promise."""

from itertools import combinations

import numpy as np
import pytest

from aggregator.extensions.rules.nearest_means import least_diameter
from aggregator.rules import TooFewRows, bind
from aggregator.rules.parameters import uniform

SIZES = [(5, 2, 1), (7, 3, 2), (9, 4, 4), (11, 40, 3)]
pytestmark = pytest.mark.extension


@pytest.fixture(scope="module", params=SIZES, ids=lambda size: "x".join(map(str, size)))
def case(request):
    n, d, f = request.param
    out = np.random.default_rng(n).normal(size=(n, d))
    out[:f] *= 5
    return out, f


def ours(rows_of, matrix, name, **parameters):
    return bind(name, **parameters)(rows_of(matrix), uniform(len(matrix)))


def apart(matrix):
    return np.linalg.norm(matrix[:, None] - matrix[None], axis=2)


def test_mda_is_the_first_best_of_all_subsets(rows_of, case):
    matrix, f = case
    distances, best = apart(matrix), (np.inf, ())
    for some in combinations(range(len(matrix)), len(matrix) - f):
        best = min(best, (distances[np.ix_(some, some)].max(), some))
    found = ours(rows_of, matrix, "mda", f=f)
    np.testing.assert_allclose(found.value, matrix[list(best[1])].mean(axis=0), rtol=1e-12)
    assert {name for name, why in found.dropped.items() if why == "far"} == {
        f"m{i:03}" for i in range(len(matrix)) if i not in best[1]
    }


def test_mda_leaves_out_far_rows_of_a_large_round(rows_of):
    matrix = np.random.default_rng(1).normal(size=(200, 3))
    matrix[:40] += 1e6 * np.arange(1, 41)[:, None]
    found = ours(rows_of, matrix, "mda", f=40)
    np.testing.assert_allclose(found.value, matrix[40:].mean(axis=0), rtol=1e-9)


def test_equal_rows_have_a_first_set():
    assert least_diameter(np.zeros((5, 5)), 2).tolist() == [0, 1, 2]


def test_mean_around_median_is_the_mean_of_the_nearest_values_of_every_column(rows_of, case):
    matrix, f = case
    off = np.abs(matrix - np.median(matrix, axis=0))
    near = np.argsort(off, axis=0, kind="stable")[: len(matrix) - f]
    wanted = np.take_along_axis(matrix, near, axis=0).mean(axis=0)
    np.testing.assert_allclose(
        ours(rows_of, matrix, "mean_around_median", f=f).value, wanted, rtol=1e-12
    )


def test_monna_keeps_what_is_near_the_trusted_row(rows_of, case):
    matrix, f = case
    near = np.argsort(np.linalg.norm(matrix - matrix[-1], axis=1))[: len(matrix) - f]
    found = ours(rows_of, matrix, "monna", f=f, root=f"m{len(matrix) - 1:03}")
    np.testing.assert_allclose(found.value, matrix[near].mean(axis=0), rtol=1e-9)
    with pytest.raises(TooFewRows, match="trusted"):
        ours(rows_of, matrix, "monna", f=f, root="nobody")


class TestByzfl:
    def test_the_three_rules(self, byzfl, rows_of, case):
        matrix, f = case
        theirs = byzfl.MDA(f=f)(matrix.copy())
        np.testing.assert_allclose(ours(rows_of, matrix, "mda", f=f).value, theirs, rtol=1e-9)
        theirs = byzfl.Meamed(f=f)(matrix.copy())
        np.testing.assert_allclose(
            ours(rows_of, matrix, "mean_around_median", f=f).value, theirs, rtol=1e-9
        )
        theirs = byzfl.MoNNA(f=f, idx=2)(matrix.copy())
        found = ours(rows_of, matrix, "monna", f=f, root="m002").value
        np.testing.assert_allclose(found, theirs, rtol=1e-9)
