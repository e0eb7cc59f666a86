"""FeSEM over a shipped bundle: two kinds of cells that no common model can serve."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from aggregator.methods import METHODS as SERVERS
from aggregator.methods import Rounds, Setup
from aggregator.rules import bind
from edge_sdk.bundle import Bundle, TrustedKeys
from edge_sdk.methods import METHODS as DEVICES
from edge_sdk.methods.training_context import Batch, TrainingContext, keyed
from edge_sdk.protocol.contract.method import ALL
from edge_sdk.shared_math.optim import adam

NAMES = tuple(f"cell-{number}" for number in range(6))
ROUNDS = 6


class Kind:
    """Traffic that follows the last value, or turns away from it, with noise: 300 windows."""

    def __init__(self, number, shape):
        rng = np.random.default_rng(number)
        self.x = rng.uniform(0.1, 0.9, (300, *shape)).astype(np.float32)
        last = self.x[:, -1, -1]
        follows = last if number % 2 == 0 else 1.0 - last
        self.y = (follows + rng.normal(0, 0.02, 300))[:, None].astype(np.float32)

    def __len__(self):
        return len(self.x)

    def draw(self, rng, size):
        some = rng.choice(len(self), size, replace=False)
        return Batch(self.x[some], self.y[some])


def shape_of(bundle):
    return bundle.manifest.window.lookback, len(bundle.manifest.features)


@pytest.fixture(scope="module")
def bundle():
    return Bundle.open("cells-mlp-1", trust=TrustedKeys())


@pytest.fixture
def cells(bundle, consensus):
    def lend(name, number):
        windows = Kind(number, shape_of(bundle))
        return TrainingContext(
            name, bundle.spec, bundle.graphs, lambda: windows, 64, partial(keyed, 0, name)
        )

    def make(method, rounds=ROUNDS, **chosen):
        row = SERVERS[method]
        terms = Rounds(quorum=len(NAMES), deadline=60.0)
        settings = row.settings(steps=10, rate=0.003, **chosen)
        fleet = consensus(
            row.half(Setup(bind("mean"), settings, terms, bundle.spec)),
            lambda local, plain: DEVICES[method](local, replace(plain, optimiser=adam)),
            {name: number for number, name in enumerate(NAMES)},
            spec=bundle.spec,
            first=bundle.initial,
            local=lend,
            start="received",
        )
        for _ in range(rounds):
            if ALL in fleet.tasks:
                fleet.tasks |= dict.fromkeys(NAMES, fleet.tasks[ALL])
            fleet.activate(*NAMES)
        return fleet

    return make


def test_kinds_of_devices_are_separated_by_their_weights(cells):
    fleet = cells("fesem", centres=2)
    for note in fleet.closed:
        groups = {tuple(names) for names in note.report["clusters"].values()}
        assert groups == {NAMES[0::2], NAMES[1::2]}
    spread = fleet.closed[-1].report["spread"]
    one, other = fleet.state.centres
    assert max(spread.values()) < 0.1 * float(np.sum((one - other) ** 2))


def test_the_model_of_each_kind_beats_the_common_model(bundle, cells):
    several, common = cells("fesem", centres=2), cells("fedavg")
    losses = {"fesem": [], "fedavg": []}
    for number, name in enumerate(NAMES):
        kind = Kind(number, shape_of(bundle))
        for method, w in (
            ("fesem", several.state.centres[several.state.labels[name]]),
            ("fedavg", common.state.w),
        ):
            p = bundle.spec.place(bundle.initial, w.astype(np.float32))
            loss, _ = bundle.graphs["gradient"](p=p, x=kind.x, y=kind.y)
            losses[method].append(float(loss))
    assert max(losses["fesem"]) < 0.2 * min(losses["fedavg"]), losses


def test_more_centres_than_kinds_mix_no_kinds(cells):
    fleet = cells("fesem", centres=3)
    for names in fleet.state.clusters.values():
        assert len({int(name[-1]) % 2 for name in names}) <= 1
