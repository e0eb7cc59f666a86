"""Every file in examples/ does what it is there for."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from aggregator.commands import main as aggregator_cli
from aggregator.commands.main import program as aggregator_program
from aggregator.config import AggregatorConfig, bind, settings_of
from aggregator.extensions.analytic.settings import Analytic
from aggregator.extensions.authority.access.mosquitto import check_mosquitto_config
from aggregator.extensions.papers.clustered.fesem import FeSEM
from aggregator.extensions.papers.peers.peer_topology import DflGt
from aggregator.extensions.papers.personalised.pfl import PFL
from aggregator.extensions.tree.parent_binding import ParentSection
from edge_sdk.app.settings import SettingsError
from edge_sdk.commands import main as cli
from edge_sdk.config import load_with_origins
from edge_sdk.errors import StoreNewer
from edge_sdk.protocol import keys
from edge_sdk.sources import open_source
from firmware_sim.devices.base_station import FileFaultRates, FileWriter
from firmware_sim.profiles.station import CellSite
from tests.broker.authority import Authority
from tests.container_recipes import faults
from tools import docs

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
DEFAULTS = {one.name: one.default for one in fields(ParentSection)}
ROOT = keys.from_seed(b"r" * 32)


def test_every_example_has_a_test():
    found = {path.name for path in EXAMPLES.iterdir() if path.is_file()}
    assert found == {
        "Containerfile",
        "Containerfile.aggregator",
        "sweep.ipynb",
        "alerts.yml",
        "gridfed-aggregator.service",
        "gridfed-aggregator-worker@.service",
        "gridfed-console.service",
        "gridfed-edge.service",
        "gridfed-edge@.service",
        "gridfed-tap@.service",
        "meter.toml",
        "meter-analytic.toml",
        "meter-weather.toml",
        "aggregator.toml",
        "analytic.toml",
        "charger.toml",
        "charging.toml",
        "charging-graph.toml",
        "charging-site.toml",
        "charging-sites.csv",
        "clusters.toml",
        "gateway.toml",
        "mosquitto.conf",
        "neighbour.toml",
        "neighbourhood.toml",
        "quickstart_meter.py",
        "station.toml",
        "substation.toml",
        "utility.toml",
    }


def certified(path):
    """Put authority and certificate where an example has them."""
    broker = tomllib.loads(path.read_text("utf-8"))["broker"]
    authority = Authority(path.parent, Path(broker["ca_file"]).stem)
    certificate, key = authority.issue("device")
    certificate.rename(path.parent / broker["cert_file"])
    key.rename(path.parent / broker["key_file"])


@pytest.fixture
def meter(tmp_path):
    """The example in a folder of its own, with the files that it names."""
    path = tmp_path / "meter.toml"
    path.write_text((EXAMPLES / "meter.toml").read_text("utf-8"), "utf-8")
    keys.save_public(tmp_path / "root.pub", ROOT.public)
    certified(path)
    (tmp_path / "load.csv").write_text("time,kwh\n2018-01-01T08:00Z,4.6\n")
    return path


@pytest.mark.parametrize("package", ["edge_sdk", "aggregator"])
def test_the_examples_of_a_package_are_those_of_the_repository(package):
    """They are links, and a wheel contains what they point to."""
    packed = sorted((EXAMPLES.parent / package / "examples").iterdir())
    assert len(packed) >= 8
    for path in packed:
        assert path.is_symlink()
        assert path.resolve() == EXAMPLES / path.name


def leaves(config, at=""):
    for field in fields(config):
        value, key = getattr(config, field.name), f"{at}{field.name}"
        if field.name == "extensions":
            for name, section in value.items():
                yield from (
                    leaves(section, f"{name}.") if is_dataclass(section) else [(name, section)]
                )
        elif is_dataclass(value):
            yield from leaves(value, f"{key}.")
        else:
            yield key, value


def test_the_meter_is_enrolled_and_checked(meter, capsys):
    assert cli.main(["enrol", str(meter)]) == 0
    assert cli.main(["check", str(meter)]) == 0
    out = capsys.readouterr().out
    assert "reads: elec.import.energy\n" in out
    assert "no source" not in out


def test_defaults_stated_in_the_meter_example_are_defaults(meter):
    loaded = load_with_origins(meter, {})
    assert {
        "training.holdout_fraction",
        "training.history_slots",
        "timeouts.reply",
        "accept.max_steps",
    } <= set(loaded.origins)
    plain = {f"training.{key}": value for key, value in leaves(type(loaded.value.training)())}
    plain |= {f"timeouts.{key}": value for key, value in leaves(type(loaded.value.timeouts)())}
    said = dict(leaves(loaded.value))
    assert {key: said[key] for key in plain} == plain


def test_the_aggregator_example_is_valid_and_states_its_defaults(tmp_path):
    path = tmp_path / "aggregator.toml"
    path.write_text((EXAMPLES / "aggregator.toml").read_text("utf-8"), "utf-8")
    config = AggregatorConfig.load(path, {})
    assert bind(config).spec.shared_size == 9088
    path.write_text(
        'fleet = "north"\nstate = "aggregator-state"\n'
        'run = { bundle = "load-week-1", method = "fedadam", quorum = 16 }\n'
    )
    short = AggregatorConfig.load(path, {})
    plain = dict(leaves(short))
    for name in config.extensions:
        plain |= dict(leaves(short.section(name), f"{name}."))
    chosen = {"run.shared", "run.settings", "run.min_updates", "run.rule"}
    other = {key for key, value in leaves(config) if value != plain[key]}
    assert other == chosen
    assert bind(config).spec.shared_names == bind(AggregatorConfig.load(path, {})).spec.shared_names


def test_defaults_stated_in_the_analytic_example_are_defaults(tmp_path):
    path = tmp_path / "analytic.toml"
    path.write_text((EXAMPLES / "analytic.toml").read_text("utf-8"), "utf-8")
    config = AggregatorConfig.load(path, {})
    assert settings_of(config) == Analytic()
    assert bind(config).limits.size == 20_014


def test_the_analytic_example_takes_a_bundle_of_profiles(tmp_path):
    path, text = tmp_path / "analytic.toml", (EXAMPLES / "analytic.toml").read_text("utf-8")
    changed = text.replace('bundle = "load-analytic"', 'bundle = "load-day-1"')
    assert changed != text
    path.write_text(changed, "utf-8")
    assert bind(AggregatorConfig.load(path, {})).limits.size == 211_504


def test_a_device_of_a_fleet_in_closed_form_is_enrolled_and_checked(tmp_path, capsys):
    path = tmp_path / "meter-analytic.toml"
    path.write_text((EXAMPLES / "meter-analytic.toml").read_text("utf-8"), "utf-8")
    keys.save_public(tmp_path / "root.pub", ROOT.public)
    certified(path)
    (tmp_path / "load.csv").write_text("time,kwh\n2018-01-01T08:00Z,4.6\n")
    assert cli.main(["enrol", str(path)]) == 0
    assert cli.main(["check", str(path)]) == 0
    assert "reads: elec.import.energy" in capsys.readouterr().out


def test_a_meter_with_live_weather_is_enrolled_and_checked(tmp_path, capsys):
    path = tmp_path / "meter-weather.toml"
    path.write_text((EXAMPLES / "meter-weather.toml").read_text("utf-8"), "utf-8")
    keys.save_public(tmp_path / "root.pub", ROOT.public)
    certified(path)
    assert cli.main(["enrol", str(path)]) == 0
    assert cli.main(["check", str(path)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"temperature +weather.temperature +source\[1\], mqtt", out)
    assert "outputs: 0 mqtt" in out
    commented = path.read_text("utf-8").split("Its token is in the first line of a file.\n")[1]
    section = "".join(
        line.removeprefix("# ") for line in commented.split("\n\n")[0].splitlines(True)
    )
    found = tomllib.loads(section)["source"][0]
    assert open_source(found, "source[0]").streams == {"weather.temperature"}


def test_defaults_stated_in_the_clusters_example_are_defaults(tmp_path):
    path = tmp_path / "clusters.toml"
    path.write_text((EXAMPLES / "clusters.toml").read_text("utf-8"), "utf-8")
    config = AggregatorConfig.load(path, {})
    said = {key: getattr(settings_of(config), key) for key in config.run.settings}
    assert said == {key: getattr(FeSEM(), key) for key in config.run.settings}
    assert bind(config).first_state().centres.shape[0] == 3


def test_the_charging_example_is_valid_and_states_its_differences(tmp_path):
    path = tmp_path / "charging-graph.toml"
    for name in ("charging-graph.toml", "charging-sites.csv"):
        (tmp_path / name).write_text((EXAMPLES / name).read_text("utf-8"), "utf-8")
    config = AggregatorConfig.load(path, {})
    bound = bind(config)
    listed = (EXAMPLES / "charging-sites.csv").read_text("utf-8").splitlines()[1:]
    assert len(listed) == config.run.quorum
    said = settings_of(config)
    assert (said.alpha, said.neighbours) == (0.9, config.run.graph["sites"])  # equation (17)
    assert bound.config.run.graph["kind"] == "pfgl"
    turns = settings_of(config).turns
    assert (turns.schedule, turns.float16) == ("alternating", True)
    assert config.run.graph["capacity"] >= config.run.quorum
    site = load_with_origins(EXAMPLES / "charging-site.toml", {}).value
    assert (site.fleet, site.bundle) == (config.fleet, config.run.bundle)
    assert config.run.method in site.accept.methods
    assert settings_of(config).model_selection == "fleet"  # by what a site holds back
    assert site.training.holdout_fraction == 0.2


def test_defaults_stated_in_the_charging_example_are_defaults(tmp_path):
    path = tmp_path / "charging.toml"
    path.write_text((EXAMPLES / "charging.toml").read_text("utf-8"), "utf-8")
    config = AggregatorConfig.load(path, {})
    said = settings_of(config)
    others = {key: getattr(PFL(), key) for key in config.run.settings}
    differ = {key for key, value in others.items() if getattr(said, key) != value}
    assert differ == {"sites", "alpha", "anti_sybil"}
    assert said.compared.alpha == PFL(sites=said.sites).compared.alpha
    near = said.near(tmp_path).among(sorted(said.sites))
    assert near.any(axis=1).all()
    assert near.sum() < 12
    assert bind(config).rounds.enough == 6


@pytest.mark.parametrize(
    "name", ["aggregator.toml", "analytic.toml", "charging.toml", "clusters.toml"]
)
def test_the_aggregator_example_starts_a_fleet(tmp_path, capsys, name):
    path = tmp_path / name
    path.write_text((EXAMPLES / name).read_text("utf-8"), "utf-8")
    assert aggregator_cli.main(["init", str(path)]) == 0
    assert "run 1 begins from the bundle's initial model" in capsys.readouterr().out
    assert aggregator_cli.main(["check", str(path)]) == 0


def test_the_substation_joins_the_utility(tmp_path, capsys):
    paths = {name: tmp_path / f"{name}.toml" for name in ("utility", "substation")}
    for name, path in paths.items():
        path.write_text((EXAMPLES / path.name).read_text("utf-8"), "utf-8")
        assert aggregator_cli.main(["init", str(path)]) == 0, name
    capsys.readouterr()
    assert aggregator_cli.main(["join", str(paths["substation"]), "--json"]) == 0
    line = json.loads(capsys.readouterr().out)
    words = [line["id"], "--public", line["public"], "--proof", line["proof"]]
    assert aggregator_cli.main(["enrol", *words, "--config", str(paths["utility"])]) == 0
    for path in paths.values():
        assert aggregator_cli.main(["check", str(path)]) == 0
    utility, substation = (AggregatorConfig.load(paths[name], {}) for name in paths)
    assert substation.section("parent").fleet == utility.fleet
    assert bind(utility).spec.digest == bind(substation).spec.digest
    assert bind(utility).bundle.digest == bind(substation).bundle.digest
    stated = {"rounds", "patience", "max_count", "reply"}
    differ = {key for key in stated if getattr(substation.section("parent"), key) != DEFAULTS[key]}
    assert differ == {"rounds"}


def test_the_broker_example_passes_the_check(tmp_path):
    path = EXAMPLES / "mosquitto.conf"
    assert check_mosquitto_config(path) == ()
    weak = tmp_path / "weak.conf"
    weak.write_text(path.read_text().replace("use_username_as_clientid true", ""))
    assert len(check_mosquitto_config(weak)) == 1


def test_the_quickstart_forecasts_without_a_broker(meter):
    """The file it is given says another broker: one that is not there, on loopback."""
    keys.save_signing_key(meter.parent / "meter-0042.key", keys.from_seed(b"d" * 32))
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONWARNINGS": "error",
        "GRIDFED_EDGE_BROKER": '{ url = "mqtt://127.0.0.1:1" }',
        "GRIDFED_EDGE_STATE": "state",
    }
    script = [sys.executable, str(EXAMPLES / "quickstart_meter.py"), str(meter)]
    done = subprocess.run(
        script, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("next hour: ")
    assert done.stdout.rstrip().endswith("kWh, by model")


@pytest.mark.slow
def test_the_station_forecasts_its_traffic_from_dropped_files(tmp_path, monkeypatch, capsys):
    """Four simulated days of files, some of them broken; no broker, which it does not need."""
    path = tmp_path / "station.toml"
    hasty = (
        (EXAMPLES / "station.toml")
        .read_text("utf-8")
        .replace('poll_interval = "5s"', 'poll_interval = "1s"')
    )
    path.write_text(hasty, "utf-8")
    keys.save_public(tmp_path / "root.pub", ROOT.public)
    monkeypatch.setenv("GRIDFED_EDGE_BROKER", '{ url = "mqtt://127.0.0.1:1" }')
    truth = tmp_path / "truth.csv"
    begin = int(time.time()) // 86_400 * 86_400 - 4 * 86_400
    writer = FileWriter(
        CellSite(7), "site-7", tmp_path / "pm", faults=FileFaultRates(broken=0.05, late=0.1)
    )
    writer.run(begin, 4 * 96, truth)
    assert cli.main(["enrol", str(path)]) == 0
    assert cli.main(["check", str(path)]) == 0
    assert "reads: cell.internet.activity" in capsys.readouterr().out

    newest = begin + 4 * 86_400
    for seconds in (8, 20, 60):  # until it has taken in the newest file
        _serve(path, seconds)
        capsys.readouterr()
        assert cli.main(["forecast", str(path), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        if datetime.fromisoformat(told["times"][0]).timestamp() == newest:
            break
    assert datetime.fromisoformat(told["times"][0]).timestamp() == newest
    assert told["source"] in ("model", "last day")
    with truth.open(newline="") as text:
        quarters = [float(row["dl_mbit"]) for row in csv.DictReader(text)]
    hours = [sum(quarters[at : at + 4]) for at in range(0, len(quarters), 4)]
    assert 0.5 * min(hours) < told["values"][0] < 1.5 * max(hours)  # whatever the day of the week


@pytest.mark.slow
def test_a_charging_site_forecasts_six_hours_with_intervals(tmp_path, monkeypatch, capsys):
    """Ten days of readings and no broker: the site forecasts alone until the fleet speaks."""
    path = tmp_path / "charging-site.toml"
    path.write_text((EXAMPLES / "charging-site.toml").read_text("utf-8"), "utf-8")
    keys.save_public(tmp_path / "root.pub", ROOT.public)
    monkeypatch.setenv("GRIDFED_EDGE_BROKER", '{ url = "mqtt://127.0.0.1:1" }')
    end = int(time.time()) // 3600 * 3600
    hours = (datetime.fromtimestamp(at, UTC) for at in range(end - 240 * 3600, end, 3600))
    rows = (f"{hour:%Y-%m-%dT%H:%MZ},{hour.hour / 4}" for hour in hours)
    (tmp_path / "demand.csv").write_text("time,kwh\n" + "\n".join(rows) + "\n")
    assert cli.main(["enrol", str(path)]) == 0
    assert cli.main(["check", str(path)]) == 0
    assert "reads: ev.demand.energy" in capsys.readouterr().out
    _serve(path, 12)
    assert cli.main(["forecast", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (len(told["values"]), told["unit"], told["source"]) == (6, "kWh", "without graph")
    assert all(low <= high for low, high in told["interval"])


def _serve(path, seconds):
    """Run the agent for some time, as a service manager does."""
    agent = subprocess.Popen([sys.executable, "-m", "edge_sdk", "run", str(path)])
    time.sleep(seconds)
    agent.terminate()
    assert agent.wait(300) == 0


def test_a_neighbour_is_enrolled_and_checked(tmp_path, capsys):
    path = tmp_path / "neighbour.toml"
    path.write_text((EXAMPLES / "neighbour.toml").read_text("utf-8"), "utf-8")
    keys.save_public(tmp_path / "root.pub", ROOT.public)
    certified(path)
    (tmp_path / "load.csv").write_text("time,kwh,temperature,wind\n2018-01-01T08:00Z,4.6,8.9,2.6\n")
    assert cli.main(["enrol", str(path)]) == 0
    assert cli.main(["check", str(path)]) == 0
    assert "neighbours: 2" in capsys.readouterr().out
    path.write_text(path.read_text("utf-8").replace('["dfl_sgd"]', '["fedavg"]'), "utf-8")
    assert cli.main(["check", str(path)]) == 2
    assert "neighbours.keys" in capsys.readouterr().err


def test_the_neighbourhood_example_is_valid(tmp_path):
    path = tmp_path / "neighbourhood.toml"
    path.write_text((EXAMPLES / "neighbourhood.toml").read_text("utf-8"), "utf-8")
    assert aggregator_cli.main(["init", str(path)]) == 0
    config = AggregatorConfig.load(path)
    run = bind(config)
    settings = settings_of(config)
    assert isinstance(settings, DflGt)
    assert settings.interval == 900.0
    assert run.ask.up.value == "peers"


# --- the service and the image -----------------------------------------------------------------


UNITS = [
    *("gridfed-edge", "gridfed-edge@", "gridfed-tap@"),
    *("gridfed-aggregator", "gridfed-aggregator-worker@", "gridfed-console"),
]


@pytest.fixture(params=UNITS)
def unit(tmp_path, request):
    """A unit with programs that are there: a check looks for them."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    text = (EXAMPLES / f"{request.param}.service").read_text("utf-8")
    instance = f"{request.param}test" if request.param.endswith("@") else request.param
    copy = tmp_path / f"{instance}.service"
    for program in (
        "/opt/gridfed/bin/gridfed-edge",
        "/opt/gridfed/bin/gridfed-aggregator",
        "/opt/gridfed/bin/gridfed-console",
        "/bin/kill",
    ):
        text = text.replace(program, sys.executable)
    copy.write_text(text)
    return copy


def analysed(*words):
    done = subprocess.run(
        ["systemd-analyze", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": ""},
    )
    return done.returncode, done.stdout + done.stderr


def test_systemd_accepts_the_unit(unit):
    code, said = analysed("verify", unit)
    assert (code, said) == (0, "")


def test_the_unit_is_hardened(unit):
    code, said = analysed("security", "--offline=true", "--threshold=20", unit)
    assert code == 0, said  # exposure at most 2.0


def test_the_unit_names_existing_keys_and_exit_codes(tmp_path):
    text = (EXAMPLES / "gridfed-edge.service").read_text("utf-8")
    named = dict(re.findall(r"(GRIDFED_EDGE_\w+)=(\S+)", text))
    assert named
    config = (EXAMPLES / "meter.toml").read_text("utf-8")
    (tmp_path / "meter.toml").write_text(config)
    loaded = load_with_origins(tmp_path / "meter.toml", named)
    assert str(loaded.value.state) == "/var/lib/gridfed"
    assert loaded.value.keys.device.name == "device.key"
    assert {StoreNewer.exit_code, SettingsError.exit_code} == {2, 3}
    assert "RestartPreventExitStatus=2 3" in text


@pytest.mark.parametrize("name", ["gridfed-edge@", "gridfed-tap@"])
def test_a_template_keeps_two_instances_apart(name):
    text = (EXAMPLES / f"{name}.service").read_text("utf-8")
    body = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for key in ("ExecStart", "StateDirectory", "Description"):
        (found,) = re.findall(rf"^{key}=(.*)$", body, re.MULTILINE)
        assert "%i" in found, key
    command = re.search(r"ExecStart=\S+ (\w+) /etc/gridfed/%i.toml", body)
    assert command[1] in docs.commands("gridfed-edge")
    assert "meter.toml" not in body
    for variable, value in re.findall(r"(GRIDFED_EDGE_\w+)=(\S+)", body):
        assert "%i" in value or "%d" in value, variable


def test_the_template_of_a_device_names_existing_keys():
    text = (EXAMPLES / "gridfed-edge@.service").read_text("utf-8")
    named = dict(re.findall(r"(GRIDFED_EDGE_\w+)=(\S+)", text))
    loaded = load_with_origins(EXAMPLES / "meter.toml", named)
    assert str(loaded.value.state) == "/var/lib/gridfed/%i"
    assert str(loaded.value.heartbeat) == "/run/gridfed/%i/heartbeat"
    assert re.findall(r"^RuntimeDirectory=(.*)$", text, re.MULTILINE) == ["gridfed/%i"]


def test_the_proxy_starts_again_whatever_happens():
    text = (EXAMPLES / "gridfed-tap@.service").read_text("utf-8")
    assert "Restart=always\n" in text
    assert "StartLimitIntervalSec=0\n" in text
    assert "time-sync" not in text, "a charger must not wait for a clock"


def test_the_unit_of_the_aggregator_names_existing_keys_and_files():
    text = (EXAMPLES / "gridfed-aggregator.service").read_text("utf-8")
    named = dict(re.findall(r"(GRIDFED_AGGREGATOR_\w+)=(\S+)", text))
    config = AggregatorConfig.load(EXAMPLES / "aggregator.toml", named)
    assert str(config.state) == "/var/lib/gridfed-aggregator"
    assert config.broker.key_file.name in re.findall(r"LoadCredential=([\w.-]+):", text)
    assert "ExecReload=/bin/kill -HUP $MAINPID" in text
    assert "RestartPreventExitStatus=2 3" in text


def test_the_template_of_a_worker_is_hardened_as_the_daemon_and_writes_nothing():
    daemon, worker = (
        (EXAMPLES / f"{name}.service").read_text("utf-8")
        for name in ("gridfed-aggregator", "gridfed-aggregator-worker@")
    )
    named = {
        name: value.replace("%i", "2").replace("%d", "/run/credentials")
        for name, value in re.findall(r"(GRIDFED_AGGREGATOR_\w+)=(\S+)", worker)
    }
    config = AggregatorConfig.load(EXAMPLES / "aggregator.toml", named)
    assert config.broker.cert_file == Path("/etc/gridfed/worker-2.pem")
    assert config.broker.key_file.name in re.findall(r"LoadCredential=([\w.-]+):", worker)
    assert f"InaccessiblePaths=-{config.signing_key}\n" in worker
    (words,) = re.findall(r"^ExecStart=\S+ (.*)$", worker, re.MULTILINE)
    args = aggregator_program().parser().parse_args(words.replace("%i", "2").split())
    assert (args.command, args.name) == ("worker", "2")
    assert "Directory=" not in worker, "a folder of the unit's own could be written"
    assert "RestartPreventExitStatus=2 3" in worker
    sandbox = daemon.index("NoNewPrivileges=yes")
    assert worker.endswith(daemon[sandbox:])


IMAGES = {
    "Containerfile": ("gridfed-edge", "GRIDFED_EDGE_STATE"),
    "Containerfile.aggregator": ("gridfed-aggregator", "GRIDFED_AGGREGATOR_STATE"),
}


@pytest.mark.parametrize("name", IMAGES)
def test_a_recipe_has_no_fault(name):
    assert faults((EXAMPLES / name).read_text("utf-8")) == []


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_runs_commands_that_parse(name):
    text = (EXAMPLES / name).read_text("utf-8")
    program, state = IMAGES[name]
    commands = [json.loads(found) for found in re.findall(r"CMD (\[.*\])", text)]
    words = [[w for w in words if not w.startswith("/opt")] for words in commands]
    assert sorted(line[0] for line in words) == ["health", "run"]
    assert all(line[0] in docs.commands(program) for line in words)
    (folder,) = re.findall(rf"{state}=(\S+)", text)
    assert f"VOLUME {folder}\n" in text
    assert f"--home-dir {folder} --create-home" in text, "the volume belongs to the user"
    entry = json.loads(re.search(r"ENTRYPOINT (\[.*\])", text)[1])
    assert entry == [f"/opt/gridfed/bin/{program}"]


GOOD = """\
FROM docker.io/library/python:3.11-slim-bookworm AS built
RUN python -m venv /opt/x && /opt/x/bin/pip install --no-cache-dir /tmp/x.whl
FROM docker.io/library/python:3.11-slim-bookworm
COPY --from=built /opt/x /opt/x
USER 10001
HEALTHCHECK CMD ["/opt/x/bin/x", "health"]
ENTRYPOINT ["/opt/x/bin/x"]
"""


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("USER 10001\n", "", "the last stage runs as root"),
        ("USER 10001\n", "USER root\n", "the last stage runs as root"),
        ("USER 10001\n", "USER gridfed\n", "USER is no number"),
        (":3.11-slim-bookworm\n", "\n", "no version: docker.io/library/python"),
        (":3.11-slim-bookworm\n", ":latest\n", "no version: docker.io/library/python:latest"),
        ("--from=built", "--from=other", "no stage 'other'"),
        ("--no-cache-dir ", "", "pip keeps its cache"),
        ('["/opt/x/bin/x"]', "/opt/x/bin/x", "ENTRYPOINT is not a JSON list"),
        ("HEALTHCHECK CMD", "HEALTHCHEK CMD", "unknown instruction HEALTHCHEK"),
        ('HEALTHCHECK CMD ["/opt/x/bin/x", "health"]\n', "", "no HEALTHCHECK"),
        ("COPY", "ADD", "ADD: use COPY"),
        ("USER 10001", "ENV PASSWORD=x\nUSER 10001", "a secret in ENV"),
        ("FROM", "RUN true\nFROM", "an instruction before FROM"),
    ],
)
def test_the_check_of_recipes_finds_each_fault(old, new, fault):
    assert faults(GOOD) == []
    assert old in GOOD
    assert fault in faults(GOOD.replace(old, new, 1) if old == "FROM" else GOOD.replace(old, new))


def test_the_image_copies_and_starts_existing_files():
    """No engine builds it here: every path, stage, user and program it names is looked up."""
    text = (EXAMPLES / "Containerfile").read_text("utf-8")
    project = tomllib.loads((EXAMPLES.parent / "pyproject.toml").read_text("utf-8"))["project"]
    steps = [line.split() for line in text.splitlines() if line[:1].isupper()]
    copied = [step for step in steps if step[0] == "COPY"]
    assert copied[0][1:] == [f"dist/{project['name']}-*.whl", "/tmp/"]
    assert f"pip install --no-cache-dir /tmp/{project['name']}-*.whl" in text
    stages = {step[-1] for step in steps if step[0] == "FROM" and "AS" in step}
    assert copied[1][1:] == [f"--from={stages.pop()}", "/opt/gridfed", "/opt/gridfed"]
    (uid,) = re.findall(r"--uid (\d+)", text)
    assert ["USER", uid] in steps
    assert text.index("useradd") < text.index("USER ")
    entry = json.loads(re.search(r"ENTRYPOINT (\[.*\])", text)[1])
    assert Path(entry[0]).name in project["scripts"]
    assert Path(entry[0]).parent == Path("/opt/gridfed/bin")
    (state,) = re.findall(r"GRIDFED_EDGE_STATE=(\S+)", text)
    assert ["VOLUME", state] in steps
    assert f"--home-dir {state} --create-home" in text, "the volume belongs to the user"
    version = re.findall(r"FROM \S+/python:(\d+\.\d+)", text)
    assert len(set(version)) == 1, "what one Python installed, another would not find"
    assert f"Programming Language :: Python :: {version[0]}" in project["classifiers"]
