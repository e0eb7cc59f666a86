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


PLANTED = (
    ("edge_sdk/methods/local_sgd.py", "import time"),
    ("edge_sdk/client.py", "import paho.mqtt.client"),
    ("aggregator/ingress/admission_policy.py", "import msgpack"),
    ("edge_sdk/forecasting/forecast.py", "import torch"),
    ("firmware_sim/fleet/in_process.py", "import aggregator.store"),
    ("firmware_sim/commands/fleet.py", "import aggregator.config"),
    ("aggregator/rules/rows.py", "import aggregator.store"),
    ("aggregator/methods/fedavg.py", "import sqlite3"),
    ("aggregator/daemon.py", "import edge_sdk.client"),
    ("edge_sdk/protocol/codec.py", "import edge_sdk.store.store"),
    ("edge_sdk/client.py", "import firmware_sim.attacks"),
    ("edge_sdk/agent.py", "import firmware_sim.attacks.model"),
    ("aggregator/rules/parameters.py", "import firmware_sim.attacks.model"),
    ("firmware_sim/attacks/model.py", "import time"),
    ("aggregator/rounds/round_engine.py", "import aggregator.store.sqlite"),
    ("aggregator/commands/status.py", "import aggregator.store.sqlite"),
    ("edge_sdk/extensions/analytic/solve.py", "import edge_sdk.privacy.ledger"),
    ("edge_sdk/extensions/analytic/features.py", "import onnxruntime"),
)


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What import-linter says of a copy of the programs with every violation planted: one graph for all."""
    folder = tmp_path_factory.mktemp("tree")
    for name in ("edge_sdk", "aggregator", "firmware_sim", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.onnx", "*.gz"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for where, line in PLANTED:
        with (folder / where).open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")
    done = lint(folder)
    assert done.returncode != 0
    return done.stdout.partition("Broken contracts")[2]


@pytest.mark.parametrize(("where", "line"), PLANTED)
def test_a_planted_violation_is_caught(said, where, line):
    """``make contracts`` shows that there is none in the programs as they are."""
    importer = where.removesuffix(".py").replace("/", ".")
    imported = line.removeprefix("import ")
    if imported.split(".")[0] not in ("edge_sdk", "aggregator", "firmware_sim"):
        imported = imported.split(".")[0]  # of other packages the top alone is in the graph
    assert f"{importer} -> {imported} (" in said, f"{where}: {line!r} went unnoticed"


def contracts():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return settings["tool"]["importlinter"]["contracts"]


def modules_of(package):
    return {
        f"{package}.{path.stem if path.suffix else path.name}"
        for path in (ROOT / package).iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    }


def test_the_aggregator_imports_no_further_package_of_a_device():
    """A new package of edge_sdk is closed to the aggregator until somebody opens it here."""
    closed = next(
        set(one["forbidden_modules"])
        for one in contracts()
        if one.get("source_modules") == ["aggregator"]
    )
    opened = {
        f"edge_sdk.{name}"
        for name in (
            "__init__",
            "__main__",
            "app",
            "errors",
            "extensions",
            "limits",
            "link",
            "protocol",
            "shared_math",
        )
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
