"""Both halves of a chunked transfer: whatever the network does, the exact bytes arrive."""

from __future__ import annotations

import hashlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.ingress.content_server import Sending
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol.transfer import Pace, Receiving, TransferReport, bitmap

SMALL = 8_192


def body_of(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def receiving(body: bytes, *, seed: int = 0) -> Receiving:
    digest = hashlib.sha256(body).digest()
    return Receiving(digest, len(body), SMALL, now=0.0, rng=random.Random(seed), pace=Pace(8))


def refusal(call) -> Reason:
    with pytest.raises(Refused) as caught:
        call()
    return caught.value.reason


class Air:
    """A network between one sender and one receiver, with a stranger's chunks in it."""

    def __init__(self, seed: int, chunks: int, loss: float, twice: float, shuffle: float):
        self.rng = random.Random(seed)
        self.loss, self.twice, self.shuffle = loss, twice, shuffle
        self.body = body_of(seed, (chunks - 1) * SMALL + self.rng.randint(1, SMALL))
        self.stranger = Sending(body_of(seed + 1, len(self.body)), SMALL)
        self.there = Sending(self.body, SMALL)
        self.here = receiving(self.body, seed=seed)
        self.flying: list[object] = []
        self.sent = self.strangers = 0

    def throw(self, what: object) -> None:
        if self.rng.random() >= self.loss:
            self.flying.extend([what] * (1 + (self.rng.random() < self.twice)))

    def speak(self, now: float) -> None:
        if (report := self.here.report(now)) is not None:
            self.throw(report)
        for i in self.there.due(self.rng.randint(1, 20)):
            self.throw((self.there.id, i, self.there.piece(i)))
            self.sent += 1
        if self.rng.random() < 0.05:
            self.flying.append((self.stranger.id, 0, self.stranger.piece(0)))
        if self.rng.random() < self.shuffle:
            self.rng.shuffle(self.flying)

    def land(self, what: object, now: float) -> None:
        if isinstance(what, TransferReport):
            self.there.heard(what.having, what.window)
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


def test_a_resumed_upload_sends_only_what_is_missing():
    body = body_of(1, 5 * SMALL)
    again = Sending(body, SMALL)
    again.heard(bitmap([0, 1, 3], 5), 8)
    assert again.due(20) == (2, 4)


def test_a_receiver_that_forgot_gets_everything_again():
    there = Sending(bytes(4 * SMALL), SMALL)
    there.heard(bitmap([0, 1, 2], 4), 8)
    there.heard(b"", 8)
    assert there.due(20) == (0, 1, 2, 3)


def test_a_chunk_the_link_has_no_room_for_is_due_later():
    there = Sending(bytes(4 * SMALL), SMALL)
    there.heard(b"", 2)
    assert there.due(0) == ()
    assert there.due(1) == (0,)
    assert there.due(20) == (1,)


def test_nothing_is_sent_before_a_grant():
    there = Sending(bytes(4 * SMALL), SMALL)
    assert there.due(20) == ()
    there.heard(b"", 2)
    assert there.due(20) == (0, 1)
