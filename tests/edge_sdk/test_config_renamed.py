"""An old key of a device's configuration is refused, and the message gives the new one."""

from __future__ import annotations

from dataclasses import fields

import pytest

from edge_sdk import config
from edge_sdk.app.settings import SettingsError
from edge_sdk.commands.main import main
from edge_sdk.extensions.sources.csvfile import CsvFile
from edge_sdk.extensions.sources.register_map import RegisterPoint
from edge_sdk.sources import SOURCES, open_source, renamed_keys
from tools.docs import keys

KNOWN = keys(config.Config)
SECTIONS = {key.rpartition(".")[0] for key in KNOWN}
OF_SOURCES = [
    (kind, old, new) for kind in SOURCES for old, new in renamed_keys(SOURCES[kind]).items()
]


@pytest.mark.parametrize(("old", "new"), config.Config.renamed.items())
def test_an_old_key_is_refused_with_the_new_one(tmp_path, old, new):
    path = tmp_path / "meter.toml"
    path.write_text(f"{old} = 1\n", "utf-8")
    with pytest.raises(SettingsError) as refused:
        config.Config.load(path, {})
    said = new if " " in new else f"renamed to {new}"  # a sentence says what to do instead
    assert str(refused.value) == f"meter.toml: {old}: {said}"


@pytest.mark.parametrize(("old", "new"), config.Config.renamed.items())
def test_every_renamed_key_exists_under_its_new_name_only(old, new):
    assert old not in KNOWN
    assert old not in SECTIONS
    known = SECTIONS if new.startswith("[") else KNOWN
    assert new.strip("[]") in known or new.startswith("removed: ")


@pytest.mark.parametrize(("kind", "old", "new"), OF_SOURCES)
def test_an_old_key_of_a_source_is_refused_with_the_new_one(kind, old, new):
    outer, _, inner = old.partition("[].")
    section = {"type": kind, outer: [{"name": "a"}, {inner: 1}] if inner else 1}
    with pytest.raises(SettingsError) as refused:
        open_source(section, "source[0]")
    said = new if " " in new else f"renamed to {new}"  # a sentence says what to do instead
    assert str(refused.value) == f"source[0]: {old}: {said}"


@pytest.mark.parametrize(("kind", "old", "new"), OF_SOURCES)
def test_every_renamed_source_key_exists_under_its_new_name_only(kind, old, new):
    section = CsvFile if kind == "csv" else getattr(SOURCES[kind], "section", None)
    section = RegisterPoint if "[]" in old else section
    known = {field.name for field in fields(section)} if section else {"path", "recorded_type"}
    assert old.rpartition(".")[2] not in known
    assert new.rpartition(".")[2] in known or new.startswith("removed: ")


def test_a_variable_with_an_old_key_is_refused_by_its_name(tmp_path):
    path = tmp_path / "meter.toml"
    path.write_text("", "utf-8")
    with pytest.raises(
        SettingsError, match=r"^GRIDFED_EDGE_MEANS__FLASH: means\.flash: renamed to"
    ):
        config.Config.load(path, {"GRIDFED_EDGE_MEANS__FLASH": "3"})


def test_check_exits_with_2_and_names_the_new_key(tmp_path, capsys):
    path = tmp_path / "meter.toml"
    path.write_text("[learn]\nkeep = 9\n", "utf-8")
    assert main(["check", str(path)]) == 2
    assert "meter.toml: learn.keep: renamed to training.history_slots" in capsys.readouterr().err
