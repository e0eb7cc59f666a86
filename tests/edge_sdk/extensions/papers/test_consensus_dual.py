"""The dual that both ends compute: what bounds it, and when two ends differ."""

import hashlib
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.extensions.papers.consensus_dual import (
    CHECK_BYTES,
    Ascent,
    damping,
    dual_digest,
    next_dual,
)

numbers, duals = st.floats(-3e38, 3e38), st.floats(-0.5, 0.5)


@pytest.mark.parametrize(
    ("fired", "duals", "z", "w", "after"),
    [
        (0, (0.1, -0.2), 1.01, (0.16, 1.72266874), (0.085, -0.07126687)),
        (1, (0.085,), 1.00862669, (0.28885196,), (0.08550128,)),
        (
            2,
            (0.08550128, -0.07126687),
            1.00720325,
            (0.39697873, 1.53264804),
            (0.08155681, -0.06966024),
        ),
    ],
)
def test_the_worked_example(fired, duals, z, w, after):
    ascent = Ascent(rate=0.1, most=0.5)
    found = next_dual(np.array(duals), np.full(len(w), z), np.array(w), fired, ascent)
    assert found == pytest.approx(np.array(after), abs=1e-8)


@given(duals, numbers, numbers, st.integers(0, 10**6))
def test_no_numbers_take_it_beyond_its_bound(dual, z, w, fired):
    ascent = Ascent(rate=0.05, most=0.01)
    one = [np.array([value], np.float32) for value in (dual, z, w)]
    found = next_dual(*one, fired, ascent)
    assert found.dtype == np.float32
    assert abs(found[0]) <= np.float32(0.01)


@given(st.integers(0, 10**6), st.floats(1e-3, 10.0))
def test_damping_alone_never_turns_a_dual_round(fired, rate):
    held = 1.0 - rate * damping(rate, fired)
    assert 0.0 <= held < 1.0


def test_no_rate_is_no_dual_at_all():
    dual = np.zeros(3, np.float32)
    assert next_dual(dual, np.full(3, np.inf), np.zeros(3), 0, Ascent(0.0, 1.0)) is dual


def test_a_damping_that_overshoots_is_refused():
    with pytest.raises(ValueError, match="at most 1"):
        Ascent(rate=0.5, most=1.0, least=3.0)


def test_single_precision_does_not_show_in_a_check_and_a_missed_firing_does():
    rng = np.random.default_rng(0)
    dual = np.rint(rng.uniform(-0.01, 0.01, 500) / 1e-4) * 1e-4
    assert dual_digest(dual) == dual_digest(dual.astype(np.float32))
    assert len(dual_digest(dual)) == CHECK_BYTES
    missed = next_dual(dual, np.zeros(500), dual, 3, Ascent(0.05, 0.01))
    assert dual_digest(missed) != dual_digest(dual)


def test_the_check_bytes_are_those_of_the_protocol():
    said = hashlib.sha256(struct.pack("<2i", 5000, -713)).digest()[:8]
    assert dual_digest(np.array([0.5, -0.0713])) == said
    assert said.hex() == "d4cc731fd521aa20"


def test_a_check_takes_any_size_of_number():
    assert dual_digest(np.array([3e38, -3e38])) == dual_digest(np.array([1e30, -1e30]))
