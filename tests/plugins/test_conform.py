"""The conformance kit passes what keeps the interface, and names what breaks it."""

from __future__ import annotations

import json
import os
import subprocess
from functools import partial

import pytest

from aggregator.commands.main import main as aggregator
from aggregator.extensions.conformance.checks import method_checks, rule_checks
from aggregator.methods import METHODS
from aggregator.rules import RULES
from edge_sdk.errors import OK, RUNTIME, USAGE
from edge_sdk.extensions.conformance.conformance import conformance
from firmware_sim.attacks import ATTACKS
from firmware_sim.commands import conform
from firmware_sim.commands.main import main as sim
from firmware_sim.conformance import attack_checks, device_checks
from tests.plugins.conftest import offer


def problems(checks):
    return {one.check: one.detail for one in conformance("", checks) if one.status == "failed"}


@pytest.mark.parametrize("name", sorted(RULES))
def test_every_built_in_rule_conforms(name):
    assert problems(rule_checks(name, {})) == {}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in {"ditto", "fedrep"} else ())
        for name in sorted(METHODS)
    ],
)
def test_every_built_in_method_conforms_at_both_ends(name):
    settings = {"min_samples": 100, "epsilon": 50.0} if name == "nbafl" else {}
    assert problems(method_checks(name, settings)) == {}
    assert problems(device_checks(name)) == {}


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_every_built_in_attack_conforms(name):
    assert problems(attack_checks(name)) == {}


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        (
            subprocess.CompletedProcess(
                [], 1, "", "gridfed-sim: time limit of 5 s: 0 of 2 rounds closed\n"
            ),
            "2 rounds did not close within 5 s: does the server half close a round? (gridfed-sim: ",
        ),
        (subprocess.TimeoutExpired([], 65), "no result within 65 s"),
        (
            subprocess.CompletedProcess([], 2, "", "gridfed-sim: wrong"),
            "exit code 2: gridfed-sim: ",
        ),
        (subprocess.CompletedProcess([], 0, '{"rounds": 1}', ""), "1 of 2 rounds"),
    ],
)
def test_a_method_whose_fleet_does_not_end_fails_with_a_sentence(monkeypatch, ends, says):
    def done(line, limit):
        assert (line[-1], limit) == ("5", 65)
        if isinstance(ends, Exception):
            raise ends
        return ends

    monkeypatch.setattr(conform, "_done", done)
    check = {"moves": partial(conform._fleet, "fedavg", {}, 5.0)}
    (found,) = problems(check).values()
    assert found.startswith(says)


def test_a_method_of_neighbours_has_no_fleet():
    (found,) = conformance("", {"moves": partial(conform._fleet, "dfl_sgd", {}, 5.0)})
    assert "neighbours" in found.detail
    assert found.status != "failed"


RULE = """
import numpy as np
from aggregator.rules import RuleSpec, RuleVerdict

calls = []

def rule(rows):
    {body}

RULE = RuleSpec(rule, withstands={withstands})
"""


@pytest.mark.parametrize(
    ("body", "check"),
    [
        ("return RuleVerdict(2 * rows.combine(np.full(len(rows), 1 / len(rows))))", "all clients"),
        ("return RuleVerdict(rows.row(0)[:1])", "all clients"),
        ("calls.append(1); return RuleVerdict(rows.row(0) + len(calls))", "same bits"),
        ("rows.values[:] *= 0.5; return RuleVerdict(rows.row(0))", "same bits"),
        ("return RuleVerdict(rows.combine(np.ones(len(rows))) * 1e300 * 1e300)", "is finite"),
        (
            "return RuleVerdict(rows.combine(np.full(len(rows), 1 / len(rows))))",
            "bounds the effect",
        ),
        ("raise RuntimeError('odd')", "is finite"),
    ],
)
def test_a_faulty_rule_is_found(site, body, check):
    (site / "faulty_rule.py").write_text(RULE.format(body=body, withstands=True))
    offer(site, "faulty", {"gridfed.rules": {"odd": "faulty_rule:RULE"}})
    assert any(check in name for name in problems(rule_checks("odd", {})))


SERVER = """
from dataclasses import dataclass, replace
import numpy as np
from aggregator.methods import METHODS, Method
from edge_sdk.protocol.contract.method import CONTRACTS, Task, Update
from edge_sdk.protocol.contract.plugin import MethodPlugin

drawn = np.random.default_rng(0)

def half(setup):
    real = METHODS["fedavg"].half(setup)
    def apply(state, event):
        after, effects = real.apply(state, event)
        {server}
        return after, effects
    return real._replace(apply=apply)

def device(local, settings):
    from edge_sdk.methods import METHODS
    real = METHODS["fedavg"](local, settings)
    def apply(state, event):
        after, effects = real.apply(state, event)
        {device}
        return after, effects
    return real._replace(apply=apply)

SERVER = Method(METHODS["fedavg"].settings, half)
METHOD = MethodPlugin(CONTRACTS["fedavg"], "faulty_half:device", "faulty_half:SERVER")
"""


def faulty_half(site, server="pass", device="pass"):
    (site / "faulty_half.py").write_text(SERVER.format(server=server, device=device))
    offer(site, "faulty", {"gridfed.methods": {"odd": "faulty_half:METHOD"}})


@pytest.mark.parametrize(
    ("server", "check"),
    [
        ("after = replace(after, w=after.w + drawn.normal())", "same bits"),
        ("after = replace(after, w=after.w * np.nan)", "keeps a finite model"),
        ("state.w[:] += 1", "unchanged"),
        (
            (
                "effects = tuple(replace(e, values={'speed': 1.0}) if isinstance(e, Task) else e "
                "for e in effects)"
            ),
            "only what its contract declares",
        ),
        ("after = replace(after)", "the same state"),
        ("after = replace(after, version=0)", "moves the model"),
    ],
)
def test_a_faulty_server_half_is_found(site, server, check):
    faulty_half(site, server=server)
    assert any(check in name for name in problems(method_checks("odd", {})))


@pytest.mark.parametrize(
    ("device", "check"),
    [
        ("after = replace(after, p=after.p + np.float32(drawn.normal()))", "same bits"),
        (
            (
                "effects = tuple(replace(e, vector=e.vector[:1]) if isinstance(e, Update) else e "
                "for e in effects)"
            ),
            "its contract declares",
        ),
        (
            (
                "effects = tuple(replace(e, values={'own': 1.0}) if isinstance(e, Update) else e "
                "for e in effects)"
            ),
            "its contract declares",
        ),
        (
            (
                "effects = effects or ((Update(local.client, event.round, event.base, "
                "np.full(6, np.nan, np.float32)),) if isinstance(event, Task) else ())"
            ),
            "not finite",
        ),
        (
            (
                "effects = effects or ((Update(local.client, event.round, event.base, "
                "np.zeros(6, np.float32)),) if isinstance(event, Task) else ())"
            ),
            "without windows",
        ),
    ],
)
def test_a_faulty_device_half_is_found(site, device, check):
    faulty_half(site, device=device)
    assert any(check in name for name in problems(device_checks("odd")))


def test_the_commands_print_a_result_of_every_check(examples, capsys, monkeypatch):
    path = os.pathsep.join(filter(None, (str(examples), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.setenv("PYTHONPATH", path)
    for package, entries in (
        ("gridfed-fednova", {"gridfed.methods fednova, server", "gridfed.methods fednova, device"}),
        ("gridfed-scaffold", {"gridfed.methods scaffold, server"}),
        ("gridfed-meamed", {"gridfed.rules meamed, server", "gridfed.attacks random_direction"}),
    ):
        assert sim(["conform", package, "--no-fleet", "--json"]) == OK, capsys.readouterr()
        found = json.loads(capsys.readouterr().out)
        assert found["failed"] == 0
        assert entries <= {one["entry"] for one in found["results"]}
        assert all(one["status"] == "passed" for one in found["results"])


def test_a_failed_check_is_the_commands_exit_code(site, capsys):
    (site / "faulty_rule.py").write_text(
        RULE.format(body="return RuleVerdict(rows.row(0)[:1])", withstands=False)
    )
    offer(site, "faulty", {"gridfed.rules": {"odd": "faulty_rule:RULE"}})
    assert aggregator(["conform", "faulty"]) == RUNTIME
    assert "failed       returns the row that all clients sent" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("package", "text"), [("absent", "no package"), ("numpy", "no entry points")]
)
def test_a_package_without_entry_points_is_refused(package, text, capsys):
    assert aggregator(["conform", package]) == USAGE
    assert text in capsys.readouterr().err
