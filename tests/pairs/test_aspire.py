"""ASPIRE-EASE: the uncertainty set against a linear program, and both real halves."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.extensions.papers.consensus.aspire import AspireEase, aspire_ease
from aggregator.extensions.papers.consensus.cutting_planes import PRIOR, Cut, Worst, even, worst
from aggregator.methods.base.round_machine import Rounds
from aggregator.methods.base.types import Setup
from aggregator.rules import bind
from edge_sdk.app.schema import SchemaError, build
from edge_sdk.extensions.papers.consensus import consensus_half
from edge_sdk.protocol.contract.method import Member

FOUR = np.array([1.0, 2.0, 3.0, 6.0])
TARGETS = {"a": 0.0, "b": 1.0, "c": 2.0, "d": 5.0}


def server(quorum=1, **chosen):
    said = AspireEase(**({"rate": 0.1} | chosen))
    return aspire_ease(Setup(bind("mean"), said, Rounds(quorum=quorum, deadline=60.0)))


@pytest.mark.parametrize(
    ("budget", "weights", "value"),
    [
        (0.0, (0.25, 0.25, 0.25, 0.25), 3.0),
        (1.0, (0.125, 0.25, 0.25, 0.375), 3.625),
        (2.0, (0.0, 0.25, 0.25, 0.5), 4.25),
        (4.0, (0.0, 0.0, 0.5, 0.5), 4.5),
    ],
)
def test_worst_case_weights_agree_with_the_hand_computed_example(budget, weights, value):
    found = worst(FOUR, even(4), even(4), budget)
    assert found == pytest.approx(np.array(weights), abs=1e-12)
    assert found @ FOUR == pytest.approx(value, rel=1e-12)


clients = st.integers(1, 8).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(-40, 40).map(lambda v: v / 8), min_size=n, max_size=n),
        st.lists(st.floats(0.05, 1.0), min_size=n, max_size=n),
        st.lists(st.floats(0.05, 1.0), min_size=n, max_size=n),
        st.floats(0.0, n + 1.0),
    )
)


@given(clients)
@settings(max_examples=80)
def test_worst_case_weights_agree_with_a_linear_program(case):
    linprog = pytest.importorskip("scipy.optimize").linprog
    losses, prior = np.array(case[0]), np.array(case[1]) / sum(case[1])
    reach, budget, n = prior * np.array(case[2]), case[3], len(case[0])
    found = worst(losses, prior, reach, budget)
    moved = np.abs(found - prior)
    assert found.sum() == pytest.approx(1.0, abs=1e-9)
    assert (moved <= reach + 1e-9).all()
    assert (moved / reach).sum() <= budget + 1e-9
    eye, spread = np.eye(n), -np.diag(reach)
    bounds = np.block([[eye, spread], [-eye, spread], [np.zeros((1, n)), np.ones((1, n))]])
    limits = np.concatenate([prior, -prior, [budget]])
    told = linprog(
        np.concatenate([-losses, np.zeros(n)]),
        A_ub=bounds,
        b_ub=limits,
        A_eq=np.concatenate([np.ones(n), np.zeros(n)])[None],
        b_eq=[1.0],
        bounds=[(0, None)] * n + [(0, 1)] * n,
    )
    assert found @ losses == pytest.approx(-told.fun, abs=5e-6)  # it keeps bounds to 1e-7 only


def test_equal_losses_keep_the_prior_weights():
    prior = np.array([0.5, 0.3, 0.2])
    assert worst(np.ones(3), prior, prior, 3.0) == pytest.approx(prior)


def test_a_budget_that_makes_a_weight_negative_is_refused():
    with pytest.raises(ValueError, match="deviation"):
        worst(FOUR, even(4), 2 * even(4), 1.0)


def test_one_update_agrees_with_the_hand_computed_example(consensus):
    """Two devices at 0, targets 1 and 3, one step of 0.1 each; kappa 1, server step 0.5."""
    half = server(2, server_rate=0.5, dual_rate=0.1, budget=1.0, plane_rate=0.1, cut_every=1)
    fleet = consensus(half, consensus_half, {"a": 1.0, "b": 3.0})
    fleet.activate("a", "b")
    # w = (0.1, 0.3), losses (0.5, 4.5); z = 0 + 0.5 mean(0.1, 0.3); dual = 0.1 (z - w)
    assert fleet.z == pytest.approx(0.1, rel=1e-6)
    assert [float(fleet.state.dual[n][0]) for n in "ab"] == pytest.approx([0.0, -0.02], abs=1e-8)
    # h = 2.5 - 10 leaves the prior's multiplier at 1; the worst weights (0, 1) exceed the prior
    own = fleet.state.own
    assert (own.h, own.multiplier) == (pytest.approx(-7.5), {PRIOR: 1.0, "cut000000000": 0.0})
    assert dict(own.planes["cut000000000"]) == {"a": 0.0, "b": 1.0}
    # the next one: d_a = weight (w - 1) - dual + (w - z); weight 1 still, in the scaled form
    fleet.activate("a", "b")
    d_b = (0.3 - 3.0) + 0.02 + (0.3 - 0.1)
    assert fleet.w("b") == pytest.approx(0.3 - 0.1 * d_b, rel=1e-5)
    # then the cut has weight: rho (4.5-ish loss - h), and b counts more than a
    weights = [fleet.tasks[name].values["weight"] for name in "ab"]
    assert weights[1] > weights[0]
    losses = {"a": 0.5 * 0.9**2, "b": 0.5 * 2.7**2}
    mean = sum(losses.values()) / 2
    h = -7.5
    kappa = 2**-0.25 / 0.1
    held = 1.0 + 0.1 * (mean - h - kappa)
    cut = 0.1 * (losses["b"] - h)
    assert weights == pytest.approx([held, held + 2 * cut], rel=1e-5)


def test_a_zero_budget_equals_the_uniform_consensus(consensus):
    fleet = consensus(server(4, budget=0.0, server_rate=0.3), consensus_half, TARGETS)
    for _ in range(800):
        fleet.activate(*TARGETS)
    assert not fleet.state.own.planes
    assert fleet.z == pytest.approx(2.0, abs=0.02)
    for name, target in TARGETS.items():
        assert abs(fleet.w(name) - fleet.z) < 0.5 * abs(target - fleet.z) + 0.01


def test_a_larger_budget_moves_towards_the_worst_device(consensus):
    rests, losses = [], []
    for budget in (0.0, 0.25, 1.0):
        fleet = consensus(server(4, budget=budget, server_rate=0.3), consensus_half, TARGETS)
        for _ in range(400):
            fleet.activate(*TARGETS)
        rests.append(fleet.z)
        losses.append(max(0.5 * (fleet.z - target) ** 2 for target in TARGETS.values()))
    assert rests == sorted(rests)
    assert losses == sorted(losses, reverse=True)
    assert rests[2] - rests[0] > 0.2


class TestPlanes:
    """Which planes come and go."""

    def fired(self, family, own, losses, version):
        own = replace(own, losses=losses)
        own = family._stepped(family._begun(own, losses), losses, version)
        return family._joined(family._pruned(own), losses)

    def test_a_cutting_plane_is_added_only_if_violated(self):
        family = Worst(dict, budget=1.0)
        losses = {"a": 1.0, "b": 2.0}
        once = self.fired(family, Cut(), losses, 0)
        again = self.fired(family, once, losses, 1)
        other = self.fired(family, again, {"a": 3.0, "b": 2.0}, 2)
        assert [len(own.planes) for own in (once, again, other)] == [1, 1, 2]

    @pytest.mark.parametrize("after", [1, 2])
    def test_an_inactive_cutting_plane_is_removed(self, after):
        family = Worst(dict, budget=1.0, drop_after=after, h_rate=0.0)
        own = self.fired(family, Cut(), {"a": 0.0, "b": 100.0}, 0)
        (name,) = own.planes
        own = replace(own, h=1e6)
        for check in range(after):
            assert (name in own.planes) or check == after
            own = self.fired(family, own, {"a": 1.0, "b": 0.0}, 1 + check)
        assert name not in own.planes

    def test_the_number_of_cutting_planes_is_bounded(self):
        family, own = Worst(dict, budget=1.0, most=3, drop_after=99), Cut()
        rng = np.random.default_rng(0)
        for version in range(30):
            losses = dict(zip("abcdef", rng.exponential(size=6).tolist(), strict=True))
            own = self.fired(family, own, losses, version)
            assert len(own.planes) <= 3
            assert own.multiplier.keys() == {PRIOR, *own.planes}

    def test_a_reported_loss_is_capped_at_ten_medians(self):
        losses = {"a": 1.0, "b": 1.0, "x": 1e30}
        assert Worst(dict).capped(losses)["x"] == 10.0
        assert Worst(dict, loss_cap=0.0).capped(losses)["x"] == 1e30


def test_a_restart_of_either_end_changes_no_bit(consensus):
    straight = consensus(server(2, cut_every=1), consensus_half, TARGETS)
    stopped = consensus(server(2, cut_every=1), consensus_half, TARGETS)
    for names in ("ab", "cd", "ad", "bc", "ac"):
        straight.activate(*names)
        stopped.deliver(stopped.answer(names[0]))
        stopped.restart()
        stopped.reboot(names[1])
        stopped.deliver(stopped.answer(names[1]))
        stopped.restart()
    assert len(stopped.state.own.planes) >= 1
    assert straight.state.w.tobytes() == stopped.state.w.tobytes()
    assert straight.state.own == stopped.state.own


@given(st.permutations(sorted(TARGETS)))
@settings(max_examples=10)
def test_with_a_full_quorum_the_order_of_arrival_does_not_matter(consensus, order):
    straight = consensus(server(4, cut_every=1), consensus_half, TARGETS)
    turned = consensus(server(4, cut_every=1), consensus_half, TARGETS)
    for _ in range(3):
        straight.activate(*sorted(TARGETS))
        turned.activate(*order)
    assert straight.state.w.tobytes() == turned.state.w.tobytes()


def test_a_device_that_left_is_in_no_cutting_plane(consensus):
    fleet = consensus(server(1, staleness_bound=3, cut_every=1), consensus_half, TARGETS)
    fleet.activate(*TARGETS)
    fleet.deliver(Member("d", present=False))
    for _ in range(6):
        fleet.activate("a")
        fleet.activate("b", "c")
    assert "d" not in fleet.state.own.losses
    assert fleet.closed[-1].report["worst"] < 12.0


def test_one_byzantine_device_has_unbounded_influence(consensus):
    """It is no defence, and nothing here says that it is one."""
    far = []
    for value in (1e3, 1e6):
        fleet = consensus(server(5), consensus_half, {**TARGETS, "x": 0.0})
        for name in TARGETS:
            fleet.deliver(fleet.answer(name))
        fleet.lie("x", value)
        far.append(fleet.z)
    assert far[1] > 100 * far[0] > 100.0


@pytest.mark.parametrize(
    ("chosen", "key"),
    [
        ({"budget": 2.0}, "budget"),
        ({"max_deviation": 0.0}, "max_deviation"),
        ({"cut_condition": "all"}, "cut_condition"),
    ],
)
def test_an_invalid_setting_is_refused_by_its_key(chosen, key):
    with pytest.raises(SchemaError, match=key):
        build(AspireEase, chosen, where="run.settings")
