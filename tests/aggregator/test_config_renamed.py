"""An old configuration key is refused, and the message gives the new one."""

from __future__ import annotations

import pytest

from aggregator import config
from aggregator.commands.main import main
from aggregator.methods import METHODS
from aggregator.operations.definition_changes import changed, names_of, renamed
from aggregator.rules import RULES
from aggregator.rules.factory import _settings
from edge_sdk.app.settings import SettingsError
from tools.docs import keys

KNOWN = keys(config.AggregatorConfig)
SECTIONS = {key.rpartition(".")[0] for key in KNOWN}


def line(key: str) -> str:
    """Return a key as a line of TOML, which may stand above every section."""
    return f"{key} = 1\n"


@pytest.mark.parametrize(("old", "new"), config.RENAMED.items())
def test_an_old_key_is_refused_with_the_new_one(tmp_path, old, new):
    path = tmp_path / "aggregator.toml"
    path.write_text(line(old), "utf-8")
    with pytest.raises(SettingsError) as refused:
        config.AggregatorConfig.load(path, {})
    assert str(refused.value) == f"aggregator.toml: {old}: renamed to {new}"


@pytest.mark.parametrize(("old", "said"), config.AggregatorConfig.index.texts("renamed").items())
def test_a_key_that_went_is_refused_with_what_to_do(tmp_path, old, said):
    path = tmp_path / "aggregator.toml"
    path.write_text(line(old), "utf-8")
    with pytest.raises(SettingsError) as refused:
        config.AggregatorConfig.load(path, {})
    assert str(refused.value) == f"aggregator.toml: {old}: {said}"
    assert said.startswith("removed: ")


@pytest.mark.parametrize(("old", "new"), config.RENAMED.items())
def test_an_old_key_is_gone_and_the_new_one_exists(old, new):
    if new.startswith("["):
        assert new.strip("[]") in SECTIONS
        assert old not in SECTIONS
    elif old.startswith(("run.rule.", "run.settings.")):
        names = {one for rule in RULES for one in accepted(rule)}
        names |= {f.rpartition(".")[2] for m in METHODS.values() for f in keys(m.settings)}
        assert new.rpartition(".")[2] in names
    else:
        assert new in KNOWN
        assert old not in KNOWN


OWN = sorted(
    {
        (old, new, method)
        for method, row in METHODS.items()
        for old, new in config.renamed_settings(row.settings).items()
    }
)


@pytest.mark.parametrize(("old", "new", "method"), OWN)
def test_an_old_setting_of_a_method_is_refused_with_the_new_one(workplace, old, new, method):
    table, _, key = f"run.settings.{old}".rpartition(".")
    path = workplace(f"\n[{table}]\n{key} = 1\n", [('method = "fedavg"', f'method = "{method}"')])
    with pytest.raises(SettingsError) as refused:
        config.settings_of(config.AggregatorConfig.load(path, {}))
    wanted = f"aggregator.toml: run.settings.{old}: renamed to run.settings.{new}"
    assert str(refused.value) == wanted
    names = keys(METHODS[method].settings)
    assert new in names
    assert old not in names


def accepted(rule: str) -> set[str]:
    return set(_settings(RULES[rule].function, is_rule=True).__dataclass_fields__)


def test_an_old_variable_is_refused_by_its_name(tmp_path):
    path = tmp_path / "aggregator.toml"
    path.write_text("", "utf-8")
    with pytest.raises(SettingsError, match=r"^GRIDFED_AGGREGATOR_RUN__LEAST: run\.least: renamed"):
        config.AggregatorConfig.load(path, {"GRIDFED_AGGREGATOR_RUN__LEAST": "3"})


def test_check_ends_with_2_and_the_new_name(tmp_path, capsys):
    path = tmp_path / "aggregator.toml"
    path.write_text('[page]\nlisten = "off"\n', "utf-8")
    assert main(["check", str(path)]) == 2
    assert "aggregator.toml: page: renamed to [http]" in capsys.readouterr().err


def test_a_run_that_was_begun_under_old_keys_goes_on(workplace):
    before = {"rule": {"name": "median", "before": ["nnm"]}, "graph": {"memory": 64}}
    before["settings"] = {"steps": 4, "tune": True, "turns": {"judge": 2, "batch": 32}}
    after = {"rule": {"name": "median", "preaggregation": ["nnm"]}, "graph": {"memory_mb": 64}}
    turns = {"validation_batches": 2, "batch": 32}
    after["settings"] = {"steps": 4, "final_tuning": True, "turns": turns}
    present = renamed(before, names_of("pfgl"))
    assert changed(present, after) == []
