"""Built-in and example entries keep the interface, and what breaks it is named."""

from __future__ import annotations

import pytest

from aggregator.methods import METHODS
from aggregator.rules import RULES
from firmware_sim.attacks import ATTACKS
from tests.plugins.conftest import offer
from tests.plugins.device_checks import attack_checks, device_checks
from tests.plugins.promises import conformance
from tests.plugins.server_checks import method_checks, rule_checks


def problems(checks):
    return {one.check: one.detail for one in conformance("", checks) if one.status == "failed"}


@pytest.mark.parametrize("name", sorted(RULES))
def test_every_built_in_rule_conforms(name):
    assert problems(rule_checks(name, {})) == {}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in {"ditto", "fedbabu", "fedrep"} else ())
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


def test_the_example_packages_conform(examples):
    for name in ("fednova", "scaffold"):
        assert problems(method_checks(name, {})) == {}
        assert problems(device_checks(name)) == {}
    assert problems(rule_checks("meamed", {})) == {}
    assert problems(attack_checks("random_direction")) == {}


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
