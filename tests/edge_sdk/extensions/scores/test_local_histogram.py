"""Histograms under local privacy: the bound on the odds, estimates without bias, and variances."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.extensions.scores import score_cells
from edge_sdk.extensions.scores.local_histogram import K_ARY, MECHANISMS, UNARY, LocalHistogram

CELLS = st.integers(2, 64)
EPSILONS = st.floats(0.1, 10.0)
HOW = st.sampled_from(MECHANISMS)


def distribution(one, cell):
    """Return the probability of every answer of a device, from the definition of the paper."""
    e = math.exp(one.epsilon)
    if one.how == K_ARY:
        total = e + one.cells - 1
        return {bytes((i,)): (e if i == cell else 1.0) / total for i in range(one.cells)}
    found = {}
    for bits in itertools.product((0, 1), repeat=one.cells):
        chance = 1.0
        for i, bit in enumerate(bits):
            p = 0.5 if i == cell else 1.0 / (e + 1.0)
            chance *= p if bit else 1.0 - p
        found[sum(b << i for i, b in enumerate(bits)).to_bytes(one.size, "little")] = chance
    return found


SMALL = [
    LocalHistogram(k, e, h) for k in (2, 3, 8) for e in (0.1, 0.5, 1.0, 4.0) for h in MECHANISMS
]


@pytest.mark.parametrize("one", SMALL, ids=str)
def test_no_answer_is_more_than_e_to_the_epsilon_times_as_likely(one):
    tables = [distribution(one, cell) for cell in range(one.cells)]
    worst = max(a[x] / b[x] for a in tables for b in tables for x in a)
    assert worst == pytest.approx(math.exp(one.epsilon), rel=1e-9)


@pytest.mark.parametrize("one", SMALL, ids=str)
def test_the_estimate_has_no_bias_and_the_stated_variance_over_all_answers(one):
    """Sum over every possible answer of one device, for each of its cells."""
    for cell in range(one.cells):
        table = distribution(one, cell)
        assert math.fsum(table.values()) == pytest.approx(1.0)
        estimates = {}
        for answer in table:
            support = set(one.supported(answer))
            estimates[answer] = one.estimate([int(i in support) for i in range(one.cells)], 1)[0]
        for i in range(one.cells):
            mean = math.fsum(table[x] * estimates[x][i] for x in table)
            square = math.fsum(table[x] * (estimates[x][i] - mean) ** 2 for x in table)
            assert mean == pytest.approx(float(i == cell), abs=1e-9)
            assert square == pytest.approx(one.variance(1, int(i == cell)), rel=1e-9)


@given(CELLS, EPSILONS)
def test_the_choice_has_the_smaller_of_the_papers_variances(cells, epsilon):
    e = math.exp(epsilon)
    direct = (cells - 2 + e) / (e - 1) ** 2
    unary = 4 * e / (e - 1) ** 2
    assert LocalHistogram(cells, epsilon, K_ARY).variance(1, 0) == pytest.approx(direct, rel=1e-6)
    assert LocalHistogram(cells, epsilon, UNARY).variance(1, 0) == pytest.approx(unary, rel=1e-6)
    chosen = LocalHistogram.best(cells, epsilon)
    assert chosen.variance(1, 0) == pytest.approx(min(direct, unary), rel=1e-6)


@given(CELLS, EPSILONS, HOW, st.integers(0, 2**32), st.data())
def test_a_drawn_answer_is_read_again(cells, epsilon, how, seed, data):
    one = LocalHistogram(cells, epsilon, how)
    answer = one.draw(data.draw(st.integers(0, cells - 1)), random.Random(seed))
    assert len(answer) == one.size
    found = one.supported(answer)
    assert all(0 <= cell < cells for cell in found)
    assert len(set(found)) == len(found)
    assert how == UNARY or len(found) == 1


@given(CELLS, EPSILONS, HOW, st.binary(max_size=12))
def test_other_bytes_are_refused_or_name_cells(cells, epsilon, how, answer):
    one = LocalHistogram(cells, epsilon, how)
    try:
        found = one.supported(answer)
    except ValueError:
        return
    assert len(answer) == one.size
    assert all(0 <= cell < cells for cell in found)


@pytest.mark.parametrize("how", MECHANISMS)
def test_many_draws_agree_with_the_stated_error(how):
    """The noise is seeded; four standard errors of the mean of 400 fleets."""
    one, rng, truth = LocalHistogram(8, 1.0, how), random.Random(5), [0, 5, 10, 20, 30, 20, 10, 5]
    fleets = []
    for _ in range(400):
        support = [0] * 8
        for cell, number in enumerate(truth):
            for _ in range(number):
                for i in one.supported(one.draw(cell, rng)):
                    support[i] += 1
        fleets.append(one.estimate(support, sum(truth))[0])
    found = np.array(fleets)
    for i, number in enumerate(truth):
        expected = math.sqrt(one.variance(sum(truth), number))
        assert abs(found[:, i].mean() - number) < 4 * expected / 20
        assert found[:, i].std() == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize(
    ("cells", "epsilon", "how"),
    [(1, 1.0, K_ARY), (65, 1.0, K_ARY), (8, 0.05, K_ARY), (8, 11.0, UNARY), (8, math.nan, UNARY),
     (8, 1.0, "plain")],
)  # fmt: skip
def test_numbers_out_of_bounds_are_refused(cells, epsilon, how):
    with pytest.raises(ValueError, match=r"cells|epsilon|how"):
        LocalHistogram(cells, epsilon, how)


def test_every_score_has_one_cell_and_every_cell_a_label():
    assert len(score_cells.labels()) == score_cells.CELLS
    ends = [-math.inf, *score_cells.EDGES, math.inf]
    for cell, (low, high) in enumerate(itertools.pairwise(ends), start=1):
        middle = low if math.isfinite(low) else high - 1
        assert score_cells.cell_of(middle) == cell
    assert score_cells.cell_of(None) == 0
