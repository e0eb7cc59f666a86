"""Bodies in chunks on their way in: offered, granted, put together, asked about, forgotten."""

import random

import numpy as np
import pytest

from aggregator.ingress.admission_context import WelcomeTerms
from aggregator.ingress.uploads import AnswerTime, UploadCapacity, Uploads
from edge_sdk.errors import Reason, Refused
from edge_sdk.protocol.envelope import Sealed, digest, ref
from edge_sdk.protocol.messages import (
    ChunkMessage,
    OfferMessage,
    RefusalMessage,
    StatusMessage,
)
from edge_sdk.protocol.transfer import bitmap
from tests.aggregator.rig import Desk, Device, ref_of, replace, turn_of, wide


def offer(number, size=20_000, chunk=8192):
    digest = bytes([number] * 32)
    return OfferMessage(
        "update", digest, size, chunk, bytes(72), 1, 1, 0, bytes(16), 1, number + 1, 1
    )


def piece(whole, body, number):
    blob = body[number * whole.chunk : (number + 1) * whole.chunk]
    return ChunkMessage(ref(whole.digest), number, blob=blob)


def crowd(folder, count, room):
    """So many devices that were welcomed, with a body of three chunks each."""
    names = [f"meter-{i}" for i in range(count)]
    desk = Desk(folder, devices=names, terms=WelcomeTerms(room=room), turn=turn_of(spec=wide()))
    devices = [Device(desk, name) for name in names]
    bodies = []
    for device in devices:
        device.greet()
        bodies.append(device.update(np.zeros(6000)))
    return desk, devices, bodies


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

    def test_chunks_that_follow_their_offer_need_no_grant(self, desk, device, update):
        assert device.say(device.offer(update, ahead=3)) == []
        answers = [a for chunk in device.chunks(update) for a in device.say(chunk)]
        assert [(a.kind, a.code, a.ref) for a in answers] == [("receipt", 0, ref_of(update))]
        (event,) = desk.journalled()
        assert event.vector.tobytes() == update.blob

    def test_chunks_ahead_of_which_some_are_lost_are_asked_for(self, desk, device, update):
        device.say(device.offer(update, ahead=3))
        device.say(device.chunks(update)[0])
        desk.clock.seconds += 30.0
        have = next(a for a in desk.tick() if a.kind == "have")
        assert have.have == bitmap([0], 3)
        assert [a.code for c in device.chunks(update)[1:] for a in device.say(c)] == [0]

    def test_a_count_that_is_not_the_bodys_is_granted_as_usual(self, device, update):
        (grant,) = device.say(device.offer(update, ahead=2))
        assert (grant.kind, grant.have) == ("grant", b"")

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
        desk.clock.seconds += 2.9  # 6 s ± 50 % before the first answers are known
        assert desk.tick() == []
        desk.clock.seconds += 6.2
        (have,) = desk.tick()
        assert (have.kind, have.have, have.win) == ("have", bitmap([0], 3), 4)
        desk.clock.seconds += 120.0
        assert desk.tick() == []
        assert device.say(device.chunks(update)[1])[0].code == Reason.EXPIRED

    def test_without_room_an_offer_waits_and_is_granted_when_room_is_there(self, tmp_path):
        desk, devices, bodies = crowd(tmp_path, 4, UploadCapacity(in_flight=3 * 8192))
        said = [d.say(d.offer(b)) for d, b in zip(devices, bodies, strict=True)]
        assert [[a.kind for a in one] for one in said] == [["grant"], [], [], []]
        assert devices[2].say(devices[2].offer(bodies[2])) == []  # again: its place is kept
        settled = []
        for number, (device, body) in enumerate(zip(devices, bodies, strict=True)):
            answers = [a for c in device.chunks(body) for a in device.say(c)]
            settled += [a.code for a in answers if a.kind == "receipt"]
            granted = [a.id for a in desk.tick()]
            assert granted == [ref_of(b) for b in bodies[number + 1 : number + 2]]
        assert settled == [0, 0, 0, 0]
        assert desk.intake.counts["BUSY"] == 0
        desk.close()

    def test_what_waited_until_its_round_closed_is_told_when_its_turn_comes(self, tmp_path):
        desk, (first, late), bodies = crowd(tmp_path, 2, UploadCapacity(in_flight=3 * 8192))
        first.say(first.offer(bodies[0]))
        assert late.say(late.offer(bodies[1])) == []
        for chunk in first.chunks(bodies[0]):
            first.say(chunk)
        desk.open(round_number=2, spec=wide())
        (receipt,) = desk.tick()
        assert (receipt.kind, receipt.code) == ("receipt", Reason.LATE)
        assert receipt.ref == ref_of(bodies[1])
        assert desk.tick() == []
        desk.close()

    def test_who_is_told_to_pause_leaves_the_queue(self, tmp_path):
        desk, (first, second), bodies = crowd(tmp_path, 2, UploadCapacity(in_flight=3 * 8192))
        first.say(first.offer(bodies[0]))
        second.say(second.offer(bodies[1]))
        for chunk in first.chunks(bodies[0]):
            first.say(chunk)
        desk.intake.open(replace(desk.now, is_paused=True))
        (refusal,) = desk.tick()
        assert (refusal.code, refusal.id) == (Reason.PAUSED, ref_of(bodies[1]))
        assert desk.tick() == []
        desk.close()

    @pytest.mark.parametrize("goes", ["lost", "hello"])
    def test_who_is_gone_leaves_the_queue(self, tmp_path, goes):
        desk, (first, second, third), bodies = crowd(
            tmp_path, 3, UploadCapacity(in_flight=3 * 8192)
        )
        for device, body in zip((first, second, third), bodies, strict=True):
            device.say(device.offer(body))
        if goes == "lost":
            second.say(StatusMessage("lost", 1, 1))
        else:
            second.say(second.hello())
        for chunk in first.chunks(bodies[0]):
            first.say(chunk)
        assert [a.id for a in desk.tick()] == [ref_of(bodies[2])]
        desk.close()

    def test_a_full_queue_is_busy(self, tmp_path):
        desk, devices, bodies = crowd(tmp_path, 3, UploadCapacity(in_flight=3 * 8192, waiting=1))
        said = [d.say(d.offer(b)) for d, b in zip(devices, bodies, strict=True)]
        assert [[a.kind for a in one] for one in said] == [["grant"], [], ["refusal"]]
        (refusal,) = said[2]
        assert (refusal.code, refusal.id) == (Reason.BUSY, ref_of(bodies[2]))
        assert 500 <= refusal.wait <= 10_000
        desk.close()

    def test_memory_is_reserved_before_it_is_used(self, tmp_path):
        desk, devices, bodies = crowd(tmp_path, 2, UploadCapacity(memory=30_000))
        said = [d.say(d.offer(b)) for d, b in zip(devices, bodies, strict=True)]
        assert [[a.kind for a in one] for one in said] == [["grant"], []]
        assert desk.tick() == []
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
        device.say(RefusalMessage(Reason.ABORTED, 0, id=ref_of(update)))
        assert device.say(device.chunks(update)[0])[0].code == Reason.EXPIRED


class TestQueue:
    """One place is room for one body of three chunks."""

    ONE = UploadCapacity(in_flight=3 * 8192)

    @pytest.fixture
    def uploads(self):
        return Uploads(self.ONE, random.Random(1))

    def served(self, uploads, now):
        """Who is granted now, in order."""
        names = []
        while (found := uploads.next_waiting(now)) is not None:
            uploads.grant(*found, now)
            names.append(found[0])
        return names

    def test_the_oldest_offer_is_next_and_a_device_has_one_place(self, uploads):
        for number, name in enumerate("abcbcb"):
            uploads.offered(name, offer(number), float(number))
        assert (uploads.granted, uploads.waiting) == (1, 2)
        uploads.drop("a")
        assert self.served(uploads, 6.0) == ["b"]
        uploads.drop("b")
        assert self.served(uploads, 7.0) == ["c"]

    def test_nobody_overtakes_the_queue(self, uploads):
        for number, name in enumerate("abc"):
            uploads.offered(name, offer(number), 0.0)
        uploads.drop("a")
        assert uploads.offered("d", offer(3), 1.0) is None
        assert self.served(uploads, 1.0) == ["b"]

    def test_who_stalls_loses_the_place_and_keeps_what_arrived(self, uploads):
        body = bytes(20_000)
        whole = replace(offer(0), digest=digest(body))
        uploads.offered("a", whole, 0.0)
        uploads.add("a", piece(whole, body, 0), 1.0)
        uploads.offered("b", offer(1), 2.0)
        assert self.served(uploads, 30.9) == []
        assert uploads.next_due <= 31.0
        assert self.served(uploads, 31.0) == ["b"]
        assert (uploads.granted, len(uploads), uploads.in_flight) == (1, 2, (3, 3 * 8192))
        late = uploads.add("a", piece(whole, body, 1), 32.0)
        assert late is None  # counted, and not asked for more
        assert uploads.offered("a", whole, 33.0) is None
        uploads.drop("b")
        assert self.served(uploads, 34.0) == ["a"]
        assert uploads.grant("a", whole, 34.0).have == bitmap([0, 1], 3)
        assert isinstance(uploads.add("a", piece(whole, body, 2), 35.0), Sealed)

    def test_a_chunk_gets_a_place_back_that_nobody_wants(self, uploads):
        body = bytes(20_000)
        whole = replace(offer(0), digest=digest(body))
        uploads.offered("a", whole, 0.0)
        uploads.leave("a")
        uploads.add("a", piece(whole, body, 0), 1.0)
        assert uploads.granted == 1

    def test_who_is_slow_gives_way_after_two_minutes_and_queues_again(self):
        uploads = Uploads(UploadCapacity(in_flight=8 * 8192), random.Random(1))
        body = bytes(8192 * 60)
        whole = replace(offer(0, size=len(body)), digest=digest(body))
        uploads.offered("a", whole, 0.0)
        uploads.offered("b", offer(1, size=len(body)), 0.0)
        for number in range(12):
            assert self.served(uploads, 10.0 * number) == []
            uploads.add("a", piece(whole, body, number), 10.0 * number)
        assert self.served(uploads, 120.0) == ["b"]
        assert uploads.waiting == 1
        uploads.drop("b")
        assert self.served(uploads, 121.0) == ["a"]

    def test_a_place_in_the_queue_is_given_up_by_silence(self, uploads):
        uploads.offered("a", offer(0), 0.0)
        uploads.offered("b", offer(1), 0.0)
        uploads.offered("c", offer(2), 1801.0)
        assert uploads.next_due < 40.0
        uploads.due(1801.0)
        assert self.served(uploads, 1801.0) == ["c"]

    def test_bodies_without_a_place_make_room_the_oldest_first(self):
        uploads = Uploads(UploadCapacity(in_flight=3 * 8192, memory=45_000), random.Random(1))
        for number, name in enumerate("abc"):
            uploads.offered(name, offer(number), 0.0)
        assert self.served(uploads, 30.0) == ["b"]
        assert self.served(uploads, 60.0) == ["c"]
        assert not uploads.expects("a", ChunkMessage(ref(offer(0).digest), 0, blob=b""))
        assert uploads.expects("b", ChunkMessage(ref(offer(1).digest), 0, blob=b""))

    def test_a_wider_body_than_the_budget_is_sent_alone(self):
        uploads = Uploads(UploadCapacity(in_flight=2 * 8192), random.Random(1))
        grant = uploads.offered("a", offer(0), 0.0)
        assert grant.win == 2
        assert uploads.offered("b", offer(1), 0.0) is None

    def test_a_budget_that_shrinks_takes_nobodys_place(self, uploads):
        uploads.offered("a", offer(0), 0.0)
        uploads.resize(UploadCapacity(in_flight=8192))
        assert uploads.granted == 1

    def test_chunks_ahead_of_a_queued_offer_are_dropped_until_its_grant(self):
        uploads = Uploads(UploadCapacity(in_flight=3 * 8192, messages=3), random.Random(1))
        assert uploads.offered("a", replace(offer(1), ahead=3), 0.0) is None
        assert uploads.granted == 1
        queued = replace(offer(2), ahead=3)
        assert uploads.offered("b", queued, 0.0) is None
        chunk = piece(queued, bytes(20_000), 0)
        assert uploads.is_queued("b", chunk)
        assert not uploads.expects("b", chunk)
        assert not uploads.is_queued("a", chunk)
        uploads.drop("a")
        assert uploads.next_waiting(1.0) == ("b", queued)
        assert uploads.grant("b", queued, 1.0).have == b""

    def test_the_wait_of_a_full_queue_is_bounded(self):
        uploads = Uploads(UploadCapacity(in_flight=8192, waiting=3000), random.Random(1))
        for number in range(3001):
            body = replace(offer(0), digest=number.to_bytes(32, "big"))
            uploads.offered(f"meter-{number}", body, 0.0)
        with pytest.raises(Refused) as caught:
            uploads.offered("one-more", offer(9), 0.0)
        assert caught.value.reason is Reason.BUSY
        assert 450_000 <= uploads.wait() <= 1_350_000


def test_chunks_are_asked_for_no_sooner_than_devices_have_been_answering():
    times = AnswerTime()
    for _ in range(30):
        times.add(4.0)
    assert 4.0 <= times.gap < 4.1
    times.add(60.0)
    assert times.gap == 6.0  # the device offers again after ten seconds of silence


def test_sizes_that_cannot_be_are_refused_before_anything_is_reserved():
    uploads = Uploads(UploadCapacity(), random.Random(1))
    with pytest.raises(Refused) as caught:
        uploads.offered("a", offer(0, size=8 * 1024 * 1024, chunk=8192), 0.0)
    assert caught.value.reason is Reason.TOO_LARGE
    with pytest.raises(Refused):
        uploads.offered("a", offer(0, chunk=100), 0.0)
    assert len(uploads) == 0
