"""``gridfed-sim sweep --ray``: the bits of one process, on a cluster started here and at an address."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from firmware_sim.bench import ray_runs
from firmware_sim.bench.results import definition, digest_of
from firmware_sim.bench.sweep import SweepDefinition, cells_of
from firmware_sim.commands.main import main
from firmware_sim.samples import sample_set
from firmware_sim.scenario import RunSettings, Scenario
from tests.firmware_sim.bench.test_sweep import outcome, records_of

ROOT = Path(__file__).resolve().parents[3]
SMALL = ("--devices", "3", "--rounds", "1", "--steps", "1", "--bundle", "load-mlp", "--days", "14")
GRID = ("--method", "fedavg,fedprox", "--seeds", "0", "1")
NAMES = 4

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray")
slow = pytest.mark.timeout(900)  # a cluster is some ten processes; each imports much
leaves_pipes = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""Ray leaves pipes of its processes to the garbage collector."""


def sweep(folder, *more):
    return main(["sweep", str(folder), *SMALL, *GRID, *more])


def outcomes(folder):
    return {name: outcome(record) for name, record in records_of(folder).items()}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep") / "runs"
    assert sweep(folder) == 0
    return folder


CLUSTER = """
import sys
from firmware_sim.bench.ray_runs import LOCAL, ray_cluster
with ray_cluster(LOCAL, 2) as executor:
    print(executor.ray.get_runtime_context().gcs_address, flush=True)
    sys.stdin.read()
"""


def processes_of(group):
    """The processes of a session that were not reaped."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == group and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


@needs_ray
@slow
@leaves_pipes
def test_a_cluster_of_this_machine_gives_the_same_and_is_stopped(done, tmp_path, capsys):
    before = set(Path("/tmp").glob("gf-ray-*"))
    handler = signal.getsignal(signal.SIGTERM)
    assert sweep(tmp_path / "ray", "--ray", "--processors", "2", "--json") == 0
    assert json.loads(capsys.readouterr().out)["runs"] == NAMES
    assert outcomes(tmp_path / "ray") == outcomes(done)
    assert signal.getsignal(signal.SIGTERM) == handler
    assert set(Path("/tmp").glob("gf-ray-*")) <= before
    gc.collect()


@needs_ray
@slow
@leaves_pipes
def test_at_an_address_a_killed_process_is_replaced_and_failures_are_reported(
    done, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    cluster = subprocess.Popen(
        [sys.executable, "-c", CLUSTER], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, start_new_session=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        address = cluster.stdout.readline().strip()
        assert address
        killed = []
        write = ray_runs.RayExecutor.records

        def killing(self, definition_, cells):
            for pair in write(self, definition_, cells):
                for process in processes_of(cluster.pid) if not killed else ():
                    words = Path(f"/proc/{process}/cmdline").read_bytes()
                    if words.startswith((b"ray::_outcome", b"ray::IDLE")):
                        os.kill(process, signal.SIGKILL)
                        killed.append(process)
                yield pair

        with monkeypatch.context() as patched:
            patched.setattr(ray_runs.RayExecutor, "records", killing)
            assert sweep(tmp_path / "ray", "--ray", address) == 0
        assert killed
        assert outcomes(tmp_path / "ray") == outcomes(done)

        monkeypatch.setattr(ray_runs, "versions", lambda: {"python": "2.7"})
        assert sweep(tmp_path / "other", "--ray", address) == 1
        assert (
            "other versions on a machine of the cluster: cryptography, gridfed"
            in capsys.readouterr().err
        )
        assert not list((tmp_path / "other").glob("runs/*.json"))
    finally:
        cluster.stdin.close()
        cluster.wait(120)
        cluster.stdout.close()
        left = processes_of(cluster.pid)
        for process in left:
            os.kill(process, signal.SIGKILL)
    assert not left
    gc.collect()


def test_a_machine_with_other_readings_refuses_the_run(tmp_path):
    scenario = Scenario(
        "two homes", devices=2, samples="homes", bundle="load-mlp", run=RunSettings(rounds=1)
    )
    samples = sample_set("homes")
    mark = digest_of(definition(scenario, samples, [0]))
    (cell,) = cells_of(scenario, [0])
    for wrong in (mark[::-1], "0" * 64):
        other = SweepDefinition(scenario, samples, (0,), wrong, 600.0)
        found = ray_runs._outcome((other, str(ROOT), ray_runs.versions()), cell)
        assert found == "other readings or another bundle on a machine of the cluster"
    same = SweepDefinition(scenario, samples, (0,), mark, 600.0)
    missing = str(tmp_path / "missing")
    assert "missing" in ray_runs._outcome((same, missing, ray_runs.versions()), cell)


def test_without_ray_the_extra_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert sweep(tmp_path / "new", "--ray") == 2
    assert "pip install 'gridfed[ray]'" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--processors", "2"], ["--ray", "--processors", "0"]])
def test_processors_of_no_cluster_are_refused(words, tmp_path, capsys):
    assert sweep(tmp_path / "new", *words) == 2
    assert "--processors" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
