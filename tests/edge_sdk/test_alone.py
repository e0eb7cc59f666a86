"""A device without a fleet: it learns and forecasts on its own, and joins a fleet with all that it has."""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from edge_sdk.app.settings import SettingsError
from edge_sdk.client import Client
from edge_sdk.commands.main import main
from edge_sdk.config import Config
from edge_sdk.errors import ConfigError
from edge_sdk.link.fleet_settings import BrokerSection
from edge_sdk.link.transport import NoLink, Transport
from edge_sdk.protocol import keys
from edge_sdk.store import fleet_of
from edge_sdk.store.store import DeviceStore
from tests.edge_sdk.conftest import device_config
from tests.edge_sdk.days import NEAR, live, load, observe

BROKER = '[broker]\nurl = "mqtt://127.0.0.1:1"\n'


def said(capsys, *words):
    """Return the exit code of a command, and what it prints as JSON, or its error."""
    code = main([*words, "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out.strip() else err


@pytest.fixture
def program():
    """Undo what a program sets for its process: the log, and the stack of threads."""
    root = logging.getLogger()
    level, handlers, stack = root.level, root.handlers[:], threading.stack_size()
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
    threading.stack_size(stack)


@pytest.fixture
def meter(tmp_path, capsys, monkeypatch, program):
    """A configuration that `init` wrote for a device alone, and thirty days of readings."""
    monkeypatch.setenv("GRIDFED_EDGE_FORECAST__TREES", "false")  # seconds of processor time
    path, start = tmp_path / "meter.toml", datetime(2026, 3, 1, tzinfo=UTC)
    rows = [f"{start + timedelta(hours=h):%Y-%m-%dT%H:%MZ},{load(h):.3f}" for h in range(30 * 24)]
    (tmp_path / "load.csv").write_text("\n".join(("time,value", *rows, "")))
    address = ["--source", "csv", "--address", "load.csv"]
    assert main(["init", str(path), "--broker", "none", *address, "--yes"]) == 0
    told = capsys.readouterr().out
    assert "enrol" not in told
    assert "root.pub" not in told
    text = path.read_text()  # without the HTTP output: its port may be in use
    path.write_text(
        text[: text.index("# Where forecasts go")] + text[text.index("# This section") :]
    )
    return path


@pytest.mark.extension
def test_from_a_file_to_a_forecast_and_into_a_fleet(meter, tmp_path, capsys):
    words = str(meter)
    meter.write_text(meter.read_text().replace("load-day-1", "load-week-1"))
    code, found = said(capsys, "check", words)
    assert code == 0
    assert "runs alone" in found["found"]["alone"]
    assert not (tmp_path / "state").exists()  # nothing is written
    code, ran = said(capsys, "run", words, "--until-done", "--log", "error")
    assert (code, ran["alone"], ran["linked"]) == (0, True, False)
    code, forecast = said(capsys, "forecast", words)
    assert code == 0
    assert forecast["values"][0] == pytest.approx(load(30 * 24), abs=0.3)
    assert forecast["candidates"][ran["forecast"]["served"]] < 0.2  # compared on day one
    code, before = said(capsys, "status", words)
    assert "runs alone" in before["alone"]
    assert (before["spent"], before["readings"]) == (0, 30 * 24)
    assert said(capsys, "backtest", words)[0] == 0
    assert said(capsys, "budget", words)[0] == 0
    key = (tmp_path / "meter-1.key").read_bytes()

    text = meter.read_text()
    meter.write_text(text.replace("# root =", "root =").replace("# [broker]", BROKER))
    code, refusal = said(capsys, "check", words)
    assert code == 2
    assert "root.pub" in refusal
    assert "run alone" in refusal
    keys.save_public(tmp_path / "root.pub", keys.from_seed(b"r" * 32).public)
    assert said(capsys, "enrol", words)[1]["is_new"] is False
    assert said(capsys, "check", words)[0] == 0
    code, again = said(capsys, "forecast", words)
    assert again["values"] == forecast["values"]
    assert again["candidates"] == forecast["candidates"]
    code, after = said(capsys, "status", words)
    assert "alone" not in after
    assert after["readings"] == before["readings"]
    assert (tmp_path / "meter-1.key").read_bytes() == key


@pytest.mark.slow
@pytest.mark.extension
def test_a_device_alone_needs_neither_fleet_nor_privacy(meter, tmp_path, capsys):
    text = meter.read_text().replace('fleet = "north"\n', "")
    text = text[: text.index("# This section")]
    meter.write_text(text)
    code, found = said(capsys, "check", str(meter))
    assert code == 0
    assert found["found"]["privacy"] == "nothing is sent"
    assert said(capsys, "run", str(meter), "--until-done", "--log", "error")[0] == 0
    code, tomorrow = said(capsys, "forecast", str(meter))
    assert (code, len(tomorrow["values"]), len(tomorrow["expected"])) == (0, 24, 24)
    assert said(capsys, "status", str(meter))[1]["fleet"] is None
    joined = text.replace("# root =", "root =").replace("# [broker]", BROKER)
    for line, missing in (("", "fleet"), ('fleet = "north"\n', "privacy")):
        meter.write_text(line + joined)
        code, refusal = said(capsys, "check", str(meter))
        assert code == 2
        assert f"{missing}: missing beside broker.url; remove [broker] to run alone" in refusal
    assert "for updates without noise" in refusal
    meter.write_text(f'fleet = "north"\n{joined}[privacy]\nmechanism = {{ name = "none" }}\n')
    keys.save_public(tmp_path / "root.pub", keys.from_seed(b"r" * 32).public)
    assert said(capsys, "check", str(meter))[0] == 0
    code, after = said(capsys, "status", str(meter))
    assert (after["fleet"], after["readings"]) == ("north", 30 * 24)


def alone(config):
    return replace(config, broker=BrokerSection(), keys=replace(config.keys, root=None))


@pytest.mark.extension
def test_what_was_learned_alone_goes_into_the_fleet(make):
    fleet = make(forecast={"trees": False})
    device = fleet.device
    with Client(alone(device.config), clock=fleet.clock) as client:
        observe(client, 30)
        for _ in range(4):
            client.tick()
        own, p = client.extension("choice").candidates.own, client.learner.vector(client.state)
        assert own is not None
        assert not np.array_equal(p, client.learner.bundle.initial)
        assert client.status()["forecast"]["served"] != "fleet"
        assert client.is_settled
    with Client(alone(device.config), clock=fleet.clock) as client:  # a restart
        assert np.array_equal(client.learner.vector(client.state), p)
    with DeviceStore.open(device.config.state, read_only=True) as store:
        assert fleet_of(store) == ""
        assert store.numbers().spent == 0
    client = device.start()
    assert np.array_equal(client.learner.vector(client.state), p)
    assert np.array_equal(client.extension("choice").candidates.own.coefficients, own.coefficients)
    live(fleet, 30, 2, w=NEAR)
    assert client.status()["round"] == 31
    assert len(fleet.server.updates) == 2
    assert fleet_of(client._store) == device.config.fleet
    client.close()
    with pytest.raises(ConfigError, match="belongs to fleet"):
        Client(replace(device.config, fleet="south"))
    with Client(alone(device.config), clock=fleet.clock) as client:  # it leaves the fleet again
        assert len(client.learner.series) == 32 * 24
        client.tick()


def test_the_link_of_a_device_alone_is_silent():
    link: Transport = NoLink()
    link.open()
    link.subscribe("a")
    link.unsubscribe("a")
    assert not link.publish("a", b"")
    assert (link.is_up, link.poll(0.0), link.room()) == (False, (), 0)
    link.close()


@pytest.mark.extension
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"keys": {"device": "a"}}, "keys.root: missing beside broker.url"),
        ({"broker": {}}, "broker.url: missing beside keys.root"),
        ({"broker": {"keepalive": 9}, "keys": {"device": "a"}}, r"missing beside \[broker\]"),
        ({"broker": {}, "keys": {"device": "a", "aggregator": "b"}}, "keys.aggregator"),
        (
            {"broker": {}, "keys": {"device": "a"}, "output": [{"type": "fleet"}]},
            "an output of type",
        ),
    ],
)
def test_half_a_fleet_is_refused(tmp_path, change, told):
    with pytest.raises(SettingsError, match=told) as raised:
        device_config(tmp_path, **change)
    assert "to run alone" in str(raised.value)


@pytest.mark.extension
def test_what_needs_a_fleet_says_so(meter, capsys):
    code, found = said(capsys, "check", str(meter), "--broker")
    assert code == 2
    assert "runs alone" in found
    code, found = said(capsys, "rotate", str(meter))
    assert code == 2
    assert "runs alone" in found
    assert Config.load(meter, {}).is_alone
