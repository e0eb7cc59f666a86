"""A device that runs a bundle of profiles: from its first known day on, alone and in a fleet."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC

import numpy as np
import pytest

from edge_sdk.extensions.analytic.profile_half import IssuedWindows, with_own_part
from edge_sdk.extensions.analytic.profile_model import ProfileModel
from edge_sdk.extensions.analytic.profile_sums import functions_of_profiles
from edge_sdk.extensions.analytic.residual_paths import fitted_paths
from edge_sdk.extensions.evaluation.forecast import result_of
from edge_sdk.forecasting.forecast import ForecastQuality
from edge_sdk.forecasting.series import SeriesRow
from edge_sdk.forecasting.windows import Drawable
from edge_sdk.protocol.contract.method import END, Task
from tests.edge_sdk.extensions.analytic.day_fleet import STREAM, frame_of, load_of, runtime_of

pytestmark = pytest.mark.extension
MONDAY = 473_352
LOAD = load_of(2, 60, gaps=0.0)
QUALITY = ForecastQuality()


def device(folder, rows, **tables):
    return runtime_of(folder, LOAD, rows, **tables)


def test_the_first_known_day_is_enough(tmp_path):
    one = device(tmp_path, 23)
    state = one.first_state()
    assert not one.is_ready
    assert "1 more reading" in one.missing
    one.load([SeriesRow(STREAM, MONDAY + 23, float(LOAD[23]))])
    assert one.is_ready
    assert one.missing == ""
    found = one.forecast(state)
    assert found.source == "model"
    assert found.median == pytest.approx(LOAD[:24], rel=1e-5)
    assert found.interval.shape == (24, 2)
    assert (found.expected >= 0.0).all()
    assert found.paths.shape == (64, 24)


def test_the_own_part_follows_the_readings_without_a_training(tmp_path):
    one = device(tmp_path, 40 * 24)
    state = one.first_state()
    first = one.forecast(state)
    model = ProfileModel(one.manifest)
    renewed = one.form.latest(one.vector(state))
    assert model.parts(renewed).own.any()
    assert not model.parts(one.vector(state)).own.any()
    one.load([SeriesRow(STREAM, MONDAY + 960 + i, float(LOAD[960 + i])) for i in range(24)])
    one.forecast(state)
    again = one.form.latest(one.vector(state))
    assert again is not renewed  # readings were loaded, so it was solved anew
    (tmp_path / "off").mkdir()
    off = device(tmp_path / "off", 40 * 24, forecast={"online": False})
    assert (off.forecast(off.first_state()).median != first.median).any()


def test_an_agent_serves_the_numbers_of_the_tables_path(tmp_path):
    one = device(tmp_path, 40 * 24)
    found = one.forecast(one.first_state())
    manifest, graphs = one.manifest, functions_of_profiles(one.manifest)

    def run(name, **feeds):
        return graphs[name](**feeds)

    frame = frame_of(LOAD[: 40 * 24], manifest, zone=UTC)
    windows = IssuedWindows.of(run, Drawable(frame, frame.origins()))
    p = with_own_part(run, windows, one.bundle.initial, manifest.spec())
    x = frame.inputs(np.array([len(frame) - 1]))
    assert found.median == pytest.approx(run("forecast", p=p, x=x)[0][0, :, 1], rel=1e-5)
    expected, paths = run("day", p=p, x=x)
    assert expected == pytest.approx(paths.mean(axis=1), rel=1e-5)
    served = np.maximum(fitted_paths(paths[0], found.median, found.interval, 0.8), 0.0)
    assert found.paths == pytest.approx(served, rel=1e-4, abs=1e-4)


def test_medians_intervals_expected_values_and_sums_are_of_one_distribution(tmp_path):
    one = device(tmp_path, 40 * 24)
    found = one.forecast(one.first_state())
    low, middle, high = np.quantile(found.paths, (0.1, 0.5, 0.9), axis=0)
    near = 0.05 * (found.interval[:, 1] - found.interval[:, 0])  # 64 paths have no middle one
    assert (np.abs(middle - found.median) < near).all()
    assert (np.abs(found.interval - np.stack([low, high], axis=1)) < 2.0 * near[:, None]).all()
    assert found.expected == pytest.approx(found.paths.mean(axis=0))
    assert found.expected.sum() == pytest.approx(found.paths.sum(axis=1).mean())
    by_steps = replace(found, source="by step")
    assert result_of(by_steps).text.startswith("kWh, by step, 80% between")


def test_a_device_alone_solves_its_own_part_in_a_round_of_its_own(tmp_path):
    one = device(tmp_path, 30 * 24, fleet={"keys": {"device": str(tmp_path / "device.key")}})
    state = one.first_state()
    after = one.learn(
        state,
        Task(
            "home-0",
            0,
            "train",
            values={"steps": 1.0, "rate": 0.1},
            arrays={"w": np.zeros(0, np.float32)},
        ),
    )[0]
    assert ProfileModel(one.manifest).parts(one.vector(after)).own.any()
    assert np.isfinite(one.forecast(after).expected).all()


def test_the_final_model_is_served_with_the_own_part_and_survives_a_restart(tmp_path):
    one = device(tmp_path, 40 * 24)
    w = one.bundle.initial
    state, _ = one.learn(one.first_state(), Task("home-0", 1, END, base=1, arrays={"w": w}))
    again = type(state).from_arrays(state.arrays())
    assert (one.vector(again) == one.vector(state)).all()
    assert ProfileModel(one.manifest).parts(one.vector(state)).own.any()
    assert one.forecast(state).median == pytest.approx(one.forecast(again).median)


def test_what_is_issued_has_the_expected_value_of_every_step(tmp_path):
    one = device(tmp_path, 10 * 24)
    found = one.forecast(one.first_state())
    issued = one.issued(found, QUALITY, now=0.0, run=0, version=-1)
    rows = issued.document()["values"]
    assert [row["expected"] for row in rows] == pytest.approx(found.expected)
    without = replace(issued, forecast=replace(found, expected=None))
    assert "expected" not in without.document()["values"][0]


def test_the_command_prints_a_table_with_expected_values_and_the_sum_of_the_paths(tmp_path):
    one = device(tmp_path, 10 * 24)
    found = one.forecast(one.first_state())
    made = result_of(found)
    assert made.data["expected"] == pytest.approx(found.expected)
    assert made.data["sum"]["lower"] < made.data["sum"]["expected"] < made.data["sum"]["upper"]
    lines = made.text.splitlines()
    assert lines[1].endswith("expected")
    assert lines[-1].startswith("sum: ")
    assert lines[-1].count("80%") == 1
