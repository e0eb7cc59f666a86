"""The command line as an operator meets it: real processes, sentences, exit codes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from importlib.util import find_spec

import pytest

from aggregator.commands import main as cli
from aggregator.config import AggregatorConfig
from aggregator.extensions.authority.access.broker_process import start
from aggregator.operations.enrolment import statement
from aggregator.store.opener import alone, open_store
from edge_sdk.protocol import keys
from firmware_sim.fleet.federation import free_port

KEY = keys.from_seed(bytes(range(1, 33)))


def call(folder, *args, code=0, **environ):
    done = subprocess.run(
        [sys.executable, "-m", "aggregator", *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environ},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.mark.slow
def test_from_nothing_to_a_fleet(workplace):
    folder = workplace().parent
    told = json.loads(call(folder, "init", "--json"))
    assert (told["number"], told["is_new"]) == (1, True)
    assert json.loads(call(folder, "init", "--json"))["is_new"] is False
    proof = KEY.sign(statement("north", "meter-1", KEY.public)).hex()
    call(folder, "enrol", "meter-1", "--public", KEY.public.hex(), "--proof", proof)
    shown = json.loads(call(folder, "check-config", "--json"))
    origins = {row["key"]: row["origin"] for row in shown["settings"]}
    assert origins["run.quorum"] == "aggregator.toml"
    assert origins["run.client_fraction"] == "default"
    assert shown["bytes_per_update"] == 8
    status = json.loads(call(folder, "status", "--json"))
    assert (status["running"], status["devices"], status["run"]["round"]) == (
        False,
        {"enrolled": 1},
        0,
    )
    assert json.loads(call(folder, "audit", "--json"))["sound"] is True
    assert "meter-1" in call(folder, "list")
    call(folder, "command", "meter-1", "hello")
    revoked = call(folder, "revoke", "meter-1", "--why", "sold")
    assert "broker: it still serves meter-1" in revoked
    assert "gridfed-aggregator ca revoke meter-1" in revoked
    assert json.loads(call(folder, "list", "--json"))["devices"][0]["state"] == "revoked"
    assert "not running" in call(folder, "status")
    assert call(folder, "health", code=1) == ""
    copy = json.loads(call(folder, "backup", "copy.db", "--json"))
    before = (folder / "copy.db").read_bytes()
    assert copy["bytes"] == len(before) > 0
    assert "gridfed-aggregator backup copy-2.db" in call(folder, "backup", "copy.db", code=2)
    assert (folder / "copy.db").read_bytes() == before


def test_check_shows_what_the_method_takes_where_nothing_was_said(workplace):
    folder = workplace(replacing=[('"fedavg"', '"rsa"')]).parent
    told = json.loads(call(folder, "check", "--json", GRIDFED_AGGREGATOR_RUN__SETTINGS__L1="0.25"))
    rows = {row["key"]: (row["value"], row["origin"]) for row in told["settings"]}
    assert rows["run.settings.l1"] == ("0.25", "GRIDFED_AGGREGATOR_RUN__SETTINGS__L1")
    assert rows["run.settings.staleness_bound"][1] == "default"
    assert "run.settings" not in rows
    assert "run.rule.name" not in rows, "the method combines updates without a rule"
    assert told["bytes_per_update"] == 1, "two bits for each of two signs"


def test_a_changed_run_is_not_continued_by_accident(workplace):
    folder = workplace().parent
    call(folder, "init")
    workplace(replacing=[("quorum = 2", "quorum = 3")])
    said = call(folder, "run", code=2)
    assert "rounds.quorum: 2 at the start, now 3" in said
    assert "gridfed-aggregator announce" in said
    told = json.loads(call(folder, "announce", "--json"))
    assert (told["number"], told["is_new"], told["continued"]) == (2, True, True)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("run",), "put it back, or create another: gridfed-aggregator init"),
        (("announce",), "this fleet is not set up"),
        (("status",), "this fleet is not set up"),
        (("enrol", "meter-1", "--public", "00"), "meter-1: 00: cannot read the key"),
        (("enrol", "_agg", "--public", "11" * 32), "is not a valid device id"),
        (("enrol",), "give an id with --public, or --from-file"),
        (("check", "nowhere.toml"), "nowhere.toml: No such file"),
        (("broker", "check"), "expected --file"),
        (("backup", "aggregator.toml"), "backup aggregator.db --config aggregator.toml"),
        (("backup", "."), "this is a folder"),
    ],
)
def test_wrong_usage_is_one_sentence(workplace, args, says):
    folder = workplace().parent
    said = call(folder, *args, code=2)
    assert any(part in said for part in says.split("|")), said
    assert said.startswith("gridfed-aggregator: ")


@pytest.mark.slow
def test_wrong_key_is_one_sentence(workplace):
    folder = workplace().parent
    call(folder, "init")
    keys.save_signing_key(folder / "state" / "aggregator.key", KEY)
    said = call(folder, "run", code=2)
    assert f"aggregator.key (key id {KEY.kid.hex()}) is not announced" in said
    keys.save_public(folder / "state" / "root.pub", KEY.public)
    assert "not signed by a trusted key" in call(folder, "run", code=2)
    (folder / "state" / "aggregator.key").write_text("not a key")
    call(folder, "run", code=2)


def test_missing_bundle_is_one_sentence(workplace):
    folder = workplace(replacing=[('"toy"', '"elsewhere"')]).parent
    assert "run.bundle: bundle 'elsewhere' is neither shipped nor" in call(folder, "run", code=2)


def test_export_without_torch_says_what_to_install(monkeypatch, capsys):
    """Hides all that the train extra brings: each of it may be absent where this test runs."""
    for name in [
        name for name in sys.modules if name.startswith("aggregator.extensions.authoring.")
    ]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("torch", "onnx", "sympy"):
        monkeypatch.setitem(sys.modules, name, None)
    assert cli.main(["export", "load-lstm", "out", "--key", "root.key"]) == 2
    said = capsys.readouterr().err
    named = r"gridfed-aggregator: export needs (torch|onnx), which is not installed"
    assert re.match(named, said), said
    assert "gridfed[train]" in said


def test_help_teaches(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "a new fleet:" in said
    assert all(name in said for name in cli.COMMANDS)


@pytest.mark.slow
@pytest.mark.broker
def test_a_daemon_runs_takes_orders_and_ends_on_sigterm(workplace, tmp_path):
    page = f"127.0.0.1:{free_port()}"
    with start(folder=tmp_path / "broker") as broker:
        settings = [("mqtt://127.0.0.1:1883", broker.url), ('"off"', f'"{page}"')]
        folder = workplace(replacing=settings).parent
        call(folder, "init")
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "aggregator", "run"]
        order = ExitStack()  # a command that has the database open while the daemon starts
        order.enter_context(alone(AggregatorConfig.load(folder / "aggregator.toml").database))
        with subprocess.Popen(
            command, cwd=folder, env=environ, stderr=subprocess.PIPE, text=True
        ) as daemon:
            try:
                time.sleep(2.0)
                order.close()
                wait_for(f"http://{page}/readyz")
                status = json.loads(call(folder, "status", "--json"))
                assert (status["running"], status["ready"]) == (True, True)
                assert call(folder, "health") == "ready\n"
                told = call(folder, "enrol", "meter-1", "--public", KEY.public.hex())
                assert "queued for the running daemon" in told
                busy = call(folder, "run", code=75)
                assert "another process holds this database" in busy
            finally:
                daemon.send_signal(signal.SIGTERM)
            _, errors = daemon.communicate(timeout=300)
        assert daemon.returncode == 0, errors
        assert "stopped run=1 round=1 version=0" in errors
        call(folder, "list")


def test_a_port_in_use_is_one_sentence(workplace):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        page = f"127.0.0.1:{taken.getsockname()[1]}"
        folder = workplace(replacing=[('"off"', f'"{page}"')]).parent
        call(folder, "init")
        said = call(folder, "run", code=75)
    assert f"cannot serve the page on {page}: Address already in use" in said


def wait_for(url, patience=300):
    until = time.monotonic() + patience
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(url)


def test_broker_configuration_names_the_fleet(tmp_path):
    assert find_spec("aggregator.extensions.authority.access.command")
    said = call(tmp_path, "broker", "config", "--fleet", "north", "--folder", "b")
    assert "acl_file" in said
    assert "pattern write gf/1/north/%u/up/hello" in (tmp_path / "b" / "access.acl").read_text()


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("--fleet", "north\npattern readwrite #"), "fleet"),
        (("--fleet", "a/b"), "fleet"),
        (("--fleet", "n+"), "fleet"),
        (("--ca", "a\nallow_anonymous true", "--cert", "b", "--key", "c"), "ca"),
        (("--ca", "a", "--cert", "b\rx", "--key", "c"), "cert"),
        (("--ca", "a", "--cert", "b", "--key", "c\x1b"), "key"),
        (("--folder", "b\nacl_file /dev/null"), "folder"),
        (("--fleet", "north", "--pairs", "pairs.csv"), "pairs"),
    ],
)
def test_nothing_that_is_more_than_a_line_gets_into_a_brokers_files(
    tmp_path, monkeypatch, capsys, words, names
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.csv").write_text("client,neighbour\nm1,m2 #\n")
    folder = () if "--folder" in words else ("--folder", "b")
    assert cli.main(["broker", "config", *folder, *words]) == 2
    assert f"broker config: {names}" in capsys.readouterr().err.replace("--", "")
    assert not (tmp_path / "b" / "access.acl").exists()


@pytest.mark.slow
def test_access_rules_name_the_enrolled_devices_and_nobody_else(workplace):
    folder = workplace().parent
    call(folder, "init")
    for name in ("meter-1", "meter-2", "meter-3"):
        key = keys.from_seed(name.encode().ljust(32))
        call(folder, "enrol", name, "--public", key.public.hex())
    call(folder, "revoke", "meter-2")
    rules = json.loads(call(folder, "broker", "access", "--json"))["access"]
    users = [line for line in rules.splitlines() if line.startswith("user ")]
    assert users == ["user meter-1", "user meter-3", "user _agg"]
    assert "pattern" not in rules
    assert "peer" not in rules  # this run's method has no neighbours


@pytest.mark.slow
def test_orders_about_unknown_devices_fail_also_beside_a_running_daemon(workplace):
    folder = workplace().parent
    call(folder, "init")
    call(folder, "enrol", "meter-1", "--public", KEY.public.hex())
    with open_store(folder / "state" / "aggregator.db"):  # as the daemon holds it
        for words in (("command", "meter-9", "report"), ("revoke", "meter-9")):
            assert "'meter-9' is not enrolled" in call(folder, *words, code=1)
        assert "already enrolled as 'meter-1'" in call(
            folder, "enrol", "meter-2", "--public", KEY.public.hex(), code=1
        )
        assert "queued for the running daemon" in call(folder, "command", "meter-1", "report")


@pytest.mark.slow
def test_audit_names_the_runs_and_recomputes_the_chosen_one(workplace):
    folder = workplace().parent
    call(folder, "init")
    call(folder, "announce", "--fresh")
    assert "not recomputed: runs 1 (--run N)" in call(folder, "audit")
    told = json.loads(call(folder, "audit", "--run", "1", "--json"))
    assert (told["run"], told["runs"], told["sound"]) == (1, [1, 2], True)
    assert "no run 9; the database has: 1, 2" in call(folder, "audit", "--run", "9", code=2)
