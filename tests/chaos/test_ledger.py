"""Killed 200 times between charge and send, a device's ledger never shows less than what left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = 250


@pytest.mark.chaos
def test_the_ledger_covers_every_release_after_kills(tmp_path):
    program = Path(__file__).with_name("spender.py")
    run = subprocess.run(
        [sys.executable, str(program), str(tmp_path), str(KILLS)],
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    found = json.loads(run.stdout)
    deaths = found["deaths"]
    assert deaths["after the charge"] + deaths["before the send"] >= 200
    assert all(deaths.values())
    assert found["released"] > KILLS // 2
    assert 0 <= found["ahead"] <= 2  # charged, and killed before a byte of it left
