"""What becomes of a number: judged once, receipted after, the same for ever; and two lives."""

from dataclasses import replace

import numpy as np
import pytest

from aggregator.ingress.admission_context import WelcomeTerms
from edge_sdk.errors import Reason
from edge_sdk.protocol import topics
from edge_sdk.protocol.messages import ReceiptMessage
from tests.aggregator.rig import FLEET, Desk, Device, ref_of, turn_of, wide


class TestInline:
    def test_an_update_is_journalled_once_and_receipted_after(self, desk, device):
        update = device.update(vals={"loss": 0.25})
        (receipt,) = device.say(update)
        assert receipt == ReceiptMessage(1, 1, ref_of(update), 0, 1, 1)
        (entry,) = desk.taken.entries
        (event,) = desk.journalled()
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
        assert len(desk.journalled()) == 1
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
        assert len(desk.journalled()) == 1
        desk.crash()
        assert desk.registry.is_quarantined("meter-1")

    def test_a3_an_unknown_life_is_sent_back_to_hello(self, desk):
        device = Device(desk)
        device.life = 7
        update = device.update()
        (refusal,) = device.say(update)
        assert (refusal.code, refusal.ref) == (Reason.SAY_HELLO, ref_of(update))
        assert desk.store.ledgers.row("meter-1", (7, 1)) is None

    def test_a3_a_closed_life_is_closed_for_good(self, desk, device):
        stale = device.update()
        device.greet(open=())
        device.say(device.update())  # use promotes
        (receipt,) = device.say(stale)
        assert receipt.code == Reason.CLOSED
        assert desk.store.ledgers.row("meter-1", (1, 1)) is None

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
        assert desk.store.ledgers.get("meter-1").spent == 17

    def test_a4_a_second_update_in_a_round_is_final_too(self, desk, device):
        device.say(device.update())
        (receipt,) = device.say(device.update((1.0, 1.0)))
        assert receipt.code == Reason.TWICE_IN_ROUND
        assert len(desk.journalled()) == 1

    def test_a4_the_mark_outlives_the_row_that_a_new_life_prunes(self, desk, device):
        device.say(device.update())
        device.greet(open=())
        (receipt,) = device.say(device.update())
        assert desk.store.ledgers.row("meter-1", (1, 1)) is None
        assert receipt.code == Reason.TWICE_IN_ROUND

    def test_a7_gaps_are_counted_and_mean_nothing(self, desk, device):
        device.say(device.update())
        device.seq = 4
        desk.open(round_number=2, version=1)
        (receipt,) = device.say(device.update())
        assert receipt.code == 0
        assert desk.intake.counts["SEQ_GAPS"] == 1

    def test_too_many_settled_numbers_need_a_hello(self, desk, device, monkeypatch):
        monkeypatch.setattr("aggregator.ingress.update_admission.ROWS", 1)
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
            ({"n": 2**52}, Reason.BAD_SCALAR),
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
        assert desk.journalled() == []
        (again,) = device.say(update)
        assert again == receipt
        assert desk.intake.counts[reason.name] == 1

    def test_a_round_whose_events_were_deleted_takes_no_update(self, desk, device):
        """Nothing shows any more whether the device has one there already."""
        limits = replace(turn_of().limits, max_staleness=100)
        turn = replace(turn_of(round_number=9, version=8), limits=limits, oldest=5)
        desk.intake.open(turn)
        (receipt,) = device.say(device.update(round=4, base=4))
        assert receipt.code == Reason.TOO_STALE
        assert desk.journalled() == []
        (receipt,) = device.say(device.update(round=5, base=4))
        assert receipt.code == 0
        desk.intake.open(replace(turn, oldest=7))
        (refused,) = device.say(device.offer(device.update(round=6, base=4)))
        assert refused.code == Reason.TOO_STALE

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

    @pytest.mark.parametrize(("single", "code"), [(262_144, 0), (0, Reason.TOO_LARGE)])
    def test_an_update_larger_than_other_messages_counts_where_it_is_allowed(
        self, tmp_path, single, code
    ):
        turn = turn_of(spec=wide(60_000))
        desk = Desk(tmp_path, terms=WelcomeTerms(single=single), turn=turn)
        device = Device(desk)
        device.greet()
        update = device.update(np.linspace(-0.01, 0.01, 60_000))
        (answer,) = device.say(update)
        assert answer.code == code
        assert len(desk.journalled()) == (code == 0)

    def test_an_update_in_one_message_has_a_limit(self, tmp_path):
        desk = Desk(tmp_path, terms=WelcomeTerms(single=262_144))
        topic = topics.up(FLEET, "meter-1", "update")
        assert [one.code for one in desk.take(topic, bytes(262_657))] == [Reason.TOO_LARGE]

    def test_a_body_larger_than_was_allowed_unasked_must_be_offered(self, tmp_path):
        desk = Desk(tmp_path, terms=WelcomeTerms(inline=64))
        device = Device(desk)
        device.greet()
        update = device.update()
        (refusal,) = device.say(update)
        assert (refusal.code, refusal.ref) == (Reason.TOO_LARGE, ref_of(update))
        (grant,) = device.say(device.offer(update))
        assert grant.kind == "grant"
        desk.close()


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
        top = desk.store.ledgers.get("meter-1").top
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
        assert "cloned identity suspected" in caplog.text
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


def test_an_update_from_outside_the_cohort_is_refused_counted_and_named(tmp_path, caplog):
    context = turn_of(name="meters", holds=lambda device: device != "meter-2")
    desk = Desk(tmp_path, devices=("meter-1", "meter-2"), turn=context)
    inside, outside = Device(desk, "meter-1"), Device(desk, "meter-2")
    (welcome,) = inside.greet()
    assert (welcome.run, welcome.runs) == (1, ("meters",))
    (welcome,) = outside.greet()
    assert (welcome.run, welcome.runs) == (0, ())
    assert [one.code for one in inside.say(inside.update())] == [0]
    receipt, again = outside.say(outside.update())
    assert (receipt.code, again.code) == (Reason.NOT_IN_COHORT, Reason.SAY_HELLO)
    assert desk.intake.counts["NOT_IN_COHORT"] == 1
    assert "update from outside the cohort device=meter-2 run=1 name=meters" in caplog.text
    (receipt,) = outside.say(outside.offer(outside.update()))
    assert receipt.code == Reason.NOT_IN_COHORT
    assert len(desk.journalled()) == 1
    desk.close()


def test_each_run_admits_its_own_updates(tmp_path):
    """Two runs in one ingress: the number of the update chooses the round that it must answer."""
    desk = Desk(tmp_path, devices=("meter-1", "cell-1"), turn=turn_of(name="meters"))
    desk.intake.open(turn_of(round_number=5, version=4, run=2, name="cells"))
    meter, cell = Device(desk, "meter-1"), Device(desk, "cell-1")
    (welcome,) = meter.greet()
    assert (welcome.run, welcome.runs) == (1, ("meters", "cells"))
    cell.greet()
    (receipt,) = meter.say(meter.update())
    assert (receipt.code, receipt.run) == (0, 1)
    (receipt,) = cell.say(cell.update(run=2, round=5, base=4))
    assert (receipt.code, receipt.run, receipt.round) == (0, 2, 5)
    (receipt,) = cell.say(cell.update(run=2, round=4, base=4))
    assert receipt.code == Reason.LATE
    (receipt,) = cell.say(cell.update(run=3, round=5, base=4))
    assert receipt.code == Reason.WRONG_RUN
    assert [entry.run for run in (1, 2, 3) for entry in desk.store.journal.entries(run)] == [1, 2]
    desk.close()
