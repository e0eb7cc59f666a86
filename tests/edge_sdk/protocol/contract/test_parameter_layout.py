import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.protocol import codec
from edge_sdk.protocol.contract.parameter_layout import Layer, LayoutError, ParamSpec, layout_digest

SPEC = ParamSpec.of([("a.w", (2, 3)), ("b.w", (4,)), ("a.b", (2,))], shared=["a."])


def test_offsets_follow_the_order_of_the_names_given():
    assert [(x.name, x.offset, x.size) for x in SPEC.layers] == [
        ("a.w", 0, 6),
        ("b.w", 6, 4),
        ("a.b", 10, 2),
    ]
    assert (SPEC.size, SPEC.shared_size) == (12, 8)


def test_shared_and_personal_slices_keep_model_order():
    p = np.arange(12, dtype=np.float32)
    assert SPEC.shared(p).tolist() == [0, 1, 2, 3, 4, 5, 10, 11]
    assert SPEC.personal(p).tolist() == [6, 7, 8, 9]


def test_place_takes_the_shared_and_keeps_the_personal():
    p = np.arange(12, dtype=np.float32)
    out = SPEC.place(p, np.full(8, -1, np.float32))
    assert out.tolist() == [-1] * 6 + [6, 7, 8, 9] + [-1] * 2
    assert p[0] == 0, "the old vector must not change"


def test_lift_is_zero_where_nothing_is_shared():
    assert SPEC.lift(np.ones(8, np.float32)).tolist() == [1] * 6 + [0] * 4 + [1] * 2


@pytest.mark.parametrize("size", [0, 11, 13])
def test_a_vector_of_another_size_is_refused(size):
    with pytest.raises(LayoutError, match="12"):
        SPEC.shared(np.zeros(size, np.float32))


def test_a_part_of_another_size_is_refused():
    with pytest.raises(LayoutError, match="8 shared"):
        SPEC.place(np.zeros(12, np.float32), np.zeros(12, np.float32))


@pytest.mark.parametrize(
    ("shapes", "shared", "why"),
    [
        ([("w", (2,)), ("w", (3,))], [""], "twice"),
        ([("w", (2, 0))], [""], "empty dimension"),
        ([("w", (2,))], ["v"], "matches no layer; layers: w"),
    ],
)
def test_a_layout_that_cannot_be_meant_is_refused(shapes, shared, why):
    with pytest.raises(LayoutError, match=why):
        ParamSpec.of(shapes, shared)


def test_an_explicitly_empty_share_is_allowed():
    assert ParamSpec.of([("w", (2,))], shared=()).shared_size == 0


def test_the_published_digest():
    assert ParamSpec.of([("w", (2,))]).digest.hex() == "223bc5eaf8caf6e0b006fee5a747c7dd"


def test_the_digest_is_of_the_shared_layers_only():
    other = ParamSpec.of([("a.w", (2, 3)), ("b.w", (99,)), ("a.b", (2,))], shared=["a."])
    assert other.digest == SPEC.digest
    assert other.whole_digest != SPEC.whole_digest


shapes = st.lists(
    st.tuples(
        st.text("ab.é", min_size=1, max_size=40),
        st.lists(st.integers(1, 2**20), min_size=1, max_size=20),
    ),
    max_size=20,
)


@given(shapes)
def test_the_hand_written_msgpack_is_what_a_library_writes(rows):
    """The digest's own few lines of msgpack must stay canonical for any names and sizes."""
    packer = codec._msgpack()
    packed = packer.packb([[name, dims] for name, dims in rows])
    expected = hashlib.sha256(b"gridfed/1/spec\0" + packed).digest()[:16]
    assert layout_digest([Layer(name, tuple(dims), 0) for name, dims in rows]) == expected
