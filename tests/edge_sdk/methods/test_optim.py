"""The optimisers against the numbers of the papers' equations and against torch."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edge_sdk.methods.optim import adam, sgd


def descend(optimiser, theta, gradient, steps):
    moments, path = optimiser.init(theta), []
    for _ in range(steps):
        theta, moments = optimiser.update(theta, gradient(theta), moments)
        path.append(theta)
    return path


def test_adam_takes_the_steps_of_the_quadratic():
    path = descend(adam(0.1), np.zeros(1), lambda theta: theta - 3.0, 4)
    assert np.concatenate(path) == pytest.approx(
        [0.0999999997, 0.1998972924, 0.2996184760, 0.3990864683], rel=1e-9
    )


def test_adam_uses_the_second_moment_of_this_step_not_of_the_one_before():
    first = descend(adam(0.1), np.zeros(1), lambda theta: theta - 3.0, 1)[0]
    assert abs(first[0]) < 0.2  # the misprint would step by 3.0e7


@pytest.mark.parametrize(("g", "share"), [(1e-9, 1.0 / 11.0), (0.0, 0.0)])
def test_adam_keeps_its_epsilon(g, share):
    # A gradient a tenth of epsilon: without epsilon the step is 1, and 0 / 0 for a zero gradient.
    step = descend(adam(1.0), np.zeros(1, np.float32), lambda _: np.full(1, g, np.float32), 1)[0]
    assert -step[0] == pytest.approx(share, rel=1e-5, abs=0.0)


def test_the_bias_correction_is_not_rounded_to_float32():
    # The first step is exactly `rate`; with 1 - 0.999 taken in float32 it is 6e-6 off.
    path = descend(adam(1e-3), np.zeros(1, np.float32), lambda _: np.ones(1, np.float32), 1)
    assert path[0][0] == pytest.approx(-1e-3, rel=5e-7)
    rounded = float(np.float32(1.0) - np.float32(0.999))
    assert abs(math.sqrt(rounded / 0.001) - 1.0) > 5e-6


def test_updates_change_nothing_in_place_and_keep_float32():
    for optimiser in (sgd(0.1), sgd(0.1, momentum=0.9), adam(0.1)):
        p, g = np.ones(3, np.float32), np.full(3, 2.0, np.float32)
        moments = optimiser.init(p)
        saved = [x.copy() for x in moments[1:]]
        q, later = optimiser.update(p, g, moments)
        assert (p == 1).all()
        assert (g == 2).all()
        assert all((a == b).all() for a, b in zip(saved, moments[1:], strict=True))
        assert q.dtype == np.float32
        assert all(x.dtype == np.float32 for x in later[1:])


def test_momentum_is_heavy_ball():
    path = descend(sgd(1.0, momentum=0.5), np.zeros(1), lambda _: np.ones(1), 3)
    assert np.concatenate(path).tolist() == [-1.0, -2.5, -4.25]


@pytest.mark.torch
@pytest.mark.parametrize("steps", [100, 1000])
@pytest.mark.parametrize("name", ["adam", "momentum"])
def test_a_long_run_on_random_gradients_agrees_with_torch(name, steps):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    start = rng.normal(size=50).astype(np.float32)
    theirs = torch.nn.Parameter(torch.from_numpy(start.copy()))
    if name == "adam":
        peer, ours = torch.optim.Adam([theirs], lr=1e-3, foreach=False), adam(1e-3)
    else:
        peer, ours = torch.optim.SGD([theirs], lr=1e-3, momentum=0.9), sgd(1e-3, momentum=0.9)
    p, moments = start, ours.init(start)
    for _ in range(steps):
        g = rng.normal(size=50).astype(np.float32)
        theirs.grad = torch.from_numpy(g)
        peer.step()
        p, moments = ours.update(p, g, moments)
    moved = np.linalg.norm(theirs.detach().numpy() - start)
    assert np.linalg.norm(p - theirs.detach().numpy()) / moved < 1e-5
    assert np.abs(p - theirs.detach().numpy()).max() / np.abs(p).max() < 1e-6
    assert math.isfinite(moved)
