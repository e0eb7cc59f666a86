"""Rollouts over sixty devices: the real daemon and real clients, day by day.

Devices and aggregator are those of the field; only the link and the clock are the test's.
``GRIDFED_ROLLOUT_DEVICES=200`` and ``-s`` repeat it with as many devices and print its figures.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from aggregator.commands import main as cli
from aggregator.extensions.rollouts.rollout_table import RolloutTable
from edge_sdk import Reading
from edge_sdk.extensions.rollouts.rollout_roles import role
from tests.broker.test_rollback import second_version
from tests.broker.test_rollouts import bad_version
from tests.fleet.conftest import STREAMS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
DAY, HOUR = 86_400, 3600


def salt(length):
    """Draw the same devices in every run."""
    return bytes(range(length))


DEVICES = int(os.environ.get("GRIDFED_ROLLOUT_DEVICES", "60"))
RUN = {"schedule": {"rounds_per_day": 1}, "settings": {"steps": 1, "rate": 0.003}}


class Days:
    """A world whose devices measure hour by hour, with versions of a bundle to let out."""

    def __init__(self, world, devices):
        self.world = world(devices=devices, run=RUN, accept={"rollouts": True}, hours=0)
        self.clock = self.world.clock
        self.clock.begun = (self.clock.begun // DAY + 1) * DAY + 6 * HOUR
        self.at = int(self.clock.begun) // HOUR - 10 * 24
        self.command("bundle", "promote", "load-mlp")
        for path in self.world.folder.glob("home-*.toml"):
            path.write_text(path.read_text() + "\n[forecast]\nchoose_best = false\n")
        self.world.start_daemon()
        for number in range(devices):
            self.world.start(number)
        self.measure()
        self.turns(12)

    def command(self, *words):
        assert cli.main([*words, "--config", str(self.world.config)]) == 0

    def add(self, make, folder):
        folder.mkdir()
        bundle = make(SimpleNamespace(config=self.world.config), folder)
        self.command("bundle", "promote", str(bundle), "--alias", "next")

    def measure(self):
        """Let every device measure up to the present hour."""
        until = int(self.clock.begun + self.clock.now) // HOUR
        for number, client in self.world.clients.items():
            rng = np.random.default_rng((number, self.at))
            for hour in range(self.at, until):
                load = 2 + math.sin(math.tau * (hour - number) / 24) + rng.normal(0, 0.1)
                values = ((1 + number % 3) * load, 8.0 + number % 5, 3.0)
                for stream, value in zip(STREAMS, values, strict=True):
                    client.observe(Reading(stream, float(HOUR * hour), value))
        self.at = until

    def turns(self, number):
        for _ in range(number):
            self.world.turn(0.5)

    def start(self, version, *words):
        with mock.patch("aggregator.extensions.rollouts.command.secrets.token_bytes", salt):
            self.command("rollout", "start", "load-mlp", "--version", str(version), *words)
        self.world.until(lambda: self.control._open and self.control._open.plan.version == version)
        members = self.places("score") + self.places("serve")
        for _ in range(60):
            self.turns(20)
            if self.states["score"] == members:
                return
        pytest.fail(f"{self.states} after the download, expected {members} that score")

    def pass_day(self):
        self.clock.now += DAY - self.clock.now % DAY
        self.measure()
        members = self.places("score") + self.places("serve")
        done = self.at // 24 - 1
        for _ in range(60):
            self.turns(10)
            if self.reports(done) == members or self.control.state.phase == "return":
                self.turns(10)  # the daemon judges new reports every two seconds
                return
        pytest.fail(
            f"{self.reports(done)} reports of day {done}, expected {members}; {self.states}"
        )

    def reports(self, day):
        """Return the number of devices whose result of a day the aggregator has."""
        trials = self.world.daemon._store.table(RolloutTable).trials(self.control._open.of)
        return sum(day in one.results for one in trials)

    @property
    def control(self):
        loaded = self.world.daemon._extensions._loaded.get("rollouts")  # from its first order on
        return loaded._control if loaded else SimpleNamespace(_open=None)

    @property
    def states(self):
        return Counter(
            one.extension("rollouts")._saved.state for one in self.world.clients.values()
        )

    @property
    def serving(self):
        """Devices whose forecasts come from the version of the rollout."""
        plan = self.control._open.plan
        versions = [one.issue().bundle_version for one in self.world.clients.values()]
        return sum(one == plan.version for one in versions)

    def places(self, place):
        open_ = self.control._open
        return sum(
            role(open_.plan, open_.state.stage, f"home-{n}") == place for n in range(DEVICES)
        )


@pytest.mark.slow
def test_a_bad_version_is_served_nowhere_and_an_equal_one_reaches_its_waves(world, tmp_path):
    days = Days(world, DEVICES)
    days.add(bad_version, tmp_path / "bad")
    days.start(2, "--gate", "shadow=50")
    members = days.places("score")
    assert days.states["score"] == members
    assert members > DEVICES // 3
    for _ in range(3):
        days.pass_day()
        assert days.serving == 0
        if days.control.state.phase == "return":
            break
    assert (days.control.state.phase, days.control.state.why) == ("return", "harm")
    days.turns(20)
    assert days.states["returned"] == members
    figures = [f"{DEVICES} devices: {members} scored the bad version, none served it"]
    assert not list(days.world.folder.glob("home-*/rollout"))

    days.add(lambda trial, folder: second_version(trial, folder, 3), tmp_path / "equal")
    days.start(3, "--waves", "1,25,100", "--gate", "days=1,shadow=50")
    seen = []
    for _ in range(8):
        days.pass_day()
        seen.append((days.control.state.stage, days.serving))
        if days.control.state.stage == 2 and days.serving:
            break
    assert [stage for stage, _ in seen] == sorted(stage for stage, _ in seen)
    assert days.control.state.phase == "run"
    assert days.serving == days.places("serve")
    assert 0.15 * DEVICES < days.serving < 0.35 * DEVICES

    figures += [f"{days.serving} served the equal one in stage 2"]
    days.command("rollout", "abort", "--why", "complaints")
    begun = days.clock.now
    for _ in range(10):  # half a minute; the stage waits behind other announcements
        days.turns(6)
        if not days.serving:
            break
    figures += [f"{days.serving} served it {days.clock.now - begun:g} s after the abort"]
    print("\n".join(figures))  # noqa: T201 - the figures of docs/rollouts.md, seen with -s
    assert days.control.state.phase == "return"
    assert days.serving == 0
