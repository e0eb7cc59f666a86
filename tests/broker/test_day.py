"""A simulated day of the installed agent, seen from outside, held to the committed budgets."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from aggregator.extensions.authority.access.broker_process import has_embedded, mosquitto_program
from edge_sdk.limits import CLASSES
from firmware_sim.fleet.processes import command, run
from tools.day.__main__ import budgets, live
from tools.day.street import Plan

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="another process's counters are in /proc"),
]
PLAN = Plan(every=60.0)


def test_the_daily_budgets_are_within_the_limits_of_the_device_class():
    allowed, limits = budgets("B"), CLASSES["B"]
    assert allowed["data"] == limits.memory == 128 * 2**20
    assert allowed["flash"] <= limits.daily_flash_bytes
    assert allowed["link"] <= limits.daily_link_bytes


def test_a_whole_day_and_its_rounds_stay_within_the_budgets(tmp_path):
    if mosquitto_program() is None and not has_embedded():
        pytest.skip("there is no broker on this machine")
    day = live(tmp_path, PLAN, pace=1800.0)
    assert day.seen.code == 0
    assert day.rounds == PLAN.rounds
    assert day.told["counts"]["accepted"] == PLAN.rounds
    assert day.told["sources"][0]["accepted"] >= 0.9 * 86_400 / PLAN.every  # a busy machine lags
    assert day.told["counts"]["readings new"] >= 0.9 * 23  # as above
    assert day.keeps_to(budgets("B")), day.measured
    _counts_what_is_seen_from_outside(day, next((tmp_path / "fleet" / "devices").glob("*.toml")))


def _counts_what_is_seen_from_outside(day, config):
    told = json.loads(run(command("gridfed-edge", "budget", str(config), "--json")))["limits"]
    counts = day.told["counts"]
    payload = counts["bytes_up"] + counts["bytes_down"]
    assert 0.6 * (day.up + day.down) < payload < day.up + day.down
    assert told["memory"]["limit"] == budgets("B")["data"]
    assert told["wake time a day"]["used"] > 0
    if day.seen.written:  # none on a RAM disk
        whole = told["flash a day"]["used"]
        assert 0.1 * day.seen.written < whole <= day.seen.written


@pytest.mark.soak
def test_a_day_of_the_default_schedule_stays_within_its_link_budget(tmp_path):
    if mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")
    day = live(tmp_path, replace(PLAN, every=60.0, rounds_per_day=1), pace=900.0)
    assert day.seen.code == 0
    assert (day.rounds, day.told["counts"]["accepted"]) == (1, 1)
    assert day.up + day.down <= budgets("scheduled")["link"]
