"""The history check finds nothing where nothing is wrong, and every violation that is planted."""

from __future__ import annotations

import random
import shutil
import sqlite3
from dataclasses import replace

import pytest

from aggregator.commands import main as cli
from aggregator.config import RetentionSection
from aggregator.store.opener import open_store
from aggregator.store.types import Retention
from edge_sdk.protocol.keys import read_public
from firmware_sim.attacks.attack_plan import AttackRole
from firmware_sim.testing.loopback import LinkFaults
from tools.chaos.delivery_audit import SHOWN, books, judge, lines
from tools.chaos.link_recorder import LinkRecord, RecordedLink
from tools.chaos.link_trace import Receipted, Sent, written

ROUNDS = 5


def kept(one, number):
    """A role whose link keeps a diary."""
    public = read_public(one.folder / f"home-{number}.pub")
    server = read_public(one.folder / "aggregator" / "aggregator.pub")
    path = one.folder / "diaries" / f"home-{number}.jsonl"
    return AttackRole(
        around=lambda link: RecordedLink(link, LinkRecord(path, device=public, aggregator=server))
    )


def stormy(world):
    """A run through losses, doubles and deaths; stopped, with everything on disk."""
    faults = LinkFaults(drop=0.05, duplicate=0.2, reorder=0.2)
    one, rng = world(run={"rounds": ROUNDS, "deadline": "600s"}, faults=faults), random.Random(4)
    one.start_daemon()
    for number in range(one.devices):
        one.start(number, kept(one, number))
    while one.version < ROUNDS:
        for _ in range(rng.randint(5, 40)):
            one.turn()
        victim = rng.randrange(one.devices + 1)
        if victim == one.devices:
            one.kill_daemon()
            one.start_daemon()
        else:
            one.die(victim)
            one.start(victim, kept(one, victim))
    one.until(lambda: not any(c.status()["outbox"] for c in one.fleet.clients))
    one.kill_daemon()
    return one


@pytest.fixture(scope="module")
def finished(tmp_path_factory, request):
    """One stormy run for all tests of this file: they work on copies."""
    module = request.getfixturevalue("world_class")
    made = []

    def world(**options):
        folder = tmp_path_factory.mktemp("world")
        made.append(module(folder, **options))
        return made[-1]

    one = stormy(world)
    folder = one.folder
    one.close()
    return folder


@pytest.fixture(scope="module")
def world_class():
    from tests.fleet.conftest import World  # noqa: PLC0415 - importlib mode knows it by this name

    return World


@pytest.fixture
def case(finished, tmp_path):
    """A copy to plant something in: its folder, its database, its diaries."""
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    with sqlite3.connect(folder / "aggregator" / "aggregator.db") as db:
        db.execute("PRAGMA journal_mode = DELETE")
    return folder


def database(folder):
    return folder / "aggregator" / "aggregator.db"


def checked(folder):
    with open_store(database(folder), read_only=True) as store:
        return judge(lines(folder / "diaries"), books(store))


def said(folder):
    return list(lines(folder / "diaries"))


def add(folder, line):
    with (folder / "diaries" / f"{line.device}.jsonl").open("a") as diary:
        diary.write(written(line))


def test_the_audit_finds_nothing_after_link_faults(case):
    verdict = checked(case)
    assert verdict.faults == ()
    assert verdict.devices == 3
    assert verdict.receipted == verdict.applied >= 3 * ROUNDS
    assert verdict.repeats > 0, "nothing was ever sent twice: this was no storm"
    assert verdict.unproved == 0


SQL = {
    "lost": "DELETE FROM journal WHERE kind = 'update' AND position = {last}",
    "twice": """DROP INDEX journal_number; DROP INDEX journal_turn;
        INSERT INTO journal (kind, run, round, device, life, seq, turn, facts, vector)
        SELECT kind, run, round, device, life, seq, turn, facts, vector FROM journal
        WHERE position = {last}""",
    "twice, renumbered": """DROP INDEX journal_turn;
        INSERT INTO journal (kind, run, round, device, life, seq, turn, facts, vector)
        SELECT kind, run, round, device, life, seq + 900, turn, facts, vector FROM journal
        WHERE position = {last}""",
    "journal entry without matching upload": "UPDATE journal SET seq = seq + 900 WHERE position = {last}",
    "altered": "UPDATE journal SET vector = zeroblob(length(vector)) WHERE position = {last}",
    "altered, moved": "UPDATE journal SET turn = turn + 900 WHERE position = {last}",
    "altered, settled": "UPDATE rows SET digest = zeroblob(32)",
    "contradicted": "UPDATE rows SET code = 28",
    "rounds": "UPDATE versions SET version = version + 1 WHERE round = 3",
    "account": "UPDATE ledgers SET spent = 0",
}


@pytest.mark.parametrize("planted", SQL)
def test_a_manipulated_database_is_detected(case, planted):
    with sqlite3.connect(database(case)) as db:
        query = "SELECT max(position) FROM journal WHERE kind = 'update'"
        (last,) = db.execute(query).fetchone()
        db.executescript(SQL[planted].format(last=last))
    kind = planted.partition(",")[0]
    assert any(fault.startswith(f"{kind}: ") for fault in checked(case).faults)


def test_a_differing_recomputed_model_is_detected_without_link_records(case, capsys):
    with sqlite3.connect(database(case)) as db:
        db.execute("UPDATE journal SET vector = zeroblob(length(vector)) WHERE kind = 'update'")
    assert cli.main(["audit", str(case / "aggregator.toml")]) == 1
    assert "recomputed state differs" in capsys.readouterr().out


def test_a_manipulated_link_record_is_detected(case):
    first = next(line for line in said(case) if isinstance(line, Sent))
    receipt = next(line for line in said(case) if isinstance(line, Receipted) and line.code == 0)
    planted = {
        "forked": replace(first, digest="00" * 32),
        "contradicted": replace(receipt, code=28),
        "altered": replace(receipt, ref="77" * 16),
        "lost": replace(receipt, life=900),
    }
    for kind, line in planted.items():
        assert not any(fault.startswith(f"{kind}: ") for fault in checked(case).faults)
        add(case, line)
        assert any(fault.startswith(f"{kind}: ") for fault in checked(case).faults)


def test_updates_without_a_link_record_are_reported(case):
    (case / "diaries" / "home-1.jsonl").unlink()
    faults = checked(case).faults
    assert all("home-1" in fault or "more" in fault for fault in faults)
    assert (
        sum(fault.startswith("journal entry without matching upload: ") for fault in faults)
        <= SHOWN + 1
    )
    assert any(fault.startswith("journal entry without matching upload: ") for fault in faults)


def test_a_missing_update_without_a_receipt_is_no_finding(case):
    one = next(line for line in said(case) if isinstance(line, Sent))
    add(case, replace(one, life=900, digest="11" * 32))
    verdict = checked(case)
    assert verdict.faults == ()
    assert verdict.unsettled >= 1


def test_a_folder_without_link_records_is_refused(case):
    with pytest.raises(ValueError, match=r"no link trace \(\*.jsonl\)"):
        list(lines(case))


def test_a_pruned_journal_is_reported_and_is_no_finding(world, monkeypatch, capsys):
    """Vectors of two rounds are kept, and the events of a few more; a loss among them is found."""
    keep = Retention(journal=4000, rounds=2)
    monkeypatch.setattr(RetentionSection, "bounds", property(lambda _: keep))
    one = world(run={"rounds": 12, "deadline": "600s"})
    one.start_daemon()
    for number in range(one.devices):
        one.start(number, kept(one, number))
    one.until(lambda: one.version == 12)
    one.until(lambda: not any(c.status()["outbox"] for c in one.fleet.clients))
    one.kill_daemon()
    verdict = checked(one.folder)
    assert verdict.faults == ()
    assert verdict.pruned > 0
    assert verdict.applied + verdict.pruned == verdict.receipted == 12 * one.devices
    config = ["audit", str(one.folder / "aggregator.toml")]
    assert cli.main(config) == 0
    told = capsys.readouterr().out
    assert "rounds up to 10 are not recomputed" in told
    assert f"{verdict.pruned} updates of {one.devices} devices are not listed" in told
    assert cli.main(["status", str(one.folder / "aggregator.toml")]) == 0
    assert "audit after 10" in capsys.readouterr().out
    assert cli.main(["backup", "--config", config[1], str(one.folder / "copy.db")]) == 0
    assert "audit after round 10" in capsys.readouterr().out
    with sqlite3.connect(database(one.folder)) as db:
        (last,) = db.execute("SELECT max(position) FROM journal WHERE kind = 'update'").fetchone()
        db.executescript(SQL["lost"].format(last=last))
    assert any(fault.startswith("lost: ") for fault in checked(one.folder).faults)
