"""A home with little history: what it can do alone is compared fairly with the fleet's model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from firmware_sim.reports.demo_outcome import DAY, OwnForecasts, each_in_turn, newcomer
from firmware_sim.reports.html_page import Panel, week_picture
from firmware_sim.samples import sample_set
from firmware_sim.scenario import scenario, unix_seconds

README = Path(__file__).parents[3] / "README.md"
START = 1_600_000_000 // DAY * DAY
HOUR = 3600


def record(seed, days=40, size=1.0):
    """An hourly load with a daily shape that all homes share, and noise."""
    rng = np.random.default_rng(seed)
    rows = np.arange(days * 24)
    shape = 3 + np.sin(2 * np.pi * rows / 24) + 0.6 * np.cos(4 * np.pi * rows / 24)
    return START + rows * HOUR, size * (shape + 0.3 * rng.normal(size=len(rows)))


def own(times, values):
    return OwnForecasts.of(
        times, values, HOUR, known=(START, START + 10 * DAY), end=START + 30 * DAY
    )


def panel(times, truth, **forecasts):
    return Panel("home", times, truth, {"persistence": truth + 1.0, **forecasts})


def test_its_own_forecasts_begin_after_its_history_and_stand_at_their_instants():
    times, values = record(1)
    found = own(times, values)
    assert found.times[0] == START + 10 * DAY + HOUR
    asked = times[24 * 15 : 24 * 16]
    told = found.at(asked)
    np.testing.assert_allclose(told["yesterday"], values[24 * 14 : 24 * 15])
    np.testing.assert_allclose(told["last week"], values[24 * 8 : 24 * 9])
    assert np.abs(told["own regression"] - values[24 * 15 : 24 * 16]).mean() < 0.5
    assert np.isnan(found.at(times[:24])["yesterday"]).all()


def test_readings_after_the_history_do_not_move_its_regression():
    times, values = record(1)
    changed = values.copy()
    changed[24 * 12 :] += 5.0
    asked = times[24 * 10 + 1 : 24 * 12]
    before, after = (own(times, one).at(asked)["own regression"] for one in (values, changed))
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    ("error", "words"),
    [(0.10, "% smaller than its best"), (0.301, "as good as its best"), (0.9, "% larger than its")],
)
def test_the_fleet_is_compared_with_the_best_forecast_alone_by_a_fixed_rule(error, words):
    times, values = record(1)
    early, late = slice(24 * 11, 24 * 14), slice(24 * 15, 24 * 25)
    part = {
        which: panel(
            times[which_slice],
            values[which_slice],
            local=values[which_slice] + 0.3,
            federated=values[which_slice] + error,
        )
        for which, which_slice in (("validation", early), ("judged", late))
    }
    far = OwnForecasts(times, {"own regression": values + 9.0})
    found = newcomer("federated", 10, own=far, **part)
    assert found.alone == "local"
    assert words in found.sentence
    assert "MAE" in found.sentence
    assert found.mae["own regression"] == pytest.approx(9.0)
    assert len(found.week.times) == 7 * 24
    assert set(found.week.forecasts) == {"local", "federated"}
    assert "(best alone)" in found.table("kWh")
    pytest.importorskip("matplotlib")
    drawn = week_picture(found.week, "kWh", "federated")
    assert drawn is not None
    assert drawn.startswith(b"\x89PNG")


def test_the_best_alone_is_chosen_on_validation_and_not_on_the_judged_weeks():
    times, values = record(1)
    early, late = slice(24 * 11, 24 * 14), slice(24 * 15, 24 * 25)
    wrong = values + 0.1
    wrong[late] += 2.0  # best on validation, bad later
    found = newcomer(
        "federated",
        10,
        validation=panel(times[early], values[early], local=values[early] + 0.5),
        judged=panel(
            times[late], values[late], local=values[late] + 0.2, federated=values[late] + 1.0
        ),
        own=OwnForecasts(times, {"own regression": wrong}),
    )
    assert found.alone == "own regression"


def test_each_home_in_turn_gains_from_homes_like_it():
    records = {f"h{i}": record(i, size=1.0 + i % 3) for i in range(5)}
    found = each_in_turn(
        records,
        HOUR,
        7,
        start=START,
        until=START + 30 * DAY,
        judged=(START + 31 * DAY, START + 40 * DAY),
    )
    assert set(found.mae) == set(records)
    assert sum(fleet < alone for alone, fleet in found.mae.values()) >= 4
    assert "smaller than alone" in found.sentence


@pytest.mark.slow
@pytest.mark.skipif(not README.exists(), reason="the README is not installed")
def test_the_readme_shows_what_the_demo_finds_for_each_home_in_turn():
    chosen, samples = scenario("demo"), sample_set("homes")
    found = each_in_turn(
        {one.device: one.column(samples.target) for one in samples.samples},
        HOUR,
        chosen.newcomer_days,
        start=unix_seconds(chosen.start),
        until=unix_seconds(chosen.until),
        judged=chosen.span,
    )
    assert found.sentence in README.read_text("utf-8")
