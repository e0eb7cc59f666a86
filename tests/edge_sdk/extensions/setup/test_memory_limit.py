"""An agent under the limit of memory of each documented class, and under one that is too low."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.commands.main import main
from edge_sdk.config import Config
from edge_sdk.extensions.analytic import bundle_form
from edge_sdk.extensions.numpy_engine import matrix_products
from edge_sdk.extensions.setup import memory_trial
from edge_sdk.limits import CLASSES
from edge_sdk.runtime import ENGINE

DOCS = Path(__file__).parents[4] / "docs" / "devices.md"
DOCUMENTED = re.findall(r"^\| `([A-Z])` \| ([^|]*) \|", DOCS.read_text("utf-8"), re.MULTILINE)
"""Each class, and what it is for."""


@pytest.fixture
def meter(tmp_path):
    path = tmp_path / "meter.toml"
    path.write_text("""
id = "meter-1"
fleet = "north"
state = "state"
bundle = "load-week-1"
keys = { device = "meter.key" }
privacy = { mechanism = { name = "none" } }
forecast = { trees = false }
[[source]]
type = "csv"
path = "load.csv"
columns = { value = "elec.import.energy" }
""")
    rows = [f"{1_700_006_400 + 3600 * h},{2 + (h % 24) / 9:.3f}\n" for h in range(24 * 14)]
    (tmp_path / "load.csv").write_text("time,value\n" + "".join(rows))
    return path


def ran(config, **settings):
    """Run the agent until it has learned; return the ended process."""
    words = [sys.executable, "-m", "edge_sdk", "run", str(config), "--until-done"]
    environ = {name: one for name, one in os.environ.items() if not name.startswith("OPENBLAS")}
    return subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=120, env=environ | settings
    )


def test_every_class_is_documented():
    assert {name for name, _ in DOCUMENTED} == {*CLASSES} - {""}


@pytest.mark.parametrize(("name", "about"), DOCUMENTED)
def test_an_agent_of_each_class_learns_and_forecasts(meter, name, about):
    engine = "numpy" if "numpy alone" in about else "auto"
    ended = ran(meter, GRIDFED_EDGE_LIMITS__DEVICE_CLASS=name, **{ENGINE: engine})
    assert ended.returncode == 0, ended.stderr
    assert "round trained" in ended.stderr
    assert (meter.parent / "state" / "device.db").exists()


@pytest.mark.skipif(
    find_spec("onnxruntime") is None, reason="an agent without onnxruntime may start in 40 MiB"
)
def test_an_agent_without_the_memory_to_start_names_the_remedy(meter):
    ended = ran(meter, GRIDFED_EDGE_LIMITS__MEMORY_MB="40")
    assert ended.returncode == 2
    assert "limits: 40 MiB of data do not suffice to start" in ended.stderr
    assert "raise limits.memory_mb; `gridfed-edge check CONFIG` finds" in ended.stderr
    assert "defect" not in ended.stderr


def test_the_check_says_what_suffices(meter, monkeypatch, capsys):
    monkeypatch.setenv("GRIDFED_EDGE_LIMITS__MEMORY_MB", "64")
    tried = []

    def trial(path, mib, settings=()):
        tried.append((path, mib))
        return "MemoryError" if mib < (50 if settings else 83) else ""

    monkeypatch.setattr(memory_trial, "trial", trial)
    monkeypatch.setattr(memory_trial, "engine_name", lambda: "onnxruntime")
    assert main(["check", str(meter)]) == 2
    err = capsys.readouterr().err
    assert "limits: 64 MiB of data do not suffice" in err
    assert "88 MiB suffice (MemoryError)" in err
    assert "memory_mb = 88 in [limits], or GRIDFED_ENGINE=numpy in the environment" in err
    assert {path for path, _ in tried} == {meter}
    monkeypatch.setenv("GRIDFED_EDGE_LIMITS__MEMORY_MB", "96")
    assert main(["check", str(meter)]) == 0
    assert "memory: 96 MiB suffice" in capsys.readouterr().out
    monkeypatch.delenv("GRIDFED_EDGE_LIMITS__MEMORY_MB")
    assert main(["check", str(meter)]) == 0
    assert "memory: no limit" in capsys.readouterr().out


def test_a_trial_learns_and_forecasts_and_leaves_nothing(meter, tmp_path):
    os.utime(meter)
    before = {path: path.stat().st_mtime_ns for path in meter.parent.rglob("*")}
    folder = tmp_path.parent / f"{tmp_path.name}-trial"
    folder.mkdir()
    memory_trial.learn_once(Config.load(meter), folder)
    assert (folder / "state").is_dir()
    assert {path: path.stat().st_mtime_ns for path in meter.parent.rglob("*")} == before


def test_under_a_tight_limit_graphs_need_no_blas(monkeypatch):
    """Of a product without a BLAS there is the golden forecast of every kind of network."""

    def forbidden(*_arrays):
        raise AssertionError("a BLAS")

    monkeypatch.setenv(ENGINE, "numpy")
    monkeypatch.setattr(matrix_products, "data_limit", lambda: 96 * 2**20)
    monkeypatch.setattr(np, "matmul", forbidden)
    for name in ("load-week-1", "load-lstm", "load-gru"):
        Bundle.open(name, trust=TrustedKeys(()))  # forecasts its golden sample
    monkeypatch.setattr(matrix_products, "data_limit", lambda: 128 * 2**20)
    with pytest.raises(AssertionError, match="a BLAS"):
        Bundle.open("load-week-1", trust=TrustedKeys(()))


def test_a_model_in_closed_form_reserves_its_linear_algebra(monkeypatch):
    bundle_form.reserve_blas()
    monkeypatch.setattr(bundle_form, "data_limit", lambda: 96 * 2**20)

    def full(*_sizes, **_flags):
        raise OSError(12, "Cannot allocate memory")

    bundle_form.reserve_blas()
    monkeypatch.setattr(bundle_form.mmap, "mmap", full)
    with pytest.raises(MemoryError, match="no room for the 34 MiB"):
        bundle_form.reserve_blas()
