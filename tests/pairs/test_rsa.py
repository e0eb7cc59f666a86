"""RSA and DP-RSA: both real halves against the numbers worked out by hand."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.extensions.papers.consensus.l1_penalty import debias
from aggregator.extensions.papers.consensus.rsa_bafdp import DpRsa, Rsa, rsa, rsa_weights
from aggregator.methods.base.round_machine import Rounds
from aggregator.methods.base.types import Setup
from aggregator.rules import bind
from edge_sdk.app.schema import SchemaError, build
from edge_sdk.errors import Refused
from edge_sdk.extensions.papers.consensus import consensus_half
from edge_sdk.protocol.codec import pack_tensor
from edge_sdk.protocol.contract.method import Member
from edge_sdk.protocol.contract.parameter_layout import ParamSpec

HONEST = {"a": 0.0, "b": 1.0, "c": 2.0, "d": 3.0}
VOTES, WEIGHTS, RAW = (
    partial(consensus_half, content=a) for a in ("signs", "weights", "difference")
)
BOTH = pytest.mark.parametrize(("half", "device"), [(rsa, VOTES), (rsa_weights, WEIGHTS)])


def server(half, quorum=1, *, private=False, least=None, **chosen):
    said = (DpRsa if private else Rsa)(**chosen)
    return half(Setup(bind("mean"), said, Rounds(quorum=quorum, least=least, deadline=60.0)))


@BOTH
@pytest.mark.parametrize("order", ["gauss_seidel", "jacobi"])
def test_one_round_agrees_with_the_example_computed_by_hand(consensus, half, device, order):
    chosen = {"rate": 0.1, "l1": 0.5, "decay": "none", "order": order}
    fleet = consensus(server(half, 2, **chosen), device, {"a": 1.0, "b": 1.0})
    fleet.place(1.0, a=0.0, b=2.0)
    for name in "ab":
        fleet.tasks[name] = replace(fleet.tasks[name], arrays={"z": np.ones(1, np.float32)})
    fleet.activate("a", "b")
    assert [fleet.w("a"), fleet.w("b")] == pytest.approx([0.15, 1.85], rel=1e-6)
    assert fleet.z == pytest.approx(1.0, abs=1e-9)


@BOTH
def test_one_round_with_an_attacker_agrees_with_the_example(consensus, half, device):
    chosen = {"rate": 0.1, "l1": 0.5, "decay": "none"}
    fleet = consensus(server(half, 3, **chosen), device, {"a": 1.0, "b": 1.0, "x": 0.0})
    fleet.place(1.0, a=0.0, b=2.0)
    for name in "abx":
        fleet.tasks[name] = replace(fleet.tasks[name], arrays={"z": np.ones(1, np.float32)})
    for name in "ab":
        fleet.deliver(fleet.answer(name))
    fleet.lie("x", 9.0 if device is WEIGHTS else -8.0)
    assert fleet.z == pytest.approx(1.05, abs=1e-9)


@pytest.mark.parametrize(
    ("l1", "rate", "liar", "rests_at"),
    [
        (1.0, 0.1, False, 1.5),
        (1.0, 0.1, True, 2.0),
        (10.0, 0.3, False, 1.5),
        (10.0, 0.3, True, 4.0),
    ],
)
def test_the_consensus_has_the_computed_fixed_point(consensus, l1, rate, liar, rests_at):
    """Where sum clip(z - b, -l1, l1) is l1 times the number of liars at infinity."""
    targets = {**HONEST, "x": 0.0} if liar else HONEST
    made = server(rsa_weights, len(targets), l1=l1, rate=rate)
    fleet = consensus(made, WEIGHTS, targets)
    for _ in range(60):
        for name in HONEST:
            fleet.deliver(fleet.answer(name))
        if liar:
            fleet.lie("x", 1e6)
    assert fleet.z == pytest.approx(settled(l1, rate, 60, liar=liar), abs=1e-4)
    assert settled(l1, rate, 30_000, liar=liar) == pytest.approx(rests_at, abs=0.05)


def settled(l1, rate, rounds, *, liar):
    """The same equations over an array of devices."""
    targets, w, z = np.arange(4.0), np.zeros(4 + liar), 0.0
    w[4:] = 1e6
    for past in range(rounds):
        eta, honest = rate / (past + 1) ** 0.5, w[:4]
        w[:4] = honest - eta * ((honest - targets) + l1 * np.sign(honest - z))
        z -= eta * l1 * np.sign(z - w).sum()
    return z


def test_a_proximal_step_hides_the_minimum_of_a_device(consensus):
    """All stop at a consensus that is no solution: no sign is left to tell."""
    made = server(rsa_weights, 4, l1=4.0, rate=0.1, l1_mode="prox")
    fleet = consensus(made, WEIGHTS, HONEST)
    for _ in range(20):
        fleet.activate(*HONEST)
    assert fleet.z == 0.0


@BOTH
def test_a_larger_attack_vector_has_no_larger_influence(consensus, half, device):
    moved = set()
    for value in (1e3, 1e30, 3.4e38):
        fleet = consensus(server(half, 5, l1=1.0, rate=0.05), device, {**HONEST, "x": 0.0})
        for _ in range(20):
            for name in HONEST:
                fleet.deliver(fleet.answer(name))
            fleet.lie("x", value)
        moved.add(fleet.z)
    assert len(moved) == 1


@given(st.floats(-3e38, 3e38), st.floats(0.0, 2.0), st.floats(0.0, 1.0), st.integers(0, 5))
@settings(max_examples=40)
def test_the_influence_on_a_coordinate_is_at_most_rate_times_l1(consensus, lie, l1, rate, past):
    for half, device in ((rsa, VOTES), (rsa_weights, WEIGHTS)):
        made = server(half, 5, l1=l1, rate=rate)
        fleet = consensus(made, device, {**HONEST, "x": 0.0})
        for _ in range(past):
            fleet.activate(*HONEST, "x")
        fleet.activate(*HONEST)
        said, before = fleet.answer("x"), fleet.state
        at_z = before.w.astype(np.float32).astype(np.float64) if half is rsa_weights else 0.0
        silent, _ = made.apply(before, replace(said, vector=np.zeros(1) + at_z))
        fleet.deliver(replace(said, vector=np.full(1, lie)))
        allowed = rate / np.sqrt(past + 1.0) * l1
        assert abs(fleet.z - silent.w[0]) <= allowed * (1 + 1e-6) + 1e-12


def test_rates_decay_with_the_square_root_of_the_round(consensus):
    fleet = consensus(server(rsa, 1, rate=0.5), VOTES, {"a": 1.0})
    told = []
    for _ in range(4):
        told.append(fleet.tasks["a"].values["rate"])
        fleet.activate("a")
    assert told == pytest.approx([0.5, 0.5 / 2**0.5, 0.5 / 3**0.5, 0.25])


def test_the_regulariser_of_the_server_shrinks_to_zero(consensus):
    chosen = {"rate": 0.1, "l1": 0.0, "weight": 0.5, "decay": "none"}
    fleet = consensus(server(rsa, 1, **chosen), VOTES, {"a": 1.0})
    fleet.place(2.0)
    fleet.activate("a")
    assert fleet.z == pytest.approx(1.9)


@BOTH
@given(order=st.permutations(sorted(HONEST)))
@settings(max_examples=10)
def test_the_order_of_arrival_does_not_matter(consensus, half, device, order):
    straight = consensus(server(half, 4), device, HONEST)
    turned = consensus(server(half, 4), device, HONEST)
    for _ in range(3):
        straight.activate(*sorted(HONEST))
        turned.activate(*order)
    assert straight.state.w.tobytes() == turned.state.w.tobytes()


def test_a_silent_device_counts_with_old_weights_but_not_with_old_signs(consensus):
    moved = {}
    for half, device in ((rsa, VOTES), (rsa_weights, WEIGHTS)):
        made = server(half, 2, least=1, rate=0.1, l1=1.0, decay="none", normalise="sum")
        fleet = consensus(made, device, {"a": 0.0, "b": 8.0})
        fleet.place(0.0, a=0.0, b=8.0)
        fleet.activate("a", "b")
        first = fleet.z
        fleet.deliver(Member("b", present=False))
        fleet.place(a=first)
        fleet.deliver(fleet.answer("a"))
        fleet.deliver(fleet.due)
        moved[half] = (round(first, 6), round(fleet.z - first, 6))
    assert moved[rsa][0] == moved[rsa_weights][0] == 0.1
    assert moved[rsa_weights][1] > moved[rsa][1]


def test_signs_use_two_bits_and_have_three_values(consensus):
    spec = ParamSpec.of([("w", (9,))])
    fleet = consensus(server(rsa, 1), VOTES, {"a": 1.0}, spec=spec)
    fleet.place(a=[-1.0, 0.0, 1.0] * 3)
    update = fleet.answer("a")
    assert len(pack_tensor(update.vector, "b2")) == 3
    assert set(np.unique(update.vector)) <= {-1.0, 0.0, 1.0}


class TestPrivate:
    """DP-RSA: the half hands out a difference, of which only a mechanism makes what may leave."""

    def test_a_clean_difference_cannot_be_encoded_as_signs(self, consensus):
        fleet = consensus(server(rsa, 1, private=True), RAW, {"a": 1.0})
        fleet.place(a=0.3)
        with pytest.raises(Refused):
            pack_tensor(fleet.answer("a").vector, "b1")

    def test_without_noise_dp_rsa_equals_rsa(self, consensus):
        plain = consensus(server(rsa, 4), VOTES, HONEST)
        private = consensus(server(rsa, 4, private=True), RAW, HONEST)
        for _ in range(20):
            plain.activate(*HONEST)
            for update in [private.answer(name) for name in HONEST]:
                private.deliver(replace(update, vector=np.sign(update.vector)))
        assert plain.state.w.tobytes() == private.state.w.tobytes()

    def test_debiased_flips_are_unbiased(self, consensus):
        rng, eps, many = np.random.default_rng(4), 1.0, 4000
        spec = ParamSpec.of([("w", (many,))])
        chosen = {"rate": 0.1, "l1": 1.0, "decay": "none", "debias_eps": eps}
        made = server(rsa, 1, private=True, **chosen)
        fleet = consensus(made, RAW, {"a": 5.0}, spec=spec)
        fleet.place(0.0, a=1.0)
        update = fleet.answer("a")
        kept = rng.random(many) < 1.0 / (1.0 + np.exp(-eps))
        fleet.deliver(replace(update, vector=np.sign(update.vector) * np.where(kept, 1.0, -1.0)))
        assert np.abs(fleet.state.w) == pytest.approx(np.full(many, 0.1 * debias(eps)))
        error = 0.1 * debias(eps) / many**0.5
        assert fleet.state.w.mean() == pytest.approx(0.1, abs=4 * error)

    def test_noise_has_mean_zero(self, consensus):
        """Sigma without bounds: the sign is a coin."""
        rng, many = np.random.default_rng(5), 4000
        spec = ParamSpec.of([("w", (many,))])
        made = server(rsa, 1, private=True, rate=0.1, l1=1.0, decay="none")
        fleet = consensus(made, RAW, {"a": 5.0}, spec=spec)
        update = fleet.answer("a")
        drowned = np.sign(update.vector + 1e9 * rng.normal(size=many))
        fleet.deliver(replace(update, vector=drowned))
        assert fleet.state.w.mean() == pytest.approx(0.0, abs=0.1 * 4 / many**0.5)


@pytest.mark.parametrize(
    ("cls", "chosen", "key"),
    [
        (Rsa, {"order": "seidel"}, "order"),
        (Rsa, {"decay": "linear"}, "decay"),
        (Rsa, {"l1_mode": "away"}, "l1_mode"),
        (Rsa, {"debias_eps": 1.0}, "debias_eps"),
        (DpRsa, {"debias_eps": -1.0}, "debias_eps"),
        (DpRsa, {"rate": 1e9}, "rate"),
    ],
)
def test_an_invalid_setting_is_refused_by_its_key(cls, chosen, key):
    with pytest.raises(SchemaError, match=key):
        build(cls, chosen, where="run.settings")
