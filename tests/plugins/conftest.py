"""Make the example packages importable, as an installation would, without running an installer."""

from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path

import pytest

from aggregator.methods import METHODS as SERVERS
from aggregator.rules import RULES
from edge_sdk.methods import METHODS as DEVICES
from edge_sdk.protocol.contract.method import CONTRACTS
from edge_sdk.sources import SOURCES
from firmware_sim.attacks import ATTACKS

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "plugins"


def installed(folder: Path, *names: str) -> Path:
    """Write what ``pip install`` of example packages would: modules, metadata, entry points."""
    for name in names:
        project = tomllib.loads((EXAMPLES / name / "pyproject.toml").read_text("utf-8"))["project"]
        for source in sorted((EXAMPLES / name).glob("gridfed_*")):
            (folder / source.name).symlink_to(source)
        offer(folder, name, project["entry-points"], project["version"])
    return folder


def offer(folder: Path, name: str, groups: dict[str, dict[str, str]], version: str = "1.0") -> None:
    """Write the metadata of a package with entry points."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
        for group, entries in groups.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of installed packages, on the import path of this test alone."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    for registry in (CONTRACTS, DEVICES, SERVERS, RULES, ATTACKS, SOURCES):
        monkeypatch.setattr(
            registry, "_known", dict(registry._builtin)
        )  # what one test installs, the next has not
    before = set(sys.modules)
    importlib.invalidate_caches()
    yield folder
    for name in set(sys.modules) - before:
        if name.startswith(("gridfed_", "faulty_")):
            del sys.modules[name]


@pytest.fixture
def examples(site):
    """The three example packages, installed."""
    return installed(site, "gridfed-fednova", "gridfed-scaffold", "gridfed-meamed")
