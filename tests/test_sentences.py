"""Whatever is wrong at a start: one sentence, a hint where one can act, an exit code."""

from __future__ import annotations

import io
import logging
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tomllib
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from aggregator.store.opener import open_store
from edge_sdk.protocol import keys
from edge_sdk.store.store import DeviceStore
from firmware_sim.fleet.run_files import toml

ROOT = Path(__file__).parents[1]
MODULES = {
    "gridfed-edge": "edge_sdk",
    "gridfed-aggregator": "aggregator",
    "gridfed-sim": "firmware_sim",
}
FAILED, USAGE, MIGRATION, TEMPORARY = 1, 2, 3, 75
METER: dict[str, Any] = {
    "id": "meter-1",
    "fleet": "north",
    "state": "state",
    "bundle": "load-mlp",
    "broker": {"url": "mqtt://127.0.0.1:1"},
    "keys": {"device": "meter.key", "root": "root.pub"},
    "privacy": {"mechanism": {"name": "none"}},
}
AGGREGATOR: dict[str, Any] = {
    "fleet": "north",
    "state": "state",
    "broker": {"url": "mqtt://127.0.0.1:1"},
    "http": {"listen": "off"},
    "run": {"bundle": "load-mlp", "method": "fedavg", "quorum": 2},
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def meter(place):
    write("meter.toml", METER)
    keys.save_public("root.pub", keys.from_seed(b"r" * 32).public)
    keys.save_signing_key("meter.key", keys.from_seed(b"d" * 32))
    return Path("meter.toml")


@pytest.fixture
def fleet(place):
    write("aggregator.toml", AGGREGATOR)
    assert call("gridfed-aggregator", "init").returncode == 0
    return Path("aggregator.toml")


def write(name: str, table: dict[str, Any]) -> None:
    Path(name).write_text(toml(table), "utf-8")


def change(path: Path, **changes: object) -> None:
    """Change settings; a table's keys are merged into it."""
    table = tomllib.loads(path.read_text("utf-8"))
    for key, value in changes.items():
        table[key] = {**table.get(key, {}), **value} if isinstance(value, dict) else value
    write(path.name, table)


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def call(program: str, *words: str) -> Done:
    """Run a command in this process: an error that nobody turned into a sentence comes through."""
    main = import_module(f"{MODULES[program]}.commands.main").main
    out, err = io.StringIO(), io.StringIO()
    before = sys.excepthook
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(list(words))
        except SystemExit as ended:
            code = ended.code
        finally:
            sys.excepthook = before
            logging.getLogger().handlers.clear()  # the program's own: it writes to ``err``
    return Done(code, out.getvalue(), err.getvalue())


def start(program: str, *words: str) -> Done:
    """Run a command as a process of its own."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, "-m", MODULES[program], *words],
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def sentence(program: str, *words: str, code: int, hint: bool = True, by=call) -> str:
    """Run a command that must fail; return its one sentence and its hint."""
    done = by(program, *words)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert "unexpected" not in done.stderr
    lines = done.stderr.splitlines()
    said = [line for line in lines if line.startswith(f"{program}: ")]
    assert len(said) == 1, done.stderr
    after = lines[lines.index(said[0]) + 1 :]
    assert len(after) <= 1, done.stderr
    assert not after or after[0].startswith("  hint: ")
    assert after or not hint, f"no hint: {said}"
    return "\n".join(said + after)


# --- configuration --------------------------------------------------------------------------------

FAULTS = [
    ({"fleat": "north"}, "fleat: unknown key; did you mean 'fleet'?"),
    ({"broker": {"ulr": "x"}}, "broker.ulr: unknown key; did you mean 'url'?"),
    ({"broker": {"keepalive": "long"}}, "broker.keepalive: expected"),
    ({"broker": {"protocol": 3}}, "broker.protocol: unknown 3; known: 4, 5"),
    ({"fleet": "no rth"}, "fleet: expected"),
    ({"broker": {"url": "mqtt://broker.example"}}, "unencrypted"),
]


@pytest.mark.parametrize(("fault", "blame"), FAULTS)
def test_a_wrong_device_configuration_is_refused_by_its_key(meter, fault, blame):
    change(meter, **fault)
    assert blame in sentence("gridfed-edge", "run", "meter.toml", code=USAGE, hint=False)


@pytest.mark.parametrize(("fault", "blame"), FAULTS)
def test_a_wrong_aggregator_configuration_is_refused_by_its_key(fleet, fault, blame):
    change(fleet, **fault)
    assert blame in sentence("gridfed-aggregator", "run", code=USAGE, hint=False)


def test_a_wrong_scenario_is_refused_by_its_key(place):
    write("mine.toml", {"title": "mine", "devices": "many"})
    said = sentence("gridfed-sim", "fleet", "--scenario", "mine.toml", code=USAGE, hint=False)
    assert "mine.toml: devices: expected int" in said


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("gridfed-edge", ("run", "nowhere.toml")),
        ("gridfed-edge", ("check", "nowhere.toml")),
        ("gridfed-aggregator", ("run", "nowhere.toml")),
        ("gridfed-aggregator", ("init", "nowhere.toml")),
        ("gridfed-sim", ("demo", "--scenario", "nowhere.toml")),
        ("gridfed-sim", ("fleet", "--scenario", "nowhere.toml")),
    ],
)
def test_a_missing_configuration_file_is_refused(place, program, words):
    said = sentence(program, *words, code=USAGE, hint=False, by=start)
    assert "nowhere.toml: No such file or directory" in said


@pytest.mark.parametrize("program", MODULES)
def test_an_unknown_command_is_refused(place, program):
    done = start(program, "fly")
    assert done.returncode == USAGE
    assert "invalid choice: 'fly'" in done.stderr


# --- keys -----------------------------------------------------------------------------------------


def test_a_missing_or_wrong_device_key_is_refused(meter):
    key = Path("meter.key")
    key.chmod(0o640)
    assert "chmod 600" in sentence("gridfed-edge", "run", "meter.toml", code=USAGE)
    key.unlink()
    assert "gridfed-edge enrol" in sentence("gridfed-edge", "run", "meter.toml", code=USAGE)
    key.mkdir(mode=0o700)
    assert "Is a directory" in sentence("gridfed-edge", "run", "meter.toml", code=USAGE)
    key.rmdir()
    key.touch(mode=0o600)
    key.write_text("not a key")
    said = sentence("gridfed-edge", "run", "meter.toml", code=USAGE)
    assert "meter.key: not an unencrypted PEM private key" in said
    Path("root.pub").write_text("zz")
    keys.save_signing_key(key, keys.from_seed(b"d" * 32))
    assert "expected 64 hex digits" in sentence("gridfed-edge", "run", "meter.toml", code=USAGE)


def test_a_bundle_signed_by_another_root_is_refused(meter):
    shutil.copytree(ROOT / "edge_sdk" / "bundles" / "load-mlp", "mine")
    change(meter, bundle="mine")
    said = sentence("gridfed-edge", "run", "meter.toml", code=USAGE)
    assert "no key that this device trusts has signed the bundle's manifest" in said


def test_a_missing_or_wrong_aggregator_key_is_refused(fleet):
    key = Path("state/aggregator.key")
    key.unlink()
    said = sentence("gridfed-aggregator", "run", code=USAGE)
    assert "aggregator.key: cannot read the key: No such file" in said
    key.write_text("not a key")
    said = sentence("gridfed-aggregator", "run", code=USAGE)
    assert "not an unencrypted PEM private key" in said
    keys.save_signing_key(key, keys.from_seed(b"x" * 32))
    assert "is not announced" in sentence("gridfed-aggregator", "run", code=USAGE)
    keys.save_public("state/root.pub", keys.from_seed(b"x" * 32).public)
    assert "was not signed by root.pub" in sentence("gridfed-aggregator", "run", code=USAGE)
    assert "is not the private key" in sentence("gridfed-aggregator", "announce", code=USAGE)


# --- bundles --------------------------------------------------------------------------------------


def test_a_missing_bundle_is_refused_with_the_shipped_names(meter):
    change(meter, bundle="load-lsdm")
    said = sentence("gridfed-edge", "run", "meter.toml", code=USAGE)
    assert "'load-lsdm' is neither shipped nor a folder" in said
    assert "load-mlp" in said


def test_a_missing_bundle_of_the_aggregator_is_refused(fleet):
    change(fleet, run={"bundle": "load-lsdm"})
    said = sentence("gridfed-aggregator", "run", code=USAGE)
    assert "run.bundle: bundle 'load-lsdm' is neither shipped nor a folder" in said


def test_a_missing_bundle_of_a_simulation_is_refused(place):
    said = sentence("gridfed-sim", "fleet", "--bundle", "load-lsdm", code=USAGE)
    assert "load-lsdm" in said


# --- state ----------------------------------------------------------------------------------------


def test_a_locked_or_newer_device_state_is_refused(meter):
    with DeviceStore.open(Path("state")):
        said = sentence("gridfed-edge", "run", "meter.toml", code=TEMPORARY, hint=False)
        assert "another process" in said
    age(Path("state/device.db"))
    said = sentence("gridfed-edge", "run", "meter.toml", code=MIGRATION, hint=False)
    assert "newer" in said


def test_a_locked_or_newer_aggregator_state_is_refused(fleet):
    with open_store(Path("state/aggregator.db")):
        for word in ("run", "announce"):
            said = sentence("gridfed-aggregator", word, code=TEMPORARY, hint=False)
            assert "another process holds this database" in said
    age(Path("state/aggregator.db"))
    for word in ("run", "status", "list", "audit", "announce"):
        said = sentence("gridfed-aggregator", word, code=MIGRATION, hint=False)
        assert "newer" in said


@pytest.mark.parametrize("program", ["gridfed-edge", "gridfed-aggregator"])
def test_an_older_version_leaves_newer_state_unchanged(meter, fleet, program):
    """Copied aside or not: what a downgrade finds is what the upgrade left, to the byte."""
    path, config = Path("state/aggregator.db"), "aggregator.toml"
    if program == "gridfed-edge":
        DeviceStore.open(Path("state")).close()
        path, config = Path("state/device.db"), "meter.toml"
    age(path)
    before, names = path.read_bytes(), sorted(Path("state").iterdir())
    said = sentence(program, "run", config, code=MIGRATION, hint=False, by=start)
    assert "newer" in said
    assert path.read_bytes() == before
    assert sorted(Path("state").iterdir()) == names


def age(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")


# --- ports and brokers ----------------------------------------------------------------------------


@contextmanager
def taken_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield str(taken.getsockname()[1])


def test_a_status_port_in_use_is_refused(fleet):
    with taken_port() as port:
        change(fleet, http={"listen": f"127.0.0.1:{port}"})
        said = sentence("gridfed-aggregator", "run", code=TEMPORARY)
    assert f"cannot serve the page on 127.0.0.1:{port}: Address already in use" in said


@pytest.mark.broker
@pytest.mark.parametrize("kind", ["mosquitto", "embedded"])
def test_a_broker_port_in_use_is_refused(place, kind):
    from aggregator.extensions.authority.access.broker_process import (  # noqa: PLC0415
        has_embedded,
        mosquitto_program,
    )

    if not (mosquitto_program() if kind == "mosquitto" else has_embedded()):
        pytest.skip(f"the {kind} broker is not installed")
    with taken_port() as port:
        words = ("broker", "start", "--kind", kind, "--port", port)
        said = sentence("gridfed-aggregator", *words, code=TEMPORARY, hint=False)
    assert f"port {port} cannot be used: Address already in use" in said


def test_check_reports_an_unreachable_broker(meter, monkeypatch):
    monkeypatch.setattr("edge_sdk.extensions.setup.check._PATIENCE", 0.3)
    done = call("gridfed-edge", "check", "meter.toml", "--broker")
    assert done.returncode == TEMPORARY
    assert "Traceback" not in done.stderr
    reason = "broker: not reached: cannot reach mqtt://127.0.0.1:1: "
    assert [line for line in done.stdout.splitlines() if line.startswith(reason)]


def test_broker_find_reports_an_unreachable_broker(place):
    done = call("gridfed-aggregator", "broker", "find", "--url", "mqtt://127.0.0.1:1")
    assert done.returncode == FAILED
    assert done.stdout.endswith("It does not respond.\n")


def test_a_simulation_reports_an_unreachable_broker(place):
    said = sentence("gridfed-sim", "fleet", "--broker", "mqtt://127.0.0.1:1", code=TEMPORARY)
    assert "no broker answers at mqtt://127.0.0.1:1" in said


def test_a_simulation_without_readings_is_refused(place):
    Path("empty").mkdir()
    said = sentence("gridfed-sim", "fleet", "--data", "empty", code=USAGE, hint=False)
    assert "no *.csv or *.csv.gz file in empty" in said
    said = sentence("gridfed-sim", "fleet", "--like", "hoomes", code=USAGE, hint=False)
    assert "no sample set 'hoomes'; there are: cells, chargers, homes" in said


# --- Python ---------------------------------------------------------------------------------------


def test_make_names_the_required_python(place):
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    shim = place / "python3"
    old = "import sys; sys.version_info = (3, 9, 18); exec(sys.argv[1])"
    shim.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{old}' \"$2\"\n")
    shim.chmod(0o755)
    done = subprocess.run(
        ["make", "-C", str(ROOT), f"PYTHON={shim}", f"VENV={place / 'venv'}", "test"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={key: value for key, value in os.environ.items() if not key.startswith("MAKE")},
    )
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert said == [
        "gridfed needs Python 3.11 or newer; this is 3.9. Try: make PYTHON=python3.11 demo"
    ]
    assert not (place / "venv").exists()


@pytest.mark.parametrize("program", MODULES)
def test_every_program_names_the_required_python(program):
    trick = (
        "import argparse, dataclasses, json, logging, runpy, sys, typing\n"
        f"import {MODULES[program]}.commands.main as cli, edge_sdk.app.command_line as program\n"
        "program.require_python.__defaults__ = ((3, 9),)\n"
        "sys.exit(cli.main(['--help']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", trick], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == USAGE
    assert done.stderr == f"{program}: needs Python 3.11 or newer, this is 3.9\n"
