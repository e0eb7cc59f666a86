"""Noise under a secret: normal, unforeseen, and the same again."""

import math

import numpy as np
import pytest

from aggregator.extensions.papers.averaging.dp_averaging import SECRET_BYTES, normal

KEY = bytes(range(SECRET_BYTES))


def test_the_same_secret_and_number_give_the_same_bits():
    assert normal(KEY, 3, 101).tobytes() == normal(KEY, 3, 101).tobytes()


@pytest.mark.parametrize("other", [(KEY, 4), (bytes(SECRET_BYTES), 3)], ids=["number", "secret"])
def test_another_number_or_secret_gives_other_noise(other):
    assert not (normal(KEY, 3, 101) == normal(*other, 101)).any()


@pytest.mark.parametrize("size", [0, 1, 2, 7])
def test_any_size(size):
    drawn = normal(KEY, 1, size)
    assert drawn.shape == (size,)
    assert np.isfinite(drawn).all()


def test_it_is_standard_normal():
    drawn = np.sort(normal(KEY, 1, 200_000))
    below = np.array([0.5 * (1 + math.erf(x / math.sqrt(2))) for x in drawn[::200]])
    gap = np.abs(below - np.arange(0, 200_000, 200) / 200_000).max()
    assert gap < 1.95 / math.sqrt(200_000)  # Kolmogorov and Smirnov, p = 0.001
    halves = normal(KEY, 2, 200_000).reshape(2, -1)
    assert abs(np.corrcoef(halves)[0, 1]) < 4 / math.sqrt(100_000)
