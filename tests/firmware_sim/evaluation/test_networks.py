"""Networks trained in one process move as they do between devices and an aggregator."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from aggregator.methods import METHODS as SERVER
from aggregator.methods import OPEN, Rounds, Setup
from aggregator.rules import bind
from edge_sdk.methods import METHODS as DEVICE
from edge_sdk.methods.local_sgd import LocalSgd
from edge_sdk.methods.training_context import TrainingContext, keyed
from edge_sdk.protocol.contract.method import Task, Update
from firmware_sim.evaluation.networks import (
    BUNDLES,
    NETWORKS,
    STEPS,
    NetworkFleet,
    open_bundle,
)
from firmware_sim.evaluation.records import DeviceRecord
from firmware_sim.evaluation.windows import RecordParts

DAY = 24
RATE = 1e-3


def record(name, seed, sign=1.0):
    rng = np.random.default_rng(seed)
    rows = np.arange(30 * DAY)
    values = 3 + np.sin(2 * np.pi * rows / DAY) + 0.2 * rng.normal(size=len(rows))
    return DeviceRecord(name, 1_600_000_000 // 3600 * 3600, sign * values, rows % DAY, rows // DAY)


def fleet(**records):
    records = records or {name: record(name, i) for i, name in enumerate("abc")}
    parts = {name: RecordParts.of(one, DAY) for name, one in records.items()}
    return NetworkFleet(open_bundle("load-week-1"), records, parts, zone="UTC", seed=5), parts


@pytest.mark.parametrize("way", ["FedAvg", "PL-FL"])
def test_rounds_equal_those_of_the_aggregators_half(way):
    """The oracle: the aggregator's own method with the mean, fed by the devices' own halves."""
    here, _ = fleet()
    *_, found = here.train(NETWORKS[way], [RATE] * 3)
    bundle = here.bundle
    manifest, spec = bundle.manifest, bundle.manifest.spec(NETWORKS[way])
    halves, states = {}, {}
    for name, windows in here._windows.items():
        context = TrainingContext(
            name, spec, bundle.graphs, lambda w=windows: w, manifest.training.batch,
            partial(keyed, 5, name),
        )  # fmt: skip
        halves[name] = DEVICE["fedavg"](context, LocalSgd.of(manifest.training))
        states[name] = halves[name].init(bundle.initial)
    method = SERVER["fedavg"]
    rounds = Rounds(quorum=3, limit=3)
    server = method.half(Setup(bind("mean"), method.settings(steps=STEPS, rate=RATE), rounds, spec))
    state, effects = server.apply(server.init(spec.shared(bundle.initial)), OPEN)
    while task := next((x for x in effects if isinstance(x, Task)), None):
        for name, half in halves.items():
            states[name], answers = half.apply(states[name], task)
            for update in (x for x in answers if isinstance(x, Update)):
                state, effects = server.apply(state, update)
    common = np.asarray(server.model(state)["p"], np.float32)
    for name, p in found.items():
        np.testing.assert_allclose(p, spec.place(states[name].p, common), rtol=1e-5, atol=1e-7)


def test_alone_nothing_is_shared_and_with_fedavg_all_devices_have_one_model():
    here, _ = fleet()
    *_, alone = here.train(NETWORKS["local net"], [RATE])
    assert not np.array_equal(alone["a"], alone["b"])
    *_, whole = here.train(NETWORKS["FedAvg"], [RATE])
    np.testing.assert_array_equal(whole["a"], whole["b"])
    assert here.traffic(NETWORKS["local net"], 7) == (0, 0)


def test_training_ends_before_the_held_back_days():
    here, parts = fleet()
    for name, windows in here._windows.items():
        assert len(windows)
        assert windows.origins.max() + 1 < parts[name].held < parts[name].test


def test_readings_after_the_training_part_change_no_vector():
    one, parts = fleet()
    records = {name: record(name, i) for i, name in enumerate("abc")}
    for name, changed in records.items():
        changed.values[parts[name].held :] = 99.0
    two, _ = fleet(**records)
    *_, before = one.train(("",), [RATE])
    *_, after = two.train(("",), [RATE])
    np.testing.assert_array_equal(before["a"], after["a"])


def test_a_gap_gives_no_forecast_and_a_net_reading_may_be_negative():
    holed = record("a", 0, sign=-1.0)
    holed.values[-20:-10] = np.nan
    here, parts = fleet(a=holed)
    origins = np.arange(parts["a"].test, parts["a"].end - 1)
    found = here.forecast("a", here.bundle.initial, origins, 1)
    assert np.isfinite(found[0])
    assert np.isnan(found[-15])
    assert np.nanmin(found) < 0.0


def test_every_listed_bundle_exists_and_needs_no_other_reading():
    for step, listed in BUNDLES.items():
        for horizon, name in listed:
            manifest = open_bundle(name).manifest
            assert (manifest.window.step_seconds, manifest.window.horizon) == (step, horizon)
            assert manifest.required_streams == (manifest.target.stream,)
            manifest.spec(NETWORKS["PL-FL"])
