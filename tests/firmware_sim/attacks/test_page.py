"""The page about threats names every attack that can be tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from firmware_sim.attacks import ATTACKS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "threat-model.md"


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_is_documented(name):
    assert f"`{name}`" in PAGE.read_text(encoding="utf-8")
