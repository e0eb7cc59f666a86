"""A device's certificate and authority: told by ``check`` and ``status``, warned of in time."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edge_sdk.commands.main import main
from edge_sdk.config import Config
from edge_sdk.extensions.expiry.certificate_monitor import ExpiryReminder, days_left
from edge_sdk.protocol import keys
from edge_sdk.store.store import DeviceStore
from tests.broker.authority import Authority

TOML = """
id = "meter-1"
fleet = "north"
state = "state"
bundle = "load-mlp"
keys = { device = "meter.key", root = "root.pub" }
privacy = { mechanism = { name = "none" } }
[broker]
url = "mqtts://127.0.0.1:1"
ca_file = "ca.pem"
cert_file = "meter-1.crt"
key_file = "meter-1.key"
"""
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def authority(tmp_path):
    one = Authority(tmp_path, "ca", days=(-400.0, 400.5))
    one.issue("meter-1", days=(-400.0, 90.5))
    return one


@pytest.fixture
def config(authority):
    path = authority.folder / "meter.toml"
    path.write_text(TOML)
    keys.save_public(path.parent / "root.pub", keys.from_seed(b"r" * 32).public)
    keys.save_signing_key(path.parent / "meter.key", keys.from_seed(b"d" * 32))
    return path


def test_check_prints_the_days_until_expiry(authority, config, capsys):
    assert main(["check", str(config), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["found"]
    assert (found["ca"], found["certificate"]) == ("400 days left", "90 days left")
    authority.issue("meter-1", days=(-400.0, 20.5))
    assert main(["check", str(config)]) == 0
    assert "certificate: 20 days left; renew it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda a: a.issue("meter-1", days=(-9.0, -2.5)), "cert_file: {}/meter-1.crt: expired 2"),
        (lambda a: Authority(a.folder, "ca", days=(-9.0, -1.5)), "ca_file: {}/ca.pem: expired 1"),
        (lambda a: a.file.write_text("x"), "broker.ca_file: {}/ca.pem: no certificate in it"),
        (lambda a: (a.folder / "meter-1.crt").unlink(), "cert_file: {}/meter-1.crt: No such"),
    ],
)  # fmt: skip
def test_check_refuses_certificates_that_no_broker_accepts(authority, config, capsys, spoil, why):
    spoil(authority)
    assert main(["check", str(config)]) == 2
    said = capsys.readouterr().err
    assert why.format(authority.folder) in said
    assert "Traceback" not in said


def test_an_expired_certificate_that_the_device_renews_is_no_reason_to_refuse(
    authority, config, capsys
):
    certificate, key = authority.issue("meter-1", days=(-40.0, -9.5))
    pem = config.parent / "tls.pem"
    pem.write_bytes(key.read_bytes() + certificate.read_bytes())
    text = TOML.replace("meter-1.crt", "tls.pem").replace("meter-1.key", "tls.pem")
    config.write_text(text)
    assert main(["check", str(config)]) == 2
    assert "expired 9 days ago" in capsys.readouterr().err
    config.write_text(text + '[ca]\nurl = "https://ca.example"\n')
    assert main(["check", str(config)]) == 0
    assert "certificate: expired 9 days ago; the device renews it" in capsys.readouterr().out
    DeviceStore.open(config.parent / "state").close()
    assert main(["status", str(config), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["certificate renewal"]
    assert found["state"] == "expired; it is renewed with the identity key"
    assert set(found) == {"valid until", "renews from", "state"}
    Authority(authority.folder, "ca", days=(-9.0, -1.5))
    assert main(["check", str(config)]) == 2
    assert "ca_file" in capsys.readouterr().err


def test_a_clock_at_1970_is_reported_instead_of_the_certificate(config, capsys, monkeypatch):
    monkeypatch.setattr("edge_sdk.extensions.setup.check.time.time", lambda: 3600.0)
    assert main(["check", str(config)]) == 0
    assert "is this machine's clock right?" in capsys.readouterr().out


def test_status_prints_the_days_until_expiry_beside_a_running_agent(authority, config, capsys):
    DeviceStore.open(config.parent / "state").close()
    assert main(["status", str(config)]) == 0
    assert "certificate days left: ca 400, certificate 90" in capsys.readouterr().out
    authority.file.unlink()
    assert days_left(Config.load(config, {}))["ca"] == "No such file or directory"


def test_without_tls_no_expiry_is_printed(config, capsys):
    config.write_text(TOML.partition("url =")[0] + 'url = "mqtt://127.0.0.1:1"\n')
    DeviceStore.open(config.parent / "state").close()
    assert main(["status", str(config)]) == 0
    assert main(["check", str(config)]) == 0
    assert "certificate" not in capsys.readouterr().out.replace("cert_file", "")
    assert ExpiryReminder(Config.load(config, {})).status() == {}


def test_the_monitor_checks_once_a_minute_and_warns_once_a_day(
    authority, config, caplog, monkeypatch
):
    authority.issue("meter-1", days=(-400.0, 20.5))
    reminder, start = ExpiryReminder(Config.load(config, {})), time.time()
    looks = []
    real = reminder._watch.__class__.warnings
    monkeypatch.setattr(
        reminder._watch.__class__,
        "warnings",
        lambda self, now: looks.append(now) or real(self, now),
    )
    with caplog.at_level(logging.WARNING, "edge_sdk.extensions.expiry.certificate_monitor"):
        for second in range(0, 2 * 86_400 + 60, 30):
            monkeypatch.setattr(
                "edge_sdk.extensions.expiry.certificate_monitor.time.time",
                lambda s=second: start + s,
            )
            reminder.turn(1000.0 + second)
    assert len(looks) == 2 * 24 * 60 + 1
    said = [record.getMessage() for record in caplog.records]
    assert [line.rpartition("is=")[2] for line in said] == [
        f'"{d} days left"' for d in (20, 19, 18)
    ]
    assert reminder.warnings == 3
    assert reminder.status()["certificates"]["days left"] == {"ca": 398, "certificate": 18}


def test_the_agent_warns_and_counts(authority, config):
    authority.issue("meter-1", days=(-400.0, 20.5))
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    agent = subprocess.Popen(
        [sys.executable, "-m", "edge_sdk", "run", str(config), "--json"],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said = []
        for line in agent.stderr:
            said.append(line)
            if "certificate expiring" in line:
                break
        assert 'is="20 days left"' in said[-1], "".join(said)
        agent.send_signal(signal.SIGTERM)
        out, _ = agent.communicate(timeout=300)
        assert agent.returncode == 0
    finally:
        agent.kill()
        agent.communicate()
    told = json.loads(out)["certificates"]
    assert told == {"days left": {"ca": 400, "certificate": 20}, "warnings": 1}
