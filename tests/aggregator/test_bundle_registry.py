"""Bundles by alias: promote, roll back, sign again; what devices would refuse; kills."""

import hashlib
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aggregator.commands import main as cli
from aggregator.config import AggregatorConfig, bind, registry_of
from aggregator.config.bundle_registry import BundleRegistryError
from edge_sdk.protocol import keys
from edge_sdk.protocol.contract.archive import MANIFEST, SIGNATURE, is_sealed, seal
from edge_sdk.protocol.contract.manifest import Manifest
from tests.aggregator.conftest import ONLINE, ROOT, write_bundle

ALIASED = [('bundle = "toy"', 'bundle = "toy@live"')]


def second(folder: Path):
    other = {"initial.f32": np.array([3.0, 3.0, 3.0], "<f4").tobytes()}
    return write_bundle(folder, contents=other)


@pytest.fixture
def fleet(workplace, tmp_path, monkeypatch):
    """A fleet whose configuration names an alias; returns a function that runs a command."""
    path = workplace(replacing=ALIASED)
    keys.save_signing_key(tmp_path / "state" / "aggregator.key", ONLINE)
    monkeypatch.chdir(tmp_path)

    def run(*words):
        return cli.main([*words])

    run.path, run.registry = path, registry_of(AggregatorConfig.load(path, {}))
    return run


def version_two(fleet, tmp_path):
    """Write another content as version 2, as an export would."""
    folder = second(tmp_path / "newer")
    manifest = Manifest.parse((folder / MANIFEST).read_bytes())
    digest = hashlib.sha256((folder / "initial.f32").read_bytes()).hexdigest()
    raw = replace(manifest, version=2, files={**manifest.files, "initial.f32": digest}).canonical()
    (folder / MANIFEST).write_bytes(raw)
    (folder / SIGNATURE).write_bytes(seal(ROOT, raw))
    return folder


def test_promote_then_roll_back_is_a_new_version_with_the_old_content(fleet, tmp_path, capsys):
    assert fleet("bundle", "promote", "toy") == 0
    assert fleet("init", str(fleet.path)) == 0
    assert fleet("bundle", "promote", str(version_two(fleet, tmp_path))) == 0
    assert fleet("announce", str(fleet.path)) == 0
    assert "fetch bundle toy version 2" in capsys.readouterr().out
    assert fleet("bundle", "rollback", "toy", "--to", "1") == 0
    assert (
        "toy@live: version 3, with the content of version 1 (before: 2)" in capsys.readouterr().out
    )
    config = AggregatorConfig.load(fleet.path, {})
    bundle = bind(config).bundle
    assert (bundle.manifest.version, bundle.initial.tolist()) == (3, [1.0, -2.0, 0.5])
    assert fleet("announce", str(fleet.path)) == 0
    assert "run 3 begins from the model of the previous run" in capsys.readouterr().out
    assert fleet("bundle", "list", "--json") == 0
    found = json.loads(capsys.readouterr().out)["bundles"]
    assert [(one["version"], one["aliases"]) for one in found] == [(1, []), (2, []), (3, ["live"])]


def test_rollback_without_a_number_takes_the_version_before(fleet, tmp_path):
    fleet("bundle", "promote", "toy")
    fleet("bundle", "promote", str(version_two(fleet, tmp_path)))
    assert fleet("bundle", "rollback", "toy") == 0
    assert fleet.registry.aliases() == {"toy": {"live": 3}}
    assert fleet.registry.open("toy", 3).initial.tolist() == [1.0, -2.0, 0.5]


def test_what_devices_would_refuse_is_refused_with_the_remedy(fleet, tmp_path, capsys):
    fleet("bundle", "promote", str(version_two(fleet, tmp_path)))
    fleet("init", str(fleet.path))
    fleet.path.write_text(fleet.path.read_text().replace("toy@live", "toy"))
    capsys.readouterr()
    assert fleet("announce", str(fleet.path)) == 2
    said = capsys.readouterr().err
    assert "devices have version 2 and refuse a lower version (ROLLBACK)" in said
    assert "gridfed-aggregator bundle rollback toy --to 1" in said


def test_an_older_bundle_is_not_promoted_and_other_content_of_a_version_neither(
    fleet, tmp_path, capsys
):
    fleet("bundle", "promote", str(version_two(fleet, tmp_path)))
    assert fleet("bundle", "promote", "./toy") != 0
    assert "devices refuse a lower version" in capsys.readouterr().err
    other = second(tmp_path / "other")
    assert fleet("bundle", "promote", str(other)) == 2
    assert "exists with other content" in capsys.readouterr().err
    assert fleet.registry.aliases() == {"toy": {"live": 2}}


def test_a_version_is_signed_again_by_another_root(fleet, tmp_path):
    fleet("bundle", "promote", "toy")
    other = keys.from_seed(bytes([9]) * 32)
    keys.save_signing_key(tmp_path / "other.key", other)
    keys.save_public(tmp_path / "state" / "root.pub", other.public)
    with pytest.raises(Exception, match="not signed by a trusted key"):
        registry_of(AggregatorConfig.load(fleet.path, {})).resolve("toy@live")
    words = ("bundle", "re-sign", "toy", "--root-key", str(tmp_path / "other.key"))
    assert fleet(*words) == 0
    path = fleet.registry.path("toy", 1)
    raw, proof = (path / "manifest.json").read_bytes(), (path / "manifest.sig").read_bytes()
    assert is_sealed(raw, proof, (other.public,))


def test_an_alias_that_is_missing_is_named_with_its_remedy(fleet):
    with pytest.raises(BundleRegistryError, match="has no alias 'live'") as refused:
        fleet.registry.resolve("toy@live")
    assert "bundle promote toy --alias live" in refused.value.hint


KILLED = """
import os, signal, sys

at, seen = int(sys.argv[1]), 0


def step(event, _args):
    global seen
    if event in ("open", "os.rename", "os.mkdir", "os.fsync"):
        seen += 1
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)


from aggregator.commands import main as cli
import aggregator.extensions.authoring.commands.bundle
cli.main(["bundle", "list"])
before = seen
sys.addaudithook(step)
sys.exit(cli.main(["bundle", "rollback", "toy", "--to", "1"]))
"""


@pytest.mark.slow
def test_killed_at_any_step_the_alias_names_a_whole_version(fleet, tmp_path):
    fleet("bundle", "promote", "toy")
    fleet("bundle", "promote", str(version_two(fleet, tmp_path)))
    outcomes, at = set(), 1
    while True:
        words = [sys.executable, "-c", KILLED, str(at)]
        ended = subprocess.run(words, check=False, cwd=tmp_path, capture_output=True, timeout=120)
        named = fleet.registry.aliases()["toy"]["live"]
        bundle = fleet.registry.resolve("toy@live")  # verifies manifest, signature and every file
        assert bundle.manifest.version == named
        outcomes.add("new" if named > 2 else "old")
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
        if named > 2:
            break
        at += 5  # every fifth step: a process takes a second to start
    assert outcomes == {"old", "new"}
