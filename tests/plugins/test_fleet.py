"""The example packages over a real broker: real daemon, real clients, attackers among them."""

from __future__ import annotations

import os

import pytest

from aggregator.extensions.authority.access.broker_process import has_embedded
from edge_sdk.errors import OK
from firmware_sim.commands.main import main

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture
def importable(examples, monkeypatch):
    """The example packages, also for the programs that a test starts."""
    if not has_embedded():
        pytest.skip("the embedded broker (iotcore) is not installed")
    path = os.pathsep.join(filter(None, (str(examples), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.setenv("PYTHONPATH", path)


def fleet(*arguments):
    return main(
        ["fleet", "--kind", "embedded", "--in-process", "--days", "14", "--json", *arguments]
    )


@pytest.mark.parametrize("method", ["fednova", "scaffold"])
def test_a_method_of_another_package_moves_a_model(importable, capsys, method):
    assert fleet("--devices", "3", "--rounds", "3", "--method", method) == OK
    assert '"rounds": 3' in capsys.readouterr().out


@pytest.mark.soak
def test_a_rule_of_another_package_meets_an_attack_of_another_package(importable, capsys):
    code = fleet(
        *("--devices", "5", "--rounds", "2", "--method", "fednova", "--rule", "mean,meamed"),
        *("--byzantine", "0.2", "--attack", "random_direction"),
    )
    out = capsys.readouterr().out
    assert code == OK, out
    assert "meamed" in out
    assert "random_direction" in out
