"""One queue for both ends: turns through a graph, personal mixtures, and liars that hear others."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from aggregator.extensions.papers.graph import Diffusion
from aggregator.methods import METHODS as SERVER
from aggregator.methods import Rounds, Setup
from aggregator.methods.base.types import BoundGraph as LentGraph
from aggregator.rules import bind
from edge_sdk.app.schema import build
from edge_sdk.methods import METHODS as DEVICE
from edge_sdk.methods.local_sgd import LocalSgd
from edge_sdk.methods.training_context import Batch, TrainingContext
from edge_sdk.protocol.contract.method import CONTRACTS
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.shared_math.optim import sgd
from tools.experiments.byzantine import liars
from tools.experiments.joint_loop import key
from tools.experiments.queue_loop import Stage, twisted
from tools.experiments.resumable import Checkpoint

NAMES = ("a", "b", "c", "d")
SPEC = ParamSpec.of([("encoder", (1,)), ("decoder", (2,))])
RING = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]], np.float64)


class Windows:
    """y is twice x; every station has the same forty numbered windows."""

    def __init__(self, name):
        rng = np.random.default_rng(ord(name))
        self.x = rng.normal(size=(40, 3, 1)).astype(np.float32)
        self.y = 2.0 * self.x[:, -1]

    def __len__(self):
        return 40

    def span(self):
        return 0, 39

    def named(self, ids):
        return np.ones(len(ids), np.bool_), Batch(self.x[ids], self.y[ids])

    def draw(self, rng, size):
        rows = rng.choice(40, size, replace=False)
        return Batch(self.x[rows], self.y[rows])


def encode(p, x):
    return (p[0] * x.transpose(0, 2, 1),)


def encode_vjp(p, x, gh):
    g = np.zeros_like(p)
    g[0] = (gh * x.transpose(0, 2, 1)).sum()
    return (g,)


def decode(p, h, z, y):
    own, graph = h[:, :, -1], z[:, :, -1]
    error = p[1] * own + p[2] * graph - y
    d = 2.0 * error / len(error)
    g = np.zeros_like(p)
    g[1:] = (d * own).sum(), (d * graph).sum()
    gh, gz = np.zeros_like(h), np.zeros_like(z)
    gh[:, :, -1], gz[:, :, -1] = d * p[1], d * p[2]
    return np.mean(error**2), g, gh, gz


def gradient(p, x, y):
    h = encode(p, x)[0]
    loss, g, gh, _ = decode(p, h, np.zeros_like(h), y)
    return loss, g + encode_vjp(p, x, gh)[0]


GRAPHS = {"encode": encode, "encode_vjp": encode_vjp, "decode": decode, "gradient": gradient}


def stage(method, limit=4, attack="", out=(), twists=None, **said):
    row = SERVER[method]
    settings = build(row.settings, {"steps": 3, "rate": 0.05, **said}, where="settings")
    graph = LentGraph(Diffusion(RING, 1), (1, 3), {x: i for i, x in enumerate(NAMES)})
    setup = Setup(bind("mean"), settings, Rounds(quorum=4, limit=limit), SPEC, graph=graph)
    devices, states = {}, {}
    for x in NAMES:
        windows = Windows(x)
        lent = TrainingContext(
            x, SPEC, GRAPHS, lambda windows=windows: windows, 8, partial(key, 0, x)
        )
        devices[x] = DEVICE[method](lent, LocalSgd(optimiser=sgd, minibatch="fresh"))
        states[x] = devices[x].init(np.full(3, 0.5, np.float32))
    lies = liars(attack, out, 4, CONTRACTS[method], 0)
    return Stage(method, row.half(setup), devices, states, lies, twists or {})


def run(made):
    return list(made.steps(np.full(3, 0.5, np.float32)))


def test_every_kind_of_method_comes_to_its_end():
    for method in ("fedavg", "pfl", "pfgl", "cnfgnn"):
        said = {"turns": {"batch": 8, "rate": 0.01}} if method in {"pfgl", "cnfgnn"} else {}
        steps = run(stage(method, **said))
        assert [x.closed.version for x in steps] == [1, 2, 3, 4], method
        losses = [x.closed.report["loss"] for x in steps]
        assert losses[-1] < losses[0], method


def test_turns_move_the_graph_and_every_station():
    steps = run(stage("pfgl", limit=2, turns={"batch": 8, "rate": 0.01}))
    one, two = (x.state.net["p"] for x in steps)
    assert not np.array_equal(one, two)
    assert all(x.states[name].answered for x in steps for name in NAMES)


def test_a_run_repeats_to_the_bit():
    first, second = (run(stage("pfgl", turns={"batch": 8}))[-1] for _ in range(2))
    assert all(np.array_equal(first.states[x].p, second.states[x].p) for x in NAMES)


def test_a_flipped_model_gets_no_weight_from_round_two_on():
    steps = run(
        stage("pfl", attack="flipping", out=["d"], model_selection="last", final_tuning=False)
    )
    for step in steps[1:]:
        credit = step.closed.report["credit"]
        assert all("d" not in credit[x] for x in "abc")


def test_a_liar_hears_everybody_before_it_speaks():
    """IPM is the negative mean of the honest, the last of them among them."""
    steps = run(stage("fedavg", limit=1, attack="ipm:epsilon=1", out=["a"]))
    honest = run(stage("fedavg", limit=1))
    rest = [0.5 - x.states[name].p for x in honest for name in "bcd"]
    lie = -np.mean(rest, axis=0)
    wanted = 0.5 - (np.sum(rest, axis=0) + lie) / 4
    assert np.allclose(steps[0].state.w, wanted, atol=1e-6)


def test_a_poisoned_gradient_is_cut_to_what_others_send():
    turns = {"batch": 8, "rate": 0.01}
    free = run(stage("pfgl", limit=1, turns=turns))[-1]
    twists = {"d": twisted("decode", lambda array: 20.0 * array)}
    guarded = run(stage("pfgl", limit=1, turns=turns, twists=twists))[-1]
    bare = run(stage("pfgl", limit=1, turns={**turns, "clip_factor": 0.0}, twists=twists))[-1]
    moved = [
        max(float(np.abs(x.states[n].p - free.states[n].p).max()) for n in "abc")
        for x in (guarded, bare)
    ]
    assert 0 < 2 * moved[0] < moved[1]


def test_a_signal_that_is_not_finite_is_not_let_in_and_the_run_goes_on():
    twist = twisted("decode", lambda array: np.nan * array)
    steps = run(stage("pfgl", limit=2, turns={"batch": 8, "rate": 0.01}, twists={"d": twist}))
    assert len(steps) == 2
    assert all(np.isfinite(steps[-1].states[x].p).all() for x in NAMES)


@pytest.mark.parametrize("method", ["pfgl", "cnfgnn", "pfl"])
def test_a_run_continues_from_a_file_to_the_same_bits(method, tmp_path):
    said = {} if method == "pfl" else {"turns": {"batch": 8, "rate": 0.01}}
    whole = run(stage(method, **said))
    begun = stage(method, **said)
    course = begun.steps(np.full(3, 0.5, np.float32))
    next(course), next(course)
    kept = Checkpoint(tmp_path / "arm.resume", seconds=0.0)
    kept.save(begun.saved())
    later = stage(method, **said)
    later.restore(kept.load())
    rest = list(later.steps(np.zeros(3, np.float32)))
    assert len(rest) == len(whole) - 2
    assert [x.closed.version for x in rest] == [x.closed.version for x in whole[2:]]
    for name in NAMES:
        assert rest[-1].states[name].p.tobytes() == whole[-1].states[name].p.tobytes()
    kept.drop()
    assert kept.load() is None
    assert Checkpoint(None).load() is None
