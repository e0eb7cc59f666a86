"""A new device begins with a commented configuration that passes its check."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

from edge_sdk.app.wizard import Wizard, WizardError, write_new
from edge_sdk.commands.init import ADDRESSES, KINDS
from edge_sdk.commands.main import main
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.wire import keys

CHOICES = [(kind, source) for kind, begin in KINDS.items() for source in begin.sources]


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
        ADDRESSES["p1"][1],
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
    assert json.loads(capsys.readouterr().out)["bundle"] == "cells-week-1"
