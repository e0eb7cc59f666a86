"""The command line as a person meets it: first start, wrong files, no state, a forecast."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.client import Client
from edge_sdk.commands.main import main
from edge_sdk.config import Config
from edge_sdk.errors import RUNTIME, Reason
from edge_sdk.extensions.inspection.status import plain
from edge_sdk.extensions.setup.agent_log import ChannelReminder
from edge_sdk.protocol import keys
from edge_sdk.store.store import DeviceStore

TOML = """
id = "meter-1"
fleet = "north"
state = "state"
bundle = "load-lstm"
site = { floor-area = 100.0, wall-area = 80.0, window-area = 10.0 }
broker = { url = "mqtt://127.0.0.1:1" }
keys = { device = "meter.key", root = "root.pub" }
privacy = { mechanism = { name = "none" } }
[[source]]
type = "csv"
path = "load.csv"
time_format = "epoch"
columns = { kwh = "elec.import.energy", t = "weather.temperature", w = "weather.wind_speed" }
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "meter.toml"
    path.write_text(TOML)
    keys.save_public(tmp_path / "root.pub", keys.from_seed(b"r" * 32).public)
    start = 1_700_000_000 // 900 * 900
    rows = [
        f"{start + 900 * i},{1 + math.sin(i / 96 * 6.28) / 2:.3f},10,3\n" for i in range(96 * 5)
    ]
    (tmp_path / "load.csv").write_text("time,kwh,t,w\n" + "".join(rows))
    return path


def said(capsys):
    return capsys.readouterr()


def test_a_device_is_enrolled_checked_and_shows_its_status(config, capsys):
    assert main(["check", str(config)]) == 2
    assert "gridfed-edge enrol" in said(capsys).err
    assert main(["enrol", str(config), "--json"]) == 0
    first = json.loads(said(capsys).out)
    assert first["is_new"]
    assert (config.parent / "meter.key").stat().st_mode & 0o777 == 0o600
    assert main(["enrol", str(config), "--json"]) == 0
    again = json.loads(said(capsys).out)
    assert (again["public"], again["is_new"]) == (first["public"], False)
    assert main(["check", str(config)]) == 0
    out = said(capsys).out
    assert "fleet = north    (meter.toml)" in out
    assert "no privacy mechanism is active" in out


def test_check_names_the_source_of_every_channel(config, capsys):
    enrolled(config)
    assert main(["check", str(config)]) == 0
    table = said(capsys).out.split("channel ", 1)[1].splitlines()
    rows = {line.split()[0]: line for line in table[1:] if line}
    assert rows["temperature"].split(None, 2)[1:] == ["weather.temperature", "source[0], csv"]
    assert rows["slot-of-day"].endswith("the clock")
    assert rows["floor-area"].endswith("[site] floor-area = 100")
    assert main(["check", str(config), "--json"]) == 0
    channels = json.loads(said(capsys).out)["channels"]
    assert channels["load"] == {"reads": "elec.import.energy", "source": "source[0], csv"}
    assert len(channels) == 8


def test_check_refuses_a_file_without_the_configured_column_and_names_those_it_has(config, capsys):
    enrolled(config)
    config.write_text(TOML.replace("load-lstm", "load-week-1").replace("kwh =", "value ="))
    path = config.parent / "load.csv"
    text = path.read_text()
    assert main(["check", str(config)]) != 0
    said_ = said(capsys).err
    assert "no column value; its first line has" in said_
    assert text.splitlines()[0].replace(",", ", ") in said_
    path.write_text("")  # not written yet
    assert main(["check", str(config)]) == 0


ENERGY = TOML.replace("load-lstm", "load-week-weather-1").replace(
    ', t = "weather.temperature", w = "weather.wind_speed"', ""
)


def test_check_projects_the_bytes_of_a_round_and_the_rounds_that_the_limit_allows(config, capsys):
    enrolled(config)
    assert main(["check", str(config)]) == 0
    out = said(capsys).out
    assert re.search(
        r"link: a round is \d+ bytes up and about \d+ down; a day without one is 30000", out
    )
    config.write_text(config.read_text() + "\n[limits]\ndaily_link_bytes = 1000000\n")
    assert main(["check", str(config), "--json"]) == 0
    line = json.loads(said(capsys).out)["found"]["link"]
    up, down, limit, rounds = (int(x) for x in re.findall(r"\d+", line) if x != "30000")
    assert (limit, rounds) == (1_000_000, 970_000 // (up + down))


def test_check_and_run_name_an_optional_channel_without_source(config, capsys, caplog):
    enrolled(config)
    config.write_text(ENERGY)
    assert main(["check", str(config)]) == 0
    out = said(capsys).out
    assert re.search(
        r"^temperature +weather.temperature +no source: optional: the model", out, re.MULTILINE
    )
    assert out.endswith("warning: no source for temperature\n")
    reminder = ChannelReminder(Config.load(config))
    manifest = Bundle.open("load-week-weather-1", trust=TrustedKeys()).manifest
    for _ in range(3):
        reminder.turn(manifest)
    (logged,) = (x.getMessage() for x in caplog.records if "channel without source" in x.message)
    assert "channel=temperature reads=weather.temperature" in logged
    reminder.turn(Bundle.open("load-lstm", trust=TrustedKeys()).manifest)  # the run has another
    lost = [x.getMessage() for x in caplog.records if "bundle=load-lstm " in x.message]
    assert len(lost) == 2
    assert all("no model forecast and no training" in line for line in lost)


def test_a_forecast_before_any_reading_says_what_is_missing_and_no_date(config, capsys):
    enrolled(config)
    with Client(Config.load(config)) as client:
        client.tick()
    assert main(["forecast", str(config)]) == 0
    out = said(capsys).out
    assert out.startswith("no forecast yet: no reading of elec.import.energy, ")
    assert "then 12 readings without a gap (3 hours)" in out
    assert "1970" not in out


def test_the_enrolment_proof_covers_fleet_id_and_key(config, capsys):
    assert main(["enrol", str(config), "--json"]) == 0
    told = json.loads(said(capsys).out)
    public = bytes.fromhex(told["public"])
    statement = (
        b"gridfed/1/enrol\0\x05north\x07meter-1"
        + public
        + bytes(32)
        + bytes.fromhex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
    )
    assert keys.verify(public, bytes.fromhex(told["proof"]), statement)


def enrolled(config):
    keys.save_signing_key(config.parent / "meter.key", keys.from_seed(b"d" * 32))


@pytest.mark.parametrize(
    ("change", "blame"),
    [
        (("load-lstm", "load-lsdm"), "neither shipped nor a folder"),
        (('name = "none"', 'name = "gauss"'), "privacy.mechanism.name"),
        (("privacy =", "accept = { methods = [] }\nprivacy ="), "accept.methods: expected"),
        (('privacy = { mechanism = { name = "none" } }\n', ""), "privacy: missing"),
        (('mechanism = { name = "none" }', ""), "for updates without noise"),
        (
            ('{ name = "none" } }', '{ name = "gaussian", point = "update" }, mode = "honest" }'),
            "privacy.budget.epsilon: missing",
        ),
        (("floor-area = 100.0, ", ""), "[site] lacks"),
        (("load.csv", "lood.csv"), "no such file"),
        ((', w = "weather.wind_speed"', ""), "none gives weather.wind_speed, which bundle"),
        (('type = "csv"', 'type = "cvs"'), "source[0].type: unknown 'cvs'"),
        (("mqtt://127.0.0.1:1", "mqtt://broker.example"), "unencrypted"),
        (("fleet =", "fleat ="), "fleat: unknown key; did you mean 'fleet'?"),
    ],
)
def test_an_error_is_printed_as_one_sentence(config, capsys, change, blame):
    enrolled(config)
    config.write_text(TOML.replace(*change))
    assert main(["check", str(config)]) in {1, 2}
    err = said(capsys).err
    assert blame in err
    assert "Traceback" not in err


PRIVACY = """
[privacy]
mode = "honest"
mechanism = { name = "gaussian", point = "update", clip_norm = 1.0 }
budget = { epsilon = 8.0, delta = 1e-5, max_releases = 50 }
"""


def test_the_budget_is_explained_and_printed_as_a_sheet(config, capsys):
    enrolled(config)
    plain = TOML.replace('privacy = { mechanism = { name = "none" } }\n', "")
    config.write_text(plain + PRIVACY)
    assert main(["budget", str(config)]) == 1
    assert "NO UPDATE LEAVES" in said(capsys).out  # a key from elsewhere, and no count beside it
    assert main(["check", str(config)]) == 0
    assert "releases: NO UPDATE LEAVES" in said(capsys).out
    assert main(["budget", str(config), "--accept-loss"]) == 0
    assert "begins at 0" in said(capsys).out
    assert main(["budget", str(config)]) == 0
    out = said(capsys).out
    assert "one device's whole contribution is (epsilon 8, delta 1e-05)-private" in out
    assert "updates left: 50" in out
    assert "not protected:" in out
    assert main(["budget", str(config), "--json"]) == 0
    told = json.loads(said(capsys).out)
    assert told["budget"]["left"] == 50
    assert "text" not in told
    assert main(["budget", str(config), "--datasheet"]) == 0
    sheet = said(capsys).out
    for word in ("unit of privacy", "neighbouring inputs: replace", "trust model", "composition"):
        assert word in sheet
    assert main(["budget", str(config), "--datasheet", "--json"]) == 0
    assert json.loads(said(capsys).out)["releases left"] == 50


def test_the_data_sheet_without_a_mechanism_claims_nothing(config, capsys):
    enrolled(config)
    assert main(["budget", str(config), "--datasheet", "--json"]) == 0
    sheet = json.loads(said(capsys).out)
    assert (sheet["formal claim"], sheet["mechanism"]) == (False, "none")
    assert sheet["noise over the bound"] is None


def test_a_key_that_others_can_read_is_refused(config, capsys):
    enrolled(config)
    (config.parent / "meter.key").chmod(0o644)
    assert main(["check", str(config)]) == 2
    assert "chmod 600" in said(capsys).err


def test_an_unreachable_broker_exits_with_the_temporary_code(config, capsys, monkeypatch):
    enrolled(config)
    monkeypatch.setattr("edge_sdk.extensions.setup.check._PATIENCE", 0.3)
    assert main(["check", str(config), "--broker"]) == 75
    assert "broker: not reached" in said(capsys).out


def test_status_before_the_first_start_is_refused(config, capsys):
    enrolled(config)
    assert main(["status", str(config)]) == 1
    assert "no state of a device yet" in said(capsys).err


def test_budget_works_before_the_first_release(config, capsys):
    enrolled(config)
    assert main(["budget", str(config), "--json"]) == 0
    told = json.loads(said(capsys).out)
    assert told["shared"] == 5760
    assert 4 * 5760 < told["bytes_up"] < 4 * 5760 * 1.02
    assert told["releases"] == 0


@pytest.mark.extension
def test_check_prints_the_last_holiday_and_refuses_what_is_no_date(config, capsys):
    enrolled(config)
    for listed, code in (('"2026-12-25", "2026-01-01"', 0), ('"Christmas"', 2)):
        config.write_text(f"forecast = {{ holidays = [{listed}] }}\n{TOML}")
        assert main(["check", str(config)]) == code
        told = said(capsys)
        assert ("2, the last 2026-12-25" in told.out) is not bool(code)
        assert ("forecast.holidays" in told.err) is bool(code)


@pytest.mark.extension
def test_a_round_of_profiles_is_a_statistic_before_a_run_is_announced(config, capsys):
    enrolled(config)
    config.write_text(TOML.replace("load-lstm", "load-day-1"))
    manifest = Bundle.open("load-day-1", trust=TrustedKeys()).manifest
    sent = 4 * manifest.analytic.statistic_size()
    assert main(["budget", str(config), "--json"]) == 0
    assert sent < json.loads(said(capsys).out)["bytes_up"] < 1.001 * sent
    assert main(["check", str(config)]) == 0
    (up,) = re.findall(r"a round is (\d+) bytes up", said(capsys).out)
    assert sent < int(up) < 1.001 * sent


def test_status_prints_readable_text():
    assert plain({"epsilon": 29.99999999998864, "left": None}) == "epsilon 30, left unlimited"
    assert plain([]) == "none"
    assert plain([{"round": 3, "attempts": 0}, {"round": 4, "attempts": 1}]) == (
        "round 3, attempts 0; round 4, attempts 1"
    )


def test_without_a_broker_the_agent_forecasts_and_exits_on_sigterm(config, capsys):
    enrolled(config)
    run = subprocess.Popen(
        [sys.executable, "-m", "edge_sdk", "run", str(config), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    end, found = time.monotonic() + 300, 0
    while found != 3 * 96 * 5:
        assert time.monotonic() < end, found
        assert run.poll() is None
        time.sleep(0.1)
        code = main(["status", str(config), "--json"])
        out = said(capsys).out
        found = json.loads(out)["readings"] if code == 0 else 0
    run.send_signal(signal.SIGTERM)
    out, err = run.communicate(timeout=300)
    assert run.returncode == 0, err
    told = json.loads(out)
    assert (told["linked"], told["can_forecast"]) == (False, True)
    assert main(["forecast", str(config), "--json"]) == 0
    forecast = json.loads(said(capsys).out)
    assert forecast["source"] == "model"
    assert len(forecast["values"]) == 1
    out_file = config.parent / "r.csv"
    span = ["1700100000", "1700110000"]
    assert main(["forecast", str(config), "--rolling", *span, "--out", str(out_file)]) == 0
    lines = out_file.read_text().splitlines()
    assert lines[0] == "origin,step,forecast,truth"
    assert len(lines) == 1 + 12  # both ends lie on the grid; the later one is not in


def test_status_and_budget_show_what_the_operator_decided(config, capsys):
    enrolled(config)
    with DeviceStore.open(config.parent / "state") as store:
        store.set_facts(**{"refused": Reason.REVOKED, "releases allowed": 0, "used": 9_000})
        store.set_facts(**{"quota announced": 64_000})
    assert main(["status", str(config)]) == 0
    assert "stopped: REVOKED: ask the operator; enrol this device again" in said(capsys).out
    assert main(["budget", str(config)]) == RUNTIME
    out = said(capsys).out
    assert "limit of the operator: 0 releases; 0 used" in out
    assert "link a day: at most 64000 bytes; 9000 bytes used so far" in out


def test_a_forecast_is_drawn_in_the_terminal(config, capsys, monkeypatch):
    """The agent records the file and stops; the command draws its readings and the forecast."""
    text = config.read_text().replace('"load-lstm"', '"load-quarter-hour-1"')
    config.write_text(text)
    enrolled(config)
    agent = subprocess.Popen([sys.executable, "-m", "edge_sdk", "run", str(config)])
    database = config.parent / "state" / "device.db"
    end = time.monotonic() + 120
    while not database.exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(120) == 0
    monkeypatch.setenv("COLUMNS", "70")
    assert main(["forecast", str(config), "--plot"]) == 0
    out = said(capsys).out
    plot = out.split("\n\n")[-1].splitlines()
    assert all(len(line) <= 70 for line in plot[:-2])
    assert "•" in out
    assert "│" in out
    assert "forecast from 2023-11-" in plot[-2]
    assert main(["forecast", str(config), "--json"]) == 0
    found = json.loads(said(capsys).out)
    assert found["model"]["bundle"] == "load-quarter-hour-1"
    assert set(found["quality"]) == {"candidate", "error", "fleet_error", "days"}
    assert len(found["values"]) == len(found["times"])
