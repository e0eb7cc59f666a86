"""Token buckets: what they give out, whom they forget, what is charged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.ingress.rate_limits import RateLimiter, RateLimits, TokenBuckets
from edge_sdk.errors import Refused


@given(
    takes=st.lists(st.tuples(st.floats(0, 30), st.floats(0.1, 4)), max_size=60),
    capacity=st.floats(1, 10),
    rate=st.floats(0.01, 2),
)
def test_a_bucket_never_gives_more_than_it_holds_and_gains(takes, capacity, rate):
    buckets, now, given_out = TokenBuckets(capacity, rate), 0.0, 0.0
    for wait, tokens in takes:
        now += wait
        given_out += tokens if buckets.consume("m", now, tokens) else 0.0
        assert given_out <= capacity + rate * now + 1e-6


def test_buckets_forget_the_oldest_names_only():
    buckets = TokenBuckets(1, 0.0, most=2)
    assert [buckets.consume(name, 0.0) for name in ("a", "b", "b")] == [True, True, False]
    buckets.consume("c", 0.0)
    assert buckets.consume("a", 0.0)  # forgotten, so full again
    assert not buckets.consume("c", 0.0)


def test_a_clock_that_stands_still_or_turns_back_gives_nothing():
    buckets = TokenBuckets(1, 1.0)
    assert buckets.consume("m", 100.0)
    assert not buckets.consume("m", 50.0)


def test_chunks_are_charged_by_their_bytes_only():
    guard = RateLimiter(RateLimits(control=1, volume=100))
    guard.charge("m", "update", 10, 0.0)
    guard.charge("m", "chunk", 80, 0.0)
    with pytest.raises(Refused, match="bytes"):
        guard.charge("m", "chunk", 80, 0.0)
