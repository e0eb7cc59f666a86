"""Split learning: both real halves and the play, against one machine that sees everything."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.extensions.audit.recompute import _fold
from aggregator.extensions.papers.graph.stations import chebyshev_of_present
from aggregator.extensions.papers.split.split_arrays import KNOWN, remembered_activations
from aggregator.extensions.papers.split.split_types import SplitTurns
from aggregator.store import state_codec
from aggregator.store.types import JournalEntry
from edge_sdk.app.schema import SchemaError
from edge_sdk.protocol.contract.method import END, Member, Played, Signal, Task, Update
from tests.pairs.joint import RING, SPEC, F, Joint, L, start
from tests.pairs.pfgl_block import PfglBlock, gradients

NAMES = ("a", "b", "c", "d")


def diffused(net, h):
    """z of ``Diffusion`` on the ring, written down again."""
    degrees = RING.sum(0)
    laplacian = np.eye(4) - RING / np.sqrt(np.outer(degrees, degrees))
    scaled = 2 * laplacian / np.linalg.eigvalsh(laplacian).max() - np.eye(4)
    terms = np.stack([np.eye(4), scaled, 2 * scaled @ scaled - np.eye(4)])
    return np.tanh(np.einsum("kmn,bnfl,kf->bmfl", terms, h, net.reshape(3, F)))


def on_one_machine(joint, rounds, graph, *, steps=3, prox=0.1, graph_rate=0.01, rate=0.05):
    """The whole of it on one machine: the gradient of all losses through encoders, graph and decoders."""
    p = np.stack([start(name, np.float64) for name in joint.names])
    net = np.array(joint.graph.init(5), np.float64)
    first, second = np.zeros_like(net), np.zeros_like(net)
    windows, taken = iter(joint.drawn), 0
    for _ in range(rounds):
        anchors = np.stack([next(joint.given[name]) for name in joint.names])
        for _ in range(steps):
            ids, taken = next(windows), taken + 1
            batches = [joint.windows[name].named(ids)[1] for name in joint.names]
            x = np.stack([one.x[:, :, 0] for one in batches], 1)
            y = np.stack([one.y[:, 0] for one in batches], 1)

            def loss(p, net, x=x, y=y):
                h = p[None, :, :F, None] * x[:, :, None, :]
                told = np.einsum("bnfl,nf->bn", h, p[:, F : 2 * F])
                told = told + np.einsum("bnfl,nf->bn", graph(net, h), p[:, 2 * F :])
                return ((told - y) ** 2).mean(0).sum()

            of_p, of_net = gradients(loss, p, net)
            first = 0.9 * first + 0.1 * of_net
            second = 0.999 * second + 0.001 * of_net**2
            size = np.sqrt(second / (1 - 0.999**taken)) + 1e-8
            net = net - graph_rate * first / (1 - 0.9**taken) / size
            p = p - rate * (of_p + prox * (p - anchors))
    return dict(zip(joint.names, p, strict=True)), net


class Watched(Joint):
    """Notes what was drawn and given, for whoever computes it again."""

    def __init__(self, *args, **kwargs):
        self.drawn, self.given = [], {}
        super().__init__(*args, **kwargs)

    def tell(self, task):
        if task.ask == "encode" and task.to == self.names[0]:
            self.drawn.append(task.arrays["ids"])
        if task.ask == "train":
            self.given.setdefault(task.to, []).append(task.arrays["w"])
        return super().tell(task)


def require_equal(joint, rounds, graph, atol):
    """Compare every station and the graph with training on one machine."""
    joint.given = {name: iter(given) for name, given in joint.given.items()}
    p, net = on_one_machine(joint, rounds, graph)
    for name in NAMES:
        np.testing.assert_allclose(joint.states[name].p, p[name], atol=atol)
    np.testing.assert_allclose(joint.state.net["p"], net, atol=atol)


class TestSplitEqualsCentralised:
    """The oracle: gradients of the sum of all losses, with the graph in between."""

    @pytest.mark.parametrize("seed", [None, 1, 2])
    def test_split_training_equals_centralised_training_in_float64(self, seed):
        joint = Watched(NAMES).run(2, rng=None if seed is None else random.Random(seed))
        require_equal(joint, 2, diffused, 1e-10)

    def test_split_training_equals_centralised_training_in_float32(self):
        joint = Watched(NAMES, kind=np.float32).run(1)
        assert {joint.states[name].p.dtype for name in NAMES} == {np.dtype(np.float32)}
        require_equal(joint, 1, diffused, 1e-5)

    def test_the_graph_net_of_pfgl_on_the_server_trains_as_on_one_machine(self):
        """Attention over stations and steps, Chebyshev convolution: no torch, every message of a round."""
        block = PfglBlock(RING, F, L)
        joint = Watched(NAMES, graph=block).run(1)
        require_equal(joint, 1, block.apply, 1e-10)
        assert np.abs(joint.state.net["p"] - block.init(5)).min() > 0, "every layer has a gradient"
        down = {task.ask for task, _ in joint.sent}
        up = {type(one).__name__ for _, answers in joint.sent for one in answers}
        assert down == {"train", "ready", "encode", "decode", "finish", "share"}
        assert up == {"Signal", "Update"}

    @pytest.mark.torch
    def test_the_block_in_numpy_is_the_net_of_the_product(self):
        torch = pytest.importorskip("torch")
        from aggregator.extensions.papers.graph.nets.spatiotemporal import (  # noqa: PLC0415 - it imports torch
            SpatioTemporalBlock,
            Surroundings,
        )

        block, there = PfglBlock(RING, F, L), np.ones(4, bool)
        p, h = block.init(5), np.random.default_rng(3).normal(size=(5, 4, F, L))
        net = SpatioTemporalBlock(4, F, L, order=3).double()
        torch.nn.utils.vector_to_parameters(torch.tensor(p), net.parameters())
        terms = torch.tensor(chebyshev_of_present(RING, there, 3))
        z = net(torch.tensor(h), Surroundings(torch.tensor(there), terms))
        np.testing.assert_allclose(block.forward(p, h, there), z.detach().numpy(), atol=1e-12)

    @settings(max_examples=8)
    @given(st.integers(0, 2**16))
    def test_the_order_of_arrival_changes_no_bit(self, seed):
        calm, one = Joint(NAMES).run(1), Joint(NAMES).run(1, rng=random.Random(seed))
        assert one.state.net["p"].tobytes() == calm.state.net["p"].tobytes()
        for name in NAMES:
            assert one.states[name].p.tobytes() == calm.states[name].p.tobytes()

    def test_the_papers_literal_form_returns_the_own_loss_gradient_only(self):
        whole = Joint(NAMES).run(1)
        own = Joint(NAMES, turns={"own_loss_only": True}).run(1)
        assert own.states["a"].p[:F].tobytes() != whole.states["a"].p[:F].tobytes()


class TestParticipants:
    """Who is late, who leaves, who comes back."""

    def absent(self, **said):
        joint = Joint(NAMES, quorum=3, least=3, **said)
        joint.down = {"d"}
        return joint.run(1)

    def test_a_silent_station_costs_one_deadline_and_changes_nothing(self):
        joint = self.absent()
        assert joint.closed[0].report["cohort"] == ["a", "b", "c"]
        assert "d" not in joint.closed[0].report["turns"].split()

    def test_a_station_that_misses_a_step_trains_locally_and_is_awaited_again(self):
        joint = Joint(NAMES, steps=5)
        joint.run(until=lambda j: (j.act.step, j.act.phase) == (1, "decode"))
        joint.down = {"d"}
        joint.run(until=lambda j: (j.act.step, j.act.phase) == (2, "encode"))
        turn = joint.states["d"].live.turn
        assert turn.step == 1
        assert turn.g is None  # it never heard of z
        joint.down = set()
        joint.queue = [task for task in joint.queue if (task.to, task.step) != ("d", 1)]
        joint.run(until=lambda j: (j.act.step, j.act.phase) == (3, "encode"))
        live = joint.states["d"].live
        assert len(live.losses) == 2  # the turn it missed ended with a step of its own
        joint.run(1)
        lines = joint.closed[0].report["turns"].splitlines()
        assert "1 decode a b c" in lines
        assert "2 encode a b c" in lines  # its activations came after the others' and were late
        assert "3 encode a b c d" in lines
        assert "3 decode a b c d" in lines

    def test_without_hgrad_the_step_is_the_direct_path_alone(self):
        joint = Joint(["a"], quorum=1)
        joint.run(until=lambda j: j.queue and j.queue[0].ask == "decode")
        task = joint.queue[0]
        half, state = joint.halves["a"], joint.states["a"]
        state, _ = half.apply(state, task)
        finish = replace(task, ask="finish", arrays={})
        alone, _ = half.apply(state, finish)
        zero = replace(finish, arrays={"hgrad": np.zeros_like(task.arrays["z"])})
        with_zero, _ = half.apply(state, zero)
        assert alone.live.p.tobytes() == with_zero.live.p.tobytes()
        some = replace(finish, arrays={"hgrad": np.ones_like(task.arrays["z"])})
        assert half.apply(state, some)[0].live.p.tobytes() != alone.live.p.tobytes()
        assert half.apply(alone, some)[0].live is not None
        assert half.apply(alone, some)[0].live.p.tobytes() == alone.live.p.tobytes()  # one step

    def test_missing_windows_of_a_station_are_zero_and_change_nothing(self):
        joint = Joint(NAMES)
        joint.windows["b"].gaps = frozenset(range(100, 120))
        joint.run(until=lambda j: j.act.phase == "decode")
        late = np.isin(joint.act.ids, range(100, 120))
        assert (joint.act.h[late, 1] == 0).all()
        assert joint.run(1).closed[0].moved

    def test_a_restarted_station_resumes_at_its_last_update(self):
        joint = Joint(NAMES).run(1)
        before = joint.states["c"].p.copy()
        joint.run(until=lambda j: j.act.round == 2 and j.act.step == 1 and j.act.phase == "decode")
        assert joint.states["c"].live.p.tobytes() != before.tobytes()
        joint.queue = [task for task in joint.queue if task.to != "c"]
        joint.reboot("c")
        assert joint.states["c"].live is None
        assert joint.states["c"].p.tobytes() == before.tobytes()
        joint.run(1)
        lines = joint.closed[-1].report["turns"].splitlines()
        assert "1 decode a b d" in lines
        assert "2 decode a b c d" in lines

    def test_a_killed_server_restarts_the_round_and_ends_with_the_same_bits(self):
        calm = Joint(NAMES).run(2)
        one = Joint(NAMES)
        for step, phase in ((0, "encode"), (1, "decode"), (2, "encode")):
            one.run(until=lambda j, s=step, p=phase: (j.act.step, j.act.phase) == (s, p))
            one.kill_server()
        assert one.state.attempt == 3
        one.run(2)
        assert one.state.net["p"].tobytes() == calm.state.net["p"].tobytes()
        for name in NAMES:
            assert one.states[name].p.tobytes() == calm.states[name].p.tobytes()

    def test_a_server_killed_after_the_steps_requests_only_the_updates_again(self):
        calm = Joint(NAMES).run(1)
        one = Joint(NAMES)
        one.run(until=lambda j: j.state.settled == 1)
        one.kill_server()
        assert (one.state.attempt, one.act.phase) == (0, "share")
        one.run(1)
        assert one.state.net["p"].tobytes() == calm.state.net["p"].tobytes()

    def test_an_early_update_waits(self):
        joint = Joint(NAMES)
        early = joint.tell(next(t for t in joint.queue if t.to == "a"))
        assert isinstance(early[0], Signal)
        joint.run(until=lambda j: j.act.step == 1)
        half, state = joint.halves["a"], joint.states["a"]
        _, (update,) = half.apply(state, Task("a", 1, "share"))
        joint.fold(update)
        assert joint.state.waiting == 0
        assert set(joint.state.early) == {"a"}
        joint.run(1)
        assert joint.state.early == {}
        assert joint.closed[0].report["cohort"] == list(NAMES)

    def test_replaying_the_journal_gives_the_same_state(self):
        joint = Joint(NAMES).run(3)
        entries = [JournalEntry(k, 1, event) for k, event in enumerate(joint.journal)]
        first = joint.server.init(np.zeros(SPEC.size, np.float32))
        state, _ = _fold(joint.server, first, iter(entries), len(entries), {})
        assert state_codec.digest(state) == state_codec.digest(joint.state)
        assert sum(isinstance(event, Played) for event in joint.journal) == 3

    def test_a_later_device_gets_a_slot_and_a_removed_one_frees_it(self):
        joint = Joint(NAMES)
        joint.fold(Member("e", present=True))
        assert "e" not in joint.state.slots  # four slots, four stations
        assert sorted(joint.state.slots.values()) == [0, 1, 2, 3]

    def test_the_end_of_a_run_frees_the_live_arrays(self):
        joint = Joint(NAMES)
        joint.run(until=lambda j: j.act.step == 1)
        half, state = joint.halves["a"], joint.states["a"]
        after, _ = half.apply(state, Task("a", 9, END, arrays={"w": np.zeros(SPEC.size)}))
        assert after.live is None
        assert after.p.tobytes() == state.p.tobytes()


class TestGuards:
    """A station that lies moves the others by no more than the guard allows."""

    def lying(self, factor, guard, ask="decode"):
        joint = Joint(NAMES, turns={"clip_factor": guard})
        said = joint.hear

        def hear(signal):
            if signal.sender == "d" and signal.ask == ask:
                signal = replace(signal, array=signal.array * factor)
            said(signal)

        joint.hear = hear
        joint.run(until=lambda j: (j.act.step, j.act.phase) == (1, "decode"))
        return {n: joint.states[n].live.p for n in "abc"}

    def test_an_excessive_gradient_is_clipped_at_three_medians(self):
        honest, lied = self.lying(1.0, 3.0), self.lying(1e6, 3.0)
        bare = self.lying(1e6, 0.0)
        for name in "ac":  # d's neighbours on the ring
            far = np.abs(lied[name] - honest[name]).max()
            assert far < 1.0
            assert np.abs(bare[name] - honest[name]).max() > 1e3 * far

    def test_excessive_features_are_clipped_at_three_medians(self):
        honest, lied = self.lying(1.0, 3.0, "encode"), self.lying(1e6, 3.0, "encode")
        for name in "ac":
            assert np.abs(lied[name] - honest[name]).max() < 1.0

    def test_a_device_excluded_by_most_has_no_influence_for_a_round(self):
        joint = Joint(NAMES).run(1)
        joint.state = replace(joint.state, masked={"d": True})
        joint.act = joint.server.play.begin(joint.state, joint.act)
        joint.act, effects = joint.server.play.apply(joint.act, replace_begin(joint))
        joint.queue = [t for t in joint.queue if t.ask == "train"] + [
            e for e in effects if isinstance(e, Task)
        ]
        joint.run(until=lambda j: j.act.phase == "decode")
        assert np.allclose(joint.act.h[:, 3], joint.state.means["d"])

    @pytest.mark.parametrize("mask", [True, False])
    def test_a_device_excluded_by_most_is_excluded_from_the_graph_if_configured(self, mask):
        joint = Joint(NAMES, turns={"mask_excluded": mask}, method="pfgl", credit=0.5)
        fold = joint.fold

        def far(event):
            is_liar = isinstance(event, Update) and event.sender == "d"
            fold(replace(event, vector=-50.0 * event.vector) if is_liar else event)

        joint.fold = far
        joint.run(2)
        assert dict(joint.state.masked) == ({"d": True} if mask else {})


def replace_begin(joint):
    from edge_sdk.protocol.contract.method import Due  # noqa: PLC0415

    return Due(joint.state.round, "begin")


class TestAlternating:
    """The graph alone, then the devices alone: no gradient crosses the graph into a device."""

    def test_in_alternating_rounds_devices_change_by_local_steps_only(self):
        joint = Joint(
            NAMES, turns={"schedule": "alternating", "server_iterations": 2, "refresh_batches": 1}
        )
        joint.run(until=lambda j: any(t.ask == "keep" for t in j.queue))
        for name in NAMES:
            assert joint.states[name].live.p.tobytes() == joint.states[name].p.tobytes()
        joint.run(1)
        asks = [task.ask for task, _ in joint.sent]
        assert "finish" not in asks
        assert asks.count("local") == 4
        assert joint.closed[0].moved
        assert joint.states["a"].answered == 1

    def test_alternating_sends_fewer_bytes(self):
        def arrays(schedule):
            joint = Joint(
                NAMES,
                steps=64,
                turns={"schedule": schedule, "server_iterations": 2, "refresh_batches": 1},
            )
            joint.run(1)
            down = sum(a.size for t, _ in joint.sent for n, a in t.arrays.items() if n != "w")
            up = sum(s.array.size for _, said in joint.sent for s in said if isinstance(s, Signal))
            return down + up

        assert arrays("alternating") < arrays("joint") / 20

    def test_the_order_and_a_repeat_change_nothing(self):
        joint = Joint(NAMES, turns={"schedule": "alternating"}).run(2)
        other = Joint(NAMES, turns={"schedule": "alternating"}).run(2, rng=random.Random(3))
        assert other.state.net["p"].tobytes() == joint.state.net["p"].tobytes()
        assert other.states["b"].p.tobytes() == joint.states["b"].p.tobytes()


class TestServing:
    """A forecast's Z: of whoever spoke of the same time."""

    def test_a_forecast_uses_the_graph_over_all_requesting_devices(self):
        joint = Joint(NAMES).run(1)
        h = np.ones((1, F, L))
        for name in "ab":
            joint.hear(Signal(name, 0, "serve", 7, h))
        joint.hear(Signal("c", 0, "serve", 8, h))
        joint.queue = []
        joint.play(joint.due)
        told = {t.to: t for t in joint.queue if t.ask == "serve"}
        assert {n: t.step for n, t in told.items()} == {"a": 7, "b": 7, "c": 8}
        assert told["a"].arrays["z"].shape == (1, F, L)
        assert told["a"].arrays["z"].tobytes() != told["c"].arrays["z"].tobytes()
        state, _ = joint.halves["a"].apply(joint.states["a"], told["a"])
        assert int(joint.halves["a"].model(state)["window"]) == 7

    def test_a_masked_station_has_no_influence_on_other_forecasts(self):
        joint = Joint(NAMES).run(1)
        joint.act = replace(joint.act, masked=frozenset("d"))
        words = []
        for lie in (1.0, -50.0):
            for name in NAMES:
                array = np.full((1, F, L), lie if name == "d" else 1.0)
                joint.hear(Signal(name, 0, "serve", 7, array))
            joint.queue = []
            joint.play(joint.due)
            words.append({t.to: t.arrays["z"].tobytes() for t in joint.queue if t.ask == "serve"})
        assert words[0] == words[1]
        assert set(words[0]) == set(NAMES)


def test_arrays_of_another_shape_step_or_sender_are_refused():
    joint = Joint(NAMES)
    joint.run(until=lambda j: j.act.phase == "encode")
    wants, shape = joint.server.play.wants, (4, F, L)
    good = Signal("a", 1, "encode", 0, np.zeros(shape))
    assert wants(joint.act, good, shape)
    for other in (
        replace(good, sender="z"),
        replace(good, round=2),
        replace(good, step=1),
        replace(good, attempt=1),
        replace(good, ask="decode"),
    ):
        assert not wants(joint.act, other, shape)
    assert not wants(joint.act, good, (3, F, L))
    joint.hear(good)
    assert not wants(joint.act, good, shape)


def test_a_run_without_a_graph_model_is_refused():
    from aggregator.methods import METHODS, Rounds, Setup  # noqa: PLC0415
    from aggregator.rules import bind  # noqa: PLC0415

    for name in ("pfgl", "cnfgnn", "lstm_cnn_pfl", "lstm_cnn_fedavg"):
        row = METHODS[name]
        with pytest.raises(SchemaError, match=r"run\.graph"):
            row.half(Setup(bind("mean"), row.settings(), Rounds()))


def test_the_stored_arrays_of_a_round_are_bounded():
    joint = Joint(NAMES)
    act = replace(
        joint.act,
        known={("a", k): np.zeros(1) for k in range(KNOWN + 50)},
        received={},
    )

    assert len(remembered_activations(act).known) == KNOWN


def test_split_averaging_starts_every_round_at_the_mean():
    joint = Joint(NAMES, method="cnfgnn", turns={"schedule": "alternating"}, prox=0.0).run(2)
    w = joint.state.mixed["a"]
    assert all(joint.state.mixed[n].tobytes() == w.tobytes() for n in NAMES)
    assert joint.open_tasks["a"].values["received"] == 1.0
    mean = np.mean([joint.state.held[n].astype(np.float64) for n in NAMES], 0)
    np.testing.assert_allclose(w, mean, atol=1e-6)


def test_an_alternating_program_ends_with_local_steps():
    assert (
        SplitTurns(schedule="alternating", server_iterations=0, refresh_batches=2).program(9)[-1]
        == "local"
    )
