"""Noise at the gradient on an exported graph: what each window may move is bounded, exactly."""

from __future__ import annotations

import numpy as np
import pytest

from edge_sdk.app.settings import from_table
from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.privacy import PrivacySection
from edge_sdk.privacy.mechanism import mechanism_of
from edge_sdk.privacy.noise_calibration import DeviceFacts
from edge_sdk.privacy.validation import plan_of

BUNDLES = ("cells-mlp-1", "cells-gru-1")
CLIP = 0.05


@pytest.fixture(params=BUNDLES)
def bundle(request):
    return Bundle.open(request.param, trust=TrustedKeys())


def lent(bundle, multiplier, entropy=None):
    manifest = bundle.manifest
    section = {
        "mechanism": {
            "name": "gaussian",
            "point": "gradient",
            "clip_norm": CLIP,
            "noise_multiplier": multiplier,
            "range": [0.0, 100.0],
        },
        "mode": "honest",
        "budget": {"epsilon": 1e300},
    }
    facts = DeviceFacts(manifest, keep=17_520, max_steps=8, shared=manifest.size)
    plan = plan_of(from_table(PrivacySection, section, "privacy"), facts)
    source = {} if entropy is None else {"entropy": entropy}
    made = mechanism_of(plan, None, lambda: 0, measured=frozenset({"n", "loss"}), **source)
    return made.graphs(bundle.graphs)["gradient"]


def batch(bundle, size, seed=3):
    rng = np.random.default_rng(seed)
    window, width = bundle.manifest.window, len(bundle.manifest.features)
    x = rng.uniform(0, 1, (size, window.lookback, width)).astype(np.float32)
    y = rng.uniform(0, 1, (size, window.horizon)).astype(np.float32)
    y[0] += 50.0  # one window that would pull the model away
    return {"p": bundle.initial, "x": x, "y": y}


@pytest.mark.extension
def test_a_step_is_the_mean_of_the_clipped_gradients_of_the_windows(bundle):
    feeds = batch(bundle, 6)
    wanted = np.zeros(bundle.manifest.size)
    sizes = []
    for row in range(6):
        one = {"p": feeds["p"], "x": feeds["x"][[row]], "y": feeds["y"][[row]]}
        _, g = bundle.gradient(**one)
        sizes.append(np.linalg.norm(g.astype(np.float64)))
        wanted += g * min(1.0, CLIP / sizes[-1])
    assert max(sizes) > 2 * CLIP
    _, step = lent(bundle, 1e-9)(**feeds)
    np.testing.assert_allclose(step, wanted / 6, atol=2e-3 * CLIP)


@pytest.mark.extension
def test_one_window_changes_a_step_by_at_most_two_clip_norms(bundle):
    feeds = batch(bundle, 6)
    other = dict(feeds, y=feeds["y"].copy())
    other["y"][0] -= 100.0  # replaced by its opposite
    run = lent(bundle, 1e-12)
    first, second = (run(**fed)[1].astype(np.float64) * 6 for fed in (feeds, other))
    assert CLIP < np.linalg.norm(first - second) <= 2 * CLIP


@pytest.mark.extension
def test_the_noise_of_a_step_is_equal_on_every_coordinate(bundle):
    feeds = batch(bundle, 6)
    quiet = lent(bundle, 1e-12)(**feeds)[1]
    noisy = lent(bundle, 4.0, np.random.default_rng(1).bytes)(**feeds)[1]
    spread = (noisy - quiet) * 6 / (4.0 * CLIP)
    assert spread.std() == pytest.approx(1.0, rel=0.05)
    assert abs(spread.mean()) < 5 / np.sqrt(spread.size)
