"""Rows, their inner products and their mixes, against the definitions."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from aggregator.rules import Rows, blocked_ops
from aggregator.rules.coordinatewise import middle_of
from aggregator.rules.row_maps import Dense, Grouped, Picked, Scaled
from aggregator.rules.sorting_network import comparators, sort_few

matrices = st.integers(1, 9).flatmap(
    lambda n: arrays(np.float64, (n, 3), elements=st.floats(-1e3, 1e3, width=32))
)


def apart(matrix):
    wide = np.asarray(matrix, np.float64)
    return ((wide[:, None] - wide[None, :]) ** 2).sum(axis=2)


class TestDistances:
    def test_digits_of_almost_equal_rows_are_kept(self, rows_of):
        rows = rows_of(np.array([[1e9, 1e9], [1e9 + 3, 1e9 + 4]]))
        assert rows.distances()[0, 1] == pytest.approx(25.0, rel=1e-12)

    @given(matrix=matrices)
    def test_they_are_those_of_the_definition(self, rows_of, matrix):
        np.testing.assert_allclose(rows_of(matrix).distances(), apart(matrix), rtol=1e-6, atol=1e-4)

    @pytest.mark.parametrize("delta", [1e-2, 1e-3, 1e-4, 1e-5])
    def test_float32_near_convergence(self, rows_of, delta):
        """Weights of order 1, a small distance apart: |x|² + |y|² - 2xy would be noise."""
        rng = np.random.default_rng(1)
        base = rng.standard_normal(42_003).astype(np.float32)
        close = base + (rng.standard_normal((10, 42_003)) * delta).astype(np.float32)
        found, true = rows_of(close).distances(), apart(close)
        off = ~np.eye(10, dtype=bool)
        assert found[off] == pytest.approx(true[off], rel=1e-4)

    def test_a_huge_row_takes_no_digits_from_the_others(self, rows_of):
        rng = np.random.default_rng(2)
        matrix = rng.standard_normal((9, 50)).astype(np.float32)
        matrix[3] = 1e30
        true = apart(matrix)
        assert rows_of(matrix).distances() == pytest.approx(true, rel=1e-5)

    def test_a_liar_of_middling_norm_on_the_other_side_takes_none_either(self, rows_of):
        rng = np.random.default_rng(3)
        common = rng.standard_normal(20_000).astype(np.float32)
        matrix = common + 1e-4 * rng.standard_normal((9, 20_000)).astype(np.float32)
        order = np.argsort(np.linalg.norm(matrix, axis=1))
        matrix[order[4]] = -matrix[order[4]]  # now the centre is a liar, far from all others
        found, true = rows_of(matrix).distances(), apart(matrix)
        honest = np.delete(np.arange(9), order[4])
        block = np.ix_(honest, honest)
        assert found[block] == pytest.approx(true[block], rel=1e-3, abs=1e-12)

    def test_equal_rows_are_at_zero(self, rows_of):
        assert not rows_of(np.full((4, 9), 0.1, np.float32)).distances().any()


class TestMixes:
    @pytest.fixture
    def some(self, rows_of):
        return rows_of(np.random.default_rng(4).normal(size=(7, 40)))

    @pytest.mark.parametrize(
        "mix",
        [
            Dense(np.random.default_rng(5).random((4, 7))),
            Scaled(np.linspace(0.1, 1, 7)),
            Grouped(np.array([3, 1, 0, 2, 6, 5, 4]), 3),
            Picked(np.array([5, 0, 2]), 7),
        ],
    )
    def test_blocks_products_and_sums_agree_with_the_matrix(self, some, mix):
        ids = tuple(f"r{i}" for i in range(len(mix.matrix)))
        mixed, whole = some.mixed(mix, ids), mix.matrix @ some.values
        np.testing.assert_allclose(mixed.block(3, 11), whole[:, 3:11], rtol=1e-12)
        np.testing.assert_allclose(mixed.plain(), whole @ whole.T, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(mixed.norms(), np.linalg.norm(whole, axis=1), rtol=1e-12)
        np.testing.assert_allclose(mixed.distances(), apart(whole), rtol=1e-9, atol=1e-9)
        weights = np.random.default_rng(6).random(len(whole))
        np.testing.assert_allclose(mixed.combine(weights), weights @ whole, rtol=1e-12)
        assert sum(mixed.named(weights).values()) == pytest.approx((weights @ mix.matrix).sum())

    def test_one_after_another(self, some):
        twice = some.mixed(Scaled(np.linspace(1, 2, 7))).only(np.array([6, 1]))
        np.testing.assert_allclose(twice.block(0, 40), [2 * some.values[6], 7 / 6 * some.values[1]])
        assert twice.ids == ("m006", "m001")
        assert twice.senders == some.ids


class TestColumns:
    @pytest.mark.parametrize("n", [1, 2, 5, 24, 25, 70, 200])
    @pytest.mark.parametrize("kind", [np.float32, np.float64])
    def test_every_column_is_sorted_whatever_way_is_taken(self, rows_of, n, kind):
        matrix = np.random.default_rng(n).normal(size=(n, 5000)).astype(kind)
        expected = np.sort(matrix, axis=0)
        for rank in {0, n // 2, n - 1}:
            found = rows_of(matrix).ordered(lambda ordered, rank=rank: ordered[rank])
            assert np.array_equal(found, expected[rank])

    def test_threads_change_no_bit(self, rows_of, monkeypatch):
        matrix = np.random.default_rng(7).normal(size=(40, 90_000)).astype(np.float32)
        results = []
        for count in ("1", "3"):
            monkeypatch.setenv("OMP_NUM_THREADS", count)
            assert blocked_ops.threads() == int(count)
            rows = rows_of(matrix)
            parts = (rows.ordered(lambda o: o[20]), rows.norms(), rows.combine(np.full(40, 0.3)))
            results.append(b"".join(part.tobytes() for part in parts))
        assert results[0] == results[1]

    def test_float32_sums_are_as_exact_as_the_rows(self, rows_of):
        matrix = np.random.default_rng(8).normal(size=(500, 3000)).astype(np.float32)
        weights = np.random.default_rng(9).random(500)
        exact = weights @ matrix.astype(np.float64)
        found = rows_of(matrix).combine(weights)
        assert np.abs(found - exact).max() < 1e-6 * np.abs(exact).max()
        even = rows_of(matrix).combine(np.full(500, 0.002))
        assert np.abs(even - matrix.astype(np.float64).mean(0)).max() < 1e-6

    @pytest.mark.parametrize("weights", [[0.25] * 4, [0.1, 0.2, 0.3, 0.4]])
    def test_a_sum_of_float32_does_not_overflow(self, rows_of, weights):
        largest = rows_of(np.full((4, 3), 3e38, np.float32))
        assert largest.combine(np.array(weights)) == pytest.approx([3e38] * 3, rel=1e-6)
        assert largest.combine(4 * np.array(weights)) == pytest.approx([12e38] * 3, rel=1e-6)

    @pytest.mark.parametrize("n", range(1, 11))
    def test_the_network_sorts_all_zeros_and_ones_and_so_everything(self, n):
        columns_of_bits = np.array(list(itertools.product((0.0, 1.0), repeat=n))).T
        for cut in range((n + 1) // 2):
            kept = np.sort(columns_of_bits, axis=0)[cut : n - cut]
            assert np.array_equal(sort_few(columns_of_bits, cut), kept)
        assert len(comparators(n)) <= n * n // 2

    @pytest.mark.parametrize("n", [1, 2, 3, 8, 17, 23, 24, 25, 40])
    def test_the_middle_is_the_median_to_the_bit(self, rows_of, n):
        matrix = np.random.default_rng(n).normal(size=(n, 300)).astype(np.float32).round(1)
        expected = np.median(matrix.astype(np.float64), axis=0)
        assert np.array_equal(middle_of(rows_of(matrix)), expected)

    @pytest.mark.parametrize("n", range(1, 25))
    def test_no_number_in_any_row_is_none_in_the_middle(self, n):
        assert np.isnan(sort_few(np.where(np.eye(n) > 0, np.nan, 1.0), (n - 1) // 2)).all()

    @settings(max_examples=50)
    @given(matrix=matrices)
    def test_sorting_leaves_the_rows_alone(self, rows_of, matrix):
        rows = rows_of(matrix)
        before = rows.values.copy()
        rows.ordered(lambda ordered: ordered[0])
        assert np.array_equal(rows.values, before)


class TestScreening:
    def test_what_is_no_number_is_in_no_row(self):
        good = np.ones(3, np.float32)
        bad = {
            "nan": np.array([1, np.nan, 1], np.float32),
            "inf": np.array([1, 1, -np.inf]),
            "long": np.full(3, 1e200),
        }
        rows = Rows.of({"a": good, **bad})
        assert rows.ids == ("a",)
        assert rows.refused == dict.fromkeys(bad, "not_finite")

    def test_the_largest_float32_is_a_number(self):
        assert len(Rows.of({"a": np.full(9, 3e38, np.float32)})) == 1

    def test_float32_stays_what_it_is(self):
        assert Rows.of({"a": np.ones(3, np.float32)}).values.dtype == np.float32
        mixed = {"a": np.ones(3, np.float32), "b": np.ones(3)}
        assert Rows.of(mixed).values.dtype == np.float64

    def test_vectors_of_different_sizes_are_a_defect_of_ours(self):
        with pytest.raises(ValueError, match="shape"):
            Rows.of({"a": np.zeros(2), "b": np.zeros(3)})
