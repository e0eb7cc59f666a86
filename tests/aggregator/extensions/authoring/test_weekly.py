"""The dense net over a week's slots: what it reads, and what of it moves."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from aggregator.extensions.authoring.week_slots import AROUND, DAYS, Weekly, weekly_recipe  # noqa: E402


@pytest.mark.parametrize("horizon", [1, 6])
def test_the_newest_rows_of_a_lag_are_the_targets_slots(horizon):
    lags = [x.lag_steps for x in weekly_recipe(horizon).features if x.kind == "lag"]
    for day, lag in enumerate(lags, 1):
        newest = 1 - lag  # of the origin's row; the origin is 0, targets are 1 to the horizon
        assert newest == horizon + AROUND - 48 * day
    assert len(lags) == DAYS
    assert min(lags) > 0  # nothing from the future


def test_it_reads_every_channel_and_forgets_no_lag():
    torch.manual_seed(1)
    model, features = Weekly(6), len(weekly_recipe(6).features)
    x = torch.rand(4, 32, features, requires_grad=True)
    model(x).sum().backward()
    moved = x.grad.abs().sum((0, 1))
    assert moved.shape == (features,)
    assert (moved > 0).all()


def test_a_level_that_doubles_is_followed_without_a_bend():
    """The linear path: what lies outside the training range does not saturate."""
    model = Weekly(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.zero_() if not name.startswith("path") else p.fill_(0.01)
    features = len(weekly_recipe(1).features)
    x = torch.zeros(3, 32, features)
    x[:, :, 0] = torch.tensor([0.5, 1.0, 2.0])[:, None]
    out = model(x)[:, 0, 1].detach().numpy()
    assert out[2] - out[1] == pytest.approx(2 * (out[1] - out[0]), rel=1e-5)


def test_its_size_is_what_a_meter_can_hold():
    sizes = [sum(p.numel() for p in Weekly(h).parameters()) for h in (1, 6)]
    assert np.array_equal(sizes, [31702, 38252])
