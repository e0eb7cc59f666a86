"""Debian packages: built, installed below an empty root by dpkg, and run from there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from ctypes.util import find_library
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tools.deb import build
from tools.distributions import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("dpkg-deb") is None or not find_spec("shtab"),
        reason="needs dpkg-deb, and shtab of the publish extra (make dist)",
    ),
]


def dpkg(root: Path, *words: str) -> None:
    command = ["dpkg", f"--root={root}", "--force-depends", "--force-not-root", *words]
    subprocess.run(command, check=True, capture_output=True)


def test_the_packages_install_run_and_leave_nothing(tmp_path):
    files = build(tmp_path / "dist")
    root = tmp_path / "root"
    (root / "var/lib/dpkg/updates").mkdir(parents=True)
    (root / "var/lib/dpkg/info").mkdir()
    (root / "var/lib/dpkg/status").touch()
    (root / "var/lib/dpkg/available").touch()
    dpkg(root, "--install", *map(str, files))
    environ = {**os.environ, "PYTHONPATH": str(Path(np.__file__).parents[1])}
    for name in ("gridfed-edge", "gridfed-aggregator", "gridfed-console", "gridfed-witness"):
        done = subprocess.run(
            [sys.executable, root / "usr/bin" / name, "--help"],
            env=environ, cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert f"usage: {name}" in done.stdout
        assert (root / f"usr/share/man/man1/{name}.1.gz").is_file()
        assert (root / f"usr/share/bash-completion/completions/{name}").is_file()
    units = {path.name: path.read_text("utf-8") for path in (root / "lib/systemd/system").iterdir()}
    assert set(units) == {
        "gridfed-edge@.service",
        "gridfed-tap@.service",
        "gridfed-aggregator.service",
        "gridfed-aggregator-worker@.service",
        "gridfed-console.service",
    }
    for text in units.values():
        program = re.search(r"^ExecStart=(\S+)", text, re.MULTILINE)[1]
        assert (root / program.removeprefix("/")).is_file()
    library = root / "usr/lib/gridfed"
    contained = "import starlette, uvicorn, anyio; print(starlette.__file__, uvicorn.__file__)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", contained],
        env={"PYTHONPATH": str(library)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(str(library)) == 2, "nothing else is needed to serve"
    names = {path.name for path in library.iterdir()}
    assert {"edge_sdk", "aggregator", "paho", "prometheus_client", "psycopg"} <= names
    assert {"starlette", "uvicorn"} <= names
    if find_library("pq"):
        done = subprocess.run(
            [sys.executable, "-S", "-c", "import psycopg; print(psycopg.__file__)"],
            env={"PYTHONPATH": str(library)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert str(library) in done.stdout, done.stderr
    assert not (library / "firmware_sim").exists()
    assert list(library.glob("gridfed-*.dist-info/METADATA"))
    for package in ("edge_sdk", "aggregator"):
        held = {path.relative_to(library) for path in (library / package).rglob("*.py")}
        assert held == {path.relative_to(ROOT) for path in (ROOT / package).rglob("*.py")}
    names = ("gridfed-witness", "gridfed-console", "gridfed-aggregator", "gridfed-edge")
    dpkg(root, "--purge", *names)
    assert not list(root.glob("usr/**/*.py"))
