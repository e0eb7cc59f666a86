"""One device in two runs of one daemon at the same time: one record, one key, one privacy budget."""

from __future__ import annotations

import shutil
import tomllib
from contextlib import ExitStack

import pytest

from aggregator.commands import main as cli
from aggregator.extensions.audit.recompute import recompute
from edge_sdk import Config
from edge_sdk.app.settings import SettingsError
from edge_sdk.errors import ConfigError
from edge_sdk.extensions.inspection.status import charges_beside
from edge_sdk.extensions.participations.participations import participating
from edge_sdk.privacy.ledger import compose
from edge_sdk.store.store import DeviceStore
from firmware_sim.fleet.run_files import toml
from firmware_sim.testing.loopback import LoopbackBroker
from tests.fleet.conftest import STREAMS, history
from tests.fleet.test_several_runs import Town, section

GAUSSIAN = {"name": "gaussian", "point": "update", "clip_norm": 1.0, "epsilon": 1.0}
HONEST = {"mode": "honest", "mechanism": GAUSSIAN}
DELTA = 1e-6


class Pair(Town):
    """Two runs for every device, and two devices: home-0 takes part in both, home-1 in the first."""

    def _found(self):
        self.devices = 2
        self.device, self.opened = None, ExitStack()
        self.config = self.folder / "aggregator.toml"
        self.write_runs()
        assert cli.main(["init", str(self.config)]) == 0
        for number in range(self.devices):
            self._write(number)
            self.enrol(f"home-{number}", number)
        self.enrol("home-0-b", 0, "--label", "device=home-0")

    def write_runs(self, **more):
        both = {"cohort": {}, "quorum": 1, "method": "fedavg"} | more
        self.write([section("meter", **both), section("charger", **both)])

    def limit_rounds(self, rounds):
        """End each run after so many rounds, so that neither can use up the budget alone."""
        self.write_runs(rounds=rounds)
        assert cli.main(["announce", str(self.config)]) == 0

    def enrol(self, name, number, *label):
        public = ("--public", str(self.folder / f"home-{number}.pub"))
        words = ("enrol", name, *public, *label, "--config", str(self.config))
        assert cli.main(list(words)) == 0

    def change(self, **more):
        path = self.folder / "home-0.toml"
        path.write_text(toml(tomllib.loads(path.read_text()) | more))

    @property
    def settings(self):
        return Config.load(self.folder / "home-0.toml")

    def begin(self, unreachable=""):
        """Start the device; one participation may have a link to a broker that does not serve."""
        config, elsewhere = self.settings, LoopbackBroker(clock=self.clock.monotonic)
        brokers = {unreachable: elsewhere}
        self.device = self.opened.enter_context(
            participating(
                config,
                transport=lambda one: (
                    lambda will: brokers.get(one.id, self.broker).link(one.id, will)
                ),
                clock=self.clock,
            )
        )
        for reading in history(0):
            self.device.observe(reading)
        self.device.flush()

    def cut_power(self):
        """End the device without a goodbye: what its disk holds now is what it starts from."""
        state, disk = self.settings.state, self.folder / "disk"
        shutil.copytree(state, disk)
        for client in self.device.clients:
            self.broker.cut(client.config.id)
        self.device = None
        self.opened.close()
        shutil.rmtree(state)
        disk.rename(state)

    def turn(self, seconds=0.1):
        if self.device is not None:
            self.device.tick(0.0)
        super().turn(seconds)

    def is_spent(self):
        accounts = [client.budgets.accountant.account for client in self.device.clients]
        spent = [client.status()["budget"]["left"] == 0 for client in self.device.clients]
        return all(spent) and all(account.is_known for account in accounts)

    def ledgers(self):
        """Return all charges of both ledgers, read from the files."""
        found = []
        for one in self.settings.participants():
            with DeviceStore.open(one.state, read_only=True) as store:
                found.append(list(store.ledger()))
        return found

    def close(self):
        if self.device is not None:
            self.cut_power()
        super().close()


@pytest.fixture
def pair(tmp_path):
    made = Pair(tmp_path)
    yield made
    made.close()


TWO = {"participation": [{"id": "home-0-b", "bundle": "load-mlp"}]}


def test_one_device_learns_in_two_runs_and_counts_once_in_each(pair):
    pair.change(**TWO)
    pair.start_daemon()
    pair.begin()
    pair.start(1)
    pair.until(lambda: all(version >= 3 for version in pair.versions().values()))
    pair.until(lambda: all(client.status()["run"] for client in pair.device.clients))
    pair.until(lambda: pair.cohorts("chargers"))
    status = pair.device.status()
    numbers = {name: engine.number for name, engine in pair.engines().items()}
    assert status["run"] == numbers["meters"]
    assert status["participations"]["home-0-b"]["run"] == numbers["chargers"]
    assert pair.cohorts("meters") <= {"home-0", "home-1"}
    assert pair.cohorts("chargers") == {"home-0-b"}
    assert pair.daemon._ingress.counts["NOT_IN_COHORT"] == 0
    for client in pair.device.clients:
        assert len(client.learner.series) == 400
        assert client.issue().forecast.source != "none"
    for name in numbers:
        engine = pair.engines()[name]
        audit = recompute(
            pair.daemon._store, engine.run.half, engine.run.first_state().w, engine.number
        )
        assert audit.is_sound, audit.faults
    cohorts = [driver.cohort for driver in pair.daemon._driver]
    assert [[one.holds(d) for d in ("home-0", "home-0-b")] for one in cohorts] == [
        [True, False],  # the device's own id has this run: the further one cannot vote in it
        [True, True],
    ]


def test_the_privacy_losses_of_both_runs_stay_within_one_budget_over_power_cuts(pair):
    budget = {"epsilon": 4.0, "delta": DELTA}
    pair.change(**TWO, privacy=HONEST | {"budget": budget})
    pair.limit_rounds(8)
    pair.start_daemon()
    for releases in (2, 4):
        pair.begin()
        pair.until(lambda at=releases: sum(map(len, pair.ledgers())) >= at)
        pair.cut_power()
    pair.begin()
    pair.until(pair.is_spent)
    own, further = pair.ledgers()
    assert own
    assert further
    spent = compose([*own, *further], DELTA)
    assert 2.0 < spent <= 4.0
    assert max(compose(own, DELTA), compose(further, DELTA)) < spent
    # a hello that is repeated before the first welcome lets the aggregator count releases that never were
    for one in (pair.device.status(), pair.device.status()["participations"]["home-0-b"]):
        assert spent * (1.0 - 1e-9) <= one["budget"]["epsilon"] <= 4.0
        assert one["budget"]["releases"] >= sum(charge.releases for charge in (*own, *further))

    # a participation that is removed from the configuration has read the same readings
    pair.cut_power()
    before = charges_beside(pair.settings, "home-0")
    pair.change(participation=[])
    assert charges_beside(pair.settings, "home-0") == before
    pair.begin()
    pair.turn()
    assert pair.is_spent()


def test_after_a_loss_of_all_stores_nothing_leaves_before_both_counts_are_back(pair):
    pair.change(**TWO, privacy=HONEST | {"budget": {"epsilon": 8.0, "delta": DELTA}})
    pair.limit_rounds(25)
    pair.start_daemon()
    pair.begin()
    pair.until(lambda: all(map(len, pair.ledgers())) and sum(map(len, pair.ledgers())) >= 4)
    pair.cut_power()
    before = [sum(charge.releases for charge in its) for its in pair.ledgers()]
    shutil.rmtree(pair.settings.state)
    pair.begin(unreachable="home-0-b")
    for _ in range(200):
        pair.turn()
    assert pair.device.main.status()["spent"] >= before[0]  # welcomed, and silent
    assert "sent" not in pair.device.main.status()["counts"]
    assert pair.device.main.why_stopped == "budget"
    assert pair.device.main.status()["budget"]["left"] == 0
    pair.cut_power()
    pair.begin()
    pair.until(pair.is_spent)
    counted = [client.status()["spent"] for client in pair.device.clients]
    assert all(now >= then for now, then in zip(counted, before, strict=True))
    one = pair.device.main.learner.mechanism.plan.charge(count=sum(counted))
    assert 4.0 < compose([one], DELTA) <= 8.0


def test_bytes_and_wake_time_of_both_runs_count_against_one_limit(pair):
    limit = (
        4_000_000  # some 60 exchanges: the second run joins long before the first has used it up
    )
    pair.change(**TWO, limits={"daily_link_bytes": limit, "daily_wake_time": "1h"})
    pair.start_daemon()
    pair.begin()
    pair.until(lambda: pair.device.why_stopped.startswith("quota"))
    used = [client.budgets.quota.day.used for client in pair.device.clients]
    assert all(one < limit for one in used)
    assert sum(used) >= limit
    assert [client.why_stopped for client in pair.device.clients] == ["quota", "quota"]
    first, second = (client.budgets.governor for client in pair.device.clients)
    first.live(first._last_call + 1800, None, awake=True)
    second.live(second._last_call + 1790, None, awake=True)
    assert not first.is_wake_spent
    second.live(second._last_call + 60, None, awake=True)
    assert first.is_wake_spent
    assert second.is_wake_spent


def test_a_claim_that_does_not_add_up_and_a_shared_id_are_refused(pair):
    pair.change(participation=[{"id": "home-0", "bundle": "load-mlp"}])
    with pytest.raises(SettingsError, match="'home-0' is in use; each participation has its own"):
        _ = pair.settings
    public = {"range": [0.0, 50.0], "public_streams": list(STREAMS[1:])}
    mechanism = {"name": "gaussian", "point": "input"} | public
    budget = {"epsilon": 30.0, "delta": DELTA, "unit": "reading"}
    privacy = {"mode": "honest", "mechanism": mechanism, "budget": budget}
    pair.change(**TWO, privacy=privacy)
    with pytest.raises(ConfigError, match="a claim about a reading does not add up"):
        pair.begin()
