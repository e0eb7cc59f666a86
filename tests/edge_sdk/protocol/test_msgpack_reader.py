import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol import codec, msgpack_reader
from edge_sdk.protocol.msgpack_reader import Cursor


def packed(value):
    return codec._msgpack().packb(value)


def refused(read, raw, *args):
    with pytest.raises(Refused) as caught:
        read(Cursor(raw), *args)
    assert caught.value.reason is Reason.MALFORMED
    return caught.value.detail


values = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=20,
)


@given(values)
def test_the_reader_reads_bytes_of_the_msgpack_library(value):
    at = Cursor(packed(value))
    assert at.value(99) == value
    assert at.is_done


@given(st.text(max_size=60), st.binary(max_size=700))
def test_the_writer_writes_the_bytes_of_the_msgpack_library(text, data):
    assert msgpack_reader.text(text) == packed(text)
    assert msgpack_reader.binary(data) == packed(data)


@pytest.mark.parametrize("size", [0, 31, 32, 255, 256, 65_535, 65_536])
def test_lengths_around_a_change_of_width(size):
    assert msgpack_reader.binary(bytes(size)) == packed(bytes(size))
    assert Cursor(packed("x" * size)).text(size) == "x" * size


@pytest.mark.parametrize(
    ("read", "raw"),
    [
        (Cursor.whole, b"\xa1a"),
        (Cursor.whole, b"\xff"),
        (Cursor.whole, b"\xc3"),
        (Cursor.whole, b"\xcd\x01"),
        (Cursor.array, b"\x81"),
        (Cursor.map, b"\x91"),
        (Cursor.array, b""),
    ],
)
def test_another_type_or_a_cut_is_malformed(read, raw):
    assert refused(read, raw)


def test_a_text_is_not_a_bin_nor_the_other_way_round():
    assert "expected a str" in refused(Cursor.text, b"\xc4\x01a", 8)
    assert "expected a bin" in refused(Cursor.binary, b"\xa1a", 8)


def test_a_text_must_be_utf_8():
    assert "UTF-8" in refused(Cursor.text, b"\xa2\xc3\x28", 8)


def test_a_length_beyond_the_limit_is_refused_before_it_is_read():
    assert "at most 8" in refused(Cursor.binary, b"\xc6\xff\xff\xff\xff", 8)


@pytest.mark.parametrize("raw", [b"\x93\x01\x01", b"\xdd\xff\xff\xff\xff", b"\xdc\x00\x01"])
def test_more_items_than_bytes_left_is_refused_before_any_is_read(raw):
    assert "bytes left" in refused(Cursor.array, raw)


@pytest.mark.parametrize("tag", [0xC0, 0xC1, 0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8])
def test_nil_and_extensions_have_no_place(tag):
    assert "not allowed" in refused(Cursor.value, bytes([tag]) + bytes(20), 3)


def test_nesting_stops_at_the_depth_given():
    assert Cursor(b"\x91\x91\x01").value(2) == [[1]]
    assert "too deep" in refused(Cursor.value, b"\x91\x91\x91\x01", 2)


def test_a_repeated_key_is_refused_even_when_the_values_agree():
    assert "twice" in refused(Cursor.value, b"\x82\xa1a\x01\xa1a\x01", 1)


def test_a_key_must_be_text():
    assert "expected a str" in refused(Cursor.value, b"\x81\x01\x01", 1)


def test_bytes_beyond_the_end_are_hidden_until_revealed():
    at = Cursor(b"\x01\x02", end=1)
    assert (at.whole(), at.is_done) == (1, True)
    with pytest.raises(Refused):
        at.whole()
    at.reveal()
    assert at.whole() == 2
