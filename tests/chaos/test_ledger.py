"""Killed again and again between charge and send, a device's ledger never shows less than what left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.chaos
@pytest.mark.parametrize("kills", [60, pytest.param(250, marks=pytest.mark.soak)])
def test_the_ledger_covers_every_release_after_kills(tmp_path, kills):
    program = Path(__file__).with_name("spender.py")
    run = subprocess.run(
        [sys.executable, str(program), str(tmp_path), str(kills)],
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    found = json.loads(run.stdout)
    deaths = found["deaths"]
    assert deaths["after the charge"] + deaths["before the send"] >= 0.7 * kills
    assert all(deaths.values())
    assert found["released"] > kills // 2
    assert 0 <= found["ahead"] <= 2  # charged, and killed before a byte of it left
