"""A configuration read again while rounds go on: all of it in force, or nothing and a reason."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import termios
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from aggregator.commands import main as cli
from aggregator.config import AggregatorConfig
from aggregator.daemon import Daemon
from aggregator.extensions.authority.access.broker_process import mosquitto_program, start
from aggregator.operations import config_reload
from aggregator.operations.config_reload import LIVE, RESTART, HangUps, changed, hang_ups, why_not
from edge_sdk.app.cli import StopSignal
from edge_sdk.errors import Reason
from edge_sdk.protocol.messages import ModelMessage, ReceiptMessage, RefusalMessage
from firmware_sim.testing.loopback import LoopbackBroker
from tests.broker.authority import Authority
from tools import docs

ROOT = Path(__file__).resolve().parents[3]


# --- which keys -----------------------------------------------------------------------------------


def test_every_key_that_is_named_exists_and_none_is_in_both_tables():
    known = set(docs.keys(AggregatorConfig))
    sections = {field.name for field in fields(AggregatorConfig)} | set(
        AggregatorConfig.index.sections()
    )
    assert set(LIVE) <= known | sections
    assert set(RESTART) <= known | sections
    assert not set(LIVE) & set(RESTART)


def test_what_defines_the_run_is_what_founding_compares():
    """Every other key is in one of the two tables, by itself or by its section."""
    rest = {key for key in docs.keys(AggregatorConfig) if "begin another run" in why_not(key)}
    assert {key for key in rest if not key.startswith("run.")} == {
        "admission.max_norm", "admission.max_samples", "encryption.kinds",
    }  # fmt: skip
    assert {"run.deadline", "run.client_fraction", "run.seed"}.isdisjoint(rest)
    assert {"run.quorum", "run.method", "run.settings", "run.rule", "run.min_updates"} <= rest


def test_the_page_lists_what_may_change():
    text = (ROOT / "docs" / "operating.md").read_text("utf-8")
    table = text.partition("| key | takes effect |")[2].partition("\n\n")[0]
    listed = re.findall(
        r"`([a-z_.]+)`", "".join(re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE))
    )
    assert set(listed) == set(LIVE)


def test_a_key_that_is_added_to_the_consoles_section_needs_no_new_run(founded):
    config = founded()
    table = 'console = { hosts = ["console.example"] }'
    write(config.file, ('fleet = "north"', f'fleet = "north"\n{table}'))
    found = changed(config, AggregatorConfig.load(config.file, {}))
    assert found == ["console.hosts"]
    assert [why_not(key) for key in found] == [""]


def test_differences_are_found_in_every_section(founded):
    config = founded()
    write(
        config.file, ('"60s"', '"2s"'), ('"0s"', '"1s"'), ("quorum = 2", "quorum = 2\nrounds = 3")
    )
    assert changed(config, config) == []
    found = changed(config, AggregatorConfig.load(config.file, {}))
    assert found == ["run.deadline", "run.rounds", "pacing.jitter"]


# --- in one process -------------------------------------------------------------------------------


@pytest.fixture
def fleet(founded, still_clock, puppets):
    """A daemon, its file, and two devices that have said hello."""
    config, broker = founded(), LoopbackBroker()
    with Daemon(config, transport=broker.link("_agg"), clock=still_clock) as daemon:
        daemon.turn()
        devices = puppets(broker)
        for device in devices:
            device.hello(1)
        turns(daemon, *devices)
        yield daemon, config.file, devices


def turns(daemon, *devices, count=6):
    for _ in range(count):
        daemon.turn()
        for device in devices:
            device.poll()


def write(path, *changes, more=""):
    text = path.read_text("utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(more + text, "utf-8")


def round_of(daemon, devices):
    """Play a round; return the version it came to."""
    for device in devices:
        device.answer([0.5, 0.0])
    turns(daemon, *devices)
    assert {device.last(ReceiptMessage).code for device in devices} == {0}
    return devices[0].last(ModelMessage).version


def gauge(daemon, name):
    return daemon.metrics.registry.get_sample_value(f"gridfed_config_last_reload_{name}")


FORBIDDEN = [
    ('fleet = "north"', 'fleet = "south"', "fleet: every topic"),
    ('state = "state"', 'state = "other"', "state: the database"),
    ('127.0.0.1:1883"', '127.0.0.1:1884"', "broker.url: the connection"),
    ('listen = "off"', 'listen = "127.0.0.1:0"', "http.listen: the HTTP server"),
    ("quorum = 2", "quorum = 1", "run.quorum: it defines the run"),
    ('method = "fedavg"', 'method = "fedsgd"', "run.method: it defines the run"),
    ('bundle = "toy"', 'bundle = "load-lstm"', "run.bundle: it defines the run"),
    ("quorum = 2", "quorum = 2\nclient_fraction = 0.5", "run.client_fraction: the cohort"),
    (
        "[run]",
        "[admission]\nmax_inline_bytes = 0\n[run]",
        "admission.max_inline_bytes: connected devices",
    ),
    ("[run]", "[admission]\nmax_norm = 1.0\n[run]", "admission.max_norm: it defines the run"),
    ("[run]", '[keys]\nsigning = "other.key"\n[run]', "keys.signing: the announcements"),
]
BAD = [
    ("fleet =", "fleet", "not valid TOML"),
    ("quorum = 2", "quorom = 2", "run.quorom: unknown key"),
    ('"60s"', '"soon"', "run.deadline"),
    ('method = "fedavg"', 'method = "fedup"', "run.method"),
]


@pytest.mark.parametrize(("old", "new", "why"), FORBIDDEN + BAD)
def test_what_cannot_be_in_force_changes_nothing_and_says_why(fleet, caplog, old, new, why):
    daemon, path, devices = fleet
    before, run, text = daemon.config, daemon._engine.run, path.read_text("utf-8")
    write(path, (old, new), ('jitter = "0s"', 'jitter = "5s"'))  # a good change beside the bad one
    with caplog.at_level(logging.WARNING, "aggregator.daemon"):
        assert not daemon.reload({})
    (said,) = [
        r.getMessage() for r in caplog.records if r.getMessage().startswith("configuration refused")
    ]
    assert why in said
    assert (daemon.config, daemon._engine.run) == (before, run)
    assert gauge(daemon, "successful") == 0
    assert why in daemon.snapshot.document()["configuration"]
    assert round_of(daemon, devices) == 1
    path.write_text(text)
    assert daemon.reload({})
    assert gauge(daemon, "successful") == 1
    assert "configuration" not in daemon.snapshot.document()
    assert round_of(daemon, devices) == 2


def test_a_file_that_is_gone_or_odd_ends_nothing(fleet, monkeypatch, caplog):
    daemon, path, devices = fleet
    defects = daemon.metrics.errors.labels("reload")._value.get
    path.unlink()
    assert not daemon.reload({})
    assert "No such file" in daemon.snapshot.document()["configuration"]
    assert defects() == 0
    assert "Traceback" not in caplog.text
    monkeypatch.setattr(config_reload, "bind", lambda _: 1 / 0)
    monkeypatch.setattr(config_reload.AggregatorConfig, "load", lambda *_: daemon.config)
    assert not daemon.reload({})
    assert "unexpected ZeroDivisionError" in daemon.snapshot.document()["configuration"]
    assert defects() == 1
    assert "Traceback" in caplog.text
    assert round_of(daemon, devices) == 1


def test_a_bundle_that_changed_under_its_name_is_found(fleet):
    daemon, path, devices = fleet
    (path.parent / "toy" / "initial.f32").write_bytes(bytes(12))
    assert not daemon.reload({})
    assert "run.bundle" in daemon.snapshot.document()["configuration"]
    assert round_of(daemon, devices) == 1


def test_the_deadline_counts_from_the_next_round_on(fleet, still_clock):
    daemon, path, devices = fleet
    write(path, ('"60s"', '"10s"'))
    assert daemon.reload({})
    still_clock.now += 15
    turns(daemon, *devices)
    assert devices[0].last(ModelMessage).round == 1
    assert round_of(daemon, devices) == 1
    still_clock.now += 15
    turns(daemon, *devices)
    assert devices[0].last(ModelMessage).round == 3  # the second was abandoned after ten seconds


def test_what_a_device_may_do_changes_at_once(fleet):
    daemon, path, devices = fleet
    assert round_of(daemon, devices) == 1
    write(path, more="admission = { max_updates = 1, messages_per_minute = 2 }\n")
    assert daemon.reload({})
    devices[0].answer([0.5, 0.0])
    turns(daemon, *devices)
    assert devices[0].last(ReceiptMessage).code == Reason.BUDGET_SPENT
    for _ in range(4):
        devices[1].hello(1)
    turns(daemon, *devices)
    assert devices[1].last(RefusalMessage).code == Reason.QUOTA


def test_the_spread_is_told_with_the_next_manifest(fleet):
    daemon, path, devices = fleet
    write(path, ('"0s"', '"7s"'))
    assert daemon.reload({})
    assert round_of(daemon, devices) == 1
    assert devices[0].last(ModelMessage).spread == 7000


def test_nothing_changed_is_a_reload_too(fleet, still_clock):
    daemon, _, devices = fleet
    still_clock.now += 5
    assert daemon.reload({})
    assert gauge(daemon, "success_timestamp_seconds") == still_clock.wall() / 1000
    assert round_of(daemon, devices) == 1


def test_the_journal_of_a_run_that_was_reloaded_folds_to_the_same_bits(fleet, capsys):
    daemon, path, devices = fleet
    round_of(daemon, devices)
    write(path, ('"60s"', '"30s"'), ('"0s"', '"1s"'))
    assert daemon.reload({})
    round_of(daemon, devices)
    daemon.close()
    assert cli.main(["audit", str(path)]) == 0
    assert "every round was recomputed to the same bits" in capsys.readouterr().out


def test_variables_of_the_start_still_win(fleet):
    daemon, path, _ = fleet
    write(path, ('"0s"', '"7s"'))
    assert daemon.reload({"GRIDFED_AGGREGATOR_PACING__JITTER": "0s"})
    assert daemon.config.pacing.jitter == "0s"


def test_split_learning_keeps_its_deadline(fleet):
    daemon, path, _ = fleet
    run = daemon._engine.run
    write(path, ('"60s"', '"10s"'))
    turned = replace(run, half=SimpleNamespace(play=object()))
    with pytest.raises(
        config_reload.ReloadError, match=r"run\.deadline: the deadlines of the open round"
    ):
        config_reload.again(turned.config, (turned,), daemon._store, {})


# --- signals --------------------------------------------------------------------------------------


def test_several_signals_are_one_wish():
    before = signal.getsignal(signal.SIGHUP)
    with hang_ups(StopSignal()) as heard:
        assert not heard.consume()
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
        assert heard.consume()
        assert not heard.consume()
    assert signal.getsignal(signal.SIGHUP) == before
    assert isinstance(heard, HangUps)


# --- a real process -------------------------------------------------------------------------------


class Process:
    """``gridfed-aggregator run``, without a broker: its rounds are given up one after the other."""

    def __init__(self, config, log, address, **settings):
        self.page = f"http://127.0.0.1:{address}"
        self.path, self._log = config.file, log
        words = [sys.executable, "-m", "aggregator", "run", str(config.file)]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
        with log.open("w") as out:
            self.running = subprocess.Popen(words, stderr=out, env=environ, **settings)

    @property
    def log(self):
        return self._log.read_text("utf-8")

    def metrics(self):
        with urllib.request.urlopen(f"{self.page}/metrics", timeout=60) as page:
            rows = [line.rpartition(" ") for line in page.read().decode().splitlines()]
        return {name: float(value) for name, _, value in rows if not name.startswith("#")}

    def abandoned(self):
        return self.metrics()['gridfed_rounds_total{how="abandoned"}']

    def hang_up(self):
        self.running.send_signal(signal.SIGHUP)

    def until(self, holds, patience=300.0):
        end = time.monotonic() + patience
        while time.monotonic() < end:
            assert self.running.poll() is None, self.log
            try:
                if holds():
                    return
            except OSError:
                pass  # the page is not there yet
            time.sleep(0.05)
        pytest.fail(f"nothing happened for {patience} s\n{self.log}")

    def goes_on(self):
        count = self.abandoned()
        self.until(lambda: self.abandoned() >= count + 2)

    def end(self):
        self.running.terminate()
        return self.running.wait(300)


@pytest.fixture
def started(founded, tmp_path):
    """Starts a daemon whose rounds last 200 ms."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    quick = [('"60s"', '"200ms"'), ("127.0.0.1:1883", "127.0.0.1:1")]
    config = founded(replacing=[*quick, ('"off"', f'"127.0.0.1:{port}"')])
    processes = []

    @contextmanager
    def go(**settings):
        processes.append(Process(config, tmp_path / "log", port, **settings))
        processes[-1].until(lambda: processes[-1].abandoned() >= 1)
        yield processes[-1]

    yield go
    for process in processes:
        if process.running.poll() is None:
            process.running.kill()
            process.running.wait()


OK = "gridfed_config_last_reload_successful"


def test_a_process_lives_through_bad_good_and_forbidden_files(started, tmp_path):
    with started() as process:
        path, text = process.path, process.path.read_text("utf-8")
        path.write_text(text + "[[[")
        process.hang_up()
        process.until(lambda: process.metrics()[OK] == 0)
        assert "configuration refused" in process.log
        assert "not valid TOML" in process.log
        process.goes_on()

        path.write_text(text.replace("quorum = 2", "quorum = 1"))
        process.hang_up()
        process.until(lambda: "run.quorum: it defines the run" in process.log)
        process.goes_on()

        Authority(tmp_path, "ca").revoked(days=(-1.0, 2.5))
        with_crl = text.replace('127.0.0.1:1"', '127.0.0.1:1", crl_file = "revoked.pem"')
        path.write_text(f'log.level = "warning"\n{with_crl}')
        process.hang_up()
        process.until(lambda: process.metrics()[OK] == 1)
        process.until(lambda: any('kind="crl"' in name for name in process.metrics()))
        process.goes_on()
        assert (
            "INFO aggregator.daemon: configuration reloaded" not in process.log
        )  # the level came first

        path.write_text(text.replace('"200ms"', '"1h"'))
        process.hang_up()
        process.until(
            lambda: (
                "configuration reloaded changed=run.deadline,broker.crl_file,log.level"
                in process.log
            )
        )
        count = process.abandoned()  # the round that was open keeps its 200 ms; the next lasts
        time.sleep(2.0)
        assert process.abandoned() <= count + 1
        assert process.end() == 0
        assert "Traceback" not in process.log


@pytest.mark.broker
def test_the_service_manager_hears_of_it(founded, tmp_path):
    """READY is said by a daemon that is linked, so this one has a broker."""
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")
    served = start("mosquitto", folder=tmp_path / "broker")
    port = served.url.rpartition(":")[2]
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(300)
        config = founded(replacing=[("127.0.0.1:1883", f"127.0.0.1:{port}")])
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "NOTIFY_SOCKET": str(address)}
        words = [sys.executable, "-m", "aggregator", "run", str(config.file)]
        running = subprocess.Popen(words, env=environ, stderr=subprocess.DEVNULL)
        try:
            said = heard(manager, "READY=1")
            assert not any(line.startswith("RELOADING") for line in said)
            running.send_signal(signal.SIGHUP)
            assert heard(manager, "RELOADING=1")[-1].startswith("RELOADING=1\nMONOTONIC_USEC=")
            heard(manager, "READY=1")
            running.terminate()
            heard(manager, "STOPPING=1")
            assert running.wait(300) == 0
        finally:
            running.kill()
            running.wait()
            served.stop()


def heard(manager, wanted):
    said = []
    while not said or not said[-1].startswith(wanted):
        said.append(manager.recv(4096).decode())
    return said


@pytest.fixture
def terminal():
    """A terminal's two ends, and what makes a process that was just forked sit at it."""
    ours, theirs = os.openpty()

    def sit(handler=signal.SIG_DFL):
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, handler)

    return ours, theirs, sit


def test_a_closed_terminal_ends_the_daemon(started, terminal):
    ours, theirs, sit = terminal
    with started(preexec_fn=sit, stdout=subprocess.DEVNULL) as process:
        os.close(theirs)
        process.hang_up()  # by hand, and the terminal is there: a wish to reload
        process.until(lambda: "configuration reloaded changed=nothing" in process.log)
        process.goes_on()
        os.close(ours)
        assert process.running.wait(300) == 0
        assert "stopped run=" in process.log


def test_a_terminal_that_nohup_left_behind_ends_nothing(started, terminal):
    ours, theirs, sit = terminal
    quiet = {"preexec_fn": lambda: sit(signal.SIG_IGN), "stdout": subprocess.DEVNULL}
    with started(**quiet) as process:
        os.close(theirs)
        os.close(ours)
        process.goes_on()
        assert process.end() == 0
