"""Bundles of profiles: what the priors hold, and forecasts from one known day on."""

from __future__ import annotations

import numpy as np
import pytest

from aggregator.extensions.authoring.day_profiles import DAY_PROFILES, PRIORS, made, write
from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.extensions.analytic.profile_model import ProfileModel
from edge_sdk.protocol.keys import SigningKey

NAMES = sorted(DAY_PROFILES)


def window_of(manifest, days, load):
    """Return the golden window with a load of which only the newest days are known."""
    x = np.array([manifest.golden.x], np.float32)
    day = manifest.window.horizon
    x[0, :, 0] = np.resize(load, x.shape[1])
    x[0, : -days * day, 0] = np.nan
    return x


@pytest.mark.parametrize("name", NAMES)
def test_a_written_bundle_opens_and_forecasts_tomorrow_after_one_day(tmp_path, name):
    key = SigningKey.generate()
    folder = write(DAY_PROFILES[name], tmp_path / name, name=name, version=1, signer=key)
    bundle = Bundle.open(folder, trust=TrustedKeys((key.public,)))
    manifest, day = bundle.manifest, bundle.manifest.window.horizon
    assert sum(path.stat().st_size for path in folder.iterdir()) < 512 * 1024
    slots = np.arange(manifest.window.lookback) % day
    load = 300.0 * (1.5 + np.sin(2.0 * np.pi * slots / day))
    for days in (1, 7, 28):
        (told,) = bundle.forecast(p=bundle.initial, x=window_of(manifest, days, load))
        assert told.shape == (1, day, 3)
        assert (np.diff(told, axis=-1) >= 0.0).all()
        if name != "chargers-day":  # their median is near zero for most of the day
            assert told[0, :, 1].mean() == pytest.approx(450.0, rel=0.25)


@pytest.mark.parametrize("name", NAMES)
def test_the_unit_of_a_record_does_not_matter(name):
    manifest, initial = made(DAY_PROFILES[name], name=name, version=1)
    model, p = ProfileModel(manifest), np.frombuffer(initial, "<f4")
    load = np.random.default_rng(1).gamma(3.0, 1.0, manifest.window.lookback)
    small = model.forecast(p, window_of(manifest, 9, load))[0]
    large = model.forecast(p, window_of(manifest, 9, 4096.0 * load))[0]
    np.testing.assert_allclose(large, 4096.0 * small, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("path", sorted(PRIORS.glob("*.npz")), ids=lambda path: path.stem)
def test_a_prior_is_small_and_whole(path):
    assert path.stat().st_size < 64 * 1024
    with np.load(path) as file:
        assert all(np.isfinite(file[name].astype(np.float64)).all() for name in file.files)
        assert 0.0 < float(file["share"][0]) <= 1.0
        assert (file["strengths"] > 0.0).all()
        assert (file["spread"] >= 0.0).all()


def test_the_same_prior_gives_the_same_bytes():
    once, again = (made(DAY_PROFILES["load-day-1"], name="x", version=1) for _ in range(2))
    assert once == again
