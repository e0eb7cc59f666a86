"""Rollouts with real programs over a real broker, day by day; programs are killed on the way.

The aggregator's clock stands on the simulated day. Devices take the day from their readings.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.protocol.contract.archive import INITIAL, MANIFEST, SIGNATURE, seal
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.protocol.keys import load_signing_key
from firmware_sim.fleet.processes import ProgramDied, RunningProgram, command, run
from tests.broker.test_federation import ENDLESS, Trial, begin, rewrite
from tests.broker.test_rollback import second_version

__all__ = ["begin"]
pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1800)]

DAY, HOUR = 86_400, 3600
FIRST = int(time.time()) // DAY - 40
PATIENCE = 300.0
THREE = replace(ENDLESS, devices=3)


def bad_version(trial: Trial, folder: Path) -> Path:
    """Write version 2 with another first vector: its forecasts are far away."""
    folder = second_version(trial, folder)
    (folder / MANIFEST).chmod(0o600)
    manifest = Manifest.parse((folder / MANIFEST).read_bytes())
    p = np.frombuffer((folder / INITIAL).read_bytes(), "<f4")
    p = (p + np.random.default_rng(1).normal(0.0, 2.0, p.shape)).astype("<f4")
    (folder / INITIAL).write_bytes(p.tobytes())
    shipped = Bundle.open("load-mlp", trust=TrustedKeys())
    x = np.array([manifest.golden.x], np.float32)
    yhat = shipped.forecast(p=p.astype(np.float32), x=x)[0]
    import hashlib  # noqa: PLC0415 - only here

    files = {**manifest.files, INITIAL: hashlib.sha256(p.tobytes()).hexdigest()}
    golden = replace(manifest.golden, yhat=tuple(float(y) for y in np.ravel(yhat)))
    raw = replace(manifest, files=files, golden=golden).canonical()
    (folder / MANIFEST).write_bytes(raw)
    root = load_signing_key(next(trial.config.parent.rglob("root.key")))
    (folder / SIGNATURE).write_bytes(seal(root, raw))
    return folder


@dataclass
class Days:
    """A fleet orderse days the test lets pass."""

    trial: Trial
    day: int = FIRST

    def __post_init__(self):
        self.shift = self.trial.config.parent / "shift"
        self.set_clock()
        for number, device in enumerate(self.devices):
            table = {"type": "csv", "path": str(self.rows(number)), "time_format": "epoch"}
            columns = {
                "kwh": "elec.import.energy",
                "warm": "weather.temperature",
                "wind": "weather.wind_speed",
            }
            source = [{**table, "columns": columns}]
            replace_source(device.config, source)
            rewrite(device.config, "accept", rollouts=True)
            rewrite(device.config, "timeouts", reply="1s", retained_model="1s")
        self.running: dict[int, RunningProgram] = {}

    @property
    def devices(self):
        return self.trial.run.prepared.devices

    def rows(self, number: int) -> Path:
        """Write the readings of a device up to the morning of the present day."""
        path = self.trial.config.parent / f"rows-{number}.csv"
        begin_, end = (FIRST - 21) * DAY, self.day * DAY + 6 * HOUR
        rng = np.random.default_rng(number)
        rows = [
            f"{at},{1 + math.sin(at / DAY * math.tau + number) / 2 + rng.normal(0, 0.05):.4f},8.5,3.5\n"
            for at in range(begin_, end, HOUR)
        ]
        path.write_text("time,kwh,warm,wind\n" + "".join(rows))
        return path

    def set_clock(self):
        noon = (self.day * DAY + 12 * HOUR) * 1000
        self.shift.write_text(str(noon - time.time_ns() // 1_000_000))

    def shifted(self, *words):
        return [sys.executable, "-m", "tests.broker.shifted_clock", str(self.shift), *words]

    def say(self, *words):
        return run(self.shifted("aggregator", *words, "--config", str(self.trial.config)))

    def start_aggregator(self):
        words = self.shifted("aggregator", "run", str(self.trial.config))
        self.aggregator = self.trial.family.start("aggregator", words)
        self.trial.run.aggregator = self.aggregator
        self.trial.until(lambda: "run" in self.trial.status(), PATIENCE)

    def start_device(self, number: int):
        config = str(self.devices[number].config)
        name = f"device-{number}"
        self.running[number] = self.trial.family.start(name, command("gridfed-edge", "run", config))

    def kill(self, program: RunningProgram):
        program.signal(signal.SIGKILL)
        program.wait(20)
        self.trial.family.members.remove(program)

    def kill_device(self, number: int):
        self.kill(self.running.pop(number))
        forecast = self.forecast(number)
        assert None not in forecast["values"]
        assert forecast["source"] not in ("none", "")

    def forecast(self, number: int):
        config = str(self.devices[number].config)
        return json.loads(run(command("gridfed-edge", "forecast", config, "--json")))

    def version(self, number: int) -> int:
        return int(self.forecast(number)["model"]["bundle_version"])

    @property
    def rollout(self):
        return json.loads(self.say("rollout", "status", "--json"))["rollout"]

    def part(self, number: int):
        try:
            return self.trial.device(number).get("rollout", {}).get("state")
        except ProgramDied:
            return None  # it has no state yet

    def pass_day(self, *, numbers=(0, 1, 2), is_stormy=False):
        """Let a day pass: devices are killed and started with its readings."""
        self.day += 1
        self.set_clock()
        if is_stormy:
            self.kill(self.aggregator)
            self.start_aggregator()
        before = self.rollout["days"]
        for number in numbers:
            self.rows(number)
            if number in self.running:
                self.kill_device(number)
            self.start_device(number)
        done = str(self.day - 1)

        def has_reports():
            days = self.rollout["days"].get(done, {"lost": 0, "kept": 0})
            return days["lost"] + days["kept"] >= len(numbers)

        self.trial.until(has_reports, PATIENCE)
        assert set(before) <= set(self.rollout["days"])
        time.sleep(3.0)  # the daemon judges reports every two seconds

    def start_rollout(self, *words):
        stopped = self.say("rollout", "start", "load-mlp", "--who", "ann", *words)
        assert "rollout of load-mlp version 2" in stopped
        self.start_aggregator()
        for number in range(len(self.devices)):
            self.start_device(number)
        self.trial.until(
            lambda: all(self.part(n) in ("score", "declined") for n in range(3)), PATIENCE
        )


def replace_source(path: Path, source) -> None:
    import tomllib  # noqa: PLC0415 - only here

    from firmware_sim.fleet.run_files import toml  # noqa: PLC0415 - only here

    table = tomllib.loads(path.read_text("utf-8"))
    table["source"] = source
    path.write_text(toml(table), "utf-8")


@pytest.fixture
def days(begin, tmp_path):
    """A fleet of three that serves version 1, with version 2 in the registry."""

    def make(version=second_version):
        trial = begin(THREE, "mosquitto", is_started=False)
        found = Days(trial)
        found.say("bundle", "promote", "load-mlp")
        rewrite(trial.config, "run", bundle="load-mlp@live")
        found.say("bundle", "promote", str(version(trial, tmp_path)), "--alias", "next")
        run(found.shifted("aggregator", "announce", str(trial.config)))
        return found

    return make


@pytest.mark.soak
def test_an_equal_version_reaches_the_fleet_though_all_programs_are_killed_every_day(days):
    fleet = days()
    fleet.start_rollout("--waves", "50,100", "--gate", "days=1,least=1,shadow=100")
    stages = []
    for number in range(9):
        fleet.pass_day(is_stormy=number % 2 == 0)
        stages.append((fleet.rollout["phase"], fleet.rollout["stage"]))
        if stages[-1][0] == "done":
            break
    assert stages[-1] == ("done", 2), (stages, fleet.rollout)
    assert [stage for _, stage in stages] == sorted(stage for _, stage in stages)
    fleet.trial.until(lambda: [fleet.version(n) for n in range(3)] == [2, 2, 2], PATIENCE)
    found = fleet.rollout
    assert all(day["lost"] == 0 for day in found["days"].values())
    assert found["changes"][0]["who"] == "ann"
    assert fleet.trial.status()["run"]["run"] == 1


@pytest.mark.soak
def test_a_bad_version_is_served_nowhere_and_the_fleet_goes_on(days):
    fleet = days(bad_version)
    fleet.start_rollout("--waves", "50,100", "--gate", "days=3,least=1,shadow=100,bound=20")
    for _ in range(4):
        fleet.pass_day()
        assert [fleet.version(n) for n in range(3)] == [1, 1, 1]
        if fleet.rollout["phase"] == "return":
            break
    found = fleet.rollout
    assert (found["phase"], found["stage"], found["why"]) == ("return", 0, "harm")
    fleet.trial.until(lambda: {fleet.part(n) for n in range(3)} == {"returned"}, PATIENCE)


def test_an_abort_reaches_devices_within_one_wake_also_one_that_slept(days):
    fleet = days()
    fleet.start_rollout("--waves", "100", "--gate", "days=1,least=1,shadow=100")
    for _ in range(4):
        fleet.pass_day()
        if {fleet.part(n) for n in range(3)} == {"serve"}:
            break
    assert [fleet.version(n) for n in range(3)] == [2, 2, 2]
    assert fleet.rollout["phase"] == "run"
    fleet.say("rollout", "pause", "--who", "bob")
    fleet.trial.until(lambda: fleet.rollout["phase"] == "pause", PATIENCE)
    assert fleet.version(0) == 2
    fleet.kill_device(2)
    fleet.say("rollout", "abort", "--who", "eve")
    fleet.trial.until(lambda: [fleet.version(n) for n in (0, 1)] == [1, 1], PATIENCE)
    assert fleet.version(2) == 2  # asleep
    fleet.start_device(2)
    fleet.trial.until(lambda: fleet.version(2) == 1, PATIENCE)
    fleet.trial.until(lambda: fleet.rollout["reported"].get("returned") == 3, PATIENCE)
    orders = [(one["phase"], one["who"]) for one in fleet.rollout["changes"]][-2:]
    assert orders == [("pause", "bob"), ("return", "eve")]
