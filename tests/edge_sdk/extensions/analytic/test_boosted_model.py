"""A device's wide model, its trees and their blend: fitted in seconds, and never on what is ahead."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edge_sdk.extensions.analytic.blend import blocks_held_back
from edge_sdk.extensions.analytic.boosted_fit import BoostedForm, FleetForecasts, fit
from edge_sdk.extensions.analytic.boosted_model import BoostedModel
from edge_sdk.extensions.analytic.hurdle import HurdleForm
from edge_sdk.extensions.analytic.trees import TreeForm
from edge_sdk.extensions.choice.own_model import fit as fit_linear
from edge_sdk.protocol.codec import pack_leaves, unpack_leaves
from tests.edge_sdk.extensions.choice.test_own_model import frame_of, waves

DAY, LEVELS = 24, (0.5,)
HURDLE = HurdleForm(*2 * (TreeForm(trees=30, depth=3, rate=0.2, is_capped=True),))
FORM = BoostedForm(units=40, trees=TreeForm(trees=40, rate=0.2), hurdle=HURDLE)


def switched(hours=DAY * 120, seed=0):
    """A load that is high on working days from 9 to 17 after a cold night: a question, not a sum."""
    rng, hour = np.random.default_rng(seed), np.arange(hours)
    cold = np.repeat(rng.integers(0, 2, hours // DAY), DAY)
    is_on = (hour % DAY >= 9) & (hour % DAY < 17) & (hour // DAY % 7 < 5) & (cold == 1)
    return 1.0 + 0.5 * cold * (hour % DAY < 6) + 4.0 * is_on + 0.05 * rng.normal(size=hours)


def repeated(frame, levels=LEVELS):
    """The fleet's model of these tests: the last value, with quantiles around it."""
    around = np.array(levels) - 0.5

    def quantiles(origins):
        last = frame.last[origins, None] + np.zeros(frame.window.horizon)
        return last[:, :, None] + around

    return {"fleet": FleetForecasts(quantiles, quantiles)}


def fitted(frame, origins=None, levels=LEVELS, form=FORM):
    some = frame.origins() if origins is None else origins
    return fit(frame, some, levels, lambda _early, _late: repeated(frame, levels), form=form)


def forecasts(model, frame, origins, levels=LEVELS):
    common = repeated(frame, levels)["fleet"].final(origins)
    return model.fans(frame, origins, levels, {"fleet": common})


@pytest.mark.parametrize("horizon", [1, 8])
def test_trees_win_where_the_load_answers_questions(horizon):
    frame = frame_of(switched(), horizon)
    origins = frame.origins()
    early, late = origins[: -14 * DAY], origins[-14 * DAY :]
    linear = np.abs(fit_linear(frame, early).forecast(frame, late) - frame.truth(late)).mean()
    found = forecasts(fitted(frame, early), frame, late)
    missed = {
        name: np.abs(fan[:, :, 0] - frame.truth(late)).mean()
        for name, fan in zip(found._fields, found, strict=True)
    }
    assert missed["trees"] < 0.9 * linear
    assert missed["fleet_trees"] < 0.9 * linear
    assert missed["blend"] < 0.9 * linear


def test_quantiles_have_the_members_that_a_point_has():
    """Without trees on changes from the last value a shop's error was 11 % above the point's."""
    levels = (0.1, 0.5, 0.9)
    frame = frame_of(switched(), 1)
    early, late = frame.origins()[: -14 * DAY], frame.origins()[-14 * DAY :]
    model = fitted(frame, early, levels)
    assert model.bases == ("closed form", "last value", "fleet")
    assert "last value and trees" in model.members
    opened = BoostedModel.from_arrays(unpack_leaves(pack_leaves(model.arrays())))
    found, again = (forecasts(one, frame, late, levels) for one in (model, opened))
    assert np.array_equal(found.blend, again.blend)
    point = forecasts(fitted(frame, early), frame, late)
    missed, least = (
        np.abs(one.blend[:, 0, place] - frame.truth(late)[:, 0]).mean()
        for one, place in ((found, 1), (point, 0))
    )
    assert missed < 1.05 * least


def test_only_what_is_known_at_the_origin_counts():
    values = switched()
    frame, origin = frame_of(values), np.array([90 * DAY + 7])
    model = fitted(frame)
    changed = frame_of(np.where(np.arange(len(values)) > origin[0], 99.0, values))
    other = replace(changed, scale=frame.scale, channels=frame.channels)
    for one, two in zip(
        forecasts(model, frame, origin), forecasts(model, other, origin), strict=True
    ):
        assert np.array_equal(one, two)


def test_weights_come_from_windows_that_no_member_has_learned():
    """A fleet's model that is perfect on the held-back weeks, and useless elsewhere, has all weight."""
    frame = frame_of(switched(), 1)
    origins = frame.origins()
    late = blocks_held_back(len(origins), 7 * DAY)

    def quantiles(some):
        is_late = np.isin(some, origins[late])
        told = np.where(is_late, frame.truth(some)[:, 0], 50.0)
        return told[:, None, None]

    fleet = {"fleet": FleetForecasts(quantiles, quantiles)}
    model = fit(frame, origins, LEVELS, lambda _early, _late: fleet, form=FORM)
    assert model.weights[0, model.members.index("fleet")] > 0.9


def test_the_windows_that_are_held_back_are_named_to_the_fleets_models():
    frame, seen = frame_of(switched(), 1), []

    def common(early, late):
        seen.append((early, late))
        return repeated(frame)

    fit(frame, frame.origins(), LEVELS, common, form=FORM)
    ((early, late),) = seen
    assert not np.intersect1d(early, late).size
    assert np.array_equal(np.union1d(early, late), frame.origins())


def test_quantiles_have_trees_for_each_level_and_never_cross():
    levels = (0.1, 0.5, 0.9)
    rng = np.random.default_rng(2)
    values = np.where(rng.random(DAY * 90) < 0.6, 0.0, rng.gamma(2.0, size=DAY * 90))
    frame = frame_of(values, 2)
    model = fitted(frame, levels=levels)
    late = frame.origins()[-300:]
    found = forecasts(model, frame, late, levels)
    assert found.trees.shape == (300, 2, 3)
    assert all((np.diff(fan, axis=2) >= 0.0).all() for fan in found)
    below = (frame.truth(late)[:, :, None] <= found.trees + 1e-9).mean(axis=(0, 1))
    assert below[2] == pytest.approx(0.9, abs=0.07)
    assert np.abs(found.trees[:, :, 0]).max() < 0.3  # mostly off: exactly so at the lowest level


def idle(hours=DAY * 60, share=0.7):
    """A load that is off most hours, above all at night."""
    rng = np.random.default_rng(3)
    is_off = rng.random(hours) < np.where(np.arange(hours) % DAY < 8, 0.97, share)
    return np.where(is_off, 0.0, 1.0 + rng.gamma(2.0, size=hours))


@pytest.mark.parametrize("horizon", [1, 3])
def test_a_load_that_is_often_0_has_a_hurdle_model_that_is_saved(horizon):
    levels = (0.1, 0.5, 0.9)
    frame = frame_of(idle(), horizon)
    model, late = fitted(frame, levels=levels), frame.origins()[-200:]
    assert model.hurdle is not None
    assert "probability of 0 and trees" in model.members
    assert model.bases == ("fleet",)
    again = BoostedModel.from_arrays(unpack_leaves(pack_leaves(model.arrays())))
    found, same = (forecasts(one, frame, late, levels) for one in (model, again))
    assert all(np.array_equal(one, two) for one, two in zip(found, same, strict=True))
    truth = frame.truth(late)[:, :, None]
    assert (found.trees[:, :, 0] == 0.0).all()  # off is exactly 0
    assert (truth <= found.trees).mean(axis=(0, 1))[2] == pytest.approx(0.9, abs=0.07)
    other = frame_of(idle(), horizon + 1)
    assert all(np.isnan(fan).all() for fan in forecasts(again, other, other.origins()[-3:], levels))


def test_a_record_from_before_there_were_hurdle_models_opens():
    levels = (0.1, 0.5, 0.9)
    frame = frame_of(switched(DAY * 60))
    model = fitted(frame, levels=levels)
    assert model.hurdle is None  # never 0
    assert not any(name.startswith("hurdle") for name in model.arrays())
    without = fitted(frame_of(idle()), levels=levels).arrays()
    with pytest.raises(ValueError, match="hurdle: a value of odds is not finite"):
        BoostedModel.from_arrays(
            {**without, "hurdle_odds_values": without["hurdle_odds_values"] * np.nan}
        )
    with pytest.raises(KeyError):
        BoostedModel.from_arrays({n: a for n, a in without.items() if n != "hurdle_odds_edges"})


@pytest.mark.slow
def test_points_and_loads_that_are_rarely_on_have_no_hurdle_model():
    assert fitted(frame_of(idle())).hurdle is None  # one level
    rare = np.where(np.arange(DAY * 60) % (30 * DAY) == 12, 2.0, 0.0)
    assert fitted(frame_of(rare), levels=(0.1, 0.5, 0.9)).hurdle is None
    below = fitted(frame_of(idle() - (np.arange(DAY * 60) == 700)), levels=(0.1, 0.5, 0.9))
    assert below.hurdle is None  # export: below 0


def test_a_short_record_or_an_odd_step_gives_no_model():
    frame = frame_of(waves(DAY * 20))
    assert fitted(frame) is None
    assert fit(frame, np.zeros(0, np.int64), LEVELS, lambda _e, _l: {}) is None


def test_a_gap_and_a_constant_stretch_are_no_obstacle():
    values = switched()
    values[40 * DAY : 44 * DAY] = np.nan
    values[60 * DAY : 80 * DAY] = 1.0
    frame = frame_of(values)
    late = frame.origins()[-48:]
    assert all(np.isfinite(fan).all() for fan in forecasts(fitted(frame), frame, late))
    still = frame_of(np.full(DAY * 40, 7.0))
    found = forecasts(fitted(still), still, still.origins()[-5:])
    assert np.allclose(found.blend, 7.0, atol=1e-3)


def test_it_is_the_same_model_after_it_was_saved():
    frame = frame_of(switched(DAY * 60))
    model, late = fitted(frame), frame.origins()[-50:]
    again = BoostedModel.from_arrays(unpack_leaves(pack_leaves(model.arrays())))
    for one, two in zip(forecasts(model, frame, late), forecasts(again, frame, late), strict=True):
        assert np.array_equal(one, two)
    other = frame_of(switched(DAY * 60), horizon=2)
    for fan in forecasts(again, other, other.origins()[-3:]):
        assert np.isnan(fan).all()


def test_a_second_fit_has_the_same_bits():
    frame = frame_of(switched(DAY * 60))
    one, two = fitted(frame), fitted(frame)
    assert pack_leaves(one.arrays()) == pack_leaves(two.arrays())


def test_it_asks_whether_to_go_on():
    frame, turns = frame_of(switched(DAY * 60)), []

    def turn():
        turns.append(1)
        if len(turns) == 5:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fit(
            frame,
            frame.origins(),
            LEVELS,
            lambda _early, _late: repeated(frame),
            form=FORM,
            turn=turn,
        )
    assert len(turns) == 5


def test_sizes_are_bounded():
    frame = frame_of(switched(DAY * 100), 1)
    model = fitted(frame, form=replace(FORM, windows=500, fewest=500))
    assert model.windows <= 500
