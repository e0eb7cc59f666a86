"""A new fleet begins with a commented configuration that passes its check."""

from __future__ import annotations

import pytest

from aggregator.commands.main import main
from aggregator.commands.new_config import BUNDLES
from aggregator.config import AggregatorConfig


@pytest.mark.parametrize("kind", list(BUNDLES))
def test_one_command_writes_the_file_and_begins_the_run(tmp_path, capsys, kind):
    path = tmp_path / "aggregator.toml"
    assert (
        main(["init", str(path), "--kind", kind, "--fleet", "east", "--quorum", "5", "--yes"]) == 0
    )
    assert "run 1 begins from the bundle's initial model" in capsys.readouterr().out
    assert main(["check-config", str(path)]) == 0
    found = AggregatorConfig.load(path, {})
    assert (found.fleet, found.run.bundle) == ("east", BUNDLES[kind])
    assert (found.run.quorum, found.run.min_updates) == (5, 3)
    text = path.read_text()
    assert main(["init", str(path), "--kind", kind, "--yes"]) == 0
    assert path.read_text() == text, "an existing file is kept"


def test_without_options_a_missing_file_is_an_error(tmp_path, capsys):
    assert main(["init", str(tmp_path / "absent.toml")]) == 2
    assert "absent.toml" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_invalid_value_writes_nothing(tmp_path, capsys):
    path = tmp_path / "aggregator.toml"
    assert main(["init", str(path), "--fleet", "a b", "--yes"]) == 2
    assert "fleet" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
