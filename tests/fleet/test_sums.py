"""Sums over twelve devices: the real daemon, real clients and a real witness, day by day.

Devices and aggregator are those of the field; only the link and the clock are the test's.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from aggregator.commands import main as cli
from aggregator.extensions.model_log.program import main as witness
from aggregator.extensions.sums.opened_sum import SumTable
from aggregator.store.opener import open_store
from edge_sdk import Reading
from tests.fleet.conftest import STREAMS

pytestmark = [pytest.mark.extension, pytest.mark.timeout(600)]
DAY, HOUR = 86_400, 3600
DEVICES = 12
CONTRACT = """
[sums]
witness_open = "{witness_open}"
witness_sign = "{witness_sign}"

[[sums.contract]]
name = "feeder-history"
source = "history"
stream = "elec.import.energy"
unit = "kWh"
lowest = 0.0
highest = 50.0
resolution = 0.001
length = 24
due = "26h"
least = 3
cohort = "feeder"

[[sums.contract]]
name = "feeder-tomorrow"
source = "tomorrow"
stream = "elec.import.energy"
unit = "kWh"
lowest = 0.0
highest = 50.0
resolution = 0.001
length = 24
due = "25h"
least = 9
cohort = "feeder"
"""


def load(number, hour):
    return round((1 + number % 3) * (2 + np.sin(2 * np.pi * (hour - number) / 24)), 3)


class Feeders:
    """A world with two feeders of six homes, and a witness in a folder of its own."""

    def __init__(self, world, tmp_path, capsys, few="few = true"):
        self.world = world(
            devices=DEVICES, accept={"sums": True}, hours=0, run={"schedule": {"rounds_per_day": 1}}
        )
        self.clock, self.capsys, self.folder = self.world.clock, capsys, tmp_path / "witness"
        self.folder.mkdir()
        self.clock.begun = (self.clock.begun // DAY + 1) * DAY + 6 * HOUR
        self.at = int(self.clock.begun) // HOUR - 8 * 24
        keys = self.data(witness, ["sum-keys", *self.keys, "--json"])
        text = CONTRACT.format(**keys).replace("\n[[", f"{few}\n\n[[", 1)
        self.world.config.write_text(self.world.config.read_text() + text)
        for number in range(DEVICES):
            self.command("label", f"feeder=F{number % 2}", f"home-{number}")
        self.command("sums", "announce")
        listed = str(self.folder / "devices.txt")
        self.command("sums", "devices", "--out", listed)
        assert witness(["enrol", listed, "--fleet", "north", *self.record]) == 0

    @property
    def keys(self):
        files = ("witness.key", "witness-open.key")
        options = ("--key", "--open-key")
        pairs = zip(options, (str(self.folder / name) for name in files), strict=True)
        return [part for pair in pairs for part in pair]

    @property
    def record(self):
        return ["--record", str(self.folder / "sums.db")]

    def data(self, program, words):
        self.capsys.readouterr()
        assert program(words) == 0
        return json.loads(self.capsys.readouterr().out)

    def command(self, *words):
        assert cli.main([*words, "--config", str(self.world.config)]) == 0

    def start(self):
        self.world.start_daemon()
        for number in range(DEVICES):
            self.world.start(number)
        self.measure()
        self.turns(20)

    def measure(self):
        until = int(self.clock.begun + self.clock.now) // HOUR
        for number, client in self.world.clients.items():
            for hour in range(self.at, until):
                for stream, value in zip(STREAMS, (load(number, hour), 8.0, 3.0), strict=True):
                    client.observe(Reading(stream, float(HOUR * hour), value))
        self.at = until

    def hours(self, count):
        for _ in range(count):
            self.clock.now += HOUR
            self.measure()
            self.turns(16)

    def turns(self, number):
        for _ in range(number):
            self.world.turn(0.5)

    def sets(self):
        return sorted((self.world.folder / "aggregator" / "sums").glob("*.set"))

    def open(self, *options):
        files = [str(path) for path in self.sets()]
        return witness(["open", *files, *self.keys, *self.record, *options])

    def opened(self, *of):
        with open_store(
            self.world.folder / "aggregator" / "aggregator.db", read_only=True
        ) as store:
            return store.table(SumTable).opened(*of)


@pytest.fixture
def feeders(world, tmp_path, capsys):
    return Feeders(world, tmp_path, capsys)


def plain(found, members):
    hours = found.period // 1000 // HOUR + np.arange(24)
    return [sum(load(number, hour) for number in members) for hour in hours]


def test_the_readings_of_two_feeders_are_added_and_nothing_else_is_known(feeders):
    feeders.start()
    feeders.hours(26)
    assert len(feeders.sets()) >= 2
    assert feeders.open("--least", "3") == 0
    feeders.turns(24)
    assert feeders.sets() == []
    sums = feeders.opened("feeder-history")
    assert {one.value for one in sums} == {"F0", "F1"}
    for one in sums:
        members = [n for n in range(DEVICES) if f"F{n % 2}" == one.value]
        assert (one.members, one.expected, one.unit) == (6, 6, "kWh")
        assert np.allclose(one.values, plain(one, members), atol=1e-9)
    feeders.world.kill_daemon()
    feeders.command("sums", "audit")
    words = ["feeder", "F0", "--json", "--config", str(feeders.world.config)]
    (shown,) = feeders.data(cli.main, words)["feeders"]
    newest = max((one for one in sums if one.value == "F0"), key=lambda one: one.period)
    assert shown["yesterday"]["values"] == pytest.approx(newest.values.tolist(), rel=1e-5)
    assert (shown["devices"], shown["yesterday"]["missing"]) == (6, 0)
