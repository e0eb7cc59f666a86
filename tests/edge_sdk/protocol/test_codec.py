import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import codec, messages, msgpack_reader
from edge_sdk.protocol.keys import from_seed
from edge_sdk.protocol.messages import LARGEST

TIME = messages.TimeMessage(serial=1, t=2)
UPDATE = messages.UpdateMessage(
    run=1, round=2, base=2, life=1, seq=1, spent=1, spec=bytes(16), part="delta", enc="f4", n=3,
    blob=bytes(8),
)  # fmt: skip


def reason(call, *args):
    with pytest.raises(Refused) as caught:
        call(*args)
    return caught.value.reason


def body(**header):
    """Write a body with any header at all."""
    pairs = b"".join(
        msgpack_reader.text(key) + codec._msgpack().packb(v) for key, v in header.items()
    )
    return b"\x92\xde" + len(header).to_bytes(2, "big") + pairs + b"\xc4\x00"


# --- messages -------------------------------------------------------------------------------------


def test_an_unset_optional_field_is_left_out():
    header, _ = codec.read_body(codec.encode(UPDATE))
    assert not {"vals", "check", "flags"} & header.keys()
    assert codec.decode("update", codec.encode(UPDATE)) == UPDATE


def test_an_empty_list_without_default_is_written():
    public = from_seed(bytes(32)).public
    keys = messages.KeysMessage(
        serial=1, sign=(public,), open=(), from_=(0,), until=(9,), min_wire=1
    )
    header, _ = codec.read_body(codec.encode(keys))
    assert header["open"] == []
    assert header["from"] == [0]
    assert codec.decode(messages.KeysMessage, codec.encode(keys)) == keys


def test_keys_ascend_in_inner_maps_too_whatever_order_they_were_given():
    one = codec.encode(replace(UPDATE, vals={"b": 1.0, "a": 2.0}))
    other = codec.encode(replace(UPDATE, vals={"a": 2.0, "b": 1.0}))
    assert one == other
    assert list(codec.read_body(one)[0]["vals"]) == ["a", "b"]


def test_a_whole_number_in_a_float_field_is_written_as_float64():
    raw = codec.encode(replace(UPDATE, vals={"loss": 1}))
    assert b"\xcb\x3f\xf0" in raw


def test_a_float_field_reads_an_integer_but_an_integer_field_no_float():
    share = {"serial": 1, "t": 2.0}
    assert reason(codec.decode, "time", body(**share)) is Reason.MALFORMED


def test_non_canonical_but_valid_bytes_are_accepted():
    wide = b"\x92\x82" + msgpack_reader.text("t") + b"\xcf" + (2).to_bytes(8, "big")
    wide += b"\xd9\x06serial" + b"\xcc\x01" + b"\xc5\x00\x00"
    assert codec.decode(messages.TimeMessage, wide) == TIME


def test_unknown_keys_are_passed_over_and_counted():
    seen = []
    got = codec.decode(
        messages.TimeMessage, body(serial=1, t=2, colour="red"), on_unknown=seen.append
    )
    assert (got, seen) == (TIME, ["colour"])


def test_an_upper_case_key_must_be_understood():
    assert reason(codec.decode, "time", body(serial=1, t=2, Colour=1)) is Reason.UNKNOWN_FIELD


@pytest.mark.parametrize("kind", [*sorted(messages.RESERVED), "content", "", "Update", "x" * 99])
def test_a_kind_that_is_not_built_is_unknown(kind):
    assert reason(codec.decode, kind, codec.encode(TIME)) is Reason.UNKNOWN_KIND


@pytest.mark.parametrize(
    "header",
    [
        {"serial": 1},
        {"serial": True, "t": 2},
        {"serial": 0, "t": 2},
        {"serial": 1, "t": -1},
        {"serial": 1, "t": LARGEST + 1},
        {"serial": 1, "t": "2"},
        {"serial": 1, "t": None},
        {"serial": [1], "t": 2},
    ],
)
def test_a_header_that_breaks_type_or_range_is_malformed(header):
    assert reason(codec.decode, "time", body(**header)) is Reason.MALFORMED


def test_forty_keys_fit_and_one_more_does_not():
    fill = {f"k{i}": i for i in range(38)}
    assert codec.decode(messages.TimeMessage, body(serial=1, t=2, **fill)) == TIME
    assert reason(codec.decode, "time", body(serial=1, t=2, **fill, k=1)) is Reason.MALFORMED


def test_a_header_ends_within_4096_bytes():
    """The head of the map takes three, ``serial`` and ``t`` eleven, the filler's key three."""

    def filled(size):
        return body(serial=1, t=2, x="a" * size)

    room = messages.HEADER_LIMIT - (len(filled(1000)) - 1000 - 3)
    assert codec.decode(messages.TimeMessage, filled(room)) == TIME
    assert reason(codec.decode, "time", filled(room + 1)) is Reason.MALFORMED


def test_the_header_is_the_first_of_three_levels():
    assert codec.decode(messages.TimeMessage, body(serial=1, t=2, x=[[1]])) == TIME
    assert reason(codec.decode, "time", body(serial=1, t=2, x=[[[1]]])) is Reason.MALFORMED


def test_a_kind_without_blob_takes_none():
    raw = codec.encode(TIME)[:-2] + b"\xc4\x01x"
    assert reason(codec.decode, "time", raw) is Reason.MALFORMED


def test_a_body_over_eight_mebibytes_is_too_large():
    assert reason(codec.decode, "update", bytes(messages.BODY_LIMIT + 1)) is Reason.TOO_LARGE


def test_a_chunk_holds_32768_bytes_and_no_more():
    chunk = messages.ChunkMessage(id=bytes(16), i=0, blob=bytes(messages.CHUNK_LIMIT))
    assert codec.decode("chunk", codec.encode(chunk)) == chunk
    assert reason(codec.encode, replace(chunk, blob=chunk.blob + b"x")) is Reason.MALFORMED


@pytest.mark.parametrize(
    "changed",
    [{"life": 0}, {"seq": 2**63}, {"spec": bytes(15)}, {"part": "x" * 17}, {"n": 1.0}, {"n": True}],
)
def test_a_message_that_no_receiver_accepts_is_not_encoded(changed):
    assert reason(codec.encode, replace(UPDATE, **changed)) is Reason.MALFORMED


def test_a_nan_among_the_numbers_decodes_for_a_final_answer_to_be_given():
    got = codec.decode("update", codec.encode(replace(UPDATE, vals={"loss": math.nan})))
    assert math.isnan(got.vals["loss"])


# --- tensors --------------------------------------------------------------------------------------


def test_f2_saturates_instead_of_overflowing():
    back = codec.unpack_tensor(codec.pack_tensor(np.array([1e9, -1e9, 0.1]), "f2"), "f2", 3)
    assert back.tolist() == [65504.0, -65504.0, float(np.float16(0.1))]


@pytest.mark.parametrize("enc", codec.ENCODINGS)
def test_one_byte_more_or_less_is_a_wrong_size(enc):
    blob = codec.pack_tensor(np.array([1.0, -1.0, 1.0]), enc)
    for wrong in (blob[:-1], blob + b"\0"):
        assert reason(codec.unpack_tensor, wrong, enc, 3) is Reason.WRONG_SIZE


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_neither_encoded_nor_decoded(bad):
    for enc in codec.ENCODINGS:
        assert reason(codec.pack_tensor, np.array([bad]), enc) is Reason.NOT_FINITE
    assert reason(codec.unpack_tensor, np.float32(bad).tobytes(), "f4", 1) is Reason.NOT_FINITE
    assert reason(codec.unpack_tensor, np.float16(bad).tobytes(), "f2", 1) is Reason.NOT_FINITE


def test_a_float64_beyond_float32_is_refused_not_turned_into_infinity():
    assert reason(codec.pack_tensor, np.array([1e39]), "f4") is Reason.NOT_FINITE


def test_decoding_is_to_float64_and_owns_its_memory():
    vector = codec.unpack_tensor(np.float32([1, 2]).tobytes(), "f4", 2)
    vector += 1
    assert vector.dtype == np.float64


def test_a_matrix_is_no_vector():
    assert reason(codec.pack_tensor, np.zeros((2, 2)), "f4") is Reason.WRONG_SIZE


# --- leaves ---------------------------------------------------------------------------------------


@given(
    hnp.arrays(
        st.sampled_from(["<f4", "<f8", "<i8", "<u4", "|b1", "|i1"]),
        hnp.array_shapes(min_dims=0, min_side=0, max_dims=3),
    )
)
def test_arrays_come_back_with_every_bit(array):
    back = codec.unpack_leaves(codec.pack_leaves({"a": array}))["a"]
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert back.flags.writeable


def test_scalars_texts_and_nests_come_back():
    leaves = {
        "round": 3, "rate": 0.5, "on": True, "none": None, "name": "é", "raw": b"\0\xff",
        "rows": {"meter-1": [1, {"deep": -2}]}, "numpy": np.int64(7),
    }  # fmt: skip
    assert codec.unpack_leaves(codec.pack_leaves(leaves)) == {**leaves, "numpy": 7}


def test_a_non_contiguous_array_is_saved_by_value():
    array = np.arange(6).reshape(2, 3).T
    back = codec.unpack_leaves(codec.pack_leaves({"a": array}))["a"]
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("leaf", [object(), {1, 2}, np.array([object()]), lambda: 0])
def test_objects_are_never_saved(leaf):
    with pytest.raises(TypeError, match="cannot save"):
        codec.pack_leaves({"x": leaf})


def test_every_flipped_byte_of_a_saved_state_is_noticed():
    data = codec.pack_leaves({"round": 3, "w": np.ones(2)})
    for at in range(len(data)):
        bad = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(codec.DamagedLeavesError):
            codec.unpack_leaves(bad)
    for size in range(len(data)):
        with pytest.raises(codec.DamagedLeavesError):
            codec.unpack_leaves(data[:size])
