"""Chunked transfers: whatever the network does, the exact bytes arrive or are asked for again."""

from __future__ import annotations

import hashlib
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol.transfer import (
    CHUNK,
    IDLE,
    MOST_BYTES,
    Pace,
    Receiving,
    Sending,
    TransferReport,
    bitmap,
    chunk_size,
    count_of,
    id_of,
    indices,
)

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


class Air:
    """A network between one sender and one receiver, with a stranger's chunks in it."""

    def __init__(self, seed: int, chunks: int, loss: float, twice: float, shuffle: float):
        self.rng = random.Random(seed)
        self.loss, self.twice, self.shuffle = loss, twice, shuffle
        self.body = body_of(seed, (chunks - 1) * SMALL + self.rng.randint(1, SMALL))
        self.stranger = Sending(body_of(seed + 1, len(self.body)), SMALL, now=0.0)
        self.there = Sending(self.body, SMALL, now=0.0)
        self.here = receiving(self.body, seed=seed)
        self.flying: list[object] = []
        self.sent = self.strangers = 0

    def throw(self, what: object) -> None:
        if self.rng.random() >= self.loss:
            self.flying.extend([what] * (1 + (self.rng.random() < self.twice)))

    def speak(self, now: float) -> None:
        if (report := self.here.report(now)) is not None:
            self.throw(report)
        for i in self.there.due(self.rng.randint(1, 20), now):
            self.throw((self.there.id, i, self.there.piece(i)))
            self.sent += 1
        if self.rng.random() < 0.05:
            self.flying.append((self.stranger.id, 0, self.stranger.piece(0)))
        if self.rng.random() < self.shuffle:
            self.rng.shuffle(self.flying)

    def land(self, what: object, now: float) -> None:
        if isinstance(what, TransferReport):
            self.there.heard(what.having, what.window, now)
        elif what[0] == self.stranger.id:
            assert refusal(lambda: self.here.add(*what, now=now)) is Reason.BAD_CHUNK
            self.strangers += 1
        else:
            self.here.add(*what, now=now)

    def play(self, until: float) -> None:
        now = 0.0
        while not self.here.is_complete and now < until:
            self.speak(now)
            if self.flying:
                self.land(self.flying.pop(0), now)
            now += 0.01 if self.flying else 0.5


@settings(max_examples=60)
@given(
    st.integers(0, 2**32),
    st.integers(1, 24),
    st.floats(0.0, 0.6),
    st.floats(0.0, 0.5),
    st.floats(0.0, 1.0),
)
def test_loss_duplication_and_order_cannot_change_the_bytes(seed, chunks, loss, twice, shuffle):
    air = Air(seed, chunks, loss, twice, shuffle)
    air.play(until=20_000.0)
    assert air.here.is_complete
    assert air.here.body() == air.body


def test_a_clean_network_carries_every_chunk_once():
    air = Air(7, 24, 0.0, 0.0, 0.0)
    air.play(until=60.0)
    assert air.here.is_complete
    assert air.sent == 24


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
        (MOST_BYTES + 1, CHUNK, Reason.TOO_LARGE),
        (257 * SMALL, SMALL, Reason.TOO_LARGE),  # 2.1 MB, but 257 chunks
        (0, CHUNK, Reason.MALFORMED),
        (-5, CHUNK, Reason.MALFORMED),
        (10, CHUNK + 1, Reason.MALFORMED),
        (10, SMALL - 1, Reason.MALFORMED),
    ],
)
def test_an_offer_beyond_the_limits_reserves_nothing(size, chunk, reason):
    make = lambda: Receiving(bytes(32), size, chunk, now=0.0, rng=random.Random(0))  # noqa: E731
    assert refusal(make) is reason


def test_the_largest_transfer_is_allowed():
    assert Receiving(bytes(32), MOST_BYTES, CHUNK, now=0.0, rng=random.Random(0)).count == 256


def test_a_resumed_upload_sends_only_what_is_missing():
    body = body_of(1, 5 * SMALL)
    again = Sending(body, SMALL, now=0.0)
    again.heard(bitmap([0, 1, 3], 5), 8, 0.0)
    assert again.due(20, 0.0) == (2, 4)


def test_a_receiver_that_forgot_gets_everything_again():
    there = Sending(bytes(4 * SMALL), SMALL, now=0.0)
    there.heard(bitmap([0, 1, 2], 4), 8, 0.0)
    there.heard(b"", 8, 1.0)
    assert there.due(20, 1.0) == (0, 1, 2, 3)


def test_a_chunk_the_link_has_no_room_for_is_due_later():
    there = Sending(bytes(4 * SMALL), SMALL, now=0.0)
    there.heard(b"", 2, 0.0)
    assert there.due(0, 0.0) == ()
    assert there.due(1, 0.0) == (0,)
    assert there.due(20, 0.0) == (1,)


def test_nothing_is_sent_before_a_grant():
    there = Sending(bytes(4 * SMALL), SMALL, now=0.0)
    assert there.due(20, 0.0) == ()
    there.heard(b"", 2, 0.0)
    assert there.due(20, 0.0) == (0, 1)


def test_silence_is_noticed_by_both_ends():
    there, here = Sending(bytes(SMALL), SMALL, now=0.0), receiving(bytes(SMALL))
    assert not there.is_stalled(9.9)
    assert there.is_stalled(10.0)
    assert not here.is_expired(IDLE - 0.1)
    assert here.is_expired(IDLE)


def test_sizes_and_names():
    assert count_of(1, CHUNK) == count_of(CHUNK, CHUNK) == 1
    assert id_of(bytes(range(32))) == bytes(range(16))
    assert chunk_size(9_000) == 8_488
    assert refusal(lambda: chunk_size(8_703)) is Reason.UNUSABLE_LINK
