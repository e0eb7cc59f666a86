"""What devices are told to install: everything, once, and nothing that is known to die there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PINS = re.compile(r"^([a-z-]+)==([\d.]+)$", re.MULTILINE)


def pins(name):
    found = PINS.findall((ROOT / "constraints" / name).read_text("utf-8"))
    assert len(found) == len(dict(found)), "a package twice"
    return {package: tuple(map(int, version.split("."))) for package, version in found}


def least():
    """The oldest version of every dependency that the package allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = (re.match(r"([a-z-]+)>=([\d.]+)", text) for text in project["dependencies"])
    return {m[1]: tuple(map(int, m[2].split("."))) for m in found}


@pytest.mark.parametrize("name", ["device.txt", "lowest.txt"])
def test_every_dependency_is_pinned_and_none_below_what_is_allowed(name):
    said, wanted = pins(name), least()
    without_a_wheel = {"onnxruntime"} if name == "lowest.txt" else set()
    assert set(said) == set(wanted) - without_a_wheel
    assert all(version >= wanted[package] for package, version in said.items())


def test_small_cores_get_no_engine_that_crashes_on_them():
    """1.21.0 stops at an illegal instruction on a Cortex-A53; 1.28 and later are unproven."""
    engine = pins("device.txt")["onnxruntime"]
    assert engine < (1, 28)
    assert engine != (1, 21, 0)
