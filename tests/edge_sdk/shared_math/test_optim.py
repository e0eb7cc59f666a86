"""The optimisers against the numbers of the papers' equations and against torch."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.shared_math.optim import (
    IDENTITY,
    Transform,
    adam,
    add_proximal,
    chain,
    optimiser_step,
    resumed,
    saved,
    scale,
    sgd,
    stateless,
)


def descend(optimiser, theta, gradient, steps):
    moments, path = optimiser.init(theta), []
    for _ in range(steps):
        theta, moments = optimiser_step(optimiser, theta, gradient(theta), moments)
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
        saved = {name: x.copy() for name, x in moments.items()}
        q, later = optimiser_step(optimiser, p, g, moments)
        assert (p == 1).all()
        assert (g == 2).all()
        assert all((saved[name] == moments[name]).all() for name in saved)
        assert q.dtype == np.float32
        assert all(later[name].dtype == np.float32 for name in ("first", "second"))


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
        p, moments = optimiser_step(ours, p, g, moments)
    moved = np.linalg.norm(theirs.detach().numpy() - start)
    assert np.linalg.norm(p - theirs.detach().numpy()) / moved < 1e-5
    assert np.abs(p - theirs.detach().numpy()).max() / np.abs(p).max() < 1e-6
    assert math.isfinite(moved)


def test_a_chain_equals_its_transforms_one_after_the_other():
    rng, p = np.random.default_rng(7), np.zeros(4, np.float32)
    inner = adam(0.1)
    chained = chain(scale(0.5), inner)
    state, alone, q = chained.init(p), inner.init(p), p
    for _ in range(5):
        g = rng.normal(size=4).astype(np.float32)
        p, state = optimiser_step(chained, p, g, state)
        q, alone = optimiser_step(inner, q, 0.5 * g, alone)
    assert p.tobytes() == q.tobytes()
    assert state.keys() == alone.keys() == {"taken", "first", "second"}


def test_a_chain_of_two_memories_keeps_both():
    def counted(g, state, _p):
        return g, {"m": state["m"] + g}

    both = chain(Transform(lambda p: {"m": np.zeros_like(p)}, counted), sgd(1.0, momentum=0.5))
    state = both.init(np.zeros(1))
    for _ in range(2):
        _, state = both.update(np.ones(1), state, np.zeros(1))
    assert (state["m"].item(), state["first"].item()) == (2.0, 1.5)
    with pytest.raises(ValueError, match="named first, second, taken; expected different names"):
        chain(sgd(1.0), adam(1.0)).init(np.zeros(1))


def test_an_empty_chain_is_the_identity():
    g, state = chain().update(np.ones(2), {}, np.zeros(2))
    assert g.tolist() == IDENTITY.update(np.ones(2), {}, np.zeros(2))[0].tolist() == [1.0, 1.0]
    assert state == {}


def test_the_transform_after_a_step_receives_the_weights_after_and_before():
    halfway = stateless(lambda moved, before: (moved + before) / 2)
    assert optimiser_step(scale(-1.0), np.ones(1), np.ones(1), {}, halfway)[0].tolist() == [0.5]


def test_a_step_keeps_the_dtype_of_the_parameters():
    p, _ = optimiser_step(scale(-1.0), np.ones(1, np.float32), np.ones(1, np.float64), {})
    assert p.dtype == np.float32


def test_a_proximal_term_without_weight_is_nothing_and_leaves_personal_layers_alone():
    spec = ParamSpec.of([("w", (1,)), ("head", (1,))], shared=["w"])
    assert add_proximal(spec, 0.0, np.zeros(1)) is IDENTITY
    g, _ = add_proximal(spec, 2.0, np.ones(1)).update(np.zeros(2), {}, np.full(2, 3.0))
    assert g.tolist() == [4.0, 0.0]


def test_a_kept_state_is_used_only_by_an_optimiser_of_its_form():
    p = np.zeros(3)
    _, kept = optimiser_step(adam(0.1), p, np.ones(3), adam(0.1).init(p))
    assert resumed(adam(0.5), p, kept) is kept
    assert resumed(sgd(0.1), p, kept)["taken"] == 0
    assert resumed(adam(0.1), np.zeros(4), kept)["taken"] == 0
    assert resumed(adam(0.1), p, None)["taken"] == 0


def test_a_saved_state_is_found_among_other_arrays():
    state = adam(0.1).init(np.zeros(2))
    assert saved({"p": np.zeros(2), **state}) == state
    assert saved({"p": np.zeros(2)}) is None
    with pytest.raises(KeyError):
        saved({"taken": np.array(1)})
