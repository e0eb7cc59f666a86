"""BAFDP over a shipped bundle: the exported regulariser at work, and liars beside it."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from aggregator.methods import METHODS as SERVERS
from aggregator.methods import Rounds, Setup
from aggregator.rules import bind
from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.extensions.papers.consensus import consensus_half
from edge_sdk.methods.training_context import Batch, TrainingContext, keyed

NAMES = ("cell-1", "cell-2", "cell-3", "cell-4", "cell-5")


class Cells:
    """A cell's daily shape in [0, 1] with noise, as windows of a bundle with 3 rows of 4."""

    def __init__(self, number):
        rng = np.random.default_rng(number)
        hour = np.arange(24 * 30)
        shape = 0.5 + 0.35 * np.sin(2 * np.pi * (hour - number) / 24)
        series = np.clip(shape + rng.normal(0, 0.05, hour.size), 0, 1)
        at = np.arange(75, hour.size)
        lags = np.array([72, 48, 24, 0])
        rows = at[:, None, None] - 1 - np.arange(2, -1, -1)[None, :, None] - lags[None, None, :]
        rows = rows + np.where(lags > 0, 1, 0)
        self.x, self.y = series[rows].astype(np.float32), series[at, None].astype(np.float32)

    def __len__(self):
        return len(self.x)

    def draw(self, rng, size):
        some = rng.choice(len(self), size, replace=False)
        return Batch(self.x[some], self.y[some])


@pytest.fixture(scope="module")
def bundle():
    return Bundle.open("cells-mlp-1", trust=TrustedKeys())


@pytest.fixture
def cells(bundle, consensus):
    def lend(name, number):
        windows = Cells(number)
        return TrainingContext(
            name, bundle.spec, bundle.graphs, lambda: windows, 64, partial(keyed, 0, name)
        )

    def make(method="bafdp", **chosen):
        row = SERVERS[method]
        rounds = Rounds(quorum=len(NAMES), deadline=60.0)
        half = row.half(Setup(bind("mean"), row.settings(**chosen), rounds))
        targets = {name: number for number, name in enumerate(NAMES)}
        first = bundle.initial
        return consensus(half, consensus_half, targets, spec=bundle.spec, first=first, local=lend)

    return make


def judged(bundle, fleet):
    """Error of the consensus over all honest cells, and how steep its loss is in the data."""
    p, errors, slopes = fleet.server.model(fleet.state)["p"], [], []
    for number in range(len(NAMES)):
        windows = Cells(number)
        (told,) = bundle.graphs["forecast"](p=p, x=windows.x)
        errors.append((told - windows.y) ** 2)
        some = windows.draw(np.random.default_rng(0), 64)
        feeds = {"p": p, "x": some.x, "y": some.y, "rho": np.float32(0)}
        slopes.append(float(bundle.graphs["robust_gradient"](**feeds)[2]))
    return float(np.sqrt(np.mean(errors))), float(np.mean(slopes))


def test_the_exported_regulariser_reduces_the_slope_of_the_loss(bundle, cells):
    chosen = {"rate": 0.003, "steps": 2, "l1": 0.1}
    plain, guarded = cells(regulariser="off", **chosen), cells(radius_scale=0.1, **chosen)
    begun = judged(bundle, plain)
    for _ in range(50):
        plain.activate(*NAMES)
        guarded.activate(*NAMES)
    assert judged(bundle, plain)[0] < begun[0]
    assert judged(bundle, guarded)[1] < 0.9 * judged(bundle, plain)[1]
    eps = [guarded.states[name].eps for name in NAMES]
    assert all(3.0 < value <= 30.0 for value in eps)


@pytest.mark.parametrize("liars", [1, 2])
def test_noise_and_scaling_attacks_do_not_move_the_consensus_away(bundle, cells, liars):
    """Two of five is above what anybody promises; a rule that averages is lost with one."""
    chosen, rng = {"rate": 0.003, "steps": 2, "radius_scale": 0.001}, np.random.default_rng(0)
    honest, noisy, scaled = cells(**chosen), cells(**chosen), cells(**chosen)
    for _ in range(40):
        honest.activate(*NAMES)
        for fleet in (noisy, scaled):
            fleet.activate(*NAMES[liars:])
        for name in NAMES[:liars]:
            said = noisy.answer(name)
            noisy.deliver(replace(said, vector=said.vector + rng.normal(size=said.vector.shape)))
            said = scaled.answer(name)
            scaled.deliver(replace(said, vector=10.0 * said.vector))
    error = judged(bundle, honest)[0]
    assert judged(bundle, noisy)[0] < 2.0 * error
    assert judged(bundle, scaled)[0] < 2.0 * error


def test_a_larger_constant_attack_has_no_larger_influence(bundle, cells):
    chosen, ends = {"rate": 0.003, "steps": 2, "radius_scale": 0.001}, set()
    honest = cells(**chosen)
    for _ in range(40):
        honest.activate(*NAMES)
    for lie in (1e3, 1e30):
        fleet = cells(**chosen)
        for _ in range(40):
            fleet.activate(*NAMES[1:])
            fleet.lie(NAMES[0], lie)
        ends.add(fleet.state.w.tobytes())
        assert judged(bundle, fleet)[0] < 1.5 * judged(bundle, honest)[0]
    assert len(ends) == 1
