"""A simulated fleet's folder holds keys and states: it is for its owner only."""

from __future__ import annotations

import os
import stat

import pytest

from firmware_sim.fleet.run_files import prepare
from firmware_sim.samples import sample_set
from firmware_sim.scenario import RunSettings, Scenario


@pytest.fixture
def umask():
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("umask")
def test_a_run_folder_is_private_and_so_are_its_keys(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir(mode=0o755)
    chosen = Scenario(
        "plain", samples="homes", devices=1, bundle="load-mlp", run=RunSettings("fedavg", None, 1)
    )
    url = "mqtt://127.0.0.1:1"
    prepare(folder, "north", chosen, sample_set("homes"), broker=url, page="off")
    assert mode(folder) == mode(folder / "devices") == mode(folder / "aggregator") == 0o700
    secret = [*folder.rglob("*.key"), *folder.rglob("*.db")]
    assert len(secret) >= 4
    assert {mode(path) for path in secret} == {0o600}
