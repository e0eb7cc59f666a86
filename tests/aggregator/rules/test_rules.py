"""What every rule must satisfy, whatever it does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from aggregator.rules import BEFORE, RULES, Rows, TooFewRows, bind
from aggregator.rules.parameters import uniform
from edge_sdk.shared_math.fedavg import by_samples

PARAMETERS = {name: {} for name in RULES} | {
    "trimmed_mean": {"f": 1},
    "krum": {"f": 1},
    "multi_krum": {"f": 1},
    "bulyan": {"f": 1},
    "fltrust": {"root": "m0"},
    "mean_around_median": {"f": 1},
    "mda": {"f": 1},
    "monna": {"f": 1, "root": "m0"},
    "dnc": {"f": 1},
    "caf": {"f": 1},
}
EQUIVARIANT = sorted(
    {"mean", "median", "trimmed_mean", "krum", "multi_krum", "bulyan", "geometric_median"}
)
"""The others fix a length or a direction of their own."""

PIPELINES = [(name, ()) for name in sorted(RULES)] + [
    (name, (step,)) for name in sorted(RULES) for step in sorted(BEFORE)
]


def numbers(least, width=3):
    sizes = st.integers(least, least + 6)
    return sizes.flatmap(
        lambda n: arrays(np.float64, (n, width), elements=st.floats(-1e3, 1e3, width=32))
    )


def scattered(least, width=4):
    """Rows in general position: ties would be broken by rounding, which no rule promises."""
    return st.tuples(st.integers(0, 2**32), st.integers(least, least + 6)).map(
        lambda drawn: np.random.default_rng(drawn[0]).normal(size=(drawn[1], width))
    )


def decided(rule, matrix, memory=None):
    rows = Rows.of({f"m{i}": row for i, row in enumerate(matrix)})
    return rule(rows, uniform(len(rows)), memory or {})


MORE = settings(max_examples=40)
FEW = settings(max_examples=12)  # of every rule, alone and behind every step


@pytest.mark.parametrize(("name", "before"), PIPELINES)
class TestEveryRule:
    @FEW
    @given(data=st.data())
    def test_order_of_arrival_changes_nothing(self, name, before, data):
        rule = bind(name, preaggregation=before, **PARAMETERS[name])
        matrix = data.draw(numbers(rule.least))
        named = list(enumerate(matrix))
        shuffled = data.draw(st.permutations(named))
        straight = decided(rule, matrix).value
        mixed = rule(Rows.of({f"m{i}": row for i, row in shuffled}), uniform(len(matrix))).value
        assert mixed.tobytes() == straight.tobytes()

    @FEW
    @given(row=arrays(np.float64, 4, elements=st.floats(-1e3, 1e3)), more=st.integers(0, 6))
    def test_equal_rows_give_that_row(self, name, before, row, more):
        rule = bind(name, preaggregation=before, **PARAMETERS[name])
        verdict = decided(rule, [row] * (rule.least + more))
        np.testing.assert_allclose(verdict.value, row, rtol=1e-9, atol=1e-9)

    def test_too_few_rows_are_refused_and_one_more_is_not(self, name, before):
        rule = bind(name, preaggregation=before, **PARAMETERS[name])
        matrix = np.random.default_rng(3).normal(size=(rule.least, 4))
        assert decided(rule, matrix).value.shape == (4,)
        with pytest.raises(TooFewRows) as caught:
            decided(rule, matrix[:-1])
        assert (caught.value.needed, caught.value.got) == (rule.least, rule.least - 1)

    def test_weights_are_of_clients_and_dropped_ones_have_none(self, name, before):
        rule = bind(name, preaggregation=before, **PARAMETERS[name])
        matrix = np.random.default_rng(4).normal(size=(rule.least + 3, 4))
        matrix[1] *= -1e6
        verdict = decided(rule, matrix)
        assert set(verdict.weights) <= {f"m{i}" for i in range(len(matrix))}
        assert not any(verdict.weights.get(name, 0.0) for name in verdict.dropped)


@pytest.mark.parametrize("name", EQUIVARIANT)
@MORE
@given(data=st.data(), scale=st.floats(0.01, 100), shift=st.floats(-100, 100))
def test_scaling_and_shifting_commute(name, data, scale, shift):
    rule = bind(name, **PARAMETERS[name])
    matrix = data.draw(scattered(rule.least))
    direct = decided(rule, scale * matrix + shift).value
    after = scale * decided(rule, matrix).value + shift
    np.testing.assert_allclose(direct, after, rtol=1e-6, atol=1e-6 * scale)


@pytest.mark.parametrize("name", sorted(RULES))
@MORE
@given(data=st.data(), scale=st.floats(0.01, 100))
def test_scaling_commutes_where_lengths_follow_the_rows(name, data, scale):
    rule = bind(name, **PARAMETERS[name])
    matrix = data.draw(scattered(rule.least))
    direct, after = decided(rule, scale * matrix).value, scale * decided(rule, matrix).value
    np.testing.assert_allclose(direct, after, rtol=1e-6, atol=1e-6 * scale)


@pytest.mark.parametrize("name", sorted(RULES))
def test_float32_rows_give_what_float64_rows_give(name):
    rule = bind(name, **PARAMETERS[name])
    exact = np.random.default_rng(8).normal(size=(rule.least + 5, 9000)).astype(np.float32)
    single, double = decided(rule, exact).value, decided(rule, exact.astype(np.float64)).value
    assert single.dtype == np.float64
    # A float32 sum of 9000 squares is off by about sqrt(9000) 2^-24 = 5.7e-6 of itself where it is
    # added up in order (no BLAS is worse), a distance by half of that, d = 2.8e-6. AutoGM's weights
    # are (level - distance) / (n median): each moves by up to 2 d / n, the sum of weighted rows by
    # up to 2 d times the mean of |x|, 0.8: 4.5e-6, whatever the coordinate itself is.
    np.testing.assert_allclose(single, double, rtol=1e-5, atol=5e-6)


@given(
    row=arrays(np.float64, 3, elements=st.floats(-1e3, 1e3)),
    counts=st.lists(st.integers(1, 10**9), min_size=1, max_size=8),
)
def test_equal_rows_do_not_care_for_shares(row, counts):
    rows = Rows.of({f"m{i}": row for i in range(len(counts))})
    verdict = bind("mean")(rows, by_samples(counts))
    np.testing.assert_allclose(verdict.value, row, rtol=1e-12, atol=1e-12)


class TestShares:
    def test_a_claim_counts_at_most_ten_medians(self):
        shares = by_samples([10, 10, 10, 10**12])
        assert shares[3] == pytest.approx(100 / 130)

    def test_nothing_claimed_counts_as_one(self):
        assert by_samples([0, 1]).tolist() == [0.5, 0.5]

    @given(counts=st.lists(st.floats(0, 1e12), min_size=1, max_size=20))
    def test_shares_sum_to_one(self, counts):
        assert by_samples(counts).sum() == pytest.approx(1.0, rel=1e-12)
