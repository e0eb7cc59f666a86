"""Readings are a ring on flash: in slots, days and bytes, never less than the model needs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edge_sdk.config import TrainingSection
from edge_sdk.errors import ConfigError
from edge_sdk.forecasting.series import Reading
from edge_sdk.limits import LimitsSection
from edge_sdk.store.schema import FILE
from edge_sdk.store.store import DeviceStore
from edge_sdk.training import bootstrap
from edge_sdk.training.run_role import KeptHistory, history_of, slots_needed
from tests.edge_sdk.conftest import MANIFEST
from tests.edge_sdk.test_client import W0

HOUR, DAY = 3600, 24
STREAM = "elec.import.energy"
START = 1_700_000_000 // (DAY * HOUR) * DAY  # a slot
KEEP = {"training": {"history_days": 20.0}}
NOISE = {
    "mechanism": {"name": "gaussian", "point": "input", "range": [0.0, 5.0]},
    "mode": "honest",
    "budget": {"epsilon": 5.0, "delta": 1e-6},
}


@pytest.fixture
def numpy_bundle(numpy_bundle, monkeypatch):
    monkeypatch.setattr(bootstrap, "open_bundle", lambda _config, _announced: numpy_bundle)
    return numpy_bundle


def observe(client, first, count):
    for slot in range(first, first + count):
        client.observe(Reading(STREAM, slot * HOUR, 1.0 + 0.1 * (slot % DAY)))


def on_flash(fleet):
    with DeviceStore.open(fleet.device.config.state, read_only=True) as store:
        return sorted(row.slot for row in store.readings)


def test_old_readings_are_dropped_by_the_day_and_the_rest_comes_back(make):
    fleet = make(**KEEP)
    client = fleet.device.start()
    for day in range(60):
        observe(client, START + DAY * day, DAY)
        client.flush()
        kept = on_flash(fleet)
        assert len(kept) <= 21 * DAY
        assert kept[-1] == START + DAY * (day + 1) - 1
    assert len(kept) >= 20 * DAY
    held = client.learner.series.values(STREAM)
    fleet.device.kill()
    client = fleet.device.start()
    np.testing.assert_array_equal(client.learner.series.values(STREAM)[-20 * DAY :], held)
    assert client.forecast().source == "model"


def test_bytes_bound_the_ring_too(make):
    fleet = make(limits={"history_bytes": 20_000})
    client = fleet.device.start()
    observe(client, START, 1000)
    client.flush()
    assert 200 < len(on_flash(fleet)) <= 20_000 // 80


def test_backfilled_readings_do_not_hide_from_the_ring(make):
    fleet = make(**KEEP)
    client = fleet.device.start()
    observe(client, START, DAY)
    client.flush()
    observe(client, START - 18 * DAY, 18 * DAY)
    client.flush()
    observe(client, START + DAY, 4 * DAY)
    client.flush()
    assert len(on_flash(fleet)) <= 21 * DAY


def test_nothing_is_dropped_while_the_newest_slots_hold_too_little(make):
    fleet = make(**KEEP)
    client = fleet.device.start()
    observe(client, START, 10 * DAY)
    client.flush()
    observe(client, START + 1000 * DAY, 3)  # years of silence, or a clock that leapt
    client.flush()
    assert len(on_flash(fleet)) == 10 * DAY + 3
    observe(client, START + 1000 * DAY + 3, 2 * DAY)
    client.flush()
    assert len(on_flash(fleet)) == 2 * DAY + 3


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"training": TrainingSection(history_slots=10)}, "training.history_slots = "),
        ({"training": TrainingSection(history_days=0.3)}, "training.history_days = "),
        ({"limits": LimitsSection(history_bytes=500)}, "limits.history_bytes = "),
    ],
)
def test_less_than_the_model_needs_is_refused_with_the_number_needed(fleet, section, key):
    config = replace(fleet.device.config, **section)
    with pytest.raises(ConfigError, match="needs") as caught:
        history_of(config, MANIFEST)
    assert caught.value.hint.startswith(key)
    number = float(caught.value.hint.removeprefix(key).split()[0])
    where, name = key.removesuffix(" = ").split(".")
    enough = replace(section[where], **{name: number})
    kept = history_of(replace(config, **{where: enough}), MANIFEST)
    assert kept.slots >= slots_needed(config, MANIFEST) == 4 + 1 + 8


def test_a_device_does_not_start_with_less_than_the_model_needs(make):
    with pytest.raises(ConfigError, match="needs"):
        make(training={"history_slots": 5}).device.start()


def test_a_batch_is_a_day_or_a_small_share_of_a_short_history():
    assert [KeptHistory(n, 900, 1).batch for n in (35_040, 640, 10)] == [96, 10, 1]


@pytest.mark.extension
def test_noise_that_was_dropped_is_never_drawn_again(make):
    fleet = make(**KEEP, privacy=NOISE, accept={"max_steps": 3})
    client = fleet.device.start()
    observe(client, START, 15 * DAY)
    client.flush()
    fleet.server.open_round(0, 0, W0)
    fleet.run(20, seconds=0.05)
    with DeviceStore.open(fleet.device.config.state, read_only=True) as store:
        drawn = store.noised()
    assert (STREAM, START) in drawn
    observe(client, START + 15 * DAY, 10 * DAY)
    account = client.status()["budget"]
    client.flush()  # drops five days, and the noise on them
    assert client.status()["budget"] == account
    fleet.device.kill()
    with DeviceStore.open(fleet.device.config.state) as store:  # as if the newest had been lost
        store._db.execute("DELETE FROM readings WHERE slot >= ?", (START + 15 * DAY,))
    client = fleet.device.start()
    observe(client, START, 5 * DAY)  # the source reads them again
    fleet.server.open_round(1, 1, W0)
    fleet.run(20, seconds=0.05)
    with DeviceStore.open(fleet.device.config.state, read_only=True) as store:
        after = store.noised()
        since = store.noised_since()
    assert len(fleet.server.updates) == 2
    assert since == (START + 5 * DAY) * HOUR
    assert min(slot for _, slot in after) == START + 5 * DAY
    assert after.items() <= drawn.items()


def test_a_store_that_is_over_its_bounds_comes_within_them_with_the_first_readings(make):
    fleet = make()
    client = fleet.device.start()
    observe(client, START, 200 * DAY)
    client.flush()
    fleet.device.kill()
    assert len(on_flash(fleet)) == 200 * DAY
    size = (fleet.device.config.state / FILE).stat().st_size
    config = fleet.device.config
    fleet.device.config = replace(config, training=replace(config.training, history_days=20.0))
    client = fleet.device.start()
    observe(client, START + 200 * DAY, 1)
    client.flush()
    assert len(on_flash(fleet)) == 20 * DAY
    for day in range(20):
        observe(client, START + 200 * DAY + 1 + DAY * day, DAY)
        client.flush()
    client.close()
    assert (config.state / FILE).stat().st_size <= size
