"""A new fleet begins with a commented configuration that passes its check."""

from __future__ import annotations

import numpy as np
import pytest

from aggregator import rules
from aggregator.commands.init import BUNDLES, written
from aggregator.commands.main import main
from aggregator.config import AggregatorConfig, bind
from aggregator.rules.rows import Rows
from edge_sdk.extensions.setup.init import KINDS

NEW = ("--fleet", "east", "--quorum", "5", "--yes")


@pytest.mark.parametrize("kind", list(BUNDLES))
def test_one_command_writes_the_file_and_begins_the_run(tmp_path, capsys, kind):
    path = tmp_path / "aggregator.toml"
    assert main(["init", str(path), "--kind", kind, *NEW]) == 0
    said = capsys.readouterr().out
    assert "run 1 begins from the bundle's initial model" in said
    assert "one hostile device can move the model" in said
    assert "a device that adds noise of its own cannot take part" in said
    assert main(["check-config", str(path)]) == 0
    capsys.readouterr()
    found = AggregatorConfig.load(path, {})
    assert (found.fleet, found.run.bundle) == ("east", BUNDLES[kind][0])
    assert (found.run.method, found.run.rule) == ("analytic", {"name": "mean"})
    assert (found.run.quorum, found.run.min_updates) == (5, 3)
    assert found.run.bundle == KINDS[kind].bundle, "devices of the fleet begin with its bundle"


@pytest.mark.parametrize("kind", list(BUNDLES))
def test_a_robust_fleet_has_a_rule_and_forecasts_one_step(tmp_path, capsys, kind):
    path = tmp_path / "aggregator.toml"
    assert main(["init", str(path), "--kind", kind, *NEW, "--robust"]) == 0
    said = capsys.readouterr().out
    assert "rule centred_clipping: a minority of broken or hostile devices cannot move" in said
    assert "tolerates 1 Byzantine devices" in said
    assert main(["check-config", str(path)]) == 0
    capsys.readouterr()
    found = AggregatorConfig.load(path, {})
    assert found.run.bundle == BUNDLES[kind][1]
    assert found.run.rule == {"name": "centred_clipping", "f": 1}
    text = path.read_text()
    assert main(["init", str(path), "--kind", kind, "--yes"]) == 0
    assert "rule centred_clipping" not in capsys.readouterr().out, (
        "an existing configuration keeps its rule"
    )
    assert path.read_text() == text, "an existing file is kept"


@pytest.mark.parametrize("quorum", range(1, 12))
def test_the_rule_of_a_new_fleet_is_valid_and_bounds_what_one_device_does(tmp_path, quorum):
    path = tmp_path / "aggregator.toml"
    path.write_text(written("meter", "east", "auto", str(quorum), is_robust=True))
    run = bind(AggregatorConfig.load(path, {})).config.run
    rows = {f"m{n}": np.full(3, 1.0 + n / 10) for n in range(run.min_updates)}
    honest = combined(run.rule, rows)
    for hostile in range(1, run.rule.get("f", 0) + 1):
        rows[f"m{hostile}"] = np.full(3, 1e30)
    assert np.linalg.norm(combined(run.rule, rows) - honest) < 2


def combined(rule, rows):
    table = dict(rule)
    return rules.bind(table.pop("name"), **table)(Rows.of(rows), dict.fromkeys(rows, 1.0)).value


def test_without_options_a_missing_file_is_an_error(tmp_path, capsys):
    assert main(["init", str(tmp_path / "absent.toml")]) == 2
    assert "absent.toml" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_invalid_value_writes_nothing(tmp_path, capsys):
    path = tmp_path / "aggregator.toml"
    assert main(["init", str(path), "--fleet", "a b", "--yes"]) == 2
    assert "fleet" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
