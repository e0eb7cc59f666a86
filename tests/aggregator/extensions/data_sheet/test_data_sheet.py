"""The data-protection sheet: derived from the fleet, and every place it names exists."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.audit_log import AuditLog, Initiator
from aggregator.commands.main import COMMANDS, main
from aggregator.config import AggregatorConfig, bind
from aggregator.extensions.data_sheet.command import markdown
from aggregator.extensions.data_sheet.data_sheet import ITEMS, SENT, StandardItem, data_sheet
from aggregator.store.opener import open_store
from edge_sdk.commands.main import COMMANDS as DEVICE_COMMANDS
from firmware_sim.commands.main import COMMANDS as SIMULATOR_COMMANDS
from tests.aggregator.conftest import ONLINE
from tests.edge_sdk.privacy.test_sent import PAGE

ROOT = Path(__file__).resolve().parents[4]
PROGRAMS = {
    "gridfed-aggregator": COMMANDS,
    "gridfed-edge": DEVICE_COMMANDS,
    "gridfed-sim": SIMULATOR_COMMANDS,
    "gridfed-console": {},
}
NOW = 1_800_000_000_000


@pytest.fixture
def sheet(founded):
    """Return the sheet of a fleet, whose store a function may fill first."""

    def make(more="", fill=lambda _store: None, **replacing):
        config = founded(more, **replacing)
        with open_store(config.database) as store:
            fill(store)
        bound = [bind(view) for view in config.views()]
        with open_store(config.database, read_only=True) as store:
            return data_sheet(config, bound, store, NOW)

    return make


def anchors(page):
    """Return the anchors of a page's headings, as the site makes them."""
    heads = re.findall(r"^#+ (.*)$", (ROOT / page).read_text("utf-8"), re.MULTILINE)
    plain = (re.sub(r"[^a-z0-9 _-]", "", head.lower().replace("`", "")) for head in heads)
    return {re.sub(r"[\s-]+", "-", head.strip()) for head in plain}


@pytest.mark.parametrize("place", sorted({place for one in ITEMS for place in one.places}))
def test_every_place_of_an_item_exists(place, workplace):
    kind, _, name = place.partition(" ")
    if kind == "key":
        section, _, key = name.partition(".")
        config = AggregatorConfig.load(workplace())
        assert hasattr(config.tables.get(section) or config.section(section), key)
    elif kind == "command":
        program, *words = name.split()
        assert program in PROGRAMS
        assert not words or words[0] in PROGRAMS[program]
    elif kind == "page":
        page, _, anchor = name.partition("#")
        assert (ROOT / page).is_file()
        assert not anchor or anchor in anchors(page)
    else:
        assert kind == "test"
        assert "def test_" in (ROOT / name).read_text("utf-8")


def test_an_item_that_is_met_is_shown_somewhere_and_each_is_there_once():
    names = [(one.standard, one.item) for one in ITEMS]
    assert len(set(names)) == len(names)
    assert all(
        one.places for one in ITEMS if one.lacks is ITEMS[1].lacks
    )  # the default: always met
    assert ITEMS[1].lacks is StandardItem("", "", "").lacks


def test_what_a_device_sends_is_the_table_of_the_page():
    section = PAGE.split("## Everything a device sends")[1].split("\n## ")[0]
    found = []
    for line in section.splitlines():
        if row := re.fullmatch(r"\| `(\w+)` \| ((?:`\w+` ?)+) \| (.*?) \| `([a-z -]+)` \|", line):
            kind, names, reveals, covered = row.groups()
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", reveals)
            found.append((kind, tuple(re.findall(r"`(\w+)`", names)), text, covered))
    assert found == [(one.kind, one.fields, one.reveals, one.covered_by) for one in SENT]


def test_the_budget_is_counted_from_the_ledgers(sheet):
    def fill(store):
        for name, spent in (("meter-1", 3), ("meter-2", 40), ("meter-3", 8)):
            store.ledgers.save(name, replace(store.ledgers.get(name), spent=spent))
        revoked = next(one for one in store.devices.all() if one.id == "meter-3")
        store.devices.save(replace(revoked, state="revoked"))

    found = sheet("\n[admission]\nmax_updates = 40\n", fill)["privacy"]
    assert (found["promised_updates"], found["devices"], found["updates_largest"]) == (40, 2, 40)
    assert (found["updates_median"], found["at_the_limit"]) == (21.5, 1)


def verdicts(found):
    return {
        (one["standard"], one["item"]): (one["met"], one["reason"]) for one in found["standards"]
    }


def test_items_follow_the_configuration(sheet):
    plain = verdicts(sheet())
    assert plain["NIST SP 800-226", "ε"][0] is False
    assert "encryption.kinds" in plain["IEC 62443-4-2", "CR 4.1"][1]
    better = verdicts(
        sheet(
            '\n[admission]\nmax_updates = 40\n[encryption]\nkinds = ["update"]\n[ca]\nfolder = "ca"\n'
        )
    )
    for item in (
        ("NIST SP 800-226", "ε"),
        ("IEC 62443-4-2", "CR 4.1"),
        ("IEC 62443-4-2", "CR 1.8"),
    ):
        assert better[item] == (True, ""), item
    worse = verdicts(
        sheet(
            "",
            replacing=[
                (
                    'broker = {{ url = "mqtt://127.0.0.1:1883" }}'.format(),
                    'broker = { url = "mqtt://10.0.0.1", insecure = true }',
                )
            ],
        )
    )
    assert "no TLS" in worse["IEC 62443-4-2", "CR 3.1"][1]


def test_messages_that_the_fleet_does_not_use_are_marked_by_the_key(sheet):
    def used(found):
        return {one["message"]: one["why_not"] for one in found["sent"]}

    plain = used(sheet())
    assert plain["forecast"] == "forecasts.store = false"
    assert plain["peer"] == "no run between neighbours"
    assert plain["update"] == ""
    assert used(sheet("\n[forecasts]\nstore = true\n[scores]\ncollect = true\n"))["forecast"] == ""


def test_acts_are_counted_from_the_log_and_a_changed_one_is_reported(sheet):
    def fill(store):
        log = AuditLog(store, "north", ONLINE, lambda: NOW)
        for number in range(25):
            log.record(Initiator("console", "a|nn"), "revoke", f"m-{number}", reason="so\nld | x")

    found = sheet(fill=fill)
    assert found["acts"]["faults"] == []
    assert [(one["act"], one["via"], one["count"]) for one in found["acts"]["by_act"]] == [
        ("revoke", "console", 25)
    ]
    assert [one["record"] for one in found["acts"]["newest"]] == list(range(25, 5, -1))
    text = markdown(found)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert any("a\\|nn" in row for row in rows)
    widths = {
        len(re.findall(r"(?<!\\)\|", row)) for row in rows if "revoke" in row and "console" in row
    }
    assert widths == {5, 8}

    def damage(store):
        store._db.execute("UPDATE audit_records SET actor = 'eve' WHERE number = 7")

    assert "record 7 was changed" in sheet(fill=damage)["acts"]["faults"][0]


def test_the_command_prints_markdown_or_json_and_writes_a_file(founded, capsys, tmp_path):
    config = str(founded().file)
    assert main(["data-sheet", config]) == 0
    text = capsys.readouterr().out
    assert main(["data-sheet", config, "--out", str(tmp_path / "sheet.md")]) == 0
    capsys.readouterr()
    assert main(["data-sheet", config, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for standard in ("NIST SP 800-226", "IEC 62443-4-2", "ETSI EN 303 645"):
        assert f"### {standard}:" in text
        assert any(one["standard"] == standard for one in found["standards"])
    assert "# Data-protection sheet of fleet north" in (tmp_path / "sheet.md").read_text("utf-8")
    assert main(["data-sheet", str(tmp_path / "none.toml")]) == 2
