"""What the intake answers, rule by rule of the protocol."""

import numpy as np
import pytest

from aggregator import announce
from aggregator.intake import Terms
from aggregator.quotas import Quotas
from aggregator.records import Content
from aggregator.uploads import Room
from edge_sdk.wire import codec, envelope, keys, topics
from edge_sdk.wire.errors import Reason
from edge_sdk.wire.messages import Have, Receipt, Refusal
from edge_sdk.wire.transfer import bitmap
from tests.aggregator.rig import FLEET, SIGNER, START, Desk, Device, ref_of, replace, turn_of, wide


@pytest.fixture
def desk(tmp_path):
    desk = Desk(tmp_path)
    yield desk
    desk.close()


@pytest.fixture
def device(desk):
    device = Device(desk)
    device.greet()
    return device


def journalled(desk):
    return [entry.event for entry in desk.store.journal(1)]


class TestHello:
    def test_a_welcome_echoes_the_hello_and_promises_the_terms(self, desk):
        device = Device(desk)
        hello = device.hello(caps=("f2", "hpke"))
        (welcome,) = device.say(hello)
        assert (welcome.hello, welcome.life, welcome.run, welcome.wire) == (ref_of(hello), 1, 1, 1)
        assert (welcome.time, welcome.inline, welcome.window) == (START, 32768, 8)
        assert (welcome.hold, welcome.cmd, welcome.caps, welcome.spent) == (2, 0, (), 0)

    def test_a1_the_same_hello_again_changes_nothing(self, desk):
        device = Device(desk)
        hello = device.hello()
        device.say(hello)
        before = desk.store.ledger("meter-1")
        desk.clock.seconds += 5
        (welcome,) = device.say(hello)
        assert welcome.time == START + 5000
        assert desk.store.ledger("meter-1") == before

    def test_a1_a_used_life_gets_the_floor(self, desk, device):
        (floor,) = device.say(device.hello(life=1))
        assert (floor.kind, floor.life) == ("floor", 1)

    def test_a1_a_lost_store_raises_the_account_before_it_is_told(self, desk, device):
        device.say(device.update())
        device.spent = 0
        (welcome,) = device.greet(life=2, lost=True, spent=0)
        assert welcome.spent == 1 + 2
        assert desk.store.ledger("meter-1").spent == 3
        (again,) = device.greet(life=3, lost=True, spent=0)
        assert again.spent == 5  # F3: repeated losses stay covered

    def test_a_first_store_has_nothing_unseen(self, desk):
        (welcome,) = Device(desk).greet(lost=True)
        assert welcome.spent == 0

    def test_an_aggregator_that_restarts_repeats_its_welcome(self, desk, device):
        hello = device.hello()
        device.say(hello)
        desk.crash()
        (welcome,) = device.say(hello)
        assert welcome.life == 2

    def test_a_device_of_another_major_version_is_told_to_upgrade(self, desk):
        (refusal,) = Device(desk).say(Device(desk).hello(wire=(2, 3)))
        assert refusal.code == Reason.UPGRADE_REQUIRED

    def test_commands_are_said_again_until_they_are_receipted(self, desk, device):
        command = desk.store.issue("meter-1", "report", {"days": 2.0})
        welcome, told = device.greet(life=2)
        assert (welcome.cmd, told) == (1, command)
        assert device.say(Receipt(0, 1, ref_of(command), 0, 0, 0)) == []
        assert [m.kind for m in device.greet(life=3)] == ["welcome"]


class TestInline:
    def test_an_update_is_journalled_once_and_receipted_after(self, desk, device):
        update = device.update(vals={"loss": 0.25})
        (receipt,) = device.say(update)
        assert receipt == Receipt(1, 1, ref_of(update), 0, 1, 1)
        (entry,) = desk.taken.entries
        (event,) = journalled(desk)
        assert event.sender == entry.event.sender == "meter-1"
        assert event.vector.dtype == np.float32
        assert event.vector.tolist() == [0.5, -1.25]
        assert event.values == {"loss": 0.25, "n": 64.0}
        assert desk.intake.counts["ACCEPTED"] == 1

    def test_a3_the_same_bytes_get_the_same_receipt_even_after_a_crash(self, desk, device):
        update = device.update()
        (first,) = device.say(update)
        desk.crash()
        (second,) = device.say(update)
        assert first == second
        assert desk.taken.entries == ()
        assert len(journalled(desk)) == 1
        assert desk.intake.counts["REPLAYED"] == 1

    def test_a3_other_bytes_are_a_fork_and_quarantine(self, desk, device):
        device.say(device.update())
        device.seq = 0
        other = device.update((9.0, 9.0), spent=1)
        (receipt,) = device.say(other)
        assert (receipt.code, receipt.ref) == (Reason.FORK, ref_of(other))
        assert desk.registry.is_quarantined("meter-1")
        desk.open(round_number=2, version=1)
        device.seq = 1
        (receipt,) = device.say(device.update())
        assert receipt.code == Reason.QUARANTINED
        assert len(journalled(desk)) == 1
        desk.crash()
        assert desk.registry.is_quarantined("meter-1")

    def test_a3_an_unknown_life_is_sent_back_to_hello(self, desk):
        device = Device(desk)
        device.life = 7
        update = device.update()
        (refusal,) = device.say(update)
        assert (refusal.code, refusal.ref) == (Reason.SAY_HELLO, ref_of(update))
        assert desk.store.row("meter-1", (7, 1)) is None

    def test_a3_a_closed_life_is_closed_for_good(self, desk, device):
        stale = device.update()
        device.greet(open=())
        device.say(device.update())  # use promotes
        (receipt,) = device.say(stale)
        assert receipt.code == Reason.CLOSED
        assert desk.store.row("meter-1", (1, 1)) is None

    def test_a2_a_listed_number_of_the_life_before_is_still_taken(self, desk, device):
        old = device.update()
        device.greet(open=((1, 1),))
        desk.open(round_number=2, version=0)
        device.say(device.update())
        (receipt,) = device.say(old)
        assert receipt.code == Reason.LATE  # judged, not CLOSED
        (again,) = device.say(old)
        assert again == receipt

    def test_f1_a_delayed_hello_of_a_lost_store_closes_nothing(self, desk, device):
        waiting = device.update()
        (welcome,) = device.say(device.hello(life=2, lost=True, open=()))
        assert welcome.life == 2
        assert device.say(waiting)[0].code == 0

    def test_f2_releases_of_a_life_between_two_hellos_are_taken(self, desk, device):
        device.say(device.hello(life=2, open=()))
        device.life, device.seq = 2, 0
        between = device.update()
        device.say(device.hello(life=3, open=((2, 1),)))
        assert device.say(between)[0].code == 0
        desk.open(round_number=2, version=1)
        device.life, device.seq = 3, 0
        assert device.say(device.update())[0].code == 0
        assert device.say(between)[0].code == 0  # its row outlives the new life

    def test_a5_refused_releases_are_counted(self, desk, device):
        device.say(device.update(run=9, spent=17))
        assert desk.store.ledger("meter-1").spent == 17

    def test_a4_a_second_update_in_a_round_is_final_too(self, desk, device):
        device.say(device.update())
        (receipt,) = device.say(device.update((1.0, 1.0)))
        assert receipt.code == Reason.TWICE_IN_ROUND
        assert len(journalled(desk)) == 1

    def test_a4_the_mark_outlives_the_row_that_a_new_life_prunes(self, desk, device):
        device.say(device.update())
        device.greet(open=())
        (receipt,) = device.say(device.update())
        assert desk.store.row("meter-1", (1, 1)) is None
        assert receipt.code == Reason.TWICE_IN_ROUND

    def test_a7_gaps_are_counted_and_mean_nothing(self, desk, device):
        device.say(device.update())
        device.seq = 4
        desk.open(round_number=2, version=1)
        (receipt,) = device.say(device.update())
        assert receipt.code == 0
        assert desk.intake.counts["SEQ_GAPS"] == 1

    def test_too_many_settled_numbers_need_a_hello(self, desk, device, monkeypatch):
        monkeypatch.setattr("aggregator.intake.ROWS", 1)
        device.say(device.update())
        (refusal,) = device.say(device.update())
        assert refusal.code == Reason.SAY_HELLO
        device.greet(open=())
        assert device.say(device.update())[0].kind == "receipt"

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"run": 2}, Reason.WRONG_RUN),
            ({"spec": bytes(16)}, Reason.WRONG_SPEC),
            ({"part": "weights"}, Reason.WRONG_ENCODING),
            ({"enc": "f2", "blob": bytes(4)}, Reason.WRONG_ENCODING),
            ({"blob": b""}, Reason.WRONG_SIZE),
            ({"blob": bytes(7)}, Reason.WRONG_SIZE),
            ({"blob": bytes(12)}, Reason.WRONG_SIZE),
            ({"blob": np.array([np.nan, 0], "<f4").tobytes()}, Reason.NOT_FINITE),
            ({"blob": np.array([-np.inf, 0], "<f4").tobytes()}, Reason.NOT_FINITE),
            ({"blob": np.array([1e38, 1e38], "<f4").tobytes()}, Reason.NORM_EXCEEDED),
            ({"n": 2**62}, Reason.BAD_SCALAR),
            ({"vals": {"loss": -1.0}}, Reason.BAD_SCALAR),
            ({"vals": {"mood": 1.0}}, Reason.BAD_SCALAR),
            ({"base": 1}, Reason.TOO_STALE),
            ({"base": 3}, Reason.FROM_FUTURE),
            ({"round": 6}, Reason.FROM_FUTURE),
            ({"round": 4}, Reason.LATE),
        ],
        ids=str,
    )
    def test_hostile_and_mistaken_updates_are_final_and_never_journalled(
        self, desk, device, change, reason
    ):
        desk.open(round_number=5, version=2)
        update = device.update(**change)
        (receipt,) = device.say(update)
        assert (receipt.code, receipt.ref, receipt.run) == (reason, ref_of(update), 0)
        assert journalled(desk) == []
        (again,) = device.say(update)
        assert again == receipt
        assert desk.intake.counts[reason.name] == 1

    def test_between_rounds_everything_is_late(self, desk, device):
        desk.open(is_open=False)
        (receipt,) = device.say(device.update())
        assert receipt.code == Reason.LATE

    def test_paused_and_not_yet_open_record_nothing(self, tmp_path):
        desk = Desk(tmp_path)
        device = Device(desk)
        device.greet()
        update = device.update()
        desk.intake.open(turn_of(is_paused=True))
        (refusal,) = device.say(update)
        assert refusal.code == Reason.PAUSED
        desk.open()
        assert device.say(update)[0].code == 0
        desk.close()

    def test_a_spent_budget_and_a_device_that_was_not_drawn(self, desk, device):
        desk.intake.open(turn_of(releases=0))
        assert device.say(device.update())[0].code == Reason.BUDGET_SPENT
        desk.intake.open(turn_of(cohort=bytes(16), share=0.0))
        assert device.say(device.update())[0].code == Reason.NOT_IN_COHORT

    def test_a_body_larger_than_was_allowed_unasked_must_be_offered(self, tmp_path):
        desk = Desk(tmp_path, terms=Terms(inline=64))
        device = Device(desk)
        device.greet()
        update = device.update()
        (refusal,) = device.say(update)
        assert (refusal.code, refusal.ref) == (Reason.TOO_LARGE, ref_of(update))
        (grant,) = device.say(device.offer(update))
        assert grant.kind == "grant"
        desk.close()


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
        (event,) = journalled(desk)
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
        assert len(journalled(desk)) == 1

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
        assert journalled(desk) == []
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
        assert journalled(desk) == []

    def test_an_offer_of_anything_else_is_unknown(self, desk, device, update):
        (refusal,) = device.say(replace(device.offer(update), of="peer"))
        assert refusal.code == Reason.UNKNOWN_KIND

    def test_aborting_frees_the_memory(self, desk, device, update):
        device.say(device.offer(update))
        device.say(Refusal(Reason.ABORTED, 0, id=ref_of(update)))
        assert device.say(device.chunks(update)[0])[0].code == Reason.EXPIRED


class TestPull:
    @pytest.fixture
    def body(self, desk):
        body = bytes(range(256)) * 100
        content = Content("model", envelope.ref(envelope.digest(body)), body, 8192)
        desk.store.announce({}, [content])
        return content

    def test_a_device_gets_what_it_misses(self, desk, device, body):
        chunks = device.say(Have(body.id, b"", 2))
        assert [c.i for c in chunks] == [0, 1]
        chunks += device.say(Have(body.id, bitmap([0, 1], 4), 8))
        assert b"".join(c.blob for c in chunks) == body.body

    def test_progress_is_not_answered_with_what_is_on_its_way(self, desk, device, body):
        assert [c.i for c in device.say(Have(body.id, b"", 3))] == [0, 1, 2]
        assert [c.i for c in device.say(Have(body.id, bitmap([0], 4), 3))] == [3]

    def test_a_gap_is_sent_again(self, desk, device, body):
        device.say(Have(body.id, b"", 8))
        desk.clock.seconds += 2
        assert [c.i for c in device.say(Have(body.id, bitmap([0, 3], 4), 4))] == [1, 2]

    def test_what_is_not_ours_is_not_found(self, desk, device):
        (refusal,) = device.say(Have(bytes(16), b"", 1))
        assert (refusal.code, refusal.id) == (Reason.NOT_FOUND, bytes(16))

    def test_a_bitmap_that_cannot_be_is_malformed(self, desk, device, body):
        (refusal,) = device.say(Have(body.id, bytes(9), 1))
        assert refusal.code == Reason.MALFORMED

    def test_pulling_is_no_amplifier(self, desk, device, body):
        answers = [device.say(Have(body.id, b"", 1)) for _ in range(20)]
        assert sum(bool(a) for a in answers) == 8
        desk.clock.seconds += 1
        assert len(device.say(Have(body.id, b"", 1))) == 1


class TestCrowd:
    """A retained slot was lost on the way to a hundred devices: one publish, not a hundred."""

    @pytest.fixture
    def crowd(self, tmp_path):
        desk = Desk(tmp_path, devices=[f"meter-{n}" for n in range(30)])
        yield desk, [Device(desk, f"meter-{n}") for n in range(30)]
        desk.close()

    @staticmethod
    def slotted(desk, *, version=0):
        run = announce.Body(version, bytes([version]) * 20_000)
        slots = announce.slots(announce.Ends(FLEET, SIGNER), run, chunk=8192)
        content = Content("model", run.id, run.data, 8192)
        desk.store.announce({one.topic: one.payload for one in slots}, [content])
        return run, slots

    def test_the_twenty_first_gets_the_slot_and_the_next_ones_wait_for_it(self, crowd):
        desk, devices = crowd
        body, slots = self.slotted(desk)
        said = []
        for device in devices:
            device.say(Have(body.id, bitmap([0, 2], 3), 8))
            said.append(desk.taken.answers)
        assert all(topics.parse(a.topic).kind == "chunk" for (a,) in said[:20])
        assert said[20] == ((slots[1].topic, slots[1].payload, True),)
        assert said[21:] == [()] * 9
        assert desk.intake.counts["SLOTS_AGAIN"] == 1

    def test_ten_seconds_later_they_are_no_crowd(self, crowd):
        desk, devices = crowd
        body, _ = self.slotted(desk)
        for device in devices:
            desk.clock.seconds += 0.6
            assert device.say(Have(body.id, bitmap([0, 2], 3), 8))
        assert desk.intake.counts["SLOTS_AGAIN"] == 0

    def test_one_device_that_asks_often_is_no_crowd(self, crowd):
        desk, (device, *_) = crowd
        body, _ = self.slotted(desk)
        for _ in range(40):
            desk.clock.seconds += 2
            assert device.say(Have(body.id, bitmap([0, 2], 3), 8))

    def test_an_older_model_is_not_put_where_the_present_one_lies(self, crowd):
        desk, devices = crowd
        old, _ = self.slotted(desk, version=1)
        self.slotted(desk, version=2)
        for device in devices:
            device.say(Have(old.id, bitmap([0, 2], 3), 8))
            assert [a.retain for a in desk.taken.answers] == [False]


class TestWhoSpeaks:
    def test_other_topics_and_fleets_are_passed_over(self, desk, device):
        payload = device.seal(device.update())
        for topic in (
            "gf/1/south/meter-1/up/update",
            topics.down(FLEET, "meter-1", "update"),
            topics.common(FLEET, "model"),
            "gf/1/north/meter-1/peer/meter-2",
            "nonsense",
        ):
            assert desk.take(topic, payload) == []
        assert desk.take(topics.status(FLEET, "meter-1"), b"") == []
        assert journalled(desk) == []

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"sender": "meter-2"}, Reason.WRONG_SENDER),
            ({"fleet": "south"}, Reason.BAD_SIGNATURE),
            ({"recipient": "meter-2"}, Reason.BAD_SIGNATURE),
            ({"kind": "hello"}, Reason.MALFORMED),
        ],
        ids=str,
    )
    def test_an_envelope_for_elsewhere_proves_nothing(self, desk, device, changes, reason):
        payload = device.seal(device.update(), **changes)
        (refusal,) = desk.take(topics.up(FLEET, "meter-1", "update"), payload)
        assert refusal.code == reason
        assert journalled(desk) == []

    def test_strangers_and_other_keys(self, desk, device):
        stranger = Device(desk, "meter-9")
        (refusal,) = stranger.say(stranger.hello())
        assert refusal.code == Reason.UNKNOWN_CLIENT
        thief = Device(desk)
        thief.key = keys.from_seed(bytes(32))
        (refusal,) = thief.say(thief.hello(life=9))
        assert refusal.code == Reason.UNKNOWN_CLIENT  # no such key of this device

    def test_a_revoked_device_is_told_so_once_an_hour(self, desk, device):
        desk.registry.revoke("meter-1", "sold")
        assert device.say(device.update())[0].code == Reason.REVOKED
        desk.clock.seconds += 3000
        assert device.say(device.update()) == []
        desk.clock.seconds += 3700
        assert device.say(device.update())[0].code == Reason.REVOKED
        assert desk.intake.counts["REVOKED"] == 3

    def test_refusals_of_form_are_said_once_a_minute(self, desk, device):
        topic = topics.up(FLEET, "meter-1", "update")
        answers = [desk.take(topic, b"garbage") for _ in range(5)]
        assert [len(a) for a in answers] == [1, 0, 0, 0, 0]
        assert desk.intake.counts["MALFORMED"] == 5
        desk.clock.seconds += 61
        assert len(desk.take(topic, b"garbage")) == 1

    def test_oversized_payloads_are_not_looked_at(self, desk, device):
        (refusal,) = desk.take(topics.up(FLEET, "meter-1", "update"), bytes(65_537))
        assert refusal.code == Reason.TOO_LARGE

    def test_kinds_that_only_we_say_or_nobody_built(self, desk, device):
        for kind in ("welcome", "model", "rekey", "peer", "zfeat"):
            desk.take(topics.up(FLEET, "meter-1", kind), b"\x95")
        assert desk.intake.counts["UNKNOWN_KIND"] == 5

    def test_too_many_messages_and_too_many_bytes(self, tmp_path):
        terms = Terms(quotas=Quotas(control=3, volume=1000))
        desk = Desk(tmp_path, terms=terms)
        device = Device(desk)
        kinds = [device.say(device.hello(life=n + 1)) for n in range(4)]
        assert [a[0].kind for a in kinds] == ["welcome"] * 3 + ["refusal"]
        assert kinds[3][0].code == Reason.QUOTA
        desk.clock.seconds += 60
        device.say(device.hello(life=5))
        device.say(device.hello(life=6))
        device.say(device.hello(life=7))
        assert desk.intake.counts["QUOTA"] == 2  # 1,000 bytes are five hellos
        desk.close()

    def test_forged_signatures_silence_the_name_for_ten_minutes(self, desk, device):
        topic = topics.up(FLEET, "meter-1", "update")
        good = device.seal(device.update())
        bad = good[:-1] + bytes([good[-1] ^ 1])
        for _ in range(6):
            desk.take(topic, bad)
        assert desk.take(topic, good) == []
        assert desk.intake.counts["IGNORED"] == 1
        desk.clock.seconds += 601
        (receipt,) = desk.take(topic, good)
        assert receipt.code == 0

    def test_every_flipped_bit_of_an_update_is_refused_or_changes_nothing(self, desk, device):
        desk.intake._guard.failed = lambda *_: None
        good = device.seal(device.update())
        topic = topics.up(FLEET, "meter-1", "update")
        for at in range(len(good)):
            for answer in desk.take(topic, good[:at] + bytes([good[at] ^ 0x41]) + good[at + 1 :]):
                assert answer.kind == "refusal"
            desk.clock.seconds += 60
        assert journalled(desk) == []

    def test_unknown_keys_are_passed_over_and_counted(self, desk, device):
        update = device.update()
        body = codec.encode(update)
        import msgpack  # noqa: PLC0415 - a newer device, which writes a key we do not know

        header, blob = msgpack.unpackb(body)
        newer = msgpack.packb([dict(sorted({**header, "zeal": 3}.items())), blob])
        sealed = envelope.seal(
            newer, kind="update", sender="meter-1", recipient="_agg", fleet=FLEET, signer=device.key
        )
        (receipt,) = desk.take(topics.up(FLEET, "meter-1", "update"), sealed)
        assert receipt.code == 0
        assert desk.intake.counts["UNKNOWN_KEYS"] == 1


class TestPresence:
    def test_coming_and_going_is_told_once(self, desk, device):
        device.say(device.status())
        assert desk.taken.member.present
        device.say(device.status("sleeping"))
        assert desk.taken.member is None
        device.say(device.status("lost"))
        assert not desk.taken.member.present
        assert desk.registry.states() == {"lost": 1}

    def test_an_old_will_does_not_take_a_device_away(self, desk, device):
        device.say(device.status(conn=5))
        device.say(device.status("lost", conn=4))
        assert desk.taken.member is None
        assert desk.registry.presence("meter-1").is_there
        assert desk.intake.counts["STALE_STATUS"] == 1

    def test_last_seen_is_server_time(self, desk, device):
        desk.clock.seconds = 90
        device.say(device.status())
        assert desk.registry.presence("meter-1").seen == START + 90_000


class TestFullDisk:
    def test_nothing_is_recorded_and_the_device_may_try_again(self, desk, device):
        desk.store._db.execute("PRAGMA max_page_count = 1")
        update, (refusal,) = _until_full(desk, device)
        assert (refusal.code, refusal.wait, refusal.ref) == (
            Reason.NO_SPACE,
            60_000,
            ref_of(update),
        )
        assert desk.intake.is_full
        assert desk.taken.entries == ()
        count = len(journalled(desk))
        desk.store._db.execute("PRAGMA max_page_count = 100000")
        (receipt,) = device.say(update)
        assert receipt.code == 0
        assert not desk.intake.is_full
        assert len(journalled(desk)) == count + 1


def _until_full(desk, device):
    for number in range(2, 500):
        desk.open(round_number=number, version=0)
        update = device.update()
        answers = device.say(update)
        desk.clock.seconds += 60
        if answers[0].kind == "refusal":
            return update, answers
    raise AssertionError("the disk never filled")


class TestTwoLives:
    """Two processes copied from one store: each knows the key, and neither of the other."""

    @pytest.fixture
    def copies(self, desk, device):
        """Welcome the original; let its copy push it up, and it the copy, until one is judged."""
        device.say(device.update())
        copy = Device(desk)
        copy.nonce, copy.life, copy.spent = 1000, device.life, device.spent
        return device, copy

    @staticmethod
    def _push(desk, newer, older, number):
        """One process says hello and uses its life, then the other answers the same round."""
        desk.open(round_number=number, version=number - 1)
        top = desk.store.ledger("meter-1").top
        assert [m.kind for m in newer.greet(life=top)] == ["floor"]
        assert newer.greet(life=top + 1)[0].kind == "welcome"
        (counted,) = newer.say(newer.update())
        assert counted.code == Reason.ACCEPTED
        (answer,) = older.say(older.update())
        return answer

    def test_two_that_push_each_other_up_are_both_shut_out_and_told(self, desk, copies):
        one, other = copies
        told = [
            self._push(desk, *pair, number)
            for number, pair in enumerate([(other, one), (one, other), (other, one)], start=2)
        ]
        assert [(m.kind, m.code) for m in told] == [
            ("receipt", Reason.CLOSED),
            ("receipt", Reason.CLOSED),
            ("refusal", Reason.TWO_LIVES),
        ]
        assert desk.registry.quarantined()["meter-1"].startswith("TWO_LIVES: ")
        for process in copies:
            for words in (process.hello(), process.update(), process.offer(process.update())):
                (refusal,) = process.say(words)
                assert (refusal.kind, refusal.code) == ("refusal", Reason.TWO_LIVES)
        assert desk.intake.counts["TWO_LIVES"] == 7

    def test_they_stay_shut_out_over_a_restart_until_enrolled_again(self, desk, copies):
        one, other = copies
        for number, pair in enumerate([(other, one), (one, other), (other, one)], start=2):
            self._push(desk, *pair, number)
        desk.crash()
        assert one.greet()[0].code == Reason.TWO_LIVES
        desk.registry.release("meter-1")
        assert one.greet(life=9)[0].kind == "welcome"

    def test_one_restored_image_is_a_warning(self, desk, copies, caplog):
        one, other = copies
        with caplog.at_level("WARNING"):
            assert self._push(desk, other, one, 2).code == Reason.CLOSED
        assert "image was restored" in caplog.text
        assert desk.intake.counts["OUTLIVED"] == 1
        assert not desk.registry.quarantined()
        desk.open(round_number=3, version=2)
        assert other.say(other.update())[0].code == Reason.ACCEPTED

    def test_a_lost_store_is_not_even_that(self, desk, device):
        late = [device.update() for _ in range(3)]
        device.say(late[0])
        new = Device(desk)
        new.nonce = 1000
        new.greet(life=5, lost=True, spent=0)
        new.say(new.update())
        for update in late[1:]:
            device.say(update)
        assert desk.intake.counts["OUTLIVED"] == 0
