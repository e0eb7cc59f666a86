"""A record is saved exactly if its act took effect, on both engines and after kill -9."""

import os
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from aggregator.audit_log import DAEMON, AuditLog
from aggregator.extensions.audit_log.export import Verification
from aggregator.ingress.registry import Registry
from aggregator.operations.commands import OrderError
from aggregator.operations.control_queue import ControlOrder
from aggregator.operations.order_executor import apply_recorded
from aggregator.store.dialect import DatabaseUrl
from aggregator.store.errors import DatabaseError
from aggregator.store.opener import open_store
from edge_sdk.protocol import keys
from tests.aggregator.extensions.audit_log.order_writer import KEY

ROOT = Path(__file__).resolve().parents[4]
PUBLIC = keys.from_seed(b"m" * 32).public.hex()


@pytest.fixture
def log(store):
    return AuditLog(store, "north", KEY, lambda: 1_800_000_000_000)


def acts(store):
    return [
        (one.actor, one.act, one.subject, one.reason, one.detail)
        for one in store.audit_log.records()
    ]


def faults(store):
    found = Verification("north", [KEY.public])
    for record in store.audit_log.records():
        found.add(record)
    return found.close()


def test_every_order_that_changes_a_device_is_recorded_with_what_changed(store, log):
    kid = keys.kid_of(bytes.fromhex(PUBLIC)).hex()
    orders = [
        ControlOrder("enrol", "m-1", public=PUBLIC, labels="area=north", who="ann"),
        ControlOrder("enrol", "m-2", public=PUBLIC, labels="device=m-1", who="ann"),
        ControlOrder("label", "m-1", labels="area=", who="bob"),
        ControlOrder(
            "command", "m-1", op="budget", args={"releases": 40.0}, who="bob", why="agreed"
        ),
        ControlOrder("revoke", "m-1", why="sold", who="eve"),
    ]
    for order in orders:
        apply_recorded(order, store, log)
    assert acts(store) == [
        ("ann", "enrol", "m-1", "", f"key {kid}; labels area=north"),
        ("ann", "enrol", "m-2", "", f"key {kid}; labels device=m-1"),
        ("bob", "label", "m-1", "", "labels none"),
        ("bob", "command", "m-1", "agreed", "command 2: budget releases=40"),
        ("eve", "revoke", "m-1", "sold", "from enrolled to revoked"),
        ("eve", "revoke", "m-2", "sold", "from enrolled to revoked"),
    ]
    assert faults(store) == []
    assert [store.devices.get(one.id) for one in store.devices.all()] == store.devices.all()
    assert store.devices.get("m-9") is None


def test_an_order_that_changes_nothing_or_is_refused_has_no_record(store, log):
    enrol = ControlOrder("enrol", "m-1", public=PUBLIC, who="ann")
    apply_recorded(enrol, store, log)
    apply_recorded(enrol, store, log)
    apply_recorded(ControlOrder("command", "m-1", op="stop", who="ann"), store, log)
    apply_recorded(ControlOrder("command", "m-1", op="stop", who="ann"), store, log)  # still waits
    for refused in (
        ControlOrder("revoke", "m-9", who="ann"),
        ControlOrder("command", "m-1", op="dance", who="ann"),
        ControlOrder("enrol", "m-2", public=PUBLIC, who="ann"),
    ):
        with pytest.raises(OrderError):
            apply_recorded(refused, store, log)
    assert [one.act for one in store.audit_log.records()] == ["enrol", "command"]


def test_an_order_that_was_recorded_is_not_carried_out_again(store, log):
    """As after a crash between the commit and the removal of the order's file."""
    apply_recorded(ControlOrder("enrol", "m-1", public=PUBLIC, who="ann"), store, log)
    order = ControlOrder("command", "m-1", op="stop", who="ann", id="a1")
    apply_recorded(order, store, log)
    store.commands.finish("m-1", 1, 0)
    assert apply_recorded(order, store, log) == "command m-1: carried out before"
    assert store.commands.open("m-1") == []
    assert len(list(store.audit_log.records())) == 2


def test_a_transaction_that_fails_records_nothing(store, log):
    def fail_after_recording():
        with store.transaction():
            apply_recorded(ControlOrder("enrol", "m-1", public=PUBLIC, who="ann"), store, log)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_recording()
    assert (store.devices.all(), store.audit_log.last()) == ([], None)
    apply_recorded(ControlOrder("enrol", "m-1", public=PUBLIC, who="ann"), store, log)
    assert [one.number for one in store.audit_log.records()] == [1]


def test_a_second_record_of_a_number_is_refused(store, log):
    record = log.record(DAEMON, "halt", "run 1")
    with pytest.raises((DatabaseError, sqlite3.IntegrityError)):
        store.audit_log.append(record)
    assert faults(store) == []


def test_what_the_daemon_does_by_itself_is_its_own_act(store, log):
    apply_recorded(ControlOrder("enrol", "m-1", public=PUBLIC, who="ann"), store, log)
    registry = Registry(store, log)
    registry.quarantine_clone("m-1", "life 2 sent after life 3")
    registry.release("m-1")
    assert [
        (one.via, *found[:3])
        for one, found in zip(store.audit_log.records(), acts(store), strict=True)
    ] == [
        ("command", "ann", "enrol", "m-1"),
        ("daemon", "daemon", "quarantine", "m-1"),
        ("daemon", "daemon", "release", "m-1"),
    ]


def test_a_reason_is_one_line_of_bounded_length(store, log):
    record = log.record(DAEMON, "halt", "run 1", reason="a\x00b\nc\ud800", detail="x" * 5000)
    assert (record.reason, len(record.detail)) == ("a?b?c?", 1000)
    assert faults(store) == []


@pytest.mark.slow
def test_kill_9_saves_an_act_with_its_record_or_neither(path):
    """The devices that the records describe are the devices in the database, after every kill."""
    rng, seen = random.Random(5), 0
    place = path.url if isinstance(path, DatabaseUrl) else str(path)
    for attempt in range(6):
        with subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.aggregator.extensions.audit_log.order_writer",
                place,
                f"p{attempt}",
            ],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as process:
            lines = [process.stdout.readline() for _ in range(rng.randrange(5, 60))]
            process.kill()
            lines += process.stdout.read().rpartition("\n")[0].splitlines()
        with open_store(path) as store:
            assert faults(store) == []
            assert store.audit_log.last().number >= int(lines[-1]) > seen
            seen = int(lines[-1])
            assert described(store) == {
                one.id: (one.state, one.generation, dict(one.labels).get("area"))
                for one in store.devices.all()
            }
            commands = [one.detail for one in store.audit_log.records() if one.act == "command"]
            assert len(commands) == sum(
                len(store.commands.open(one.id)) for one in store.devices.all()
            ) - commands_by_labels(store)
    assert seen > 50


def commands_by_labels(store):
    """A changed label orders a hello, which is part of the label's act."""
    return sum(
        command.op == "hello"
        for one in store.devices.all()
        for command in store.commands.open(one.id)
    )


def described(store):
    """Return state, generation and area of every device as the records alone describe them."""
    found = {}
    for record in store.audit_log.records():
        state, generation, area = found.get(record.subject, ("enrolled", 1, None))
        for part in record.detail.split("; "):
            if part.startswith("from "):
                state = part.rpartition(" ")[2]
            if part.startswith("generation "):
                generation = int(part.rpartition(" ")[2])
            if part.startswith("labels "):
                area = part.removeprefix("labels area=")
        found[record.subject] = (state, generation, area)
    return found
