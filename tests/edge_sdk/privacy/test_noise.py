"""The samplers draw what they say: one million numbers each, from a seeded source of bytes."""

from __future__ import annotations

import numpy as np
import pytest

from edge_sdk.privacy import noise

COUNT = 1_000_000


@pytest.fixture
def entropy():
    return np.random.default_rng(20261121).bytes


@pytest.mark.parametrize("name", ["normal", "laplace", "uniform"])
def test_a_million_draws_follow_the_distribution(entropy, name):
    stats = pytest.importorskip("scipy.stats")
    law = {"normal": "norm", "laplace": "laplace", "uniform": "uniform"}[name]
    drawn = getattr(noise, name)(COUNT, entropy)
    assert stats.kstest(drawn, law).pvalue > 1e-3


def test_the_halves_of_a_pair_are_independent(entropy):
    drawn = noise.normal(COUNT, entropy)
    assert abs(np.corrcoef(drawn[0::2], drawn[1::2])[0, 1]) < 5e-3
    assert abs(np.corrcoef(drawn[0::2] ** 2, drawn[1::2] ** 2)[0, 1]) < 5e-3


@pytest.mark.parametrize("byte", [0, 255])
def test_extreme_random_bytes_give_finite_noise(byte):
    def same(size):
        return bytes([byte]) * size

    for draw in (noise.normal, noise.laplace, noise.uniform):
        assert np.isfinite(draw(5, same)).all()
        assert draw(5, same).shape == (5,)


def test_no_two_draws_are_equal():
    assert not np.intersect1d(noise.normal(1000), noise.normal(1000)).size


def test_rounding_to_the_grid_increases_no_norm(entropy):
    values = noise.normal(1000, entropy)
    on_grid = noise.round_towards_zero(values, noise.GRID)
    assert np.linalg.norm(on_grid) <= np.linalg.norm(values)
    assert np.array_equal(np.rint(on_grid / noise.GRID) * noise.GRID, on_grid)
    assert np.abs(noise.round_to_grid(values, noise.GRID) - values).max() <= noise.GRID / 2
