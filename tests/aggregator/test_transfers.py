"""Quotas, the queue of uploads, and presence where the intake's tests do not reach."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.quotas import Buckets, Guard, Quotas
from aggregator.records import Client
from aggregator.registry import Registry
from aggregator.store import SqliteStore
from aggregator.uploads import Room, Uploads
from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.keys import from_seed, kid_of
from edge_sdk.wire.messages import Offer


def offer(number, size=20_000, chunk=8192):
    digest = bytes([number] * 32)
    return Offer("update", digest, size, chunk, bytes(72), 1, 1, 0, bytes(16), 1, number + 1, 1)


@given(
    takes=st.lists(st.tuples(st.floats(0, 30), st.floats(0.1, 4)), max_size=60),
    capacity=st.floats(1, 10),
    rate=st.floats(0.01, 2),
)
def test_a_bucket_never_gives_more_than_it_holds_and_gains(takes, capacity, rate):
    buckets, now, given_out = Buckets(capacity, rate), 0.0, 0.0
    for wait, tokens in takes:
        now += wait
        given_out += tokens if buckets.take("m", now, tokens) else 0.0
        assert given_out <= capacity + rate * now + 1e-6


def test_buckets_forget_the_oldest_names_only():
    buckets = Buckets(1, 0.0, most=2)
    assert [buckets.take(name, 0.0) for name in ("a", "b", "b")] == [True, True, False]
    buckets.take("c", 0.0)
    assert buckets.take("a", 0.0)  # forgotten, so full again
    assert not buckets.take("c", 0.0)


def test_a_clock_that_stands_still_or_turns_back_gives_nothing():
    buckets = Buckets(1, 1.0)
    assert buckets.take("m", 100.0)
    assert not buckets.take("m", 50.0)


def test_chunks_are_charged_by_their_bytes_only():
    guard = Guard(Quotas(control=1, volume=100))
    guard.charge("m", "update", 10, 0.0)
    guard.charge("m", "chunk", 80, 0.0)
    with pytest.raises(Refused, match="bytes"):
        guard.charge("m", "chunk", 80, 0.0)


def test_waits_grow_with_the_place_in_the_queue():
    uploads = Uploads(Room(uploads=1), random.Random(1))
    uploads.offered("a", offer(0), 0.0)
    for number, name in enumerate("bcdefghijklm"):
        with pytest.raises(Refused) as caught:
            uploads.offered(name, offer(number + 1), float(number))
        assert caught.value.reason is Reason.BUSY
    first = [uploads.wait("b") for _ in range(20)]
    last = [uploads.wait("m") for _ in range(20)]
    assert max(first) < min(last)
    uploads.done("a", 5.0)
    assert uploads.offered("c", offer(9), 6.0)


def test_a_place_in_the_queue_is_given_up_by_silence():
    uploads = Uploads(Room(uploads=1), random.Random(1))
    uploads.offered("a", offer(0), 0.0)
    with pytest.raises(Refused):
        uploads.offered("b", offer(1), 0.0)
    uploads.due(130.0)
    assert len(uploads) == 0
    assert uploads.next_due is None
    assert uploads.wait("b") <= 3000


def test_sizes_that_cannot_be_are_refused_before_anything_is_reserved():
    uploads = Uploads(Room(), random.Random(1))
    with pytest.raises(Refused) as caught:
        uploads.offered("a", offer(0, size=8 * 1024 * 1024, chunk=8192), 0.0)
    assert caught.value.reason is Reason.TOO_LARGE
    with pytest.raises(Refused):
        uploads.offered("a", offer(0, chunk=100), 0.0)
    assert len(uploads) == 0


def test_keys_are_found_by_their_id_and_only_for_their_device(tmp_path):
    old, new = from_seed(bytes(32)), from_seed(b"n" * 32)
    with SqliteStore.open(tmp_path / "fleet.db") as store:
        registry = Registry(store)
        registry.enrol(Client("m-1", (old.public, new.public)))
        registry.enrol(Client("m-2", (from_seed(b"2" * 32).public,)))
        assert registry.key_of("m-1", kid_of(old.public)) == old.public
        assert registry.key_of("m-1", kid_of(new.public)) == new.public
        assert registry.key_of("m-2", kid_of(new.public)) is None
        registry.enrol(Client("m-1", (new.public,), 2))
        assert registry.key_of("m-1", kid_of(old.public)) is None
        registry.revoke("m-1", "sold")
        with pytest.raises(Refused, match="REVOKED"):
            registry.key_of("m-1", kid_of(new.public))
        assert len(registry) == 1
        registry.quarantine("m-2", "fork")
        registry.quarantine("m-2", "again")
        assert [c.why for c in registry.clients()] == ["sold", "fork"]
        registry.release("m-2")
        assert not registry.is_quarantined("m-2")
