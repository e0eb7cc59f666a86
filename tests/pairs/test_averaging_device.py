"""The averaging family's device half around a plain mean: personalisation layers by hand."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from edge_sdk.methods.local_sgd import LocalSgd, fedavg
from edge_sdk.methods.training_context import Batch, TrainingContext, keyed
from edge_sdk.protocol.contract.method import Task
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.shared_math.optim import adam, optimiser_step, sgd

LAYERS = [("body.w", (4, 3)), ("body.b", (4,)), ("head.w", (4,)), ("head.b", (1,))]


class Fleet:
    """Devices around a server that only averages: phi <- phi - mean(delta)."""

    def __init__(self, locals_, settings, start):
        self.halves = {local.client: fedavg(local, settings) for local in locals_}
        self.states = {name: half.init(start.copy()) for name, half in self.halves.items()}
        self.spec = locals_[0].spec
        self.w = self.spec.shared(start)
        self.number = 0

    def round(self, **values):
        self.number += 1
        task = Task("_all", self.number, "train", values=values, arrays={"w": self.w})
        deltas = {}
        for name, half in self.halves.items():
            self.states[name], (update,) = half.apply(self.states[name], task)
            deltas[name] = update.vector.astype(np.float64)
        mean = np.mean([deltas[name] for name in sorted(deltas)], axis=0)
        self.w = (self.w - mean).astype(np.float32)


class Fixed:
    """All windows at once, or a draw of them."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def draw(self, rng, size):
        rows = rng.choice(len(self), min(size, len(self)), replace=False)
        return Batch(self.x[rows], self.y[rows])


def scalar_fleet(targets):
    def line(p, x, y):
        error = p.sum() - y[:, 0]
        return np.float32((error**2).mean()), np.full(2, 2 * error.mean(), np.float32)

    spec = ParamSpec.of([("phi", (1,)), ("psi", (1,))], ["phi"])
    locals_ = []
    for number, target in enumerate(targets):
        windows = Fixed(np.ones((1, 1, 1), np.float32), np.full((1, 1), target, np.float32))
        name = f"m-{number}"
        locals_.append(
            TrainingContext(
                name, spec, {"gradient": line}, lambda w=windows: w, 64, partial(keyed, 0, name)
            )
        )
    return Fleet(locals_, LocalSgd(optimiser=sgd), np.zeros(2, np.float32))


def tanh_net(p, x, y):
    """Loss and gradient of head(tanh(body(last row))) under squared error, by hand."""
    w, b, v, c = p[:12].reshape(4, 3), p[12:16], p[16:20], p[20]
    z = x[:, -1, :]
    h = np.tanh(z @ w.T + b)
    error = h @ v + c - y[:, 0]
    s = 2 * error / len(y)
    dh = np.outer(s, v) * (1 - h * h)
    g = np.concatenate([(dh.T @ z).ravel(), dh.sum(0), h.T @ s, [s.sum()]])
    return np.float32((error**2).mean()), g.astype(np.float32)


def net_fleet(shared, seeds, settings=None):
    spec = ParamSpec.of(LAYERS, shared)
    locals_ = []
    for name, seed in seeds.items():
        rng = np.random.default_rng(seed)
        windows = Fixed(
            rng.normal(size=(40, 2, 3)).astype(np.float32),
            rng.normal(size=(40, 1)).astype(np.float32),
        )
        locals_.append(
            TrainingContext(
                name, spec, {"gradient": tanh_net}, lambda w=windows: w, 8, partial(keyed, 3, name)
            )
        )
    start = np.random.default_rng(0).normal(size=spec.size).astype(np.float32)
    return Fleet(locals_, settings or LocalSgd(optimiser=adam), start)


@pytest.mark.parametrize(
    ("count", "rounds"),
    [
        (1, [(0.4, [0.2, 0.6]), (0.64, [0.28, 1.0])]),
        (2, [(0.64, [0.32, 0.96]), (0.8704, [0.3328, 1.408])]),
    ],
)
def test_shared_and_personal_layers_agree_with_the_hand_computed_example(count, rounds):
    fleet = scalar_fleet([1.0, 3.0])
    for shared, personal in rounds:
        fleet.round(steps=count, rate=0.1)
        assert fleet.w == pytest.approx([shared], rel=1e-6)
        assert [s.p[1] for s in fleet.states.values()] == pytest.approx(personal, rel=1e-6)


def test_no_shared_layer_equals_local_training():
    fleet = net_fleet([], {"a": 1, "b": 2})
    alone = net_fleet([], {"b": 2})
    for _ in range(3):
        fleet.round(steps=4, rate=1e-2)
        alone.round(steps=4, rate=1e-2)
    assert fleet.w.size == 0
    assert fleet.states["b"].p.tobytes() == alone.states["b"].p.tobytes()
    assert fleet.states["b"].p.tobytes() == _by_hand(alone, "b", 2).tobytes()


def _by_hand(fleet, name, seed):
    """Local training written out: the same draws, a fresh Adam each round."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(40, 2, 3)), rng.normal(size=(40, 1))
    p = np.random.default_rng(0).normal(size=fleet.spec.size).astype(np.float32)
    for number in (1, 2, 3):
        rows = keyed(3, name, "batch", number).choice(40, 8, replace=False)
        opt = adam(1e-2)
        moments = opt.init(p)
        for _ in range(4):
            _, g = tanh_net(p, x[rows].astype(np.float32), y[rows].astype(np.float32))
            p, moments = optimiser_step(opt, p, g, moments)
    return p


def test_all_layers_shared_equals_federated_averaging():
    fleet = net_fleet([""], {"a": 1, "b": 2})
    w = fleet.w.copy()
    for number in (1, 2):
        fleet.round(steps=3, rate=1e-2)
        deltas = []
        for name, seed in (("a", 1), ("b", 2)):
            one = net_fleet([""], {name: seed})
            one.w, one.number = w.copy(), number - 1
            before = one.w.copy()
            one.round(steps=3, rate=1e-2)
            trained = next(iter(one.states.values())).p
            deltas.append((before - trained).astype(np.float64))
        w = (w - np.mean(deltas, axis=0)).astype(np.float32)
        assert fleet.w.tobytes() == w.tobytes()


def test_the_order_of_devices_does_not_matter():
    one = net_fleet(["body."], {"a": 1, "b": 2, "c": 3})
    two = net_fleet(["body."], {"c": 3, "a": 1, "b": 2})
    for _ in range(2):
        one.round(steps=2, rate=1e-2)
        two.round(steps=2, rate=1e-2)
    assert one.w.tobytes() == two.w.tobytes()
    for name in "abc":
        assert one.states[name].p.tobytes() == two.states[name].p.tobytes()


def test_personal_layers_do_not_depend_on_other_devices_after_one_round():
    one = net_fleet(["body."], {"a": 1, "b": 2})
    two = net_fleet(["body."], {"a": 1, "b": 99})
    one.round(steps=4, rate=1e-2)
    two.round(steps=4, rate=1e-2)
    spec = one.spec
    assert (spec.personal(one.states["a"].p) == spec.personal(two.states["a"].p)).all()
    assert (one.w != two.w).any()
    one.round(steps=4, rate=1e-2)
    two.round(steps=4, rate=1e-2)
    assert (spec.personal(one.states["a"].p) != spec.personal(two.states["a"].p)).any()


def test_zero_steps_keep_the_server_model():
    fleet = net_fleet(["body."], {"a": 1, "b": 2})
    before = fleet.w.tobytes()
    fleet.round(steps=0, rate=1e-2)
    assert fleet.w.tobytes() == before
