"""The import contracts hold, and they can fail: a planted violation is caught."""

from __future__ import annotations

import shutil
import subprocess
import sys
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
    ("aggregator/methods/averaging.py", "import sqlite3"),
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
    ("edge_sdk/errors.py", "import edge_sdk.extensions.analytic"),
    ("aggregator/bundles.py", "import aggregator.extensions.papers"),
    ("aggregator/methods/asynchronous.py", "import aggregator.methods.averaging"),
    ("aggregator/store/runs.py", "import aggregator.store.devices"),
    ("firmware_sim/results.py", "import firmware_sim.fleet"),
    # a new package of edge_sdk is closed to the aggregator until a contract opens it
    ("aggregator/audit_log.py", "import edge_sdk.unlisted"),
    # a new package of firmware_sim is closed to the aggregator until a contract opens it
    ("firmware_sim/unlisted.py", "import aggregator.metrics"),
)
UNLISTED = ("edge_sdk/unlisted.py", "firmware_sim/unlisted.py")
"""Modules that stand in no layer."""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What import-linter says of a copy of the programs with every violation planted: one graph for all."""
    folder = tmp_path_factory.mktemp("tree")
    for name in ("edge_sdk", "aggregator", "firmware_sim", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.onnx", "*.gz"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for where in UNLISTED:
        (folder / where).touch()
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


@pytest.mark.parametrize("where", UNLISTED)
def test_a_module_in_no_layer_is_caught(said, where):
    """Of every program: the contracts of layers are exhaustive."""
    assert f"- {where.removesuffix('.py').replace('/', '.')}\n" in said
