"""Memory of a device in closed form with a year of hourly readings: allocations, not resident pages.

Python, numpy and cryptography alone are some 47 MiB resident; a device of 64 MiB has what is left.
"""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest

from edge_sdk.app.settings import from_table
from edge_sdk.config import Config
from edge_sdk.extensions.analytic import boosting
from edge_sdk.extensions.choice.own_model import fit
from edge_sdk.extensions.choice.saved_selection import DeviceCandidates
from edge_sdk.forecasting.series import SeriesRow
from edge_sdk.protocol import keys
from edge_sdk.protocol.contract.method import END, Task
from edge_sdk.store.store import DeviceStore
from edge_sdk.training import bootstrap

HOURS = 365 * 24
FIRST = 1_514_764_800 // 3600
MIB = 2**20


@pytest.fixture(scope="module")
def learner(tmp_path_factory):
    folder = tmp_path_factory.mktemp("year")
    root = folder / "root.pub"
    keys.save_public(root, keys.from_seed(bytes(32)).public)
    table = {
        "id": "home-0",
        "fleet": "homes",
        "state": str(folder / "state"),
        "bundle": "load-analytic",
        "broker": {"url": "mqtt://127.0.0.1"},
        "keys": {"device": str(folder / "device.key"), "root": str(root)},
        "privacy": {"mechanism": {"name": "none"}},
        "accept": {"methods": ["analytic"]},
        "training": {"history_slots": HOURS},
    }
    config = from_table(Config, table, "meter.toml")
    store = DeviceStore.open(config.state)
    bundle = bootstrap.open_bundle(config, None)
    found = bootstrap.set_up(config, store, bundle, None)
    hour, rng = np.arange(HOURS), np.random.default_rng(0)
    load = 2.0 + np.sin(2 * np.pi * hour / 24) + rng.normal(0, 0.2, HOURS)
    for stream in found.series.streams:
        values = load if stream == found.manifest.target.stream else 15.0 + 5.0 * load
        found.load([SeriesRow(stream, FIRST + at, float(values[at])) for at in range(HOURS)])
    found.frame()
    return found


@pytest.fixture(scope="module")
def solved(learner):
    """A state in which the device has a solution of its own, drawn towards a fleet's."""
    return step(learner, learner.first_state(), final=False)


def step(learner, state, *, final):
    """Apply a task with a model that forecasts the last value and a bit."""
    w = np.asarray(learner.bundle.initial, np.float32).copy()
    w[-1] = 0.001
    size = learner.spec.shared_size
    ask = END if final else "train"
    task = Task("home-0", 1, ask, base=1, values={"weighted": 1.0}, arrays={"w": w[:size]})
    return learner.learn(state, task)[0]


def peak(work):
    """Return the most MiB that work has allocated at once beside what there was before."""
    work()  # the first call fills caches
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work()
        return (tracemalloc.get_traced_memory()[1] - before) / MIB
    finally:
        tracemalloc.stop()


def fitted_trees(learner, state):
    found = boosting.fit_trees(learner, state, b"")
    assert found.model.windows > 8000
    return found


def compared(learner, state):
    frame = learner.frame()
    models = DeviceCandidates(boosted=fitted_trees(learner, state)).models(learner, state)
    gc.collect()
    return lambda: models.compared_on(learner.vector(state), frame, frame.origins()[-24 * 14 :])


def test_a_year_of_statistics_and_the_own_solution(learner, solved):
    assert peak(lambda: step(learner, solved, final=False)) < 8.0


def test_the_newest_window_and_the_days_sums(learner, solved):
    assert peak(lambda: learner.forecast(solved)) < 4.0


def test_the_own_linear_model(learner):
    frame = learner.frame()
    origins = frame.origins()
    assert peak(lambda: fit(frame, origins)) < 6.0


@pytest.mark.slow
def test_trees_and_blend(learner, solved):
    assert peak(lambda: fitted_trees(learner, solved)) < 11.0


@pytest.mark.slow
def test_the_comparison_of_two_weeks(learner, solved):
    assert peak(compared(learner, solved)) < 6.0


def test_the_channels_of_a_year(learner):
    def framed():
        learner._frame = learner._learnable = None
        learner.frame()

    assert peak(framed) < 4.0


def test_the_design_of_many_windows(learner):
    """A week of readings lies behind each design row: all at once they would take 7 MiB more."""
    x = np.zeros(
        (512, learner.manifest.window.lookback, len(learner.manifest.features)), np.float32
    )
    w = np.asarray(learner.bundle.initial, np.float32)
    assert peak(lambda: learner.bundle.graphs["design"](p=w, x=x)) < 2.5
