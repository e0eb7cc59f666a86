"""Bodies in chunks on their way in: offered, granted, put together, asked about, forgotten."""

import random

import numpy as np
import pytest

from aggregator.turn import Terms
from aggregator.uploads import Room, Uploads
from edge_sdk.wire.errors import Reason, Refused
from edge_sdk.wire.messages import Offer, Refusal
from edge_sdk.wire.transfer import bitmap
from tests.aggregator.rig import Desk, Device, ref_of, replace, turn_of, wide


def offer(number, size=20_000, chunk=8192):
    digest = bytes([number] * 32)
    return Offer("update", digest, size, chunk, bytes(72), 1, 1, 0, bytes(16), 1, number + 1, 1)


class TestOffer:
    @pytest.fixture
    def desk(self, tmp_path):
        desk = Desk(tmp_path, devices=("meter-1", "meter-2"), turn=turn_of(spec=wide()))
        yield desk
        desk.close()

    @pytest.fixture
    def update(self, device):
        return device.update(np.linspace(-1, 1, 6000))

    def test_chunks_in_any_order_twice_end_like_an_inline_update(self, desk, device, update):
        (grant,) = device.say(device.offer(update))
        assert (grant.id, grant.have, grant.win) == (ref_of(update), b"", 8)
        chunks = device.chunks(update)
        answers = [a for c in [chunks[2], chunks[0], chunks[2], chunks[1]] for a in device.say(c)]
        (receipt,) = [a for a in answers if a.kind == "receipt"]
        assert (receipt.code, receipt.ref) == (0, ref_of(update))
        (event,) = desk.journalled()
        assert event.vector.tobytes() == update.blob

    def test_a_repeated_offer_tells_what_is_there(self, desk, device, update):
        device.say(device.offer(update))
        device.say(device.chunks(update)[1])
        (grant,) = device.say(device.offer(update))
        assert grant.have == bitmap([1], 3)

    def test_a_restart_forgets_the_set_and_the_next_offer_begins_again(self, desk, device, update):
        device.say(device.offer(update))
        device.say(device.chunks(update)[0])
        desk.crash()
        (refusal,) = device.say(device.chunks(update)[1])
        assert (refusal.code, refusal.id) == (Reason.EXPIRED, ref_of(update))
        (grant,) = device.say(device.offer(update))
        assert grant.have == b""

    def test_an_offer_of_what_is_settled_gets_the_receipt(self, desk, device, update):
        device.say(device.offer(update))
        for chunk in device.chunks(update):
            answers = device.say(chunk)
        (receipt,) = answers
        assert device.say(device.offer(update)) == [receipt]
        assert device.say(device.chunks(update)[0]) == [receipt]
        assert device.say(device.chunks(update)[0]) == []  # not one for every late chunk
        assert len(desk.journalled()) == 1

    def test_an_inline_update_and_its_offer_are_one_number(self, desk, device, update):
        (receipt,) = device.say(update)
        assert device.say(device.offer(update)) == [receipt]

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"run": 9}, Reason.WRONG_RUN),
            ({"spec": bytes(16)}, Reason.WRONG_SPEC),
            ({"base": 5}, Reason.FROM_FUTURE),
            ({"round": 0}, Reason.LATE),
        ],
        ids=str,
    )
    def test_what_the_header_shows_is_settled_before_any_chunk(self, desk, device, change, reason):
        update = device.update(np.zeros(6000), **change)
        (receipt,) = device.say(device.offer(update))
        assert (receipt.code, receipt.ref) == (reason, ref_of(update))
        assert device.say(device.offer(update)) == [receipt]

    def test_chunks_that_are_not_what_was_signed(self, desk, device, update):
        device.say(device.offer(update))
        chunks = device.chunks(update)
        device.say(chunks[0])
        device.say(replace(chunks[1], blob=bytes(8192)))
        (refusal,) = device.say(chunks[2])
        assert (refusal.code, refusal.id) == (Reason.BAD_DIGEST, ref_of(update))
        assert desk.journalled() == []
        (grant,) = device.say(device.offer(update))
        assert grant.have == b""

    @pytest.mark.parametrize("change", [{"i": 3}, {"blob": b"short"}], ids=str)
    def test_chunks_that_cannot_belong(self, desk, device, update, change):
        device.say(device.offer(update))
        (refusal,) = device.say(replace(device.chunks(update)[0], **change))
        assert refusal.code == Reason.BAD_CHUNK
        assert device.say(replace(device.chunks(update)[0], **change)) == []
        assert desk.intake.counts["BAD_CHUNK"] == 2

    def test_a_body_nobody_signed_is_not_waited_for(self, desk, device, update):
        offer = device.offer(update)
        forged = replace(offer, sig=offer.sig[:8] + bytes(64))
        (refusal,) = device.say(forged)
        assert (refusal.code, refusal.id) == (Reason.BAD_SIGNATURE, ref_of(update))

    def test_a_newer_offer_takes_the_place_of_the_older(self, desk, device, update):
        device.say(device.offer(update))
        other = device.update(np.ones(6000))
        device.say(device.offer(other))
        (refusal,) = device.say(device.chunks(update)[0])
        assert refusal.code == Reason.EXPIRED
        answers = [a for c in device.chunks(other) for a in device.say(c)]
        assert answers[-1].code == 0

    def test_silence_is_asked_about_and_then_forgotten(self, desk, device, update):
        device.say(device.offer(update))
        device.say(device.chunks(update)[0])
        desk.clock.seconds += 4.0
        (have,) = desk.tick()
        assert (have.kind, have.have, have.win) == ("have", bitmap([0], 3), 4)
        desk.clock.seconds += 120.0
        assert desk.tick() == []
        assert device.say(device.chunks(update)[1])[0].code == Reason.EXPIRED

    def test_no_room_is_busy_and_a_place_in_the_queue(self, tmp_path):
        terms = Terms(room=Room(uploads=1))
        names = [f"meter-{i}" for i in range(4)]
        desk = Desk(tmp_path / "b", devices=names, terms=terms, turn=turn_of(spec=wide()))
        devices = [Device(desk, name) for name in names]
        bodies = []
        for device in devices:
            device.greet()
            bodies.append(device.update(np.zeros(6000)))
        assert devices[0].say(devices[0].offer(bodies[0]))[0].kind == "grant"
        waits = [d.say(d.offer(b))[0] for d, b in list(zip(devices, bodies, strict=True))[1:]]
        assert {w.code for w in waits} == {Reason.BUSY}
        assert all(500 <= w.wait <= 10_000 for w in waits)
        for chunk in devices[0].chunks(bodies[0]):
            devices[0].say(chunk)
        assert devices[1].say(devices[1].offer(bodies[1]))[0].kind == "grant"
        desk.close()

    def test_memory_is_reserved_before_it_is_used(self, tmp_path):
        terms = Terms(room=Room(memory=30_000))
        names = ("meter-1", "meter-2")
        desk = Desk(tmp_path / "b", devices=names, terms=terms, turn=turn_of(spec=wide()))
        kinds = []
        for name in names:
            device = Device(desk, name)
            device.greet()
            kinds.append(device.say(device.offer(device.update(np.zeros(6000))))[0].kind)
        assert kinds == ["grant", "refusal"]
        desk.close()

    def test_the_whole_body_decides_not_the_offer(self, desk, device):
        hidden = device.update(np.full(6000, np.nan))
        device.say(device.offer(hidden))
        answers = [a for c in device.chunks(hidden) for a in device.say(c)]
        assert answers[-1].code == Reason.NOT_FINITE
        assert desk.journalled() == []

    def test_an_offer_of_anything_else_is_unknown(self, desk, device, update):
        (refusal,) = device.say(replace(device.offer(update), of="peer"))
        assert refusal.code == Reason.UNKNOWN_KIND

    def test_aborting_frees_the_memory(self, desk, device, update):
        device.say(device.offer(update))
        device.say(Refusal(Reason.ABORTED, 0, id=ref_of(update)))
        assert device.say(device.chunks(update)[0])[0].code == Reason.EXPIRED


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
