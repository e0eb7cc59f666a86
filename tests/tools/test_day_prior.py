"""The prior's training: a fleet of rhythms gives a prior that forecasts an unseen one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("pandas")

from rich.console import Console

from edge_sdk.extensions.analytic.profile_form import STAGES, prior_forecast, scaled_design
from edge_sdk.extensions.analytic.profile_kinds import home_share, home_signs
from edge_sdk.extensions.analytic.profile_section import COLUMNS, WIDTH
from tools import day_prior
from tools.day_prior import Site, sample, sites, trained, windows, write

QUIET = Console(quiet=True)


def site(seed, days=70):
    draw, clock = np.random.default_rng(seed), np.arange(days * 24)
    rest = (clock // 24 + 3) % 7 >= 5
    shape = 1.5 + np.sin(2.0 * np.pi * (clock % 24 - seed % 3) / 24)
    load = (1.0 + seed) * shape * np.where(rest, 0.4, 1.0) * draw.gamma(60.0, 1 / 60, len(clock))
    return Site(f"s{seed}", f"kind {seed % 3}", load, clock * 3600, 3600)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(day_prior, "ORIGINS", 6)
    monkeypatch.setattr(day_prior, "JUDGED", {2: 3})
    monkeypatch.setattr(day_prior, "STRENGTHS", (0.1, np.inf))
    monkeypatch.setattr(day_prior, "PENALTIES", (1e-3, 1e-2))
    monkeypatch.setattr(day_prior, "RESIDUAL_DAYS", 8)


def test_a_window_knows_nothing_but_its_newest_days():
    one, origin = site(0), np.array([40 * 24 - 1])
    few = windows(one, origin, np.array([3]))
    assert few.rows.known.tolist() == [3]
    other = Site("x", "x", one.load.copy(), one.local, 3600)
    other.load[: 37 * 24] = 1e6
    assert (windows(other, origin, np.array([3])).rows.design == few.rows.design).all()
    assert (few.truth[0] == one.load[40 * 24 : 41 * 24]).all()


def test_a_sample_has_every_stage_and_is_the_same_again():
    once, again = sample(site(1)), sample(site(1))
    assert (once.rows.design == again.rows.design).all()
    assert set(once.stages) == set(range(len(STAGES)))


@pytest.mark.slow
def test_the_prior_of_some_devices_forecasts_another_one(tmp_path):
    prior = trained([site(seed) for seed in range(6)], QUIET)
    shapes = {name: one.shape for name, one in prior.arrays.items()}
    assert shapes["scale"] == (COLUMNS,)
    assert shapes["coefficients"] == shapes["expected"] == (len(STAGES), WIDTH)
    assert shapes["residuals"] == (8, 24)
    assert all(np.isfinite(one).all() for one in prior.arrays.values())
    new = windows(site(7), np.arange(30, 60) * 24 - 1, np.full(30, 1))
    design = scaled_design(new.rows, prior.arrays["scale"])
    told = prior_forecast(
        design, new.rows.base.ravel(), new.stages, prior.arrays["coefficients"]
    ).reshape(new.truth.shape)
    truth = new.truth / new.rows.level[:, None]
    assert np.abs(truth - told).mean() < 0.8 * np.abs(truth - new.profile).mean()
    path = tmp_path / "prior.npz"
    assert write(prior, path) == path.stat().st_size < 64 * 1024


@pytest.mark.slow
def test_homes_have_coefficients_of_their_own_and_are_told_by_their_days():
    fleet = [replace(site(seed), is_home=seed % 2 == 0) for seed in range(6)]
    for one in fleet[::2]:
        one.load[:] *= np.random.default_rng(one.load.size).lognormal(0.0, 0.7, one.load.size)
    arrays = trained(fleet, QUIET).arrays
    assert arrays["homes"].shape == (len(STAGES), WIDTH)
    assert arrays["homes"].any()
    share = [
        home_share(home_signs(sample(one).rows, 24), arrays["home"][-1]).mean() for one in fleet
    ]
    assert min(share[::2]) > 0.8
    assert max(share[1::2]) < 0.2
    alike = trained([site(seed) for seed in range(3)], QUIET).arrays
    assert not alike["homes"].any()
    assert not alike["home"].any()


def test_a_folder_without_a_known_table_is_an_error(tmp_path):
    with pytest.raises(SystemExit, match="no table that is known"):
        sites(tmp_path, 3, 3600)
