"""Three distributions of one checkout: what each contains, and that each installs and runs alone."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tools.distributions import ROOT, Distribution, build, distributions, pyproject

DOCUMENT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = DOCUMENT["project"]
PACKAGES = {
    "gridfed": "edge_sdk",
    "gridfed-aggregator": "aggregator",
    "gridfed-sim": "firmware_sim",
}
COMMANDS = {
    "gridfed": ["gridfed-edge"],
    "gridfed-aggregator": ["gridfed-aggregator", "gridfed-console", "gridfed-witness"],
    "gridfed-sim": ["gridfed-sim"],
}

built_by_tools = pytest.mark.skipif(
    not (find_spec("build") and find_spec("shtab") and find_spec("twine"))
    or int(version("setuptools").split(".")[0]) < 77,
    reason="build, shtab and twine are in the publish extra (make dist)",
)


def _find(name: str) -> Distribution:
    return next(one for one in distributions(PROJECT) if one.name == name)


def test_every_installed_package_is_in_exactly_one_distribution():
    found = [one.package for one in distributions(PROJECT)]
    wanted = DOCUMENT["tool"]["setuptools"]["packages"]["find"]["include"]
    assert sorted(found) == sorted(pattern.removesuffix("*") for pattern in wanted)


def test_a_device_requires_only_what_the_checkout_requires_of_a_device():
    assert _find("gridfed").requires == PROJECT["dependencies"]
    assert len(PROJECT["dependencies"]) == 5


def test_extras_that_the_readme_names_lead_to_the_other_distributions():
    extras = _find("gridfed").extras
    assert extras["aggregator"] == [f"gridfed-aggregator=={PROJECT['version']}"]
    assert extras["sim"] == [f"gridfed-sim=={PROJECT['version']}"]
    assert "torch" in " ".join(_find("gridfed-aggregator").extras["train"])


def test_extras_of_a_published_device_have_the_names_of_a_checkout():
    private = {"browser", "dev", "oracles", "publish"}
    assert set(_find("gridfed").extras) == set(PROJECT["optional-dependencies"]) - private


@pytest.mark.parametrize("name", PACKAGES)
def test_a_distribution_declares_its_own_commands_and_no_other(name):
    text = pyproject(_find(name), DOCUMENT, [Path("share/man/man1/x.1")])
    found = tomllib.loads(text)
    assert list(found["project"]["scripts"]) == COMMANDS[name]
    assert found["project"]["version"] == PROJECT["version"]
    assert not [one for one in found["project"]["classifiers"] if one.startswith("Private")]


def test_a_checkout_itself_is_refused_by_an_index():
    assert "Private :: Do Not Upload" in PROJECT["classifiers"]


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    if made := os.environ.get("GRIDFED_DIST"):  # by `make dist`, of this tree
        return Path(made)
    out = tmp_path_factory.mktemp("dist")
    build(out)
    return out


def _wheel(dist: Path, name: str) -> Path:
    return next(dist.glob(f"{name.replace('-', '_')}-[0-9]*.whl"))


def _files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@built_by_tools
@pytest.mark.slow
def test_files_pass_the_checks_of_an_index(dist):
    files = sorted(map(str, dist.iterdir()))
    assert len(files) == 6
    command = [sys.executable, "-m", "twine", "check", "--strict", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 6


@built_by_tools
@pytest.mark.slow
@pytest.mark.parametrize(("name", "package"), PACKAGES.items())
def test_a_wheel_has_every_file_of_its_package_and_of_no_other(dist, name, package):
    held = _files(_wheel(dist, name))
    tops = {file.split("/")[0] for file in held}
    assert {top for top in tops if not top.startswith("gridfed")} == {package}
    for command in COMMANDS[name]:
        assert {f"{command}.1", command} <= {file.split("/")[-1] for file in held}
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sources - held == set(), "package-data in pyproject.toml leaves these out"


@built_by_tools
@pytest.mark.slow
@pytest.mark.parametrize(("name", "package"), PACKAGES.items())
def test_a_source_distribution_holds_its_package_only(dist, name, package):
    with tarfile.open(next(dist.glob(f"{name.replace('-', '_')}-[0-9]*.tar.gz"))) as archive:
        names = {Path(one).parts[1] for one in archive.getnames() if len(Path(one).parts) > 1}
    assert package in names
    assert not names & (set(PACKAGES.values()) - {package})


@built_by_tools
@pytest.mark.slow
def test_the_device_wheel_runs_without_aggregator_and_simulator(dist, tmp_path):
    python, run = _environment(tmp_path, dist, "gridfed")
    binaries = {path.name for path in python.parent.iterdir()}
    assert "gridfed-edge" in binaries
    assert not binaries & {"gridfed-aggregator", "gridfed-sim"}
    assert run("-c", "import edge_sdk, sys; print(edge_sdk.__file__)").startswith(str(tmp_path))
    for absent in ("aggregator", "firmware_sim"):
        missing = f"from importlib.util import find_spec; print(find_spec({absent!r}))"
        assert run("-c", missing) == "None"
    loaded = (
        "from edge_sdk.bundle import Bundle, TrustedKeys, release_keys, shipped_folder\n"
        "trust = TrustedKeys(release_keys(shipped_folder()))\n"
        "print(Bundle.open('load-week-1', trust=trust).manifest.name)"
    )
    assert run("-c", loaded) == "load-week-1"
    assert run(python.parent / "gridfed-edge", "--version") == PROJECT["version"]
    assert "backtest" in run(python.parent / "gridfed-edge", "--help")


@built_by_tools
@pytest.mark.slow
def test_server_and_simulator_install_over_the_device(dist, tmp_path):
    python, run = _environment(tmp_path, dist, *PACKAGES)
    for command in [one for names in COMMANDS.values() for one in names]:
        assert run(python.parent / command, "--version") == PROJECT["version"]
    assert "homes" in run(python.parent / "gridfed-sim", "list")


def _environment(place: Path, dist: Path, *names: str):
    """Return the Python of an empty environment with wheels, and a function that runs programs there.

    Dependencies are found by PYTHONPATH; an editable installation beside them is not, because
    Python reads ``.pth`` files of its own folders only.
    """
    venv.create(place / "env", with_pip=False)
    python = place / "env" / "bin" / "python"
    beside = Path(np.__file__).parents[1]
    environ = {**os.environ, "PYTHONPATH": str(beside)}

    def run(*words: object) -> str:
        program = words if str(words[0]).startswith("/") else (python, *words)
        done = subprocess.run(
            [str(word) for word in program],
            env=environ, cwd=place, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    wheels = [_wheel(dist, name) for name in names]
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check",
         "install", "--quiet", "--no-deps", "--no-index", *map(str, wheels)],
        check=True,
    )  # fmt: skip
    return python, run


class Programs:
    """Stands for ``subprocess.run``: a build that prints a line and ends with a code."""

    def __init__(self, code=0):
        self.code, self.commands = code, []

    def __call__(self, command, **_):
        self.commands.append(command)
        return subprocess.CompletedProcess(command, self.code, "a line of the build")


@built_by_tools
def test_a_relative_folder_is_one_of_the_callers_place(monkeypatch, tmp_path, capsys):
    programs = Programs()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tools.distributions.subprocess.run", programs)
    files = build(Path("dist"), ["gridfed"])
    (command,) = programs.commands
    assert command[command.index("--outdir") + 1] == str(tmp_path / "dist")
    assert {file.parent for file in files} == {tmp_path / "dist"}
    assert capsys.readouterr().out.startswith("gridfed: building, 1 of 1 ...")


@built_by_tools
def test_a_build_that_fails_shows_its_output(monkeypatch, tmp_path):
    monkeypatch.setattr("tools.distributions.subprocess.run", Programs(code=1))
    with pytest.raises(SystemExit, match=r"(?s)a line of the build.*build failed, see above"):
        build(tmp_path, ["gridfed-sim"])
