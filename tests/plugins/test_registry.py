"""Entry points are found by name, and a faulty package is named in the refusal."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aggregator.methods import METHODS as SERVERS
from aggregator.rules import RULES, UnknownRuleError, bind
from edge_sdk.app.extensions import PluginError, PluginRegistry
from edge_sdk.errors import ConfigError
from edge_sdk.methods import METHODS as DEVICES
from edge_sdk.protocol.contract.method import CONTRACTS
from edge_sdk.sources import open_source
from firmware_sim.attacks import ATTACKS
from firmware_sim.attacks import bind as bind_attack
from tests.plugins.conftest import offer


def test_an_installed_method_is_found_by_name_in_all_three_registries(examples):
    assert "scaffold" in CONTRACTS
    assert "scaffold" in DEVICES
    assert "scaffold" in SERVERS
    assert CONTRACTS["scaffold"]["train"].down == ("w", "c")
    assert SERVERS["scaffold"].settings().steps == 8
    assert DEVICES["fednova"].__name__ == "fednova"


def test_iteration_covers_the_built_in_entries_only(examples):
    assert "scaffold" not in list(CONTRACTS)
    assert {"fednova", "scaffold"} < set(CONTRACTS.names())
    assert len(list(CONTRACTS)) == len(CONTRACTS)


def test_an_installed_rule_is_bound_with_its_parameters(examples):
    assert bind("meamed", f=2).least == 5
    with pytest.raises(UnknownRuleError, match="trim"):
        bind("meamed", f=2, trim=1)


def test_an_unknown_rule_lists_the_installed_ones(examples):
    with pytest.raises(UnknownRuleError, match=r"unknown rule 'meamd'.*meamed"):
        bind("meamd")


def test_an_installed_attack_is_bound_with_its_options(examples):
    bound = bind_attack("random_direction", {"factor": "2"})
    assert bound.attack.kind == "model"
    assert "random_direction" in ATTACKS


def test_without_the_package_the_name_is_unknown():
    assert "scaffold" not in CONTRACTS
    assert "meamed" not in RULES
    with pytest.raises(KeyError):
        CONTRACTS["scaffold"]


def test_a_package_that_cannot_be_imported_is_named(site):
    (site / "faulty_rule.py").write_text("raise RuntimeError('no licence')\n")
    offer(site, "faulty", {"gridfed.rules": {"odd": "faulty_rule:RULE"}})
    with pytest.raises(PluginError, match=r"package faulty 1\.0: cannot be imported.*no licence"):
        RULES["odd"]


def test_an_object_of_another_kind_is_refused(site):
    (site / "faulty_kind.py").write_text("RULE = 3\n")
    offer(site, "faulty", {"gridfed.rules": {"odd": "faulty_kind:RULE"}})
    with pytest.raises(PluginError, match="expected an object of RuleSpec, got int"):
        RULES["odd"]


def test_a_method_without_a_contract_is_refused(site):
    (site / "faulty_method.py").write_text("METHOD = 'fedavg'\n")
    offer(site, "faulty", {"gridfed.methods": {"odd": "faulty_method:METHOD"}})
    with pytest.raises(PluginError, match="expected a MethodPlugin, got str"):
        CONTRACTS["odd"]


def test_a_half_that_does_not_exist_is_named(site):
    (site / "faulty_half.py").write_text(
        "from edge_sdk.protocol.contract.method import CONTRACTS\n"
        "from edge_sdk.protocol.contract.plugin import MethodPlugin\n"
        "METHOD = MethodPlugin(CONTRACTS['fedavg'], 'faulty_half:nothing', 'faulty_half:METHOD')\n"
    )
    offer(site, "faulty", {"gridfed.methods": {"odd": "faulty_half:METHOD"}})
    assert CONTRACTS["odd"] is CONTRACTS["fedavg"]
    with pytest.raises(PluginError, match="'faulty_half:nothing' cannot be imported"):
        DEVICES["odd"]
    with pytest.raises(PluginError, match="expected an object of Method, got MethodPlugin"):
        SERVERS["odd"]


def test_two_packages_with_one_name_are_both_named(site):
    for package in ("faulty-one", "faulty-two"):
        offer(site, package, {"gridfed.rules": {"odd": "faulty_any:RULE"}})
    with pytest.raises(PluginError, match=r"faulty-one 1\.0 and faulty-two 1\.0"):
        RULES["odd"]


def test_a_built_in_name_cannot_be_taken_over(site):
    (site / "faulty_over.py").write_text("raise RuntimeError('imported')\n")
    offer(site, "faulty", {"gridfed.rules": {"mean": "faulty_over:RULE"}})
    assert RULES["mean"].function.__name__ == "mean"


def test_a_source_of_another_package_receives_its_section(site):
    (site / "faulty_source.py").write_text(
        "class Own:\n"
        "    rejected, streams = {}, frozenset()\n"
        "    def __iter__(self): return iter(())\n"
        "def own(section):\n"
        "    assert section['speed'] == 3\n"
        "    return Own()\n"
    )
    offer(site, "faulty", {"gridfed.sources": {"own": "faulty_source:own"}})
    assert list(open_source({"type": "own", "speed": 3}, "source[0]")) == []
    with pytest.raises(ConfigError, match=r"source\[0\].type: unknown 'owm'; known: .*own"):
        open_source({"type": "owm"}, "source[0]")


def test_a_mapped_registry_maps_installed_entries_too(examples):
    named = CONTRACTS.mapped(lambda name, contract: (name, len(contract)))
    assert named["scaffold"] == ("scaffold", 1)
    assert named["pfgl"][0] == "pfgl"


def test_looking_up_a_built_in_entry_does_not_search_packages(monkeypatch):
    def search(_self):
        raise AssertionError("searched")

    monkeypatch.setattr(PluginRegistry, "_points", search)
    assert CONTRACTS["fedavg"]
    assert "mean" in RULES


def test_the_device_half_does_not_import_the_aggregator(examples):
    code = (
        "import sys; from edge_sdk.methods import METHODS; METHODS['scaffold']; METHODS['fednova'];"
        "print('aggregator' in sys.modules, 'gridfed_scaffold.server' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{examples}:{':'.join(p for p in sys.path if p)}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout.split() == ["False", "False"], done.stderr
