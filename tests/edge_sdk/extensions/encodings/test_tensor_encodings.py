"""Encodings of signs, of the largest scalars and of integers: what they keep, and what they refuse."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import codec


def reason(call, *args):
    with pytest.raises(Refused) as refused:
        call(*args)
    return refused.value.reason


singles = hnp.arrays(
    np.float32, st.integers(0, 40), elements=st.floats(-(2.0**99), 2.0**99, width=32)
)


@given(singles)
def test_f4_and_tk_are_exact_for_float32(vector):
    for enc in ("f4", "tk"):
        back = codec.unpack_tensor(codec.pack_tensor(vector, enc), enc, len(vector))
        np.testing.assert_array_equal(back, vector.astype(np.float64))


@given(hnp.arrays(np.float64, st.integers(0, 2100), elements=st.floats(-100, 100)))
def test_i1_errs_by_half_a_step_of_its_own_block(vector):
    back = codec.unpack_tensor(codec.pack_tensor(vector, "i1"), "i1", len(vector))
    for start in range(0, len(vector), 1024):
        block = slice(start, start + 1024)
        step = np.abs(vector[block]).max() / 127
        assert (np.abs(back[block] - vector[block]) <= step * 0.5 * (1 + 1e-5) + 1e-42).all()


def test_i1_blocks_do_not_share_a_scale():
    vector = np.concatenate([np.full(1024, 1000.0), np.full(3, 0.001)])
    back = codec.unpack_tensor(codec.pack_tensor(vector, "i1"), "i1", 1027)
    assert back[-1] == pytest.approx(0.001)


@given(hnp.arrays(np.float64, st.integers(0, 40), elements=st.sampled_from([-1.0, 1.0])))
def test_b1_keeps_every_sign(vector):
    blob = codec.pack_tensor(vector, "b1")
    assert len(blob) == -(-len(vector) // 8)
    np.testing.assert_array_equal(codec.unpack_tensor(blob, "b1", len(vector)), vector)


@given(hnp.arrays(np.float64, st.integers(0, 40), elements=st.sampled_from([-1.0, 0.0, 1.0])))
def test_b2_keeps_every_sign_and_zero(vector):
    blob = codec.pack_tensor(vector, "b2")
    assert len(blob) == -(-len(vector) // 4)
    np.testing.assert_array_equal(codec.unpack_tensor(blob, "b2", len(vector)), vector)


@pytest.mark.parametrize(("enc", "value"), [("b1", 0.0), ("b1", 0.5), ("b2", 0.5), ("b2", 2.0)])
def test_signs_of_what_is_no_sign_are_refused(enc, value):
    assert reason(codec.pack_tensor, np.array([value]), enc) is Reason.WRONG_ENCODING


@pytest.mark.parametrize(
    ("enc", "blob", "size"),
    [
        ("b1", b"\x08", 3),  # a spare bit
        ("b2", b"\x02", 1),  # code 10
        ("b2", b"\x05", 1),  # a spare pair
        ("i1", np.float32(1).tobytes() + b"\x80", 1),  # -128
        ("i1", np.float32(-1).tobytes() + b"\x01", 1),  # a negative scale
        ("tk", np.array([1, 5], "<u4").tobytes() + np.float32(1).tobytes(), 5),  # beyond the end
        ("tk", np.array([2, 1, 1], "<u4").tobytes() + bytes(8), 5),  # an index twice
        ("tk", np.array([2, 3, 1], "<u4").tobytes() + bytes(8), 5),  # falling
        ("q8", np.float16(1).tobytes() + b"\x80", 1),  # -128
        ("q8", np.float16(-1).tobytes() + b"\x01", 1),  # a negative scale
        ("q4", np.float16(1).tobytes() + b"\x08", 1),  # -8
        ("q4", np.float16(1).tobytes() + b"\x11", 1),  # a spare half
        ("zz", b"", 0),
    ],
)
def test_bits_that_mean_nothing_are_a_wrong_encoding(enc, blob, size):
    assert reason(codec.unpack_tensor, blob, enc, size) is Reason.WRONG_ENCODING


@pytest.mark.parametrize("kept", [6, 2**32 - 1])
def test_tk_cannot_keep_more_than_there_is(kept):
    blob = kept.to_bytes(4, "little") + bytes(48)
    assert reason(codec.unpack_tensor, blob, "tk", 5) is Reason.WRONG_SIZE


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("enc", ["q8", "q4"])
def test_a_scale_that_is_not_finite_is_refused(enc, bad):
    blob = np.float16(bad).tobytes() + b"\x00"
    assert reason(codec.unpack_tensor, blob, enc, 1) is Reason.NOT_FINITE


def test_the_encodings_are_known_in_this_order():
    assert list(codec.ENCODINGS) == ["f4", "f2", "i1", "b1", "b2", "tk", "q8", "q4"]
