"""DnC and CAF against the same algorithms on the covariance itself, and what they promise."""

import numpy as np
import pytest

from aggregator.rules import bind
from aggregator.rules.parameters import uniform
from aggregator.rules.preaggregation import arc

pytestmark = pytest.mark.extension


def matrix_of(n, d, liars, seed=0):
    out = np.random.default_rng(seed).normal(size=(n, d))
    out[:liars] += 4.0
    return out


def ours(rows_of, matrix, name, memory=None, **parameters):
    return bind(name, **parameters)(rows_of(matrix), uniform(len(matrix)), memory or {})


def first_direction(covariance):
    return np.linalg.eigh(covariance)[1][:, -1]


@pytest.mark.parametrize(("n", "d", "f"), [(7, 3, 2), (11, 40, 3), (30, 5, 6)])
def test_dnc_leaves_out_what_lies_far_along_the_first_direction(rows_of, n, d, f):
    matrix = matrix_of(n, d, f)
    centred = matrix - matrix.mean(axis=0)
    scores = (centred @ np.linalg.svd(centred)[2][0]) ** 2
    kept = np.argsort(scores)[: n - f]
    found = ours(rows_of, matrix, "dnc", f=f)
    np.testing.assert_allclose(found.value, matrix[kept].mean(axis=0), rtol=1e-9)
    assert len([why for why in found.dropped.values() if why == "outlying"]) == f


def test_dnc_draws_other_coordinates_in_every_round_and_the_same_in_a_replay(rows_of):
    matrix = np.random.default_rng(3).normal(size=(12, 60))
    first = ours(rows_of, matrix, "dnc", f=3, columns=4)
    again = ours(rows_of, matrix, "dnc", f=3, columns=4)
    assert first.value.tolist() == again.value.tolist()
    memory, dropped = first.memory, {frozenset(first.dropped)}
    for _ in range(5):
        later = ours(rows_of, matrix, "dnc", memory, f=3, columns=4)
        memory = later.memory
        dropped.add(frozenset(later.dropped))
    assert len(dropped) > 1
    assert int(memory["dnc"]) == 6


def test_dnc_with_repeats_keeps_what_no_sample_left_out(rows_of):
    matrix = matrix_of(30, 20, 4)
    found = ours(rows_of, matrix, "dnc", f=4, repeats=3, columns=10)
    assert {f"m{i:03}" for i in range(4)} <= found.dropped.keys()
    assert 30 - 12 <= sum(1 for weight in found.weights.values() if weight) <= 26


def caf_of(matrix, f):
    """Return the filter's mean by the ``(d, d)`` covariance and all of its steps."""
    n = len(matrix)
    weights, best, least = np.ones(n), matrix.mean(axis=0), np.inf
    while weights.sum() > n - 2 * f:
        mean = weights @ matrix / weights.sum()
        off = matrix - mean
        covariance = (weights[:, None] * off).T @ off / weights.sum()
        variance = np.linalg.eigvalsh(covariance)[-1]
        if variance < least:
            best, least = mean, variance
        tau = np.where(weights > 0, (off @ first_direction(covariance)) ** 2, 0.0)
        weights = weights * (1 - tau / tau.max())
    return best


@pytest.mark.parametrize(("n", "d", "f"), [(5, 2, 1), (7, 3, 2), (11, 8, 4), (20, 4, 6)])
def test_caf_is_the_filter_on_the_covariance(rows_of, n, d, f):
    matrix = matrix_of(n, d, f, seed=n)
    found = ours(rows_of, matrix, "caf", f=f).value
    np.testing.assert_allclose(found, caf_of(matrix, f), rtol=1e-7, atol=1e-9)


def test_caf_without_liars_is_the_mean(rows_of):
    matrix = matrix_of(6, 3, 0)
    np.testing.assert_allclose(ours(rows_of, matrix, "caf", f=0).value, matrix.mean(axis=0))


@pytest.mark.parametrize("far", [1e3, 1e9, 1e15])
@pytest.mark.parametrize("name", ["caf", "dnc"])
def test_far_rows_have_no_weight(rows_of, name, far):
    """DnC needs rows of bounded length: without, a row near the mean of longer ones stays."""
    matrix = matrix_of(11, 6, 0)
    matrix[:3] = far * np.arange(1, 4)[:, None]
    before = ["arc"] if name == "dnc" else []
    value = ours(rows_of, matrix, name, f=3, preaggregation=before).value
    assert np.abs(value - matrix[3:].mean(axis=0)).max() < 1.0


def test_dnc_alone_is_refused_as_a_mean_is():
    assert not bind("dnc", f=2).withstands
    assert bind("dnc", f=2, preaggregation=["norm_clipping"]).withstands


class TestByzfl:
    def test_clipping_adaptively(self, byzfl, rows_of):
        for n, d, f in [(7, 3, 2), (11, 40, 4), (30, 5, 1)]:
            matrix = matrix_of(n, d, f)
            theirs = byzfl.ARC(f=f)(matrix.copy())
            found = arc(rows_of(matrix), f=f).block(0, d)
            np.testing.assert_allclose(found, theirs, rtol=1e-9)
