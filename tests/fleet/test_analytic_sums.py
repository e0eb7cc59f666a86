"""Closed form by sums alone: the real daemon, real clients and a real witness, pass by pass."""

from __future__ import annotations

import json

import numpy as np
import pytest

from aggregator.commands import main as cli
from aggregator.extensions.audit.recompute import recompute
from aggregator.extensions.model_log.program import main as witness
from aggregator.extensions.sums.opened_sum import SumTable

pytestmark = [pytest.mark.extension, pytest.mark.timeout(600)]
DEVICES, HOUR = 9, 3600
SETTING = ('"passes" = 1', '"passes" = 1, "contract" = "statistics"')
SUMS = """
[sums]
witness_open = "{witness_open}"
witness_sign = "{witness_sign}"

[[sums.contract]]
name = "statistics"
source = "statistic"
stream = "load-analytic"
unit = "1"
lowest = -1.0
highest = 1.0
resolution = 1e-12
length = 20014
period = "1h"
due = "2h"
least = 8
"""


class Fleet:
    """A world of nine homes, and a witness in a folder of its own."""

    def __init__(self, world, tmp_path, capsys, text=SUMS, *, settings=SETTING, devices=DEVICES):
        run = {"bundle": "load-analytic", "method": "analytic", "settings": {"passes": 1}}
        self.world = world(devices=devices, accept={"sums": True}, run=run)
        self.capsys, self.folder = capsys, tmp_path / "witness"
        self.folder.mkdir()
        files = (str(self.folder / name) for name in ("witness.key", "witness-open.key"))
        self.keys = [x for pair in zip(("--key", "--open-key"), files, strict=True) for x in pair]
        self.record = ["--record", str(self.folder / "sums.db")]
        capsys.readouterr()
        assert witness(["sum-keys", *self.keys, "--json"]) == 0
        keys = json.loads(capsys.readouterr().out)
        config = self.world.config
        table = config.read_text().replace(*settings)
        config.write_text(table + text.format(**keys))

    def announced(self):
        assert cli.main(["announce", str(self.world.config)]) == 0
        self.command("sums", "announce")
        listed = str(self.folder / "devices.txt")
        self.command("sums", "devices", "--out", listed)
        assert witness(["enrol", listed, "--fleet", "north", *self.record]) == 0
        self.world.start_daemon()
        return self

    def command(self, *words):
        assert cli.main([*words, "--config", str(self.world.config)]) == 0

    def check(self):
        self.capsys.readouterr()
        code = cli.main(["check", str(self.world.config)])
        return code, self.capsys.readouterr().err

    def turns(self, number):
        for _ in range(number):
            self.world.turn(1.0)

    def hour(self):
        self.world.clock.now += HOUR
        self.turns(25)
        if sets := sorted((self.world.folder / "aggregator" / "sums").glob("*.set")):
            assert witness(["open", *map(str, sets), *self.keys, *self.record]) == 0
            self.turns(25)

    def finished(self, most=16):
        for _ in range(most):
            if self.world.daemon._engine.is_done:
                break
            self.hour()
        engine = self.world.daemon._engine
        assert engine.is_done
        audit = recompute(self.world.daemon._store, engine.run.half, engine.run.first_state().w)
        assert audit.is_sound, audit.faults
        return self.world.consensus()

    @property
    def sums(self):
        return self.world.daemon._store.table(SumTable).opened("statistics")


def own(world, silent=()):
    """Return the model of the same homes from every device's own statistic."""
    run = {"bundle": "load-analytic", "method": "analytic", "settings": {"passes": 1}}
    one = world(devices=DEVICES, run=run | {"quorum": DEVICES - len(silent), "deadline": "600s"})
    one.start_daemon()
    for number in set(range(DEVICES)) - set(silent):
        one.start(number)
    one.until(lambda: one.daemon._engine.is_done)
    return one.consensus()


def close(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.slow
def test_the_model_is_that_of_single_statistics_and_no_device_sends_its_own(
    world, tmp_path, capsys
):
    fleet = Fleet(world, tmp_path, capsys).announced()
    for number in range(DEVICES):
        fleet.world.start(number)
    close(fleet.finished(), own(world))
    assert [one.members for one in fleet.sums] == [DEVICES] * 2
    assert fleet.world.daemon.metrics.refusals() == {}
    fleet.turns(40)
    for client in fleet.world.clients.values():
        assert client.is_done
        assert client.status()["spent"] == 0  # updates of its own
        np.testing.assert_array_equal(client.state.p, fleet.world.consensus().astype(np.float32))
    fleet.world.kill_daemon()
    fleet.command("sums", "audit")


@pytest.mark.slow
def test_a_silent_device_is_missing_and_restarts_of_both_ends_change_no_digit(
    world, tmp_path, capsys
):
    fleet = Fleet(world, tmp_path, capsys).announced()
    for number in range(DEVICES - 1):
        fleet.world.start(number)
    for victim in range(3):
        fleet.hour()
        fleet.world.kill_daemon()
        fleet.world.die(victim)
        fleet.world.turn()
        fleet.world.start_daemon()
        fleet.world.start(victim)
    close(fleet.finished(), own(world, silent=[DEVICES - 1]))
    assert [one.members for one in fleet.sums] == [DEVICES - 1] * 2


@pytest.mark.slow
def test_a_pass_whose_sum_has_too_few_devices_begins_again_with_the_others(world, tmp_path, capsys):
    fleet = Fleet(world, tmp_path, capsys).announced()
    for number in range(6):
        fleet.world.start(number)
    for _ in range(6):
        fleet.hour()
    assert (fleet.world.version, fleet.sums) == (0, [])
    assert fleet.world.daemon.state.round > 1
    for number in range(6, DEVICES):
        fleet.world.start(number)
    close(fleet.finished(), own(world))


@pytest.mark.slow
def test_noise_is_charged_once_a_pass(world, tmp_path, capsys):
    text = SUMS.replace("1e-12", "1e-10") + "norm = 1.0\nnoise = 0.01\n"
    fleet = Fleet(world, tmp_path, capsys, text).announced()
    for number in range(DEVICES):
        fleet.world.start(number)
    assert np.isfinite(fleet.finished()).all()
    assert [one.noise > 0.0 for one in fleet.sums] == [True, True]
    for client in fleet.world.clients.values():
        account = client._active.accountant.current()
        charges = [one for one in account.charges if one.point == "sum"]
        assert sum(one.count for one in charges) == 2


@pytest.mark.slow
def test_a_device_with_a_contract_of_statistics_never_answers_with_its_own(
    world, tmp_path, capsys, caplog
):
    """The run asks for single statistics; devices that follow the contract send nothing."""
    caplog.set_level("INFO")
    fleet = Fleet(world, tmp_path, capsys, settings=("", "")).announced()
    fleet.world.start(0)
    fleet.turns(60)
    assert "statistic not sent alone" in caplog.text
    assert fleet.world.daemon.state.held == {}
    assert fleet.world.clients[0].status()["spent"] == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("length = 20014", "length = 20013"), "expected length = 20014"),
        (('stream = "load-analytic"', 'stream = "load-day-1"'), "expected stream"),
        (("least = 8", 'least = 8\ncohort = "feeder"'), "expected cohort"),
        (('name = "statistics"', 'name = "others"'), "no contract of that name"),
    ],
)
def test_a_contract_that_is_none_of_the_runs_statistics_is_refused(
    world, tmp_path, capsys, change, said
):
    fleet = Fleet(world, tmp_path, capsys, SUMS.replace(*change), devices=1)
    code, error = fleet.check()
    assert code != 0
    assert said in error
