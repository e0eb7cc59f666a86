"""A whole federation in one thread: real daemon, real clients, a broker of lists, a slow clock."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from aggregator.commands import main as cli
from aggregator.config import AggregatorConfig
from aggregator.daemon import Daemon
from edge_sdk import Config, Reading
from edge_sdk.protocol.keys import generate, save_public, save_signing_key
from edge_sdk.store.second_count import begin_counts
from firmware_sim.attacks.attack_plan import HONEST
from firmware_sim.fleet.in_process import Fleet, enlist
from firmware_sim.fleet.run_files import toml
from firmware_sim.testing.loopback import LinkFaults, LoopbackBroker

HOURS = 400
STREAMS = ("elec.import.energy", "weather.temperature", "weather.wind_speed")
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 4))]
"""Of the moments at which tests cut the power, kill and lose messages."""


@dataclass
class SlowClock:
    """Time that moves only when told to."""

    now: float = 0.0
    begun: float = field(default_factory=time.time)  # `init` signs by the machine's own clock

    def wall(self):
        return int(1e3 * (self.begun + self.now))

    def monotonic(self):
        return self.now


def history(number, hours=HOURS):
    """A home's load: a daily shape with its own phase and size, and weather."""
    rng = np.random.default_rng(number)
    hour = np.arange(hours)
    load = (1 + number % 3) * (
        2 + np.sin(2 * np.pi * (hour - number) / 24) + rng.normal(0, 0.1, hours)
    )
    columns = (load, 15 + 5 * np.sin(2 * np.pi * hour / 24), 3 + rng.random(hours))
    for stream, values in zip(STREAMS, columns, strict=True):
        for at, value in enumerate(values):
            yield Reading(stream, 1_514_764_800.0 + 3600 * at, float(value))


@dataclass
class World:
    """One fleet on one loopback broker."""

    folder: Path
    devices: int = 3
    run: dict = field(default_factory=dict)
    faults: LinkFaults = field(default_factory=LinkFaults)
    seed: int = 0
    local_rounds: dict = field(default_factory=dict)
    admission: dict = field(default_factory=dict)
    accept: dict = field(default_factory=dict)
    privacy: dict = field(default_factory=lambda: {"mechanism": {"name": "none"}})
    hours: int = HOURS

    def __post_init__(self):
        self.clock = SlowClock()
        self.broker = LoopbackBroker(faults=self.faults, seed=self.seed, clock=self.clock.monotonic)
        self.stack = ExitStack()
        self.fleet = self.stack.enter_context(Fleet())
        self.daemon = None
        self.clients = {}
        self._found()

    def _found(self):
        self.config = self.folder / "aggregator.toml"
        run = {
            "bundle": "load-mlp",
            "method": "fedavg",
            "quorum": self.devices,
            "deadline": "30s",
            "schedule": {"rounds_per_day": "continuous"},
        }
        run |= {"settings": {"steps": 4, "rate": 0.003}} | self.run
        table = {"fleet": "north", "state": "aggregator", "http": {"listen": "off"}, "run": run}
        table["pacing"] = {
            "jitter": "0s",
            "broadcast_bytes_per_second": 1e9,
            "updates_per_second": 1e6,
        }
        table["admission"] = self.admission
        table["broker"] = {"url": "mqtt://127.0.0.1:1"}
        self.config.write_text(toml(table))
        assert cli.main(["init", str(self.config)]) == 0
        for number in range(self.devices):
            self._write(number)
            public = str(self.folder / f"home-{number}.pub")
            enrol = ["enrol", f"home-{number}", "--public", public, "--config", str(self.config)]
            assert cli.main(enrol) == 0

    def _write(self, number):
        name = f"home-{number}"
        key = generate()
        save_signing_key(self.folder / f"{name}.key", key)
        save_public(self.folder / f"{name}.pub", key.public)
        begin_counts(self.folder / f"{name}.count", key, {})
        table = {
            "id": name,
            "fleet": "north",
            "state": name,
            "bundle": self.run.get("bundle", "load-mlp"),
            "broker": {"url": "mqtt://127.0.0.1:1"},
            "keys": {"device": f"{name}.key", "root": "aggregator/root.pub"},
            "timeouts": {"reply": "2s", "retained_model": "2s"},
            "local_rounds": self.local_rounds,
            "privacy": self.privacy,
            "accept": self.accept,
        }
        (self.folder / f"{name}.toml").write_text(toml(table))

    def start_daemon(self):
        link = self.broker.link("_agg")
        config = AggregatorConfig.load(self.config)
        self.daemon = Daemon(config, transport=link, clock=self.clock, rng=random.Random(self.seed))
        self.daemon.open()

    def start(self, number, role=HONEST, *, source=None, hours=None):
        config = Config.load(self.folder / f"home-{number}.toml")
        client = enlist(
            self.fleet,
            config,
            role,
            connect=lambda config, will: self.broker.link(config.id, will),
            history=lambda: history(
                number if source is None else source, self.hours if hours is None else hours
            ),
            clock=self.clock,
        )
        self.clients[number] = client
        return client

    def start_all(self):
        self.start_daemon()
        for number in range(self.devices):
            self.start(number)

    def die(self, number):
        """End a device without a goodbye, as a power cut does."""
        client = self.clients.pop(number)
        self.fleet.clients.remove(client)
        self.broker.cut(client.config.id)
        client._store.close()

    def kill_daemon(self):
        self.broker.cut("_agg")
        self.daemon.close()
        self.daemon = None

    def turn(self, seconds=0.1):
        if self.daemon is not None:
            self.daemon.turn(0.0)
        self.fleet.turn(0.0)
        self.clock.now += seconds

    def cut_power_until(self, condition, rng):
        """Cut the power of the daemon or of a device, drawn by ``rng``, time and again, until ``condition``."""
        while not condition():
            for _ in range(rng.randint(2, 12)):
                self.turn()
            if rng.random() < 0.4:
                self.kill_daemon()
                self.turn()
                self.start_daemon()
            else:
                victim = rng.randrange(self.devices)
                self.die(victim)
                self.turn()
                self.start(victim)

    def until(self, condition, turns=4000):
        for _ in range(turns):
            if condition():
                return
            self.turn()
        pytest.fail(f"did not come about within {turns} turns")

    @property
    def version(self):
        return self.daemon.state.version

    def consensus(self):
        return self.daemon.state.w.copy()

    def close(self):
        if self.daemon is not None:
            self.daemon.close()
        for client in self.fleet.clients:
            client._store.close()


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Return a maker of worlds; a test repeats its draws, and with them its course."""
    made = []

    def make(**options):
        draws = random.Random(options.get("seed", 0))
        monkeypatch.setattr("secrets.randbits", draws.getrandbits)
        folder = tmp_path / f"world-{len(made)}"
        folder.mkdir()
        made.append(World(folder, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
