"""Chunked transfers: whatever the network does, the exact bytes arrive or are asked for again."""

from __future__ import annotations

import hashlib
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol.messages import BODY_LIMIT, CHUNK_LIMIT, chunk_size, count_of
from edge_sdk.protocol.transfer import IDLE, Pace, Receiving, bitmap, id_of, indices

SMALL = 8_192


def body_of(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def receiving(body: bytes, chunk: int = SMALL, *, seed: int = 0, window: int = 8) -> Receiving:
    digest = hashlib.sha256(body).digest()
    return Receiving(digest, len(body), chunk, now=0.0, rng=random.Random(seed), pace=Pace(window))


def refusal(call) -> Reason:
    with pytest.raises(Refused) as caught:
        call()
    return caught.value.reason


@given(st.integers(1, 256), st.data())
def test_a_bitmap_is_read_as_it_was_written(count, data):
    chosen = data.draw(st.sets(st.integers(0, count - 1)))
    assert set(indices(bitmap(chosen, count), count)) == chosen


def test_bits_are_counted_from_the_least_significant():
    assert bitmap([0], 16) == b"\x01\x00"  # most significant first would give 80 00
    assert bitmap([15], 16) == b"\x00\x80"


@pytest.mark.parametrize("wrong", [b"\x00\x00", b"\x00\x00\x00\x00", b"\x00\x00\x02"])
def test_a_bitmap_of_another_length_or_with_bits_beyond_is_refused(wrong):
    assert refusal(lambda: indices(wrong, 17)) is Reason.MALFORMED


def test_a_dead_network_keeps_being_asked():
    here = receiving(body_of(0, 3 * SMALL))
    asked = [now for now in range(600) if here.report(float(now)) is not None]
    gaps = [b - a for a, b in itertools.pairwise(asked)]
    assert len(asked) >= 8
    assert gaps[0] <= 4
    assert max(gaps) <= 91  # 60 s + 50 %, rounded up to this loop's second
    assert here.window == 1


def test_the_window_halves_at_a_gap_and_grows_when_clean():
    here = receiving(body_of(0, 40 * SMALL), window=4)
    here.report(0.0)
    assert here.report(10.0).window == 2
    for i in range(5):
        here.add(here.id, i, here_piece(i, 40), 10.0)
    assert here.window == 4  # 2 clean chunks make it 3, 3 more make it 4


def here_piece(i: int, count: int) -> bytes:
    return body_of(0, count * SMALL)[i * SMALL : (i + 1) * SMALL]


def test_the_window_never_leaves_its_bounds():
    here = receiving(body_of(0, 64 * SMALL))
    assert here.window == 8
    for i in range(64):
        here.add(here.id, i, here_piece(i, 64), float(i))
    assert here.window == 8


@pytest.mark.parametrize(
    ("index", "size"), [(-1, SMALL), (3, SMALL), (0, SMALL - 1), (2, SMALL), (2, 0)]
)
def test_a_chunk_that_does_not_fit_is_refused_and_leaves_no_trace(index, size):
    here = receiving(bytes(2 * SMALL + 5))
    assert refusal(lambda: here.add(here.id, index, bytes(size), 1.0)) is Reason.BAD_CHUNK
    assert here.having == b""


def test_chunks_that_are_not_the_offered_body_are_dropped_together():
    body = body_of(3, 2 * SMALL)
    here = receiving(body)
    here.add(here.id, 0, body[:SMALL], 0.0)
    here.add(here.id, 1, bytes(SMALL), 0.0)
    assert refusal(here.body) is Reason.BAD_DIGEST
    assert here.having == b""
    here.add(here.id, 0, body[:SMALL], 1.0)
    here.add(here.id, 1, body[SMALL:], 1.0)
    assert here.body() == body


def test_an_incomplete_body_is_not_given_out():
    assert refusal(receiving(bytes(SMALL + 1)).body) is Reason.NOT_FOUND


@pytest.mark.parametrize(
    ("size", "chunk", "reason"),
    [
        (BODY_LIMIT + 1, CHUNK_LIMIT, Reason.TOO_LARGE),
        (257 * SMALL, SMALL, Reason.TOO_LARGE),  # 2.1 MB, but 257 chunks
        (0, CHUNK_LIMIT, Reason.MALFORMED),
        (-5, CHUNK_LIMIT, Reason.MALFORMED),
        (10, CHUNK_LIMIT + 1, Reason.MALFORMED),
        (10, SMALL - 1, Reason.MALFORMED),
    ],
)
def test_an_offer_beyond_the_limits_reserves_nothing(size, chunk, reason):
    make = lambda: Receiving(bytes(32), size, chunk, now=0.0, rng=random.Random(0))  # noqa: E731
    assert refusal(make) is reason


def test_the_largest_transfer_is_allowed():
    assert Receiving(bytes(32), BODY_LIMIT, CHUNK_LIMIT, now=0.0, rng=random.Random(0)).count == 256


def test_silence_is_noticed():
    here = receiving(bytes(SMALL))
    assert not here.is_expired(IDLE - 0.1)
    assert here.is_expired(IDLE)


def test_sizes_and_names():
    assert count_of(1, CHUNK_LIMIT) == count_of(CHUNK_LIMIT, CHUNK_LIMIT) == 1
    assert id_of(bytes(range(32))) == bytes(range(16))
    assert chunk_size(9_000) == 8_488
    assert refusal(lambda: chunk_size(8_703)) is Reason.UNUSABLE_LINK
