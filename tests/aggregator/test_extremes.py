"""The largest numbers at the aggregator: from devices, from operators, from an older database."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace

import pytest

from aggregator.commands import main as cli
from aggregator.operations.commands import OrderError
from aggregator.operations.control_queue import ControlOrder, apply, leave, waiting
from aggregator.store.ledgers import Ledger
from aggregator.store.opener import open_store
from aggregator.store.types import EnrolledDevice
from edge_sdk.errors import Reason
from edge_sdk.protocol.messages import (
    LARGEST,
    LIFE_LEAP,
    RELEASES_LEAP,
    RELEASES_LIMIT,
    ReceiptMessage,
    RefusalMessage,
    WelcomeMessage,
)
from tests.aggregator.rig import Desk, Device, ref_of

POISON = 2**63 - 1
PUBLIC, OTHER = "01" * 32, "02" * 32


@pytest.fixture
def desk(tmp_path):
    one = Desk(tmp_path)
    yield one
    one.close()


@pytest.fixture
def device(desk):
    one = Device(desk)
    one.greet()
    return one


def refused(answers):
    return [answer.code for answer in answers if isinstance(answer, RefusalMessage)]


@pytest.mark.parametrize("said", [{"life": LARGEST}, {"spent": RELEASES_LIMIT}], ids=str)
def test_one_hello_does_not_use_a_counter_up(desk, device, said):
    before = desk.store.ledgers.get("meter-1")
    assert refused(device.say(device.hello(**said))) == [Reason.MALFORMED]
    assert desk.store.ledgers.get("meter-1") == before
    desk.clock.seconds += 100
    assert isinstance(device.greet()[0], WelcomeMessage)


def test_a_hello_within_the_leaps_is_welcome(desk, device):
    said = device.hello(life=device.life + LIFE_LEAP, spent=RELEASES_LEAP)
    assert isinstance(device.say(said)[0], WelcomeMessage)


def test_one_update_does_not_use_the_count_of_releases_up(desk, device):
    assert refused(device.say(device.update(spent=RELEASES_LIMIT))) == [Reason.MALFORMED]
    assert desk.store.ledgers.get("meter-1").spent == 0
    (receipt,) = device.say(device.update(spent=1))
    assert receipt.code == 0


def test_a_status_does_not_outlive_later_ones_by_its_number(desk, device):
    device.say(device.status("offline", conn=1, life=LARGEST))
    device.greet()
    device.say(device.status("online", conn=2))
    assert desk.registry.presence("meter-1").is_present


# --- commands -------------------------------------------------------------------------------------


def test_a_command_that_a_device_takes_for_an_old_one_is_numbered_again(desk, device):
    first = desk.store.commands.issue("meter-1", "stop")
    (again,) = device.say(RefusalMessage(Reason.SUPERSEDED, 0, ref=ref_of(first)))
    assert (again.op, again.num) == ("stop", first.num + 1)
    assert [command.num for command in desk.store.commands.open("meter-1")] == [again.num]
    device.say(ReceiptMessage(0, again.num, ref_of(again), 0, 0, 0))
    assert desk.store.commands.open("meter-1") == []


def test_a_device_that_refuses_for_ever_is_not_answered_for_ever(desk, device):
    command, answers = desk.store.commands.issue("meter-1", "stop"), 0
    for _ in range(40):
        desk.clock.seconds += 60
        said = device.say(RefusalMessage(Reason.SUPERSEDED, 0, ref=ref_of(command)))
        answers += len(said)
        command = said[0] if said else command
    assert answers == 16
    assert len(desk.store.commands.open("meter-1")) == 1


@pytest.mark.parametrize("ref", [None, bytes(16)])
def test_a_refusal_of_nothing_numbers_nothing_again(desk, device, ref):
    desk.store.commands.issue("meter-1", "stop")
    assert device.say(RefusalMessage(Reason.SUPERSEDED, 0, ref=ref, id=bytes(16))) == []


# --- what an operator says ------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "orders.db") as opened:
        apply(ControlOrder("enrol", "meter-1", public=PUBLIC), opened)
        yield opened


@pytest.mark.parametrize("releases", [-1.0, 0.5, 2.0**31, 1e20, float("inf"), float("nan")])
def test_a_budget_out_of_bounds_is_not_issued(store, releases):
    order = ControlOrder("command", "meter-1", op="budget", args={"releases": releases})
    with pytest.raises(OrderError, match="releases: expected a whole number from 0 to 2147483647"):
        apply(order, store)
    assert store.commands.open("meter-1") == []


def test_the_largest_budget_is_issued(store):
    order = ControlOrder(
        "command", "meter-1", op="budget", args={"releases": float(RELEASES_LIMIT)}
    )
    assert apply(order, store) == "command 1 for meter-1: budget"


@pytest.mark.parametrize(
    "order",
    [
        ControlOrder("command", "meter-1", op="budget"),
        ControlOrder("command", "meter-1", op="stop", args={"releases": 1.0}),
    ],
)
def test_releases_and_budget_go_together(store, order):
    with pytest.raises(OrderError, match="releases: required for the command budget"):
        apply(order, store)


@pytest.mark.parametrize(
    "changes",
    [{"args": {"releases": 1e300}}, {"until": POISON}, {"until": -1}, {"spent": 2**31}],
    ids=str,
)
def test_an_order_in_the_folder_is_held_to_the_same_bounds(tmp_path, changes):
    path = leave(tmp_path, ControlOrder("command", "meter-1", op="stop"))
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    assert [order for _, order in waiting(tmp_path)] == [None]


RELEASES = ("-1", "2147483648", "9223372036854775808", "99999999999999999999", "9" * 4000)


@pytest.mark.parametrize("releases", RELEASES, ids=lambda text: text[:20])
def test_the_command_line_refuses_what_no_device_would_take(tmp_path, capsys, releases):
    config = tmp_path / "aggregator.toml"
    run = '[run]\nbundle = "load-mlp"\nmethod = "fedavg"\n'
    config.write_text(f'fleet = "north"\nstate = "state"\n{run}')
    told = ["command", "meter-1", "budget", "--releases", releases, "--config", str(config)]
    capsys.readouterr()
    assert cli.main(told) == 2
    assert "expected 0 to 2147483647, got" in capsys.readouterr().err


# --- a new key begins a new ledger ----------------------------------------------------------------

FULL = Ledger(cur=POISON, hid=b"x", hid_life=POISON, spent=POISON, cmd=POISON)


def test_a_new_key_begins_a_new_ledger_and_says_so(store):
    store.ledgers.save("meter-1", Ledger(cur=3, hid_life=4, spent=20, cmd=7))
    said = apply(ControlOrder("enrol", "meter-1", public=OTHER), store)
    assert "its ledger begins again" in said
    assert "count of releases continues at 20" in said
    assert "--spent" not in said
    assert store.ledgers.get("meter-1") == Ledger(cur=3, hid_life=4, spent=20, cmd=7)


def test_the_count_of_releases_is_lowered_only_where_the_operator_says_so(store):
    store.ledgers.save("meter-1", Ledger(cur=3, spent=20))
    said = apply(ControlOrder("enrol", "meter-1", public=OTHER, spent=5), store)
    assert "changes from 20 to 5" in said
    assert "--spent 20" in said
    assert store.ledgers.get("meter-1").spent == 5


def test_a_broken_device_is_replaced_and_its_count_of_releases_continues(store):
    store.ledgers.save("meter-1", Ledger(cur=3, spent=20))
    apply(ControlOrder("revoke", "meter-1", why="burnt"), store)
    said = apply(ControlOrder("enrol", "meter-1", public=OTHER), store)
    assert "generation 2" in said
    assert store.ledgers.get("meter-1").spent == 20


def test_the_same_key_begins_nothing(store):
    store.ledgers.save("meter-1", Ledger(cur=3, spent=20))
    apply(ControlOrder("revoke", "meter-1"), store)
    said = apply(ControlOrder("enrol", "meter-1", public=PUBLIC), store)
    assert "with the same key, generation 2" in said
    assert store.ledgers.get("meter-1").spent == 20


def test_a_poisoned_ledger_opens_is_said_and_is_healed_by_a_new_key(store):
    store.ledgers.save("meter-1", FULL)
    store._db.execute(
        "INSERT INTO commands (device, num, op, args) VALUES ('meter-1', 1, 'budget', ?)",
        (json.dumps({"releases": float("inf")}),),
    )
    ledger = store.ledgers.get("meter-1")
    assert (ledger.top, ledger.spent, ledger.cmd) == (LARGEST, RELEASES_LIMIT, LARGEST)
    names = ["cur", "hid_life", "spent", "cmd", "command 1"]
    assert store.unusable() == {"meter-1": names}
    assert store.commands.open("meter-1") == []
    apply(ControlOrder("enrol", "meter-1", public=OTHER), store)
    assert store.unusable() == {}
    assert store.ledgers.get("meter-1") == Ledger(cmd=1)
    assert store.commands.issue("meter-1", "stop").num == 2


def test_a_device_with_a_poisoned_ledger_is_answered_until_it_has_a_new_key(desk):
    with sqlite3.connect(desk.path) as db:
        row = ("meter-1", POISON, b"x", POISON, "[]", "[]", POISON, POISON)
        db.execute("INSERT INTO ledgers VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    db.close()
    device = Device(desk)
    (floor,) = device.say(device.hello())
    assert floor.life == LARGEST
    desk.store.renew(EnrolledDevice("meter-1", (device.key.public,)))
    assert isinstance(device.greet()[0], WelcomeMessage)
    (receipt,) = device.say(device.update())
    assert receipt.code == 0
    assert desk.store.ledgers.get("meter-1").spent == 1


def test_numbers_of_the_journal_are_not_used_twice_after_a_new_key(desk, device):
    device.say(device.update())
    desk.store.ledgers.save("meter-1", replace(FULL, cmd=0))
    desk.store.renew(EnrolledDevice("meter-1", (device.key.public,)))
    fresh = Device(desk)
    (floor,) = fresh.say(fresh.hello())
    fresh.life = floor.life
    fresh.greet()
    desk.open(round_number=2)
    (receipt,) = fresh.say(fresh.update())
    assert receipt.code == 0


def test_a_full_count_of_commands_is_an_error_in_words(store):
    store.ledgers.save("meter-1", Ledger(cmd=POISON))
    with pytest.raises(OrderError, match="all command numbers are used"):
        apply(ControlOrder("command", "meter-1", op="stop"), store)
