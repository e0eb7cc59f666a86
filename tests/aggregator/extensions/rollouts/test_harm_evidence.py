"""The evidence of harm against an exact enumeration, and its promises as properties."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.extensions.rollouts.stages import (
    SHARES,
    DayResults,
    is_harmful,
    log_evidence,
)

results = st.builds(DayResults, st.integers(0, 40), st.integers(0, 40))
days = st.dictionaries(st.integers(20_000, 20_030), results, max_size=12)


def slow(found):
    """Return the evidence by its definition: a mean of products over shares and first days."""
    numbers = [day for day in sorted(found) if found[day].results]
    total = 0.0
    for share in SHARES:
        left = 1.0
        for first in range(len(numbers)):
            weight = 1 / ((first + 1) * (first + 2))
            bets = [
                (2 * share) ** found[day].lost * (2 * (1 - share)) ** found[day].kept
                for day in numbers[first:]
            ]
            total += weight * math.prod(bets) / len(SHARES)
            left -= weight
        total += left / len(SHARES)
    return total


@given(
    st.dictionaries(
        st.integers(0, 9), st.builds(DayResults, st.integers(0, 6), st.integers(0, 6)), max_size=6
    )
)
def test_the_evidence_is_its_definition(found):
    assert math.exp(log_evidence(found)) == pytest.approx(slow(found), rel=1e-9)


@pytest.mark.parametrize("probability", [0.0, 0.2, 0.5])
def test_the_evidence_is_at_most_one_on_average(probability):
    """Three devices on three days, every outcome with its probability."""
    total = 0.0
    for lost in product(range(4), repeat=3):
        weight = math.prod(
            math.comb(3, n) * probability**n * (1 - probability) ** (3 - n) for n in lost
        )
        total += weight * math.exp(
            log_evidence({i: DayResults(n, 3 - n) for i, n in enumerate(lost)})
        )
    assert total <= 1.0 + 1e-9


def test_the_evidence_is_one_on_average_for_fair_days():
    total = sum(
        math.prod(math.comb(2, n) / 4 for n in lost)
        * math.exp(log_evidence({i: DayResults(n, 2 - n) for i, n in enumerate(lost)}))
        for lost in product(range(3), repeat=4)
    )
    assert total == pytest.approx(1.0)


@given(days, st.integers(20_000, 20_030))
def test_one_more_lost_day_never_lessens_the_evidence(found, day):
    before = found.get(day, DayResults(0, 1))
    base = {**found, day: before}
    worse = {**found, day: DayResults(before.lost + 1, before.kept)}
    assert log_evidence(worse) >= log_evidence(base) - 1e-9


@given(days)
def test_the_order_of_arrival_changes_nothing(found):
    turned = dict(reversed(list(found.items())))
    assert log_evidence(turned) == log_evidence(found)


def test_days_without_results_change_nothing():
    harm = DayResults(9, 1)
    assert log_evidence({5: harm, 6: DayResults()}) == log_evidence({5: harm})


@settings(deadline=None)
@given(
    st.dictionaries(
        st.integers(0, 99),
        st.builds(DayResults, st.integers(0, 10**6), st.integers(0, 10**6)),
        max_size=40,
    )
)
def test_any_counts_give_a_finite_evidence(found):
    assert math.isfinite(log_evidence(found))


def test_fair_days_of_fifty_devices_are_stopped_in_at_most_one_of_a_hundred_runs():
    rng = np.random.default_rng(20_261_123)
    stopped = 0
    for _ in range(100):
        found = {}
        for day, lost in enumerate(rng.binomial(50, 0.5, 30).tolist()):
            found[day] = DayResults(lost, 50 - lost)
            if is_harmful(found, 0.01):
                stopped += 1
                break
    assert stopped <= 1
