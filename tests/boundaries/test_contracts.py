"""The import contracts hold, and they can fail: a planted violation is caught."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytest.importorskip("importlinter", reason="import-linter is in the dev extra")


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys; from importlinter.cli import lint_imports;"
        "sys.exit(lint_imports(no_cache=True))"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin", "HOME": str(folder)},
    )


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tree")
    for name in ("edge_sdk", "aggregator", "firmware_sim", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.onnx", "*.gz"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_every_contract_holds(copy):
    done = lint(copy)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("edge_sdk/methods/local_sgd.py", "import time"),
        ("edge_sdk/client.py", "import paho.mqtt.client"),
        ("edge_sdk/wire/protocol/admission_policy.py", "import msgpack"),
        ("edge_sdk/forecasting/forecast.py", "import torch"),
        ("firmware_sim/fleet/in_process.py", "import aggregator.store"),
        ("firmware_sim/commands/fleet.py", "import aggregator.config"),
        ("aggregator/rules/rows.py", "import aggregator.store"),
        ("aggregator/methods/base/averaging.py", "import sqlite3"),
        ("aggregator/daemon.py", "import edge_sdk.client"),
        ("edge_sdk/wire/protocol/codec.py", "import edge_sdk.store.store"),
        ("edge_sdk/client.py", "import firmware_sim.attacks"),
        ("edge_sdk/agent.py", "from firmware_sim.attacks import clients"),
        ("aggregator/rules/weights.py", "import firmware_sim.attacks.model"),
        ("firmware_sim/attacks/model.py", "import time"),
        ("aggregator/rounds/round_engine.py", "import aggregator.store.sqlite"),
        ("aggregator/commands/audit.py", "import aggregator.store.connection"),
        ("edge_sdk/analytic/solve.py", "import edge_sdk.privacy.ledger"),
        ("edge_sdk/analytic/features.py", "import onnxruntime"),
    ],
)
def test_a_planted_violation_is_caught(copy, where, line):
    path = copy / where
    before = path.read_text()
    path.write_text(f"{before}\n{line}\n")
    try:
        assert lint(copy).returncode != 0, f"{where}: {line!r} went unnoticed"
    finally:
        path.write_text(before)


def contracts():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return settings["tool"]["importlinter"]["contracts"]


def modules_of(package):
    return {
        f"{package}.{path.stem if path.suffix else path.name}"
        for path in (ROOT / package).iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    }


def test_only_the_store_of_the_aggregator_may_import_sqlite():
    (named,) = (
        set(one["source_modules"])
        for one in contracts()
        if "aggregator.store.sqlite" in one.get("forbidden_modules", ())
        and "aggregator.daemon" in one["source_modules"]
    )
    inside = {f"aggregator.{name}" for name in ("__init__", "__main__", "store")}
    assert modules_of("aggregator") - named == inside


def test_the_aggregator_may_import_four_device_packages_only():
    """A new package of edge_sdk is closed to the aggregator until somebody opens it here."""
    closed = next(
        set(one["forbidden_modules"])
        for one in contracts()
        if one.get("source_modules") == ["aggregator"]
    )
    opened = {
        f"edge_sdk.{name}"
        for name in ("__init__", "__main__", "analytic", "app", "shared_math", "wire")
    }
    assert modules_of("edge_sdk") - closed == opened


def test_one_package_of_the_simulator_may_import_the_aggregator():
    """A new package of firmware_sim is closed to the aggregator until somebody opens it here."""
    closed = next(
        set(one["source_modules"])
        for one in contracts()
        if "firmware_sim.fleet" in one.get("source_modules", ())
    )
    opened = {f"firmware_sim.{name}" for name in ("__init__", "__main__", "direct")}
    assert modules_of("firmware_sim") - closed == opened
