"""Quantisation in blocks: size, range, rounding, and blobs that are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edge_sdk.errors import Refused
from edge_sdk.extensions.encodings.block_quantisation import (
    BLOCK,
    LARGEST_STEP,
    dequantise,
    encoded_size,
    quantise,
)

NAMES = sorted(LARGEST_STEP)
VECTORS = hnp.arrays(
    np.float64,
    st.integers(0, 3 * BLOCK),
    elements=st.floats(-1e5, 1e5, allow_nan=False, allow_subnormal=False),
)


@pytest.mark.parametrize("enc", NAMES)
@given(vector=VECTORS, draw=st.integers(0, 2**32 - 1))
def test_an_error_is_at_most_one_step_of_the_block(enc, vector, draw):
    uniform = np.random.default_rng(draw).random(len(vector))
    blob = quantise(vector, enc, uniform)
    assert len(blob) == encoded_size(len(vector), enc)
    decoded = dequantise(blob, enc, len(vector))
    for start in range(0, len(vector), BLOCK):
        part = slice(start, start + BLOCK)
        step = np.abs(vector[part]).max() / LARGEST_STEP[enc]
        # A scale is rounded up to half precision: 1/1024 of it, or its smallest number.
        bound = step * (1 + 2**-10) + 2**-24
        assert np.abs(decoded[part] - vector[part]).max() <= bound


@pytest.mark.parametrize("enc", NAMES)
@given(vector=VECTORS)
def test_every_decoded_value_is_exact_in_float32_and_encodes_to_itself(enc, vector):
    decoded = dequantise(quantise(vector, enc), enc, len(vector))
    np.testing.assert_array_equal(decoded.astype(np.float32), decoded)


@pytest.mark.parametrize("enc", NAMES)
def test_stochastic_rounding_is_unbiased(enc):
    draw = np.random.default_rng(4)
    vector, times = draw.normal(size=200), 4000
    mean = np.mean(
        [dequantise(quantise(vector, enc, draw.random(200)), enc, 200) for _ in range(times)],
        axis=0,
    )
    step = 4.0 / LARGEST_STEP[enc]  # at least every block's
    assert np.abs(mean - vector).max() < 5 * step / 2 / times**0.5
    nearest = dequantise(quantise(vector, enc), enc, 200)
    assert np.abs(nearest - vector).max() > np.abs(mean - vector).max()


@pytest.mark.parametrize("enc", NAMES)
def test_a_block_of_zeros_and_a_scalar_beyond_the_range_are_encoded(enc):
    top = LARGEST_STEP[enc]
    huge = np.concatenate([np.zeros(BLOCK), [1e9, -1e9, 0.0]])
    decoded = dequantise(quantise(huge, enc), enc, len(huge))
    assert not decoded[:BLOCK].any()
    assert decoded[BLOCK:].tolist() == [65504.0 * top, -65504.0 * top, 0.0]
    assert quantise(np.zeros(0), enc) == b""


@pytest.mark.parametrize("enc", NAMES)
@given(data=st.data())
def test_a_damaged_blob_is_refused_or_finite_and_within_the_range(enc, data):
    size = data.draw(st.integers(1, 130))
    blob = data.draw(st.binary(min_size=encoded_size(size, enc), max_size=encoded_size(size, enc)))
    try:
        decoded = dequantise(blob, enc, size)
    except Refused:
        return
    assert np.isfinite(decoded).all()
    assert np.abs(decoded).max() <= 65504.0 * LARGEST_STEP[enc]
