import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edge_sdk.errors import Reason, Refused
from edge_sdk.extensions.papers.split.array_rows import Sheet, cut
from edge_sdk.protocol.messages import CHUNK_LIMIT, check_fragment, row_size

FINITE = st.floats(-6e4, 6e4, width=16)
SHAPES = st.tuples(st.integers(1, 40), st.integers(1, 4), st.integers(1, 700))


def put(sheet, pieces):
    for piece in pieces:
        check_fragment(sheet.enc, sheet.shape, *piece)
        sheet.add(*piece)
    return sheet


@given(hnp.arrays(np.float32, SHAPES, elements=FINITE), st.sampled_from(["f4", "f2"]), st.randoms())
def test_pieces_in_any_order_and_doubled_make_the_array_again(array, enc, rng):
    pieces = list(cut(array, enc))
    assert all(len(piece.blob) <= CHUNK_LIMIT for piece in pieces)
    assert sum(piece.num for piece in pieces) == len(array)
    mixed = pieces + rng.sample(pieces, len(pieces) // 2)
    rng.shuffle(mixed)
    sheet = put(Sheet(enc, array.shape), mixed)
    assert sheet.is_complete
    np.testing.assert_array_equal(sheet.array(), array)  # drawn so that float16 loses nothing


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=300))
def test_window_numbers_keep_every_bit(numbers):
    ids = np.array(numbers, np.int32)
    sheet = put(Sheet("i4", ids.shape), cut(ids, "i4"))
    assert sheet.array().dtype == np.int32
    assert sheet.array().tolist() == numbers


def test_a_row_that_came_stays_as_it_came_first():
    sheet = Sheet("f4", (2, 1))
    sheet.add(0, 1, np.float32([1.0]).tobytes())
    sheet.add(0, 2, np.float32([9.0, 2.0]).tobytes())
    assert sheet.array().ravel().tolist() == [1.0, 2.0]


def test_a_piece_with_a_scalar_that_is_not_finite_changes_nothing():
    sheet = Sheet("f4", (2, 1))
    with pytest.raises(Refused) as refused:
        sheet.add(0, 2, np.float32([1.0, np.nan]).tobytes())
    assert refused.value.reason is Reason.BAD_TENSOR
    sheet.add(0, 2, np.float32([3.0, 4.0]).tobytes())
    assert sheet.array().ravel().tolist() == [3.0, 4.0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
def test_a_scalar_that_is_not_finite_is_not_sent(value):
    with pytest.raises(Refused, match="BAD_TENSOR"):
        list(cut(np.array([[value]], np.float64), "f4"))


@pytest.mark.parametrize(("rows", "enc"), [(4096 * 4, "f4"), (4096 * 8, "f2")])
def test_a_fragment_announces_at_most_64_mib(rows, enc):
    """The receiver allocates the array that the first fragment announces."""
    shape = (rows // 2, 64, 32)
    row = bytes(row_size(shape, enc))
    check_fragment(enc, shape, 0, 1, row)
    with pytest.raises(ValueError, match="at most 67108864"):
        check_fragment(enc, (shape[0] + 1, 64, 32), 0, 1, row)
    with pytest.raises(ValueError, match="at most 67108864"):
        check_fragment(enc, (1_048_576, 64, 32), 0, 1, row)


def test_an_array_that_no_receiver_allocates_is_not_sent():
    array = np.zeros((8192 + 1, 64, 32), np.float16)
    with pytest.raises(Refused, match=r"BAD_TENSOR.*at most 67108864"):
        next(cut(array, "f4"))


def test_float16_saturates_and_does_not_overflow():
    sheet = put(Sheet("f2", (1, 2)), cut(np.array([[1e30, -70000.0]]), "f2"))
    assert sheet.array().ravel().tolist() == [65504.0, -65504.0]


def test_the_papers_activation_has_the_papers_bytes():
    h = np.zeros((32, 64, 32), np.float32)
    assert [(p.off, p.num) for p in cut(h, "f4")] == [(k, 4) for k in range(0, 32, 4)]
    assert sum(len(p.blob) for p in cut(h, "f4")) == 262_144
    assert [(p.off, p.num) for p in cut(h, "f2")] == [(k, 8) for k in range(0, 32, 8)]


def test_a_row_may_be_as_long_as_a_piece_and_no_longer():
    assert row_size((2, 8192), "f4") == CHUNK_LIMIT
    assert len(list(cut(np.zeros((2, 8192), np.float32), "f4"))) == 2
    with pytest.raises(Refused, match="BAD_TENSOR"):
        list(cut(np.zeros((2, 8193), np.float32), "f4"))


@given(
    st.sampled_from(["", "f4", "f2", "i4", "f8"]),
    st.lists(st.integers(-1, 5), max_size=5).map(tuple),
    st.integers(0, 6),
    st.integers(0, 6),
    st.binary(max_size=64),
)
def test_every_fragment_that_passes_the_check_fits_an_assembler(enc, shape, off, num, blob):
    try:
        check_fragment(enc, shape, off, num, blob)
    except ValueError:
        return
    if shape:
        with contextlib.suppress(Refused):  # not finite
            Sheet(enc, shape).add(off, num, blob)
