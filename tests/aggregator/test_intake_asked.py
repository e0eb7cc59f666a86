"""The door of an asynchronous run: answers to what a device was asked, and none too old."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aggregator.store.types import PendingTask
from edge_sdk.errors import Reason
from edge_sdk.protocol.contract.method import CONTRACTS, Member
from tests.aggregator.rig import Desk, Device, turn_of

VERSION, ROUND, STALEST = 9, 10, 2


def personal(**changes):
    turn = turn_of(ROUND, VERSION, **changes)
    limits = replace(turn.limits, contract=CONTRACTS["fedbuff"]["train"], max_staleness=STALEST)
    return replace(turn, limits=limits, is_personal=True)


@pytest.fixture
def desk(tmp_path):
    made = Desk(tmp_path, devices=("meter-1", "meter-2"), turn=personal())
    yield made
    made.close()


def ask(desk, device="meter-1", number=9, base=8):
    asked = PendingTask(device, 1, number, 0, 0, base, "train")
    desk.store.commit(1, {}, 0, asked=[asked])
    return asked


def greeted(desk, name="meter-1"):
    device = Device(desk, name)
    device.greet()
    return device


def code_of(device, **changes):
    (receipt,) = device.say(device.update(**changes))
    return Reason(receipt.code)


@pytest.mark.parametrize("behind", range(STALEST + 1))
def test_an_answer_counts_though_the_model_has_moved(desk, behind):
    device = greeted(desk)
    ask(desk, number=9, base=VERSION - behind)
    assert code_of(device, round=9, base=VERSION - behind) is Reason.ACCEPTED
    assert desk.store.tasks.get("meter-1", 1).state == "answered"
    assert desk.taken.entries[0].event.base == VERSION - behind


def test_one_from_further_behind_is_too_stale_and_leaves_its_task_refused(desk):
    device = greeted(desk)
    ask(desk, number=5, base=VERSION - STALEST - 1)
    assert code_of(device, round=5, base=VERSION - STALEST - 1) is Reason.TOO_STALE
    assert desk.store.tasks.get("meter-1", 1).state == "refused"


def test_an_offer_from_too_far_behind_is_refused_before_a_chunk_is_sent(desk):
    device = greeted(desk)
    ask(desk, number=5, base=6)
    (receipt,) = device.say(device.offer(device.update(round=5, base=6)))
    assert receipt.code == Reason.TOO_STALE
    assert desk.store.tasks.get("meter-1", 1).state == "refused"


@pytest.mark.parametrize("future", [{"base": VERSION + 1}, {"round": ROUND + 1}])
def test_a_base_or_round_from_the_future_is_never_forgiven(desk, future):
    device = greeted(desk)
    ask(desk)
    assert code_of(device, **({"round": 9, "base": 8} | future)) is Reason.FROM_FUTURE


@pytest.mark.parametrize(
    "lie", [{"round": 8}, {"base": VERSION}, {"base": 7}, {"round": 10}], ids=str
)
def test_what_was_not_asked_does_not_count(desk, lie):
    """A liar cannot answer rounds it was not given, nor say its answer is fresher than it is."""
    device = greeted(desk)
    ask(desk, number=9, base=8)
    assert code_of(device, **({"round": 9, "base": 8} | lie)) is Reason.LATE
    assert not desk.taken.entries
    assert desk.store.tasks.get("meter-1", 1).is_open is (lie.get("round", 9) != 9)


def test_who_was_never_asked_is_not_heard(desk):
    ask(desk, "meter-1")
    device = greeted(desk, "meter-2")
    assert code_of(device, round=9, base=8) is Reason.LATE


def test_a_second_answer_to_one_task_is_twice_in_a_round(desk):
    device = greeted(desk)
    ask(desk)
    assert code_of(device, round=9, base=8) is Reason.ACCEPTED
    assert code_of(device, round=9, base=8, n=7) is Reason.TWICE_IN_ROUND


def test_a_repeat_gets_its_receipt_again_after_any_time(desk):
    device = greeted(desk)
    ask(desk)
    update = device.update(round=9, base=8)
    (first,) = device.say(update)
    desk.now = replace(desk.now, opened=replace(desk.now.opened, version=90, round=91))
    desk.intake.open(desk.now)
    desk.crash()
    (again,) = device.say(update)
    assert again == first
    assert not desk.taken.entries


def test_who_greets_is_a_member_and_hears_its_task(desk):
    device = Device(desk)
    device.greet()
    assert (desk.taken.member, desk.taken.greeted) == (Member("meter-1", True), "meter-1")
    device.say(device.hello(life=1))  # a life that is used up
    assert desk.taken.greeted is None


def test_a_status_before_the_welcome_makes_no_member(desk):
    device = Device(desk)
    device.say(device.status(life=0))
    assert desk.taken.member is None
    device.greet()
    device.say(device.status("lost", conn=2))
    assert desk.taken.member == Member("meter-1", False)
    device.say(device.status("online", conn=3))
    assert desk.taken.member == Member("meter-1", True)
