"""The bound is never below a slope that is really there, and is met where it can be."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.extensions.authoring.lipschitz_bound import (
    LipschitzBoundError,
    certificate,
    gru_steps,
    loss_bound,
    lstm_steps,
    named,
    spectral_norm,
    stage_bound,
)
from edge_sdk.bundle import Bundle, TrustedKeys, shipped_folder, shipped_names
from edge_sdk.protocol.contract.manifest import LipschitzStage, Loss, Manifest
from edge_sdk.runtime import load_graph


def manifest_of(name):
    return Manifest.parse((shipped_folder() / name / "manifest.json").read_bytes())


CELLS = [name for name in shipped_names() if manifest_of(name).paths is not None]


def drawn(manifest, seed, spread=0.3):
    return np.random.default_rng(seed).normal(0.0, spread, manifest.size)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32), st.integers(-8, 8))
@settings(max_examples=60)
def test_the_norm_is_numpys_from_above(rows, columns, seed, power):
    matrix = np.random.default_rng(seed).normal(size=(rows, columns)) * 10.0**power
    exact = np.linalg.norm(matrix, 2)
    assert exact <= spectral_norm(matrix) <= exact * (1 + 1e-5)
    assert exact <= spectral_norm(matrix, squarings=2) * (1 + 1e-12)


def test_a_power_iteration_comes_from_below():
    """Why ours squares instead: twenty multiplications of a vector promise too little."""
    rng = np.random.default_rng(1)
    u, _ = np.linalg.qr(rng.normal(size=(64, 64)))
    matrix = u @ np.diag(np.linspace(1.0, 0.9, 64)) @ u.T
    v = rng.normal(size=64)
    for _ in range(20):
        v = matrix.T @ (matrix @ v)
        v /= np.linalg.norm(v)
    assert np.linalg.norm(matrix @ v) < 0.9999
    assert 1.0 <= spectral_norm(matrix) < 1.00001


def test_nothing_has_the_norm_zero():
    assert spectral_norm(np.zeros((3, 2))) == 0.0


def test_a_linear_map_is_met_exactly():
    """``l = huber(w.x + b - y)`` far out: the slope is ``delta * sqrt(|w|^2 + 1)``, no less."""
    base = manifest_of("cells-mlp-1")
    layers = (("head.weight", (1, 2)), ("head.bias", (1,)))
    linear = replace(base, layers=layers, paths=((LipschitzStage("linear", "head"),),))
    found = certificate(linear, np.array([3.0, 4.0, 0.5]))
    assert found.forecast == pytest.approx(5.0)
    assert found.data == pytest.approx(0.1 * math.sqrt(26.0))


@pytest.mark.parametrize("name", [name for name in CELLS if "branches" not in name])
@pytest.mark.parametrize("spread", [0.05, 0.3, 1.0])
def test_no_reading_is_steeper_than_the_certificate(name, spread):
    """``slope`` of one example is its own norm; readings far outside of the scale are tried too."""
    manifest = manifest_of(name)
    graph = load_graph(shipped_folder() / name / "robust_gradient.onnx")
    rng = np.random.default_rng(7)
    shape = manifest.window.lookback, len(manifest.features)
    for seed in range(4):
        p = drawn(manifest, seed, spread)
        bound = certificate(manifest, p).data
        for reach in (1.0, 10.0):
            x = rng.normal(0.5, reach, (1, *shape))
            y = rng.normal(0.5, reach, (1, manifest.window.horizon))
            assert graph(p=p, x=x, y=y, rho=0.0)[2] <= bound * (1 + 1e-5)


@pytest.mark.parametrize("name", CELLS)
def test_no_forecast_moves_faster_than_its_bound(name):
    bundle = Bundle.open(name, trust=TrustedKeys())
    manifest, rng = bundle.manifest, np.random.default_rng(8)
    shape = manifest.window.lookback, len(manifest.features)
    for seed in range(4):
        p = drawn(manifest, seed, 0.2)
        x, step = rng.normal(size=(8, *shape)), rng.normal(size=(8, *shape)) * 1e-2
        (there,), (here,) = bundle.forecast(p=p, x=x + step), bundle.forecast(p=p, x=x)
        moved = np.linalg.norm(there - here, axis=1)
        bound = certificate(manifest, p).forecast
        assert (moved <= bound * np.linalg.norm(step.reshape(8, -1), axis=1) + 1e-5).all()


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_one_step_by_hand(kind):
    """One unit, from a zero state: an LSTM's first step knows no forget gate, a GRU's no state."""
    if kind == "lstm":
        w = np.array([[1.0], [100.0], [2.0], [4.0]])
        assert lstm_steps(w, np.zeros((4, 1)), 1) == pytest.approx(
            np.array([[1 / 4 + 2 + math.tanh(1.0)]])
        )
    else:
        w, u, b = np.array([[1.0], [2.0], [4.0]]), np.array([[0.0], [0.0], [3.0]]), np.ones(3)
        assert gru_steps(w, u, b, 1) == pytest.approx(np.array([[4 + 1 / 4 + 2 / 4]]))


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def lstm(x, w, u, b):
    h = c = np.zeros(u.shape[1])
    for row in x:
        i, f, g, o = np.split(w @ row + u @ h + b, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        yield h


def gru(x, w, u, b):
    h = np.zeros(u.shape[1])
    for row in x:
        (in_r, in_z, in_n), (r, z, n) = np.split(w @ row, 3), np.split(u @ h + b, 3)
        new = np.tanh(in_n + sigmoid(in_r + r) * n)
        h = new + sigmoid(in_z + z) * (h - new)
        yield h


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
def test_no_step_does_more_than_the_table_says(kind, spread):
    """Block by block, against differences of the formulas themselves."""
    rng, cell, gates = np.random.default_rng(11), *((lstm, 4) if kind == "lstm" else (gru, 3))
    for _ in range(10):
        w, u, b = (rng.normal(0, spread, (gates * 3, *more)) for more in ((2,), (3,), ()))
        table = lstm_steps(w, u, 4) if kind == "lstm" else gru_steps(w, u, b, 4)
        x, blocks = rng.normal(0, 2, (4, 2)), np.zeros((4, 3, 4, 2))
        for s, k in np.ndindex(4, 2):
            step = np.zeros_like(x)
            step[s, k] = 1e-5
            there, here = (np.array(list(cell(x + sign * step, w, u, b))) for sign in (1, -1))
            blocks[:, :, s, k] = (there - here) / 2e-5
        found = np.linalg.norm(blocks.transpose(0, 2, 1, 3), 2, axis=(2, 3))
        assert (found <= table + 1e-7).all()


def test_without_a_way_back_a_step_only_remembers():
    """No recurrent weights: what a GRU took in lasts undiminished, and nothing comes from ahead."""
    found = gru_steps(np.ones((3, 1)), np.zeros((3, 1)), None, 3)
    assert found == pytest.approx(np.tril(np.tile([1.25, 1.5, 1.5], (3, 1))))


def test_what_a_step_does_grows_with_the_steps_behind_it():
    manifest = manifest_of("cells-lstm-1")
    weights = named(manifest, drawn(manifest, 3))
    bounds = [stage_bound(LipschitzStage("lstm", "body", steps=n), weights) for n in (1, 2, 3)]
    assert bounds == sorted(bounds)
    whole = stage_bound(LipschitzStage("lstm", "body", steps=3, whole=True), weights)
    assert whole >= bounds[-1]


@pytest.mark.parametrize(
    ("loss", "error", "steepest"),
    [
        (Loss("huber", 0.1), None, 0.1),
        (Loss("huber", 0.1), 0.02, 0.02),
        (Loss("huber", 0.1), 7.0, 0.1),
        (Loss("mse"), 2.0, 4.0),
    ],
)
def test_the_loss_by_hand(loss, error, steepest):
    assert loss_bound(loss, 1, error) == steepest
    assert loss_bound(loss, 9, error) == pytest.approx(steepest / 3)


def test_slopes_below_one_do_not_count_and_steep_ones_do():
    stage = LipschitzStage("prelu", "a")
    assert stage_bound(stage, {"a.weight": np.array([0.2, -0.5])}) == 1.0
    assert stage_bound(stage, {"a.weight": np.array([0.2, -3.0])}) == 3.0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"paths": None}, "does not say which layer follows which"),
        ({"loss": Loss("mse")}, "squared error has no finite slope"),
        ({"paths": ((LipschitzStage("linear", "haed"),),)}, "no layer 'haed.weight'"),
        ({"paths": ((LipschitzStage("gru", "body"),),)}, "no layer 'body.weight_ih_l0'"),
    ],
)
def test_what_has_no_bound_is_refused(changes, says):
    manifest = replace(manifest_of("cells-mlp-1"), **changes)
    with pytest.raises(LipschitzBoundError, match=says):
        certificate(manifest, drawn(manifest, 0))
