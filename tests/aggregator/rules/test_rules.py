"""What every rule must satisfy, and what is wrong with a name or a parameter."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from aggregator.rules import RULES, Rows, TooFewRows, UnknownRuleError, bind
from aggregator.rules.weights import by_samples, uniform

PARAMETERS = {"mean": {}}
EQUIVARIANT = frozenset({"mean"})

matrices = st.integers(1, 9).flatmap(
    lambda n: arrays(np.float64, (n, 3), elements=st.floats(-1e3, 1e3, width=32))
)


def rows_of(matrix, names=None):
    names = names or [f"meter-{i:02d}" for i in range(len(matrix))]
    return Rows.of(dict(zip(names, matrix, strict=True)))


@pytest.mark.parametrize("name", sorted(RULES))
class TestEveryRule:
    @given(matrix=matrices, data=st.data())
    def test_order_of_arrival_changes_nothing(self, name, matrix, data):
        rule = bind(name, **PARAMETERS[name])
        named = list(enumerate(matrix))
        shuffled = data.draw(st.permutations(named))
        straight = rule(Rows.of({f"m{i}": row for i, row in named}), uniform(len(matrix))).value
        mixed = rule(Rows.of({f"m{i}": row for i, row in shuffled}), uniform(len(matrix))).value
        assert mixed.tobytes() == straight.tobytes()

    @given(matrix=matrices, scale=st.floats(0.01, 100), shift=st.floats(-100, 100))
    def test_scaling_and_shifting_commute(self, name, matrix, scale, shift):
        if name not in EQUIVARIANT:
            pytest.skip("the rule fixes a length of its own")
        rule = bind(name, **PARAMETERS[name])
        direct = rule(rows_of(scale * matrix + shift), uniform(len(matrix))).value
        after = scale * rule(rows_of(matrix), uniform(len(matrix))).value + shift
        np.testing.assert_allclose(direct, after, rtol=1e-9, atol=1e-6)

    @given(row=arrays(np.float64, 4, elements=st.floats(-1e3, 1e3)), n=st.integers(1, 8))
    def test_equal_rows_give_that_row(self, name, row, n):
        verdict = bind(name, **PARAMETERS[name])(rows_of([row] * n), uniform(n))
        np.testing.assert_allclose(verdict.value, row, rtol=1e-12, atol=1e-12)

    def test_no_row_is_too_few(self, name):
        with pytest.raises(TooFewRows) as caught:
            bind(name, **PARAMETERS[name])(Rows.of({}), uniform(0))
        assert caught.value.got == 0


@given(
    row=arrays(np.float64, 3, elements=st.floats(-1e3, 1e3)),
    counts=st.lists(st.integers(1, 10**9), min_size=1, max_size=8),
)
def test_equal_rows_do_not_care_for_shares(row, counts):
    verdict = bind("mean")(rows_of([row] * len(counts)), by_samples(counts))
    np.testing.assert_allclose(verdict.value, row, rtol=1e-12, atol=1e-12)


def test_mean_of_the_specification():
    rows = Rows.of({"a": np.array([1.0]), "b": np.array([2.0]), "c": np.array([4.0])})
    assert bind("mean")(rows, by_samples([1, 1, 2])).value == pytest.approx([2.75])
    assert bind("mean")(rows, uniform(3)).value == pytest.approx([2.3333333333])
    cross = rows_of(np.array([[1, 0], [0, 1], [1, 1], [2, 1], [10, -10.0]]))
    assert bind("mean")(cross, uniform(5)).value == pytest.approx([2.8, -1.4])


def test_mean_agrees_with_another_package():
    aggregate = pytest.importorskip("flwr.server.strategy.aggregate").aggregate
    rng = np.random.default_rng(5)
    matrix, counts = rng.normal(size=(6, 7)), [3, 1, 4, 1, 5, 9]
    theirs = aggregate([([row], n) for row, n in zip(matrix, counts, strict=True)])[0]
    ours = bind("mean")(rows_of(matrix), by_samples(counts, cap=1e9)).value
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_a_misspelt_rule_and_parameter_name_the_known_ones():
    with pytest.raises(UnknownRuleError, match="known: mean"):
        bind("krumm")
    with pytest.raises(UnknownRuleError, match="unknown parameter 'trim'"):
        bind("mean", trim=1)


class TestRows:
    def test_gram_keeps_digits_of_almost_equal_rows(self):
        rows = rows_of(np.array([[1e9, 1e9], [1e9 + 3, 1e9 + 4]]))
        assert rows.distances()[0, 1] == pytest.approx(25.0, rel=1e-12)

    @given(matrix=matrices)
    def test_distances_are_those_of_the_definition(self, matrix):
        plain = ((matrix[:, None] - matrix[None, :]) ** 2).sum(axis=2)
        np.testing.assert_allclose(rows_of(matrix).distances(), plain, rtol=1e-6, atol=1e-4)

    def test_columns_are_handled_in_blocks(self):
        wide = np.arange(3 * 70_000, dtype=np.float64).reshape(3, -1)
        median = rows_of(wide).coordinatewise(lambda block: np.median(block, axis=0))
        assert median.tobytes() == wide[1].tobytes()

    def test_vectors_of_different_sizes_are_a_defect_of_ours(self):
        with pytest.raises(ValueError, match="shape"):
            Rows.of({"a": np.zeros(2), "b": np.zeros(3)})


class TestShares:
    def test_a_claim_counts_at_most_ten_medians(self):
        shares = by_samples([10, 10, 10, 10**12])
        assert shares[3] == pytest.approx(100 / 130)

    def test_nothing_claimed_counts_as_one(self):
        assert by_samples([0, 1]).tolist() == [0.5, 0.5]

    @given(counts=st.lists(st.floats(0, 1e12), min_size=1, max_size=20))
    def test_shares_sum_to_one(self, counts):
        assert by_samples(counts).sum() == pytest.approx(1.0, rel=1e-12)
