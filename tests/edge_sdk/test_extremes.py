"""A device that is told the largest numbers there are, or has worse on disk, and starts again."""

from __future__ import annotations

import logging
import sqlite3
from dataclasses import replace

import pytest

from edge_sdk.app.clock import BUILT, DAY
from edge_sdk.errors import Reason
from edge_sdk.privacy.ledger import PrivacyCharge
from edge_sdk.protocol import keys
from edge_sdk.protocol import messages as m
from edge_sdk.protocol.messages import LARGEST, RELEASES_LEAP, RELEASES_LIMIT, TIME_LIMIT
from edge_sdk.store.store import DeviceStore

POISON = 2**63 - 1
NEW_KEY = keys.from_seed(b"n" * 32)


@pytest.fixture
def told(fleet, monkeypatch):
    """Let the server change every welcome, and return the fleet and the changes."""
    changes = {}
    say = fleet.server.answer

    def tell(message):
        is_welcome = isinstance(message, m.WelcomeMessage)
        say(replace(message, **changes) if is_welcome else message)

    monkeypatch.setattr(fleet.server, "answer", tell)
    return fleet, changes


def commands(fleet, number, op, **args):
    """Say a command; return what the device answered."""
    before = len(fleet.server.receipts)
    fleet.server.answer(m.CommandMessage(number, op, args))
    fleet.run()
    return [receipt.code for receipt in fleet.server.receipts[before:]]


def learns(fleet, number):
    """Whether a round is learned, sent and receipted."""
    before = len(fleet.server.updates)
    fleet.server.open_round(number, number - 1, [0.1] * 4)
    fleet.run(30)
    return len(fleet.server.updates) > before


@pytest.mark.parametrize(
    "change",
    [
        {"spent": RELEASES_LEAP},
        {"time": TIME_LIMIT},
        {"time": 0},
        {"quota": LARGEST},
        {"run": LARGEST, "cmd": LARGEST},
    ],
    ids=str,
)
def test_the_largest_accepted_welcome_does_no_harm(told, change):
    fleet, changes = told
    if "time" in change:  # a list of keys without end: else no such time is believed
        fleet.server.announce(
            "keys",
            m.KeysMessage(2, (keys.from_seed(b"a" * 32).public,), (), (0,), (TIME_LIMIT,), 1),
        )
    changes |= change
    fleet.device.start()
    fleet.device.observe()
    for _ in range(3):
        fleet.run(20)
        assert fleet.device.client.status()["ready"]
        fleet.device.kill()
        fleet.device.start()
        fleet.device.observe()
    changes.clear()
    fleet.run(20)
    assert fleet.device.client.status()["ready"]
    assert learns(fleet, 1)


@pytest.mark.parametrize("name", ["spent", "life"])
def test_a_counter_that_jumps_to_its_limit_is_refused_and_not_stored(told, name, caplog):
    fleet, changes = told
    if name == "spent":
        changes["spent"] = RELEASES_LIMIT
    else:
        fleet.server._highest = LARGEST
    fleet.device.start()
    with caplog.at_level(logging.ERROR):
        fleet.run(30)
    assert not fleet.device.client.status()["ready"]
    assert "enrol this device with a new key" in caplog.text
    numbers = fleet.device.client._store.numbers()
    assert numbers.spent == 0
    assert numbers.life == 1
    fleet.device.kill()
    changes.clear()
    fleet.server._highest = 1
    fleet.device.start()
    fleet.device.observe()
    fleet.run(30)
    assert learns(fleet, 1), "an honest aggregator heals it"


@pytest.mark.extension
@pytest.mark.parametrize("releases", [-1.0, RELEASES_LIMIT + 1.0, 2.0**63, 1e20, 3.4e38])
def test_a_budget_out_of_bounds_is_refused_and_receipted_as_that(fleet, releases):
    fleet.device.start()
    fleet.run(20)
    assert commands(fleet, 1, "budget", releases=releases) == [Reason.BAD_COMMAND]
    fleet.device.kill()
    fleet.device.start()
    fleet.run(20)
    assert fleet.device.client._session.participation.releases_allowed is None


@pytest.mark.extension
def test_the_largest_budget_survives_a_restart(fleet):
    fleet.device.start()
    fleet.run(20)
    assert commands(fleet, 1, "budget", releases=float(RELEASES_LIMIT)) == [0]
    fleet.device.kill()
    fleet.device.start()
    fleet.device.observe()
    fleet.run(20)
    assert learns(fleet, 1)


@pytest.mark.extension
def test_a_command_with_a_jumping_number_is_ignored(fleet):
    fleet.device.start()
    fleet.run(20)
    assert commands(fleet, LARGEST, "stop") == []
    assert not fleet.device.client.why_stopped
    assert commands(fleet, 1, "stop") == [0]
    assert fleet.device.client.why_stopped == "command"


@pytest.mark.extension
def test_a_command_with_an_old_number_is_ignored(fleet):
    fleet.device.start()
    fleet.run(20)
    assert commands(fleet, 9, "report") == [0]
    assert commands(fleet, 3, "stop") == []
    assert fleet.server.counts["refusal"] == 1
    assert not fleet.device.client.why_stopped
    assert commands(fleet, 9, "report") == [0], "a repeat is receipted again"


@pytest.mark.extension
@pytest.mark.parametrize("done", [POISON, 2**24])
def test_a_welcome_corrects_a_command_number_that_was_not_issued(told, done):
    fleet, changes = told
    fleet.device.start()
    fleet.run(20)
    fleet.device.client._store.set_facts(command=done)
    fleet.device.kill()
    changes["cmd"] = 4
    fleet.device.start()
    fleet.run(20)
    assert commands(fleet, 5, "stop") == [0]
    assert fleet.device.client.why_stopped == "command"


# --- what version 0.1 may have left on disk -------------------------------------------------------


def poison(fleet, statement, *values):
    """Write into the file of a device that is not running."""
    path = fleet.device.config.state / "device.db"
    with sqlite3.connect(path) as db:
        db.execute(statement, values)
    db.close()


def stopped(fleet):
    """Let a device learn a round, and stop it."""
    fleet.device.start()
    fleet.device.observe()
    fleet.run(20)
    assert learns(fleet, 1)
    fleet.device.client.close()
    fleet.device.client = None


FACTS = ("floor", "command", "conn", "serial", "releases allowed", "noised since", "day", "starts")


@pytest.mark.parametrize("value", [POISON, -1])
@pytest.mark.parametrize("name", FACTS)
def test_a_stored_value_out_of_bounds_is_set_aside_and_reported(fleet, name, value, caplog):
    stopped(fleet)
    poison(fleet, "INSERT OR REPLACE INTO facts VALUES (?, ?)", name, value)
    with caplog.at_level(logging.ERROR):
        fleet.device.start()
    assert (
        f'stored value rejected what="{name}"' in caplog.text
        or f"stored value rejected what={name}" in caplog.text
    )
    assert fleet.device.client._store.set_aside()[name] == str(value)
    fleet.device.observe()
    fleet.run(20)
    assert fleet.device.client.status()["ready"]
    if (name, value < 0) != ("releases allowed", True):
        assert learns(fleet, 2)
    fleet.device.kill()
    fleet.device.start()


@pytest.mark.parametrize("column", ["life", "seq", "spent"])
@pytest.mark.parametrize("value", [POISON, -1])
def test_numbers_out_of_bounds_restart_and_releases_stay_counted(fleet, column, value, caplog):
    stopped(fleet)
    poison(fleet, f"UPDATE numbers SET {column} = ?", value)
    with caplog.at_level(logging.ERROR):
        fleet.device.start()
    assert "stored value rejected" in caplog.text
    assert fleet.device.client._store.numbers().spent == 1, "the ledger has every release"
    fleet.device.observe()
    fleet.run(40)
    assert fleet.device.client.status()["ready"], "the aggregator says where lives go on"
    assert learns(fleet, 2)


def test_an_outbox_entry_that_fits_no_message_is_dropped(fleet):
    stopped(fleet)
    poison(
        fleet,
        "INSERT INTO outbox VALUES (?, 1, 'update', x'92', x'00', 1, 1, 0, ?, 1, 0)",
        POISON,
        bytes(16),
    )
    fleet.device.start()
    fleet.device.observe()
    fleet.run(20)
    assert fleet.device.client._session.outbox.entries == ()
    assert learns(fleet, 2)


def budgeted(make):
    mechanism = {"name": "gaussian", "point": "update", "clip_norm": 1.0, "epsilon": 1.0}
    budget = {"epsilon": 50.0, "delta": 1e-6}
    return make(privacy={"mode": "honest", "mechanism": mechanism, "budget": budget})


LINE = "INSERT INTO ledger VALUES (NULL, 0, 'device', 'update', 'gaussian', 5.0, 1.0, ?, ?)"


@pytest.mark.parametrize("line", [(POISON, 1), (1, POISON), (-5, 1), (1, -5)])
def test_an_unreadable_ledger_line_blocks_releases_until_a_new_key(make, line):
    fleet = budgeted(make)
    stopped(fleet)
    poison(fleet, LINE, *line)
    fleet.device.start()
    fleet.device.observe()
    fleet.run(20)
    assert not learns(fleet, 2)
    assert fleet.device.client.why_stopped == "budget"
    assert fleet.device.client.forecast() is not None
    fleet.device.kill()
    with DeviceStore.open(fleet.device.config.state) as store:
        before = [charge for charge in store.ledger() if charge.point == "update"]
        assert store.own(NEW_KEY.kid)
        assert [*store.ledger()] == before, "what was told stays charged"
        assert not store.own(NEW_KEY.kid)


def test_charges_never_decrease_after_a_new_key(make):
    fleet = budgeted(make)
    stopped(fleet)
    with DeviceStore.open(fleet.device.config.state) as store:
        store.charge(
            replace(store.numbers(), spent=7), [PrivacyCharge(0, "device", "update", "g", 5.0)]
        )
        before = [*store.ledger()]
        assert store.own(NEW_KEY.kid)
        assert [*store.ledger()] == before
        assert store.numbers().spent == 7


def test_unreadable_stored_announcements_are_set_aside(fleet, caplog):
    stopped(fleet)
    poison(fleet, "UPDATE papers SET bytes = x'9280c400' WHERE name IN ('keys', 'bundle')")
    with caplog.at_level(logging.WARNING):
        fleet.device.start()
    assert "stored value rejected what=keys" in caplog.text
    assert "stored value rejected what=bundle" in caplog.text
    fleet.device.observe()
    fleet.run(40)
    assert learns(fleet, 2)


# --- time -----------------------------------------------------------------------------------------


def test_a_welcome_corrects_a_wrong_time_and_a_replay_does_not_restore_it(told):
    fleet, changes = told
    right = fleet.clock.wall()
    changes["time"] = right + 40 * DAY
    fleet.device.start()
    fleet.run(20)
    session = fleet.device.client._session
    assert session.time.certificate_time() == pytest.approx(right / 1000 + 40 * 86_400, abs=10)
    fleet.device.kill()
    fleet.device.start()
    session = fleet.device.client._session
    assert session.time.certificate_time() == pytest.approx(right / 1000 + 40 * 86_400, abs=10)
    assert session.time.earlier_certificate_time() is not None, "the time before the leap"
    changes["time"] = right
    fleet.run(20)
    assert session.time.certificate_time() is None
    assert session.time.earlier_certificate_time() is None
    old = m.TimeMessage(99, right + 40 * DAY)
    fleet.server.announce("time", old, keys.from_seed(b"a" * 32), "_agg")
    fleet.run(20)
    assert session.time.certificate_time() is None
    fleet.device.kill()
    fleet.device.start()
    assert fleet.device.client._session.time.certificate_time() is None


def test_a_time_at_which_no_key_is_valid_is_refused(told):
    fleet, changes = told
    end = fleet.clock.wall() + 100 * DAY
    public = keys.from_seed(b"a" * 32).public
    fleet.server.announce("keys", m.KeysMessage(2, (public,), (), (0,), (end,), 1))
    changes["time"] = end + DAY
    fleet.device.start()
    fleet.run(20)
    assert fleet.device.client.status()["ready"]
    assert fleet.device.client._store.fact("floor", BUILT) == BUILT


def test_a_device_with_a_future_time_requests_the_server_time(told):
    fleet, changes = told
    right = fleet.clock.wall()
    changes["time"] = right + 40 * DAY
    fleet.device.start()
    fleet.run(20)
    changes.clear()
    hellos = fleet.server.counts["hello"]
    for serial in (98, 99):
        said = m.TimeMessage(serial, fleet.clock.wall())
        fleet.server.announce("time", said, keys.from_seed(b"a" * 32), "_agg")
        fleet.run(20)
    assert fleet.server.counts["hello"] == hellos + 1
    assert fleet.device.client._session.time.certificate_time() is None
