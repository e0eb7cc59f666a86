"""Every way to change the fleet leaves a record, and the operator shows, exports and verifies them."""

import json
import shutil
import sqlite3

import pytest

from aggregator.audit_log import login_name
from aggregator.commands import main as cli
from aggregator.config import AggregatorConfig
from aggregator.extensions.authority import enrolment
from aggregator.extensions.authority.commands.ca_enrolment import queue_acts
from aggregator.extensions.authority.record import opened
from aggregator.operations.control_queue import ControlOrder, leave, waiting
from aggregator.store.opener import open_store
from edge_sdk.protocol import keys
from tests.aggregator.extensions.authority.est import NOW, made_authority, password_of
from tests.aggregator.rounds.test_message_isolation import Fleet, fleet

__all__ = ["Fleet", "fleet"]

PUBLIC = {name: keys.from_seed(name.encode().ljust(32)).public.hex() for name in ("m-1", "m-2")}


@pytest.fixture
def call(workplace, monkeypatch, capsys):
    """Run a command in a fleet's folder; return its exit code and its answer."""
    folder = workplace().parent
    monkeypatch.chdir(folder)

    def run(*words):
        code = cli.main(list(words))
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return code, json.loads(said.out) if "--json" in words and said.out else said.out + said.err

    run.folder = folder
    return run


def shown(call, *filters):
    code, found = call("audit-log", "show", "--last", "0", "--json", *filters)
    assert code == 0
    return [
        (one["via"], one["actor"], one["act"], one["subject"], one["reason"])
        for one in found["records"]
    ]


def recorded(config):
    with open_store(config.database, read_only=True) as store:
        return [
            (one.via, one.actor, one.act, one.subject, one.reason)
            for one in store.audit_log.records()
        ]


def test_every_command_that_changes_the_fleet_has_its_records(call):
    who = login_name()
    for words in (
        ("init", "aggregator.toml"),
        ("enrol", "m-1", "--public", PUBLIC["m-1"], "--why", "first meter"),
        ("enrol", "m-2", "--public", PUBLIC["m-2"]),
        ("label", "area=north", "m-1", "m-2", "--why", "moved"),
        ("command", "m-1", "report", "--why", "a look"),
        ("revoke", "m-2", "--why", "sold"),
        ("announce", "--fresh", "--why", "another start"),
        ("bundle", "promote", "toy"),
        ("backup", "copy.db"),
        ("label", "area=south", "m-1"),
        ("restore", "copy.db", "--why", "disk failed"),
    ):
        assert call(*words)[0] == 0, words
    assert shown(call) == [
        ("command", who, *rest)
        for rest in (
            ("announce", "run 1", ""),
            ("enrol", "m-1", "first meter"),
            ("enrol", "m-2", ""),
            ("label", "m-1", "moved"),
            ("label", "m-2", "moved"),
            ("command", "m-1", "a look"),
            ("revoke", "m-2", "sold"),
            ("announce", "run 2", "another start"),
            ("promote bundle", "toy@live", ""),
            ("restore", "copy.db", "disk failed"),
            ("announce", "run 1002", "disk failed"),
        )
    ]
    _, found = call("audit-log", "show", "--act", "restore", "--json")
    assert "ended with record 10" in found["records"][0]["detail"]
    code, found = call("audit-log", "verify", "--json")
    assert (code, found["records"], found["faults"]) == (0, 11, [])


def test_a_command_that_is_refused_has_no_record(call):
    call("init", "aggregator.toml")
    for words in (
        ("revoke", "m-9"),
        ("enrol", "m-1", "--public", "zz"),
        ("label", "area=north", "m-9"),
        ("revoke", "m-1", "--why", "x" * 201),
        ("rollout", "abort"),
    ):
        assert call(*words)[0] != 0, words
    assert [row[2] for row in shown(call)] == ["announce"]


def test_records_are_filtered_by_time_actor_act_and_subject(call):
    call("init", "aggregator.toml")
    call("enrol", "m-1", "--public", PUBLIC["m-1"])
    assert [row[2] for row in shown(call, "--act", "enrol")] == ["enrol"]
    assert [row[2] for row in shown(call, "--subject", "m-1")] == ["enrol"]
    assert shown(call, "--actor", "eve") == shown(call, "--until", "2020-01-01") == []
    assert len(shown(call, "--since", "2020-01-01T00:00Z", "--until", "2200-01-01")) == 2
    assert call("audit-log", "show", "--since", "soon")[0] == 2
    _, text = call("audit-log", "show", "--last", "1")
    assert "enrol" in text
    assert "the newest 1 of 2" in text


def test_an_export_is_verified_against_earlier_ones_and_a_changed_database_is_found(call):
    call("init", "aggregator.toml")
    public = call.folder / "state" / "aggregator.pub"
    assert call("audit-log", "export", "--out", "early.jsonl")[0] == 0
    call("enrol", "m-1", "--public", PUBLIC["m-1"])
    call("revoke", "m-1", "--why", "sold")
    assert call("audit-log", "export", "--out", "late.jsonl")[0] == 0
    verify = ("audit-log", "verify", "late.jsonl", "--public", str(public))
    assert call(*verify, "--against", "early.jsonl")[0] == 0
    code, found = call(*verify[:2], "early.jsonl", *verify[3:], "--against", "late.jsonl", "--json")
    assert (code, [(one["kind"], one["record"]) for one in found["faults"]]) == (
        1,
        [("truncated", 2)],
    )
    assert call("audit-log", "verify", "--against", "late.jsonl")[0] == 0

    damages = {
        "UPDATE audit_records SET actor = 'eve' WHERE number = 2": ("changed", 2),
        "DELETE FROM audit_records WHERE number = 2": ("missing", 2),
        "DELETE FROM audit_records WHERE number = 3": ("truncated", 3),
    }
    database = call.folder / "state" / "aggregator.db"
    for damage, fault in damages.items():
        shutil.copy(database, call.folder / "kept.db")
        with sqlite3.connect(database) as db:
            db.execute(damage)
        db.close()
        code, found = call("audit-log", "verify", "--against", "late.jsonl", "--json")
        assert (code, [(one["kind"], one["record"]) for one in found["faults"]]) == (1, [fault])
        shutil.copy(call.folder / "kept.db", database)

    (call.folder / "early.jsonl").write_text("{}\n", "utf-8")
    assert call(*verify, "--against", "early.jsonl")[0] == 2
    assert call("audit-log", "verify", "late.jsonl")[0] == 2


def test_orders_of_a_running_daemon_and_its_own_acts_are_recorded(fleet):
    it = fleet()
    for order in (
        ControlOrder("pause", "_all", who="ann", via="console", why="storm"),
        ControlOrder("pause", "_all", who="bob"),  # is paused already
        ControlOrder("resume", "_all", who="ann", via="console"),
        ControlOrder("label", "meter-1", labels="area=north", who="bob"),
        ControlOrder("round", "_all", who="bob"),  # refused: no round waits
        ControlOrder(
            "record", "meter-9", op="issue certificate", who="ann", via="authority", id="a1"
        ),
        ControlOrder(
            "record", "meter-9", op="issue certificate", who="ann", via="authority", id="a1"
        ),
    ):
        leave(it.config.inbox, order)
        it.wait(2)
    it.daemon._registry.quarantine_clone("meter-2", "life 2 sent after life 3")
    it.daemon._driver.drivers[0].halt("deadline", ZeroDivisionError("planted"))
    found = recorded(it.config)
    assert [row[:4] for row in found] == [
        ("console", "ann", "pause", "the fleet"),
        ("console", "ann", "resume", "the fleet"),
        ("command", "bob", "label", "meter-1"),
        ("authority", "ann", "issue certificate", "meter-9"),
        ("daemon", "daemon", "quarantine", "meter-2"),
        ("daemon", "daemon", "halt", "run 1"),
    ]
    assert found[0][4] == "storm"


def test_an_order_whose_file_outlives_its_commit_is_not_carried_out_twice(fleet):
    """As after a power cut between the commit of an order and the removal of its file."""
    it = fleet()
    path = leave(it.config.inbox, ControlOrder("command", "meter-1", op="report", who="ann"))
    raw = path.read_bytes()
    it.wait(2)
    store = it.daemon._store
    assert store.ledgers.get("meter-1").cmd == 1
    store.commands.finish("meter-1", 1, 0)
    path.write_bytes(raw)
    it.wait(2)
    assert store.ledgers.get("meter-1").cmd == 1
    assert len(recorded(it.config)) == 1


def test_the_authority_passes_its_acts_on_once(call):
    who = login_name()
    config = call.folder / "aggregator.toml"
    config.write_text(config.read_text("utf-8") + '\n[ca]\nfolder = "ca"\n', "utf-8")
    assert call("ca", "init", "ca", "--title", "north")[0] == 0  # before the fleet has a database
    call("init", "aggregator.toml")
    (call.folder / "serials.csv").write_text("serial\nmeter-1\nmeter-2\n", "utf-8")
    for words in (
        ("ca", "passwords", "serials.csv", "--out", "words.csv"),
        ("ca", "issue", "meter-1"),
        ("ca", "revoke", "meter-1"),
        ("ca", "list"),
    ):
        assert call(*words)[0] == 0, words
    assert [row for row in shown(call) if row[0] == "authority"] == [
        ("authority", who, *rest, "")
        for rest in (
            ("make authority", "north"),
            ("list serial", "meter-1"),
            ("list serial", "meter-2"),
            ("issue certificate", "meter-1"),
            ("revoke certificates", "meter-1"),
        )
    ]
    with opened(call.folder / "ca") as record:
        assert record.acts() == []
    assert call("audit-log", "verify")[0] == 0


def test_acts_that_the_server_queues_again_after_a_crash_are_recorded_once(call):
    config = AggregatorConfig.load(call.folder / "aggregator.toml")
    call("init", "aggregator.toml")
    call("ca", "init", "ca")
    with opened(call.folder / "ca") as record:
        with record.transaction():
            record.add_act("2026-11-23T12:00:00+00:00", "meter-1", "renew certificate", "meter-1")
        acts = record.acts()
        queue_acts(config)(acts)
        queue_acts(config)(acts)  # killed before it could forget them
    orders = [order for _, order in waiting(config.inbox)]
    assert [(one.do, one.op, one.device, one.via, one.id) for one in orders] == [
        ("record", "renew certificate", "meter-1", "authority", acts[0].id)
    ]


def test_an_approval_and_a_listing_are_in_the_transaction_of_the_authority(tmp_path):
    folder = made_authority(tmp_path / "ca")
    password_of(folder, "meter-1")
    with opened(folder) as record:
        assert not enrolment.approve(record, "meter-1", NOW, "ann")  # does not wait
        assert [(one.act, one.subject) for one in record.acts()] == [
            ("make authority", "test"),
            ("list serial", "meter-1"),
        ]
