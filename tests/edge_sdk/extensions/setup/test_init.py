"""A new device begins with a commented configuration that passes its check."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

from edge_sdk.app.wizard import Wizard, WizardError, write_new
from edge_sdk.commands.main import main
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.extensions.setup.init import KINDS, setups_of
from edge_sdk.protocol import keys
from edge_sdk.sources import SOURCES

LOAD = "elec.import.energy"
CHOICES = [(kind, source) for kind in KINDS for source in setups_of(kind)]


@pytest.mark.parametrize(("kind", "source"), CHOICES)
def test_the_written_file_passes_the_check(tmp_path, capsys, kind, source):
    path = tmp_path / "device.toml"
    words = ["--kind", kind, "--source", source, "--id", f"{kind}-9", "--fleet", "east", "--yes"]
    assert main(["init", str(path), *words]) == 0
    assert "gridfed-edge enrol" in capsys.readouterr().out
    (tmp_path / "readings.csv").write_text("time,value\n2026-01-01T00:00Z,1\n")
    keys.save_public(tmp_path / "root.pub", keys.from_seed(b"r" * 32).public)
    assert main(["enrol", str(path)]) == 0
    assert main(["check", str(path)]) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert f"id = {kind}-9" in out
    assert "no source" not in out
    comments = [line for line in path.read_text().splitlines() if "#" in line]
    assert len(comments) >= 8


@pytest.mark.parametrize(
    ("header", "row", "keys"),
    [
        (
            "Zeit;Zählerstand kWh",
            "01.02.2026 {h:02d}:00;{h},5",
            {"columns": {"Zählerstand kWh": LOAD}, "time_column": "Zeit"},
        ),
        (
            "Account,1\n\nDATE,START TIME,TEMP,USAGE (kWh)",
            "2026-02-01,{h:02d}:00,7,{h}.5",
            {"columns": {"USAGE (kWh)": LOAD}, "time_column": ["DATE", "START TIME"]},
        ),
        (
            "time,import kWh,export kWh",
            "2026-02-01 {h:02d}:00,{h}.5,0.5",
            {"columns": {"import kWh": LOAD, "export kWh": "elec.export.energy"}},
        ),
        (
            "time;register;volume",
            "2026-02-01 {h:02d}:00;Afname Dag;{h},5\n2026-02-01 {h:02d}:00;Injectie Dag;0,5",
            {"columns": {"volume": LOAD}, "filter": {"register": ["Afname Dag"]}},
        ),
        (
            "time;meter;kWh",
            "2026-02-01 {h:02d}:00;a;{h},5\n2026-02-01 {h:02d}:00;b;0,5",
            {"columns": {"kWh": LOAD}, "filter": {"meter": ["a"]}},
        ),
    ],
)
def test_the_columns_of_a_file_are_looked_up(tmp_path, capsys, header, row, keys):
    path = tmp_path / "meter.toml"
    rows = "\n".join(row.format(h=h) for h in range(24))
    (tmp_path / "load.csv").write_text(f"{header}\n{rows}\n")
    words = ["--source", "csv", "--address", "load.csv", "--yes"]
    assert main(["init", str(path), *words]) == 0
    assert "load.csv has times in" in capsys.readouterr().out
    section = Config.load(path, {}).source[0]
    found = {key: section[key] for key in ("columns", "time_column", "filter") if key in section}
    assert found == keys
    source = SOURCES["csv"](section)
    readings = [reading for reading in source if reading.stream == LOAD]
    assert [reading.value for reading in readings[:3]] in ([0.5, 1.5, 2.5], [1.0, 1.0, 1.0])
    assert not source.rejected


def test_one_of_two_meters_after_each_other_is_chosen_and_a_row_a_day_is_said(tmp_path, capsys):
    lines = [
        f"2026-{month:02d}-{day:02d} {hour:02d}:00;{meter};{way};{hour},5"
        for meter in ("m1", "m2")
        for month in (1, 2)
        for day in range(1, 29)
        for hour in range(24)
        for way in ("import", "export")
    ]
    (tmp_path / "two.csv").write_text("\n".join(["time;meter;way;kWh", *lines]))
    hours = ";".join(f"H{n}" for n in range(1, 25))
    days = [f"2026-01-{day:02d};" + ";".join("1,5" for _ in range(24)) for day in range(1, 29)]
    (tmp_path / "days.csv").write_text("\n".join([f"date;{hours}", *days]))
    for name in ("two", "days"):
        words = ["--source", "csv", "--address", f"{name}.csv", "--yes"]
        assert main(["init", str(tmp_path / f"{name}.toml"), *words]) == 0
    section = Config.load(tmp_path / "two.toml", {}).source[0]
    assert section["filter"] == {"way": ["import"], "meter": ["m1"]}
    assert "days.csv cannot be read by the agent: it has a row a day" in capsys.readouterr().out


def test_a_file_that_is_not_there_yet_or_has_no_table_is_said(tmp_path, capsys):
    (tmp_path / "empty.csv").write_text("nothing\n")
    for number, name in enumerate(("absent.csv", "empty.csv")):
        words = ["--source", "csv", "--address", name, "--yes"]
        assert main(["init", str(tmp_path / f"{number}.toml"), *words]) == 0
        assert f"{name} is not there yet, or has no header" in capsys.readouterr().out


def test_an_existing_file_is_kept(tmp_path, capsys):
    path = tmp_path / "meter.toml"
    path.write_text("mine")
    assert main(["init", str(path), "--yes"]) == 2
    assert "exists" in capsys.readouterr().err
    assert path.read_text() == "mine"


def test_an_invalid_value_writes_nothing(tmp_path, capsys):
    path = tmp_path / "meter.toml"
    assert main(["init", str(path), "--id", "a b", "--yes"]) == 2
    assert "id" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_hostile_values_stay_text(tmp_path):
    path = tmp_path / "meter.toml"
    address = 'x"\nfleet = "other"\n'
    assert main(["init", str(path), "--address", address, "--yes"]) == 0
    found = Config.load(path, {})
    assert found.fleet == "north"
    assert found.source[0]["url"] == address


def test_tls_names_its_files(tmp_path, capsys):
    path = tmp_path / "meter.toml"
    assert main(["init", str(path), "--broker", "mqtts://b.example", "--id", "m1", "--yes"]) == 0
    assert "m1-tls.key" in capsys.readouterr().out
    assert Config.load(path, {}).broker.cert_file == tmp_path / "m1.pem"


def test_an_output_to_home_assistant(tmp_path):
    path = tmp_path / "meter.toml"
    words = ["--mqtt-output", "mqtt://127.0.0.1", "--yes", "--json"]
    assert main(["init", str(path), *words]) == 0
    assert [row["type"] for row in Config.load(path, {}).output] == ["http", "mqtt"]


def test_a_person_is_asked(tmp_path):
    answers = iter(["fridge", "charger", "charger-3", "", "mqtt://127.0.0.1:1884", "", ""])
    wizard = Wizard(is_interactive=True, read=lambda _question: next(answers))
    assert wizard.choice(None, "kind", tuple(KINDS), "meter") == "charger"
    assert wizard.value(None, "id", "x") == "charger-3"
    assert wizard.value(None, "fleet", "north") == "north"
    assert wizard.value("given", "broker", "x") == "given"
    with pytest.raises(WizardError, match="expected one of"):
        Wizard(is_interactive=False).choice("fridge", "kind", tuple(KINDS), "meter")


def test_the_terminal_asks_for_what_is_not_given(tmp_path):
    """The installed program on a pseudo-terminal."""
    ours, theirs = pty.openpty()
    path = tmp_path / "meter.toml"
    words = [
        sys.executable,
        "-m",
        "edge_sdk",
        "init",
        str(path),
        "--kind",
        "meter",
        "--source",
        "p1",
    ]
    with subprocess.Popen(words, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.write(ours, b"meter-7\nsouth\n\n\n")
        assert process.wait(60) == 0
        process.stdout.read()
    os.close(ours)
    os.close(theirs)
    found = Config.load(path, {})
    assert (found.id, found.fleet, found.source[0]["url"]) == (
        "meter-7",
        "south",
        setups_of("meter")["p1"].default,
    )


def test_nothing_is_left_when_the_check_fails(tmp_path):
    def check(path):
        assert path.read_text() == "text"
        raise ConfigError("no")

    with pytest.raises(ConfigError):
        write_new(tmp_path / "x", "text", check)
    with pytest.raises(WizardError, match="no such folder"):
        write_new(tmp_path / "absent" / "x", "text", print)
    assert not list(tmp_path.iterdir())


def test_json_names_what_was_written(tmp_path, capsys):
    path = tmp_path / "station.toml"
    assert main(["init", str(path), "--kind", "station", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bundle"] == "cells-day"
