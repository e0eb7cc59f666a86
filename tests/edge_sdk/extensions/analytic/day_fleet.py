"""A fleet of some devices with a bundle of profiles, in memory."""

from __future__ import annotations

from functools import partial
from zoneinfo import ZoneInfo

import numpy as np

from edge_sdk.app.settings import from_table
from edge_sdk.bundle import Bundle
from edge_sdk.config import Config
from edge_sdk.extensions.analytic.half import analytic
from edge_sdk.extensions.analytic.profile_features import ProfileRecord, profile_rows
from edge_sdk.extensions.analytic.profile_form import STAGES, fleet_scale
from edge_sdk.extensions.analytic.profile_model import ProfileModel
from edge_sdk.extensions.analytic.profile_section import SPREADS, WIDTH, ProfileSection
from edge_sdk.extensions.analytic.profile_sums import functions_of_profiles
from edge_sdk.forecasting.calendar_features import local_seconds
from edge_sdk.forecasting.series import Series, SeriesRow
from edge_sdk.forecasting.windows import ChannelFrame, Drawable, filled
from edge_sdk.methods.local_sgd import LocalSgd
from edge_sdk.methods.training_context import TrainingContext, keyed
from edge_sdk.protocol import keys
from edge_sdk.protocol.contract.archive import INITIAL
from edge_sdk.protocol.contract.manifest import (
    Feature,
    Golden,
    Loss,
    Manifest,
    Target,
    Training,
    Window,
)
from edge_sdk.store.store import DeviceStore
from edge_sdk.training import bootstrap

STREAM = "elec.import.energy"
START = 473_352 * 3600  # 2024-01-01 00:00 UTC, a Monday
ZONE = ZoneInfo("Europe/Madrid")
KEPT = 16
"""Residual days of the bundle."""


def manifest_of(step=3600, **section):
    day, horizon = 86_400 // step, 86_400 // step
    made = ProfileSection("profile-1", (0.0,) * WIDTH, KEPT, **section)
    rows = 28 * day + 3600 // step
    slot = partial(Feature, kind="calendar", unit="1", low=0.0, what="slot_of_day")
    channels = (
        Feature("load", "target", "kWh"),
        slot("slot-of-day", high=float(day)),
        Feature("day-of-week", "calendar", "1", 0.0, 7.0, what="day_of_week"),
        slot("slot-ahead", high=float(day), lead_steps=horizon),
    )
    return Manifest(
        name="day",
        version=1,
        min_sdk="0.1.3",
        layers=made.layers(horizon),
        shared=("",),
        window=Window(rows, horizon, step, day),
        features=channels,
        target=Target(STREAM, "kWh", "level", "fixed", "quantiles", 0.0, 1.0),
        loss=Loss("pinball", levels=(0.1, 0.5, 0.9)),
        training=Training(batch=1),
        graphs={},
        golden=Golden(((0.5, 0.0, 0.0, 0.0),) * rows, (0.0,) * 3 * horizon),
        files={INITIAL: "0" * 64},
        analytic=made,
    )


def load_of(seed, days, step=3600, gaps=0.01):
    """Return a rhythm of days and weekends with noise, NaN in gaps."""
    draw, day = np.random.default_rng(seed), 86_400 // step
    clock = np.arange(days * day)
    shape = 1.5 + np.sin(2.0 * np.pi * (clock % day + seed) / day)
    factor = np.where((clock // day) % 7 >= 5, 0.5, 1.0) * (1.0 + 3.0 * seed)
    load = shape * factor * draw.gamma(30.0, 1 / 30, len(clock))
    for begin in np.flatnonzero(draw.random(len(clock)) < gaps):
        load[begin : begin + 5] = np.nan
    return load


def series_of(load, step=3600, start=START):
    series = Series(step, [STREAM], capacity=max(len(load), 1))
    first = start // step
    series.load(SeriesRow(STREAM, first + i, v) for i, v in enumerate(load) if np.isfinite(v))
    return series


def frame_of(load, manifest, start=START, zone=ZONE):
    return ChannelFrame.of(
        series_of(load, manifest.window.step_seconds, start), manifest, zone=zone
    )


def initial_of(manifest, loads, **layers):
    """Return a first vector: the fleet's scales, no coefficients, and residual days of a draw."""
    model, vector = ProfileModel(manifest), np.zeros(manifest.size, np.float32)
    day = model.day
    squares = []
    for load in loads:
        local = START + np.arange(len(load) + day) * manifest.window.step_seconds
        rows = profile_rows(
            ProfileRecord(filled(load), local, manifest.window.step_seconds),
            np.arange(3 * day, len(load) - day, day),
            day,
        )
        squares.append(np.square(rows.design.astype(np.float64)).mean(axis=(0, 1)))
    draw = np.random.default_rng(5)
    given = {
        "scale": fleet_scale(squares),
        "spread": np.tile(np.eye(SPREADS)[0] * 0.1, (len(STAGES), 1)),
        "strengths": np.full(len(STAGES), 0.1),
        "residuals": draw.normal(size=(KEPT, day)),
        "share": np.ones(1),
    } | layers
    for name, values in given.items():
        vector[model.places[name][0]] = np.ravel(values)
    return vector


def context_of(manifest, frame, name="meter"):
    return TrainingContext(
        client=name,
        spec=manifest.spec(),
        graphs=functions_of_profiles(manifest),
        windows=lambda: Drawable(frame, frame.origins() if len(frame) else np.zeros(0, np.int64)),
        size=1,
        key=partial(keyed, 1, name),
    )


def half_of(manifest, frame, name="meter"):
    return analytic(context_of(manifest, frame, name), LocalSgd())


def record_of(frame, zone=ZONE):
    """Return the record that the pure functions take, of the whole frame."""
    step = frame.window.step_seconds
    times = frame.times[0] + step * np.arange(len(frame) + frame.window.horizon)
    return ProfileRecord(frame.last, local_seconds(times, zone), step)


def issues_of(frame, zone=ZONE):
    """Return the origins at 00, 06, 12 and 18 local time whose targets are all known."""
    origins = frame.origins()
    local = local_seconds(frame.times[origins] + frame.window.step_seconds, zone)
    return origins[local % 21_600 == 0]


def runtime_of(folder, load, rows, **tables):
    """Return the runtime of a device that has seen some rows; an own ``fleet`` table makes it alone."""
    root = folder / "root.pub"
    keys.save_public(root, keys.from_seed(bytes(32)).public)
    fleet = {
        "fleet": "homes",
        "broker": {"url": "mqtt://127.0.0.1"},
        "keys": {"device": str(folder / "device.key"), "root": str(root)},
        "accept": {"methods": ["analytic"]},
    }
    table = {
        "id": "home-0",
        "state": str(folder / "state"),
        "bundle": "load-analytic",
        "privacy": {"mechanism": {"name": "none"}},
    } | tables.pop("fleet", fleet)
    config = from_table(Config, table | tables, "meter.toml")
    manifest = manifest_of()
    graphs = functions_of_profiles(manifest)
    bundle = Bundle(manifest, initial_of(manifest, [load]), graphs, bytes(32))
    found = bootstrap.set_up(config, DeviceStore.open(config.state), bundle, None)
    found.load([SeriesRow(STREAM, START // 3600 + i, float(v)) for i, v in enumerate(load[:rows])])
    return found
