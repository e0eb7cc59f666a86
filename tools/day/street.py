"""One device and its environment: files, a month of past readings, broker, aggregator, meter."""

from __future__ import annotations

import csv
import os
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_sdk import Client, Config, Reading
from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.protocol.codec import DownlinkEncoding, UpdateEncoding
from firmware_sim.devices.meter import Meter
from firmware_sim.devices.meter_process import MeterSettings
from firmware_sim.fleet.federation import Federation, free_port, start_broker
from firmware_sim.fleet.processes import ProcessGroup, RunningProgram, command
from firmware_sim.fleet.run_files import prepare, toml
from firmware_sim.samples import sample_set
from firmware_sim.scenario import RunSettings, Scenario
from tools.day.town import Counted, Town

_HOUR, _DAY = 3600, 86_400
_SEED = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of the day."""

    bundle: str = "load-lstm-week"  # what the device works with
    kind: str = "B"  # its class of ``[limits]``
    every: float = 10.0  # seconds between two telegrams of its meter
    rounds: int = 8  # of learning; then its run is over
    spread: str = "2h"  # its fleet's answers are spread over so long
    steps: int = 20  # of learning, a round
    method: str = "fedavg"  # the run's method
    behind: int = 28  # days of readings that the device has already
    python: str = ""  # interpreter of the device; this one if empty
    rounds_per_day: int = 0  # of the aggregator's schedule; 0 runs all of ``rounds`` back to back
    encoding: UpdateEncoding = "f4"  # of updates; ``downlink``: of new models
    downlink: DownlinkEncoding = "f4"

    @property
    def step(self) -> int:
        """Return the seconds between two rows of the bundle."""
        return Bundle.open(self.bundle, trust=TrustedKeys()).manifest.window.step_seconds


@dataclass(slots=True)
class Street:
    """The programs of one device's day, in folders below one."""

    folder: Path
    family: ProcessGroup
    town: Town
    plan: Plan
    federation: Federation
    config: Path
    lines: tuple[Counted, Counted]

    @classmethod
    def build(cls, folder: Path, family: ProcessGroup, town: Town, plan: Plan) -> Street:
        """Start a broker, write all files, and store a month of past readings."""
        url = start_broker(family, folder / "broker")
        port = int(url.rpartition(":")[2])
        line, other = lines = (
            Counted(port, town, is_watched=True),
            Counted(port, town, is_watched=False),
        )
        settings = {} if plan.method == "analytic" else {"steps": plan.steps}
        learning = RunSettings(
            plan.method,
            rounds=plan.rounds,
            settings=settings,
            deadline="12h",
            encoding=plan.encoding,
            downlink=plan.downlink,
        )
        scenario = Scenario("a day", "homes", 1, plan.bundle, learning, until="2018-02-01")
        page = f"127.0.0.1:{free_port()}"
        ready = prepare(
            folder / "fleet", "day", scenario, sample_set("homes"), broker=url, page=page
        )
        pacing = {"jitter": plan.spread}
        run = tomllib.loads(ready.aggregator.read_text("utf-8"))["run"]
        run["schedule"] = _schedule(plan, town.now)
        _rewrite(ready.aggregator, pacing=pacing, admission=None, broker=_at(other), run=run)
        config, meter = ready.devices[0].config, free_port()
        sources = [
            {"type": "p1", "url": f"tcp://127.0.0.1:{meter}"},
            _weather(folder, town, plan.behind),
        ]
        # Learning takes this machine's time, at the town's pace: of wake time nothing is measured.
        limits = {"device_class": plan.kind, "daily_wake_time": "1d"}
        training = {"history_slots": (plan.behind + 2) * _DAY // plan.step}
        tables = {"limits": limits, "source": sources, "training": training}
        _rewrite(config, broker=_at(line), timeouts=None, **tables)
        federation = Federation(ready, plan.rounds, family)
        street = cls(folder, family, town, plan, federation, config, lines)
        street._look_back()
        street._begin(meter)
        return street

    @property
    def state(self) -> Path:
        return Config.load(self.config).state

    def _look_back(self) -> None:
        with Client(Config.load(self.config)) as client:
            for time, kwh in _energy(self.town.now, _SEED, self.plan):
                client.observe(Reading("elec.import.energy", time, kwh))
            for time, warm, wind in _skies(self.town.now, self.plan.behind):
                client.observe(Reading("weather.temperature", time, warm))
                client.observe(Reading("weather.wind_speed", time, wind))

    def _begin(self, port: int) -> None:
        environ, config = self.town.environ, str(self.federation.prepared.aggregator)
        self.family.start(
            "aggregator", command("gridfed-aggregator", "run", config), environ=environ
        )
        life = ("--every", f"{self.plan.every}s", "--for", "25h", "--seed", str(_SEED))
        meter = [sys.executable, "-m", "firmware_sim", "meter", "--p1", f"tcp://127.0.0.1:{port}"]
        self.family.start("meter", [*meter, *life], environ=environ)

    def start_device(self) -> RunningProgram:
        """Start the agent itself, by its installed command's module."""
        run = command("gridfed-edge", "run", str(self.config), "--json", "--log", "info")
        if not self.plan.python:
            return self.family.start("device", run, environ=self.town.environ)
        paths = [self.town.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[2])]
        environ = {**self.town.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        return self.family.start("device", [self.plan.python, *run[1:]], environ=environ)


def _energy(now: float, seed: int, plan: Plan) -> Iterator[tuple[float, float]]:
    """Yield time and kWh of every step of the bundle, up to the last whole hour."""
    first, step = (int(now) // _DAY - plan.behind) * _DAY, plan.step
    meter: Meter = MeterSettings(first, 0.0, seed=seed).meter()
    before = meter.wh(first)
    for time in range(first, int(now) // _HOUR * _HOUR, step):
        after = meter.wh(time + step)
        yield time, (after - before) / 1000
        before = after


def _skies(now: float, behind: int) -> Iterator[tuple[int, float, float]]:
    first = (int(now) // _DAY - behind) * _DAY
    for time in range(first, int(now) // _HOUR * _HOUR + 1, _HOUR):
        yield time, 8.0 + time // _HOUR % 24 / 4, 3.0


def _weather(folder: Path, town: Town, behind: int) -> dict[str, Any]:
    path = folder / "weather.csv"
    with path.open("w", newline="", encoding="utf-8") as out:
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(("time", "temperature", "wind"))
        rows.writerows(_skies(town.now, behind))
    columns = {"temperature": "weather.temperature", "wind": "weather.wind_speed"}
    return {"type": "csv", "path": path.absolute(), "time_format": "epoch", "columns": columns}


def _schedule(plan: Plan, now: float) -> dict[str, Any]:
    """Return the schedule: in a window ten hours away, so that no round begins with the run."""
    if not plan.rounds_per_day:
        return {"rounds_per_day": "continuous"}
    hour = int(now) // _HOUR % 24
    window = f"{(hour + 10) % 24:02}:00-{(hour + 14) % 24:02}:00"
    return {"rounds_per_day": plan.rounds_per_day, "windows": [window]}


def _at(line: Counted) -> dict[str, str]:
    return {"url": f"mqtt://127.0.0.1:{line.port}"}


def _rewrite(path: Path, **changes: object) -> None:
    table = tomllib.loads(path.read_text("utf-8")) | changes
    path.write_text(toml(table), encoding="utf-8")
