"""What is a sane forecast, and that the store never holds another one: killed at any line."""

from __future__ import annotations

import itertools
import sqlite3
from dataclasses import replace

import numpy as np
import pytest

from edge_sdk.forecasting.series import Reading
from edge_sdk.forecasting.windows import ChannelFrame
from edge_sdk.protocol.contract.manifest import Manifest, ManifestError, Training
from edge_sdk.training.canary import (
    UNMEASURED,
    CanaryTest,
    CanaryWindows,
    Measured,
    fault,
    may_replace_any,
    measure,
)
from edge_sdk.training.run_role import series_for
from tests.edge_sdk.conftest import LOOKBACK, MANIFEST, linear_forecast

W0 = np.linspace(0.2, 0.3, LOOKBACK, dtype=np.float32)
SANE = Measured(16, error=0.1, spread=0.5)


def frame(values):
    """Return the frame of a series of hourly readings."""
    series = series_for(MANIFEST, 1000)
    for hour, value in enumerate(values):
        reading = Reading("elec.import.energy", 1_514_764_800.0 + 3600 * hour, float(value))
        series.add(reading, latest=float("inf"))
    return ChannelFrame.of(series, MANIFEST)


READINGS = CanaryWindows.of(frame(10 + np.sin(np.arange(100) / 3)))


def weights(w, b):
    return np.array([*np.full(LOOKBACK, w), b], np.float32)


@pytest.mark.parametrize(
    ("w", "b", "why"),
    [
        (0.25, 0.0, ""),
        (1.0, 1.0, ""),
        (0.0, 7.0, "widths beyond the readings' range"),
        (1e30, 0.0, "widths beyond the readings' range"),
        (-1e30, 0.0, "widths beyond the readings' range"),  # a meter's forecast is cut at zero
        (3e38, 3e38, "not finite"),
        (np.nan, 0.0, "not finite"),
        (0.0, 0.0, "the same for every window"),
    ],
)
def test_a_candidate_is_compared_with_the_parameters_in_use(w, b, why):
    present = measure(linear_forecast, weights(0.25, 0.0), READINGS)
    with np.errstate(all="ignore"):
        candidate = measure(linear_forecast, weights(w, b), READINGS)
    assert (why in fault(candidate, present)) if why else fault(candidate, present) == ""


def test_without_windows_only_what_is_not_finite_is_refused():
    empty = CanaryWindows.of(frame([]))
    assert measure(linear_forecast, weights(1e30, 0.0), empty) == UNMEASURED
    assert fault(UNMEASURED, SANE) == ""
    assert fault(measure(linear_forecast, weights(np.inf, 0.0), empty), UNMEASURED)


def test_windows_are_gathered_once_for_a_frame():
    readings, later = frame(np.arange(60)), frame(np.arange(61))
    seen = []

    def forecast(p, x):
        seen.append(x)
        return linear_forecast(p=p, x=x)

    test = CanaryTest(forecast)
    for w in (0.2, 0.3):
        test.fault_of([(weights(w, 0.0), weights(0.25, 0.0))], readings)
    assert len({id(x) for x in seen}) == 1
    test.fault_of([(weights(0.2, 0.0), weights(0.25, 0.0))], later)
    assert (seen[-1] != seen[0]).any()


def test_only_a_candidate_in_doubt_is_compared_with_forecasts_of_the_parameters_in_use():
    forecasts, readings, present = [], frame(10 + np.sin(np.arange(100) / 3)), weights(0.25, 0.0)
    test = CanaryTest(lambda p, x: forecasts.append(p) or linear_forecast(p=p, x=x))
    assert not test.fault_of([(weights(0.24, 0.0), present)], readings)
    assert len(forecasts) == 1
    assert test.fault_of([(weights(0.0, 0.0), present)], readings)
    assert len(forecasts) == 3


@pytest.mark.parametrize("present", [SANE, UNMEASURED, replace(SANE, error=0.0, spread=9.0)])
def test_what_may_replace_any_parameters_is_never_at_fault(present):
    grid = itertools.product((0.0, 5.0, 5.1), (0.0, 1.0, 1.1), (0.0, 1e-6, 1.0), (False, True))
    for beyond, error, spread, is_change in grid:
        candidate = Measured(16, True, beyond, error, spread, is_change)
        assert not (may_replace_any(candidate) and fault(candidate, present))


def test_error_counts_beyond_the_range_and_ten_times_the_present_one():
    assert fault(replace(SANE, error=1.5), SANE)
    assert not fault(replace(SANE, error=0.9), SANE)
    assert not fault(replace(SANE, error=1.5), replace(SANE, error=0.2))


def test_no_worse_than_parameters_that_are_at_fault_themselves_is_taken():
    far = replace(SANE, beyond=9.0, error=9.0)
    assert not fault(replace(far, error=8.0), far)
    assert fault(replace(far, error=9.5), far)


def test_limits_are_signed_and_old_manifests_keep_their_bytes():
    assert b"max_" not in MANIFEST.canonical()
    limited = replace(MANIFEST, training=replace(MANIFEST.training, max_rate=0.5, max_steps=9))
    again = Manifest.parse(limited.canonical())
    assert dict(again.training.limits) == {"rate": 0.5, "steps": 9, "prox": 100.0}
    raw = limited.canonical().replace(b'"max_rate":0.5', b'"max_rate":0.05')
    with pytest.raises(ManifestError, match=r"training.rate: 0.1 above training.max_rate 0.05"):
        Manifest.parse(raw)
    with pytest.raises(ValueError, match="max_steps"):
        Training(steps=9, max_steps=8)


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_power_cut_at_the_save_leaves_the_last_good_parameters(make, monkeypatch, cut):
    """One transaction has the old parameters, the new turn and the count, or nothing of them."""
    fleet = make()
    client = fleet.device.start()
    fleet.device.observe()
    fleet.server.open_round(0, 0, W0)
    fleet.run(30, seconds=0.5)
    assert client.status()["outbox"] == 0
    good = client.state.p.copy()
    store = client._store
    save = store.save

    def dies(**kept):
        if cut == "after":
            save(**kept)
        raise KeyboardInterrupt

    monkeypatch.setattr(client.learner, "half", exploding(client.learner.half))
    monkeypatch.setattr(store, "save", dies)
    fleet.server.open_round(1, 1, W0)
    with pytest.raises(KeyboardInterrupt):
        fleet.run(30, seconds=0.5)
    with sqlite3.connect(f"file:{store.path}?mode=ro", uri=True) as db:
        facts = dict(db.execute("SELECT name, value FROM facts"))
    assert facts.get("returns", 0) == (1 if cut == "after" else 0)
    learned = store.learned()
    assert learned.leaves["half"]["p"].tobytes() == good.tobytes()
    assert learned.round == (1 if cut == "after" else 0)
    assert len(store.outbox()) == 0


def exploding(half):
    """Return a half whose training ends far away, and is finite."""

    def apply(state, event):
        after, effects = half.apply(state, event)
        return replace(after, p=after.p + np.float32(1e6)), effects

    return half._replace(apply=apply)
