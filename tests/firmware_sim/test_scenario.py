"""What is shipped can be meant, and judges nothing that it learned from."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from aggregator.methods import METHODS
from edge_sdk.app.settings import SettingsError
from edge_sdk.errors import Failure
from firmware_sim.attacks.attack_plan import AttackPlan
from firmware_sim.fleet.run_files import assigned, toml
from firmware_sim.samples import instant, sample_set
from firmware_sim.scenario import RENAMED, RunSettings, Scenario, names, scenario


@pytest.mark.parametrize("name", names())
def test_evaluation_never_overlaps_training(name):
    chosen = scenario(name)
    samples = sample_set(chosen.samples)
    first, last = chosen.span
    assert instant(chosen.until) <= first < last
    for sample in samples.samples:
        times, values = sample.column(samples.target)
        part = (times >= first) & (times < last)
        assert part.sum() * samples.step_seconds == last - first
        assert np.isfinite(values[part]).all()
    assert chosen.attacks or len(samples.samples) >= chosen.devices
    assert chosen.tuning_notes


def test_an_unknown_key_is_refused_by_its_name(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('title = "x"\ndevises = 3\n')
    with pytest.raises(Failure, match=r"mine\.toml.*devises"):
        scenario(str(file))


def test_first_days_ends_the_history_as_configured():
    homes = sample_set("homes")
    until = datetime.fromisoformat(Scenario("x").first_days(28, homes).until)
    assert until == datetime(2018, 1, 1, 8, tzinfo=UTC) + timedelta(days=28)


def test_written_toml_is_read_back():
    table = {
        "id": 'a "quoted" name\\',
        "rate": 1e-3,
        "deadline": "60s",
        "shared": ("lstm.", ""),
        "keys": {"device": Path("a b.key"), "none": None},
        "source": [{"type": "csv", "columns": {"load kWh": "elec.import.energy"}}],
        "on": True,
        "left_out": None,
    }
    assert tomllib.loads(toml(table)) == {
        "id": 'a "quoted" name\\',
        "rate": 1e-3,
        "deadline": "60s",
        "shared": ["lstm.", ""],
        "keys": {"device": "a b.key"},
        "source": [{"type": "csv", "columns": {"load kWh": "elec.import.energy"}}],
        "on": True,
    }


def test_more_devices_than_samples_get_unique_names():
    samples = sample_set("homes").samples
    given = assigned(samples, 20)
    assert len({name for name, _ in given}) == 20
    assert given[8] == (f"{samples[0].device}-2", samples[0])


def test_the_byzantine_scenario_is_the_acceptance_of_the_method():
    chosen = scenario("byzantine")
    assert [way.method for way in (chosen.run, *chosen.comparisons)] == ["fedavg", "bafdp"]
    attacks = [(one.attack, dict(one.options)) for one in chosen.attacks]
    assert attacks == [("flipping", {}), ("scaling", {"factor": 10}), ("gaussian", {})]
    ids = [name for name, _ in assigned(sample_set(chosen.samples).samples, chosen.devices)]
    assert {len(one.malicious(ids)) for one in chosen.attacks} == {3}


@pytest.mark.parametrize("method", METHODS)
def test_methods_without_a_rule_name_none(method):
    assert RunSettings(method).rule_name == ("its own" if METHODS[method].own else "mean")


def test_the_default_quorum_follows_from_the_method():
    """Six can be heard: half where nobody is waited for, and what the rule needs of them."""
    told = {name: RunSettings(name).awaits(6) for name in METHODS}
    assert {name for name, quorum in told.items() if quorum == 3} == {
        "fedbuff",
        "bafdp",
        "aspire_ease",
    }
    assert told["fedasync"] == told["cached"] == 1
    assert told["fedavg"] == told["bsfdp"] == told["rsa"] == 6
    assert RunSettings("fedbuff", rule={"name": "krum", "f": 1}).awaits(6) == 5
    assert RunSettings("bafdp", quorum=2).awaits(6) == 2


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_key_is_refused_with_the_new_one(tmp_path, old, new):
    outer, _, inner = old.partition("[].")
    line = f"[[{outer}]]\n{inner} = 1\n" if inner else f"{old} = 1\n"
    path = tmp_path / "mine.toml"
    path.write_text(f'title = "mine"\n{line}', "utf-8")
    with pytest.raises(SettingsError) as refused:
        scenario(str(path))
    assert str(refused.value) == f"mine.toml: {old}: renamed to {new}"
    name = new.strip("[]").rpartition(".")[2]
    assert name in {f.name for f in fields(AttackPlan if inner else Scenario)}
