"""The section of a bundle of profiles: layers, statistic, and manifests that it refuses."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from edge_sdk.extensions.analytic.bundle_section import AnalyticSection, read_section
from edge_sdk.extensions.analytic.profile_features import ProfileRecord, profile_rows
from edge_sdk.extensions.analytic.profile_form import (
    LEAST_SPREAD,
    announced_spread,
    naive_noise,
    scaled_design,
    spread_columns,
)
from edge_sdk.extensions.analytic.profile_section import COLUMNS, SPREADS, WIDTH, ProfileSection
from edge_sdk.protocol.contract.manifest import (
    Feature,
    Golden,
    Loss,
    Manifest,
    ManifestError,
    Target,
    Training,
    Window,
)

DAY, ROWS = 24, 28 * 24 + 1
GOLDEN = ((0.5, 0.0, 0.0),) * ROWS
SECTION = ProfileSection("profile-1", (0.0,) * WIDTH, 4)


def manifest_of(section=SECTION, **changes):
    window = Window(ROWS, DAY, 3600, DAY)
    channels = (
        Feature("load", "target", "kWh"),
        Feature("slot-of-day", "calendar", "1", 0.0, 24.0, what="slot_of_day"),
        Feature("day-of-week", "calendar", "1", 0.0, 7.0, what="day_of_week"),
    )
    given = {
        "name": "day",
        "version": 1,
        "min_sdk": "0.1.3",
        "layers": section.layers(DAY),
        "shared": ("",),
        "window": window,
        "features": channels,
        "target": Target("elec.import.energy", "kWh", "level", "fixed", "quantiles", 0.0, 1.0),
        "loss": Loss("pinball", levels=(0.1, 0.5, 0.9)),
        "training": Training(),
        "graphs": {},
        "golden": Golden(GOLDEN, (0.0,) * 3 * DAY),
        "analytic": section,
    }
    return Manifest(**{**given, **changes})


def test_the_constants_are_those_of_the_features():
    record = ProfileRecord(np.arange(48.0), np.arange(72) * 3600, 3600)
    rows = profile_rows(record, np.array([47]), DAY)
    assert len(rows.names) == COLUMNS
    assert scaled_design(rows, np.ones(COLUMNS)).shape[1] == WIDTH
    assert spread_columns(rows).shape == (1, DAY, SPREADS)


def test_a_manifest_keeps_its_section_and_the_other_sections_are_unchanged():
    manifest = manifest_of()
    again = Manifest.parse(manifest.canonical())
    assert again.analytic == SECTION
    assert manifest.size == sum(layer.size for layer in manifest.spec().layers)
    named = {"features": ["bias"], "units": 0, "seed": 1, "clip": 1.0, "windows": 5, "design": []}
    assert isinstance(read_section(named, where="x"), AnalyticSection)


@pytest.mark.parametrize("stages", [(8,), (0, 4, 8)])
def test_a_statistic_has_an_output_for_every_stage_of_the_fleet(stages):
    section = replace(SECTION, stages=stages)
    layers = {one.name: one.shape for one in section.statistic_layout().layers}
    assert layers["gram"] == (len(stages), WIDTH * (WIDTH + 1) // 2)
    assert section.statistic_size() == len(stages) * (WIDTH * (WIDTH + 3) // 2 + 2) + 1


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"target": Target("x", "kWh", "level", "device", "quantiles")}, "on a fixed scale from 0"),
        ({"loss": Loss("mse"), "target": Target("x", "1", "level", "fixed", low=0.0, high=1.0),
          "golden": Golden(GOLDEN, (0.0,) * DAY)}, "forecasts quantiles"),
        ({"window": Window(ROWS, DAY, 3600)}, "least_known must be set"),
        ({"window": Window(ROWS - 1, DAY, 3600, DAY),
          "golden": Golden(GOLDEN[1:], (0.0,) * 3 * DAY)}, "28 days and an hour"),
        ({"section": replace(SECTION, stages=(8, 4))}, "stages must rise"),
        ({"section": replace(SECTION, design=(0.0,))}, "analytic.design must have 374 values"),
        ({"layers": (("scale", (3,)),)}, "layers must be those"),
    ],
)  # fmt: skip
def test_a_manifest_that_does_not_fit_is_refused(changes, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        manifest_of(**changes)


def test_no_other_model_takes_gaps():
    raw = manifest_of().canonical().replace(b'"analytic":{', b'"analytic":{"features":["x"],')
    with pytest.raises(ManifestError, match="features"):
        Manifest.parse(raw)
    with pytest.raises(ValueError, match="for models that take gaps"):
        manifest_of(analytic=None)


def test_the_spread_and_the_noise_are_in_levels():
    record = ProfileRecord(np.tile(np.arange(24.0), 14), np.arange(15 * 24) * 3600, 3600)
    rows = profile_rows(record, np.array([335]), DAY)
    spread = announced_spread(spread_columns(rows), np.array([0.5, 1.0, 0, 0, 0, 0]))
    assert spread == pytest.approx(0.5 + np.abs(rows.base))
    assert (announced_spread(spread_columns(rows), np.zeros(6)) == LEAST_SPREAD).all()
    missed = naive_noise(rows, np.full(24, 0.25))
    assert missed == pytest.approx(np.full(24, 0.25))
