"""What a device of a split method forecasts with: a round that the fleet chose, or itself alone."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from aggregator.extensions.papers.graph import Diffusion
from aggregator.extensions.papers.graph.stations import chebyshev_of_present
from aggregator.extensions.papers.split.split_arrays import drawn, silenced
from aggregator.extensions.papers.split.split_types import SplitBinding, SplitTurns
from aggregator.methods import METHODS, OPEN, Rounds, Setup
from aggregator.methods.base.types import BoundGraph as LentGraph
from aggregator.rules import bind
from edge_sdk.app.schema import SchemaError
from edge_sdk.methods import METHODS as DEVICES
from edge_sdk.methods.local_sgd import LocalSgd
from edge_sdk.methods.training_context import TrainingContext
from edge_sdk.protocol.contract.method import Member, Signal, Task
from edge_sdk.shared_math.optim import sgd
from tests.pairs.joint import GRAPHS, RING, SPEC, F, Joint, L, Windows, decode, encode

NAMES = ("a", "b", "c", "d")
FLEET = {"model_selection": "fleet", "rate": 0.05, "credit": 0.9}


class Judged(Joint):
    """Stations of which some hold windows back; those come after the ones to learn from."""

    def __init__(self, names, *, blind=(), **said):
        self.blind, self.held = frozenset(blind), {}
        super().__init__(names, **said)

    def half(self, name):
        made = super().half(name)
        if name in self.blind:
            return made
        self.held[name] = Windows(f"{name}!", self.kind, first=140, count=8)
        return _rebound(self, name)


def _rebound(joint, name):
    local = TrainingContext(
        name, SPEC, GRAPHS, lambda: joint.windows[name], 4, lambda *_: np.random.default_rng(0),
        newest=lambda: (999, joint.windows[name].x[:1]), held=lambda: joint.held[name],
    )  # fmt: skip
    return DEVICES["pfgl"](local, LocalSgd(optimiser=sgd, rate=joint.rate))


def losses_with(joint, vectors, net, ids):
    """Each station's loss on its held-back windows, with what a graph says of them."""
    h = np.zeros((len(ids), 4, F, L))
    for k, name in enumerate(joint.names):
        (h[:, k],) = encode(vectors[name], joint.held[name].named(ids)[1].x)
    z = joint.graph.forward(net, h, np.ones(4, np.bool_))
    return {
        name: float(decode(vectors[name], h[:, k], z[:, k], joint.held[name].named(ids)[1].y)[0])
        for k, name in enumerate(joint.names)
    }


@pytest.mark.parametrize("schedule", ["joint", "alternating"])
def test_a_round_is_scored_on_held_back_windows_with_graph_outputs(schedule):
    joint = Judged(NAMES, turns={"schedule": schedule, "validation_batches": 2}, **FLEET)
    seen = {}
    joint.run(until=lambda j: any(t.ask == "judge" for t in j.queue))
    while not joint.closed:
        seen |= {t.to: joint.states[t.to].live for t in joint.queue if t.ask == "share"}
        before = len(joint.sent)
        joint.run(until=lambda j, n=before: len(j.sent) > n)
    batches = [task for task, _ in joint.sent if task.ask == "judge" and task.to == "a"]
    assert len(batches) == 2
    vectors = {name: live.p for name, live in seen.items()}
    told = [losses_with(joint, vectors, joint.state.net["p"], some) for some in judged_ids(joint)]
    wanted = np.mean([list(one.values()) for one in told])
    assert joint.closed[0].report["validation"] == pytest.approx(wanted, rel=1e-9)


def judged_ids(joint):
    return [
        task.arrays["ids"]
        for task, _ in joint.sent
        if task.ask == "encode" and task.to == "a" and task.values.get("held")
    ]


def test_held_back_windows_are_not_used_for_training():
    plain = Judged(NAMES, rate=0.05, credit=0.9).run(2)
    judged = Judged(NAMES, **FLEET).run(2)
    assert judged.state.net["p"].tobytes() == plain.state.net["p"].tobytes()
    for name in NAMES:
        assert judged.states[name].p.tobytes() == plain.states[name].p.tobytes()
    assert "validation" not in plain.closed[0].report
    assert {task.ask for task, _ in judged.sent} - {task.ask for task, _ in plain.sent} == {"judge"}


def test_the_same_windows_score_every_round():
    joint = Judged(NAMES, turns={"validation_batches": 2}, **FLEET).run(3)
    ids = [x.tolist() for x in judged_ids(joint)]
    assert len(ids) == 6
    assert ids[:2] == ids[2:4] == ids[4:]
    assert ids[0] != ids[1]


def test_devices_and_server_keep_the_best_round():
    joint = Judged(NAMES, **FLEET)
    nets, models, losses = {}, {}, {}
    for number in range(1, 9):
        joint.run(1)
        losses[number] = joint.closed[-1].report["validation"]
        nets[number] = joint.state.net["p"].copy()
        models[number] = {name: joint.states[name].p.copy() for name in NAMES}
    best = min(losses, key=losses.get)
    assert 1 <= best < 8, losses  # at this rate it gets worse again
    assert joint.state.kept == best
    assert joint.state.chosen["p"].tobytes() == nets[best].tobytes()
    joint.run(until=lambda j: j.act.phase == "encode")  # the next question told them
    for name in NAMES:
        fed = joint.halves[name].model(joint.states[name])
        assert fed["p"].tobytes() == models[best][name].tobytes()
        assert joint.states[name].p.tobytes() == models[8][name].tobytes()  # it goes on from there


def test_a_forecast_uses_the_graph_of_the_best_round():
    joint = Judged(NAMES, **FLEET).run(1)
    best = joint.states["a"].p
    joint.queue = []
    joint.hear(Signal("a", 0, "serve", 7, np.ones((1, F, L))))
    joint.play(joint.due)
    (task,) = (t for t in joint.queue if t.ask == "serve")
    assert task.values["kept"] == 1.0
    h = np.zeros((1, 4, F, L))
    h[:, 0] = 1.0
    there = np.array([True, False, False, False])
    wanted = joint.graph.forward(joint.state.chosen["p"], h, there)[:, 0]
    np.testing.assert_array_equal(task.arrays["z"], wanted)
    half, state = joint.halves["a"], replace(joint.states["a"], kept=np.zeros(SPEC.size))
    told, _ = half.apply(state, task)
    assert told.kept.tobytes() == best.tobytes()
    assert told.served is None  # that word was for another model
    again, _ = half.apply(told, task)
    assert again.served[0] == 7
    back = type(again).from_arrays(again.arrays())
    assert back.chosen.tobytes() == best.tobytes()


def test_a_device_without_held_back_windows_is_not_awaited_for_the_score():
    joint = Judged(NAMES, blind="d", **FLEET).run(1)
    lines = joint.closed[0].report["turns"].splitlines()
    assert any(line.split()[1:] == ["judge", "a", "b", "c"] for line in lines)
    assert joint.closed[0].report["cohort"] == list(NAMES)
    nobody = Joint(NAMES, **FLEET).run(1)
    assert nobody.state.kept == 0
    assert not nobody.state.chosen
    assert "judge" not in {task.ask for task, _ in nobody.sent}


def test_a_kill_during_the_scoring_changes_no_selection():
    calm, one = Judged(NAMES, **FLEET).run(2), Judged(NAMES, **FLEET)
    one.run(until=lambda j: j.act.at == 4 and j.act.phase == "encode")
    one.kill_server()
    one.run(2, until=lambda j: (j.act.round, j.act.phase) == (2, "decode"))
    assert one.state.chosen
    one.kill_server()
    one.run(1)
    assert one.state.kept == calm.state.kept
    assert one.state.best == calm.state.best
    assert one.state.chosen["p"].tobytes() == calm.state.chosen["p"].tobytes()


def test_the_last_round_has_no_penalty():
    said = {"rate": 0.05, "credit": 0.9, "prox": 0.5}
    plain, tuned = (
        bound(Rounds(quorum=1, limit=2), **said),
        bound(Rounds(quorum=1, limit=2), final_tuning=True, **said),
    )
    assert [prox(plain, 0), prox(plain, 1)] == [0.5, 0.5]
    assert [prox(tuned, 0), prox(tuned, 1)] == [0.5, 0.0]
    with pytest.raises(SchemaError, match=r"run\.settings\.final_tuning"):
        bound(Rounds(quorum=1), final_tuning=True, **said)
    with pytest.raises(ValueError, match="'fleet' or 'last'"):
        METHODS["pfgl"].settings(model_selection="own")


def bound(rounds, **said):
    row = METHODS["pfgl"]
    lent = LentGraph(Diffusion(RING, F), (F, L), {})
    return row.half(Setup(bind("mean"), row.settings(**said), rounds, SPEC, graph=lent))


def prox(half, version):
    state = replace(half.init(np.zeros(SPEC.size, np.float32)), version=version)
    state, _ = half.apply(state, OPEN)
    _, effects = half.apply(state, Member("a", present=True))
    return next(e for e in effects if isinstance(e, Task)).values["prox"]


class TestSilence:
    """Now and then the graph says nothing, so that a decoder learns to do without."""

    def test_a_window_without_graph_output_sends_no_gradient(self):
        joint = Joint(NAMES, turns={"z_dropout": 0.5})
        joint.run(until=lambda j: j.act.phase == "decode" and len(j.act.received) == 3)
        quiet = silenced(joint.act, score_of(joint))
        assert 0 < quiet.sum() < quiet.size
        task = next(t for t, _ in joint.sent if t.ask == "decode" and t.to == "a")
        np.testing.assert_array_equal((task.arrays["z"] == 0).all((1, 2)), quiet[:, 0])

    @pytest.mark.torch
    def test_graph_dropout_is_a_mask_between_graph_and_decoders(self):
        """One iteration against autograd through encoders, graph, mask and decoders at once."""
        torch = pytest.importorskip("torch")
        joint = Joint(NAMES, steps=1, turns={"z_dropout": 0.5})
        joint.run(until=lambda j: j.act.phase == "decode")
        quiet, ids = silenced(joint.act, score_of(joint)), joint.act.ids
        begun = {n: joint.states[n].p.copy() for n in NAMES}
        drawn_to = {n: joint.open_tasks[n].arrays["w"] for n in NAMES}
        p = {n: torch.tensor(begun[n], requires_grad=True) for n in NAMES}
        batch = {n: joint.windows[n].named(ids)[1] for n in NAMES}
        x = {n: torch.tensor(b.x)[:, None, :, 0] for n, b in batch.items()}
        h = torch.stack([p[n][:F, None] * x[n] for n in NAMES], 1)
        terms = torch.tensor(chebyshev_of_present(RING, np.ones(4, np.bool_), 3))
        net = torch.tensor(joint.graph.init(5)).reshape(3, F)
        z = torch.tanh(torch.einsum("kmn,bnfl,kf->bmfl", terms, h, net))
        z = z * torch.tensor(~quiet)[:, :, None, None]
        losses = []
        for k, n in enumerate(NAMES):
            own, graph = p[n][F : 2 * F], p[n][2 * F :]
            told = torch.einsum("bfl,f->b", h[:, k], own) + torch.einsum("bfl,f->b", z[:, k], graph)
            losses.append(((told - torch.tensor(batch[n].y)[:, 0]) ** 2).mean())
        sum(losses).backward()
        joint.run(1)
        for n in NAMES:
            pull = 0.1 * (begun[n] - drawn_to[n])
            wanted = begun[n] - 0.05 * (p[n].grad.numpy() + pull)
            np.testing.assert_allclose(joint.states[n].p, wanted, atol=1e-10)

    def test_dropout_rates_of_zero_and_one_are_exact(self):
        never, plain = Joint(NAMES, turns={"z_dropout": 0.0}).run(1), Joint(NAMES).run(1)
        assert never.state.net["p"].tobytes() == plain.state.net["p"].tobytes()
        always = Joint(NAMES, turns={"z_dropout": 1.0}).run(1)
        first = always.graph.init(5)
        np.testing.assert_array_equal(always.state.net["p"], first)  # no loss hangs on it

    @pytest.mark.parametrize("seed", [1, 2])
    def test_order_and_a_killed_server_change_no_bit(self, seed):
        calm = Joint(NAMES, turns={"z_dropout": 0.3}).run(2)
        one = Joint(NAMES, turns={"z_dropout": 0.3})
        one.run(until=lambda j: (j.act.step, j.act.phase) == (1, "decode"))
        one.kill_server()
        one.run(2, rng=random.Random(seed))
        assert one.state.net["p"].tobytes() == calm.state.net["p"].tobytes()
        for name in NAMES:
            assert one.states[name].p.tobytes() == calm.states[name].p.tobytes()

    def test_graph_dropout_does_not_apply_to_decode_requests(self):
        turns = {
            "schedule": "alternating",
            "server_iterations": 2,
            "refresh_batches": 2,
            "z_dropout": 1.0,
        }
        joint = Joint(NAMES, turns=turns).run(1)
        asked = {(t.ask, bool(t.arrays["z"].any())) for t, _ in joint.sent if "z" in t.arrays}
        assert asked == {("decode", True), ("keep", False)}


def score_of(joint):
    """The score that a ``Joint`` of half silence plays by."""
    turns = SplitTurns(batch=4, clip_factor=0.0, rate=0.01, deadline=1.0, z_dropout=0.5)
    return SplitBinding(joint.graph, turns, 3, (F, L), 4, 4, 5)


def test_graph_dropout_does_not_change_the_drawn_windows():
    joint = Joint(NAMES)
    joint.run(until=lambda j: j.act.phase == "encode")
    assert drawn(joint.act, score_of(joint)).tolist() == joint.act.ids.tolist()
