"""BAFDP and BSFDP: both real halves against the numbers worked out by hand."""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.extensions.papers.consensus.rsa_bafdp import Bafdp, Rsa, bafdp, bsfdp, rsa_weights
from aggregator.methods.base.round_machine import Rounds
from aggregator.methods.base.types import Setup
from aggregator.rules import bind
from edge_sdk.app.schema import SchemaError, build
from edge_sdk.extensions.papers.consensus import consensus_half
from edge_sdk.extensions.papers.consensus_dual import Ascent, damping, dual_digest, next_dual
from edge_sdk.protocol.contract.method import Due, Member
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.runtime import GraphError

ORACLE = {
    "rate": 0.1,
    "optimiser": "sgd",
    "l1": 0.5,
    "l1_mode": "sign",
    "server_rate": 0.2,
    "dual_rate": 0.1,
    "dual_max": 0.5,
    "eps_cap": 10.0,
    "eps_start": 1.0,
    "eps_min": 0.01,
    "eps_rate": 0.5,
    "eps_dual_rate": 0.1,
    "noise": 1.0,
    "radius": 0.2,
    "radius_scale": 1.0,
}
PLAIN = {"optimiser": "sgd", "l1_mode": "sign", "regulariser": "off"}
HEAVY = {**PLAIN, "rate": 0.05, "server_rate": 0.05, "dual_rate": 0.05, "l1": 1.0, "dual_max": 1.0}
LIGHT = {**PLAIN, "rate": 0.1, "l1": 0.3, "dual_max": 0.3, "server_rate": 0.1}
CHECKED = {**LIGHT, "check_every": 5}
HONEST = {"a": 0.0, "b": 1.0, "c": 2.0, "d": 3.0}
TARGETS = {"a": 0.0, "b": 1.0, "c": 5.0}


def server(quorum=1, bind_half=bafdp, limit=None, least=None, **chosen):
    rounds = Rounds(quorum=quorum, limit=limit, least=least, deadline=60.0)
    return bind_half(Setup(bind("mean"), Bafdp(**chosen), rounds))


def worked_out(consensus):
    """Return the two devices of the worked example, before their first activation."""
    fleet = consensus(server(2, **ORACLE), consensus_half, {"a": 1.0, "b": 1.0})
    fleet.place(1.0, a=0.0, b=2.0)
    for name, dual in (("a", 0.1), ("b", -0.2)):
        told = np.array([dual], np.float32)
        fleet.state = replace(fleet.state, dual={**fleet.state.dual, name: told})
        z = np.ones(1, np.float32)
        fleet.tasks[name] = replace(fleet.tasks[name], arrays={"z": z, "dual": told})
    return fleet


def ask_less(fleet, quorum):
    """Let fewer answers make a firing from now on."""
    fleet.server = server(quorum, **ORACLE)


def numbers(fleet, name):
    state = fleet.state
    return [fleet.w(name), fleet.states[name].eps, float(state.dual[name][0])]


def test_three_updates_agree_with_the_hand_computed_example(consensus):
    worked = worked_out(consensus)
    worked.activate("a", "b")
    assert worked.z == pytest.approx(1.01, rel=1e-6)
    assert numbers(worked, "a") == pytest.approx([0.16, 1.50635956, 0.085], rel=1e-6)
    assert numbers(worked, "b") == pytest.approx([1.72266874, 1.99594021, -0.07126687], rel=1e-6)
    assert worked.state.own.dual == {"a": 0.0, "b": 0.0}
    ask_less(worked, 1)
    worked.activate("a")
    assert worked.z == pytest.approx(1.00862669, rel=1e-6)
    assert numbers(worked, "a") == pytest.approx([0.28885196, 1.73571774, 0.08550128], rel=1e-6)
    assert numbers(worked, "b") == pytest.approx([1.72266874, 1.99594021, -0.07126687], rel=1e-6)
    ask_less(worked, 2)
    worked.activate("a", "b")
    assert worked.z == pytest.approx(1.00720325, rel=1e-6)
    assert numbers(worked, "a") == pytest.approx([0.39697873, 1.91427996, 0.08155681], rel=1e-6)
    assert numbers(worked, "b") == pytest.approx([1.53264804, 2.22562549, -0.06966024], rel=1e-6)


def test_a_restart_of_either_end_changes_no_bit(consensus):
    straight, stopped = worked_out(consensus), worked_out(consensus)
    for _ in range(4):
        straight.activate("a", "b")
        stopped.deliver(stopped.answer("a"))
        stopped.restart()
        stopped.reboot("b")
        stopped.deliver(stopped.answer("b"))
        stopped.restart()
        stopped.reboot("a")
    assert straight.state.w.tobytes() == stopped.state.w.tobytes()
    assert [numbers(straight, n) for n in "ab"] == [numbers(stopped, n) for n in "ab"]


def test_an_unconstrained_budget_rises_to_its_cap_with_a_zero_dual(consensus):
    chosen = ORACLE | {"rate": 0.0, "radius": 0.0}  # p stays 0, where G is 1
    fleet = consensus(server(1, **chosen), consensus_half, {"a": 0.0})
    seen = []
    for _ in range(1000):
        fleet.activate("a")
        seen.append(fleet.states["a"].eps)
    assert seen[:2] == pytest.approx([1.5, 1.72222222], rel=1e-8)
    assert seen[99] == pytest.approx(5.35841109, rel=1e-8)
    assert (seen[999], fleet.state.own.dual) == (10.0, {"a": 0.0})


def test_a_proximal_step_stops_at_the_consensus(consensus):
    for mode, after in (("prox", 0.0), ("sign", -0.02)):
        chosen = PLAIN | {"l1_mode": mode, "rate": 0.1, "l1": 0.5}
        fleet = consensus(server(1, **chosen), consensus_half, {"a": 0.03})
        fleet.place(0.0, a=0.03)  # at its target: the smooth part rests
        fleet.answer("a")
        assert fleet.w("a") == pytest.approx(after, abs=1e-8)


class TestLiars:
    """What one device can do to the consensus, whatever it sends."""

    def consensus_after(self, fleet, firings, value):
        for _ in range(firings):
            for name in HONEST:
                fleet.deliver(fleet.answer(name))
            fleet.lie("x", value)
        return fleet.z

    @pytest.mark.parametrize("mode", ["sign", "prox"])
    def test_a_larger_attack_vector_has_no_larger_influence(self, consensus, mode):
        moved = set()
        for value in (1e3, 1e6, 1e30, 3.4e38):
            half = server(5, **(HEAVY | {"l1_mode": mode}))
            fleet = consensus(half, consensus_half, {**HONEST, "x": 0.0})
            moved.add(self.consensus_after(fleet, 40, value))
        assert len(moved) == 1

    def test_unbounded_duals_follow_an_attacker(self, consensus):
        far = {}
        for value in (1e3, 1e6):
            half = server(5, **(HEAVY | {"dual_max": float("inf")}))
            fleet = consensus(half, consensus_half, {**HONEST, "x": 0.0})
            far[value] = self.consensus_after(fleet, 300, value)
        assert far[1e3] > 50.0
        assert far[1e6] / far[1e3] == pytest.approx(1000.0, rel=0.1)

    @given(
        values=st.lists(st.floats(min_value=-3.4e38, max_value=3.4e38), min_size=1, max_size=6),
        l1=st.floats(0.0, 2.0),
        most=st.floats(0.0, 2.0),
        rate=st.floats(0.0, 1.0),
    )
    @settings(max_examples=60)
    def test_the_influence_of_a_device_on_a_coordinate_is_bounded(
        self, consensus, values, l1, most, rate
    ):
        """At most rate (l1 + bound) / R a firing, beside the same firing without its word."""
        chosen = HEAVY | {"l1": l1, "dual_max": most, "server_rate": rate}
        fleet = consensus(server(5, **chosen), consensus_half, {**HONEST, "x": 0.0})
        for value in values:
            for name in HONEST:
                fleet.deliver(fleet.answer(name))
            before, said = fleet.state, fleet.answer("x")
            at_z = replace(said, vector=before.w.astype(np.float32).astype(np.float64))
            mute = {name: dual for name, dual in before.dual.items() if name != "x"}
            silent, _ = fleet.server.apply(replace(before, dual=mute), at_z)
            fleet.deliver(replace(said, vector=np.full(1, value)))
            assert abs(fleet.z - silent.w[0]) <= rate * (l1 + most) / 5 * (1 + 1e-6) + 1e-12

    @pytest.mark.parametrize("lie", [1e3, 1e6])
    def test_the_consensus_of_four_devices_and_an_attacker_agrees_with_its_formula(self, lie):
        """The specification has 2.2407, 1.92, and 293.07 or 292 645; chatter is some 0.1."""
        assert settled(lie, most=1.0) == pytest.approx(2.24, abs=0.1)
        assert settled(lie, most=1.0) == settled(1e30, most=1.0)
        assert settled(lie, most=0.0) == pytest.approx(1.92, abs=0.1)
        assert settled(lie, most=np.inf) == pytest.approx(0.29307 * lie, rel=2e-3)

    def test_the_consensus_of_four_devices_agrees_with_its_formula(self):
        assert settled(None, most=1.0) == pytest.approx(1.5001, abs=0.1)

    def test_the_compact_reference_equals_the_two_halves(self, consensus):
        fleet = consensus(server(5, **HEAVY), consensus_half, {**HONEST, "x": 0.0})
        z = self.consensus_after(fleet, 200, 1e3)
        assert z == pytest.approx(settled(1e3, most=1.0, firings=200), abs=2e-5)


@cache
def settled(lie, most, firings=30_000):
    """The same equations over an array of devices: full participation, plain steps, sign mode."""
    targets = np.array([0.0, 1.0, 2.0, 3.0])
    w = np.zeros(4 if lie is None else 5)
    w[4:] = 0.0 if lie is None else lie
    dual, z, ascent = np.zeros_like(w), 0.0, Ascent(0.05, most)
    for fired in range(firings):
        honest = w[:4]
        w[:4] = honest - 0.05 * (honest - targets - dual[:4]) - 0.05 * np.sign(honest - z)
        z -= 0.05 * np.mean(dual + np.sign(z - w))
        dual = next_dual(dual, np.full_like(w, z), w, fired, ascent)
    return z


def test_without_duals_and_regulariser_bafdp_equals_rsa(consensus):
    chosen = PLAIN | {"rate": 0.1, "server_rate": 0.1, "l1": 0.5, "dual_rate": 0.0}
    rounds = Rounds(quorum=4, deadline=60.0)
    same = Rsa(rate=0.1, l1=0.5, decay="none", normalise="mean")
    targets = HONEST
    one = consensus(server(4, bsfdp, **chosen), consensus_half, targets)
    two = consensus(rsa_weights(Setup(bind("mean"), same, rounds)), consensus_half, targets)
    for _ in range(50):
        for fleet in (one, two):
            fleet.activate(*targets)
        assert one.state.w.tobytes() == two.state.w.tobytes()
    assert abs(one.z) > 0.5


def test_a_zero_penalty_is_local_training_with_a_fixed_consensus(consensus):
    chosen = PLAIN | {"rate": 0.1, "l1": 0.0, "dual_max": 0.0}
    fleet = consensus(server(2, **chosen), consensus_half, {"a": 1.0, "b": 3.0})
    for _ in range(200):
        fleet.activate("a", "b")
    assert fleet.z == 0.0
    assert [fleet.w("a"), fleet.w("b")] == pytest.approx([1.0, 3.0], abs=1e-6)


@pytest.mark.parametrize("quorum", [2, 4])
def test_bafdp_converges_to_a_stationary_point(consensus, quorum):
    """The theorem's constants cannot be had; what it promises can: every gradient of F vanishes."""
    chosen = PLAIN | {"rate": 0.1, "server_rate": 0.1, "l1": 0.0, "dual_max": 10.0}
    fleet = consensus(server(quorum, **chosen), consensus_half, HONEST)
    names, residuals = sorted(HONEST), []
    for past in range(1200):
        fleet.activate(*(names if quorum == 4 else (names[past % 4], names[(past + 1) % 4])))
        if past in {20, 1199}:
            residuals.append(stationarity(fleet))
    assert residuals[1] < 0.02 < residuals[0]
    assert fleet.z == pytest.approx(1.5, abs=0.02)


def stationarity(fleet):
    """Return the largest gradient of F in a device's weights, in its dual, and in the consensus."""
    state, worst = fleet.state, 0.0
    kappa = damping(0.05, state.version)
    duals = {name: float(state.dual[name][0]) for name in HONEST}
    for name, target in HONEST.items():
        in_w = fleet.w(name) - target - duals[name]
        in_dual = fleet.z - fleet.w(name) - kappa * duals[name]
        worst = max(worst, abs(in_w), 0.05 * abs(in_dual))
    return max(worst, abs(np.mean(list(duals.values()))))


def test_personal_layers_are_trained_locally_and_never_sent(consensus):
    spec = ParamSpec.of([("body", (1,)), ("head", (1,))], ["body"])
    chosen = PLAIN | {"rate": 0.1, "l1": 0.4}
    fleet = consensus(server(2, **chosen), consensus_half, {"a": 1.0, "b": -1.0}, spec=spec)
    for _ in range(100):
        updates = [fleet.answer(name) for name in ("a", "b")]
        assert {update.vector.shape for update in updates} == {(1,)}
        for update in updates:
            fleet.deliver(update)
    heads = [float(fleet.states[name].p[1]) for name in ("a", "b")]
    assert heads == pytest.approx([1.0, -1.0], abs=1e-3)
    assert abs(fleet.w("a")) < 0.7  # its body is held back


class TestWhoWhen:
    """Asynchrony: nobody waits for the slow, and nothing counts twice."""

    @given(st.permutations(["a", "b", "c"]), st.permutations(["a", "b", "c"]))
    @settings(max_examples=20)
    def test_with_a_full_quorum_the_order_of_arrival_does_not_matter(
        self, consensus, first, second
    ):
        straight = consensus(server(3, bsfdp, **LIGHT), consensus_half, TARGETS)
        turned = consensus(server(3, bsfdp, **LIGHT), consensus_half, TARGETS)
        for order in (first, second):
            straight.activate("a", "b", "c")
            turned.activate(*order)
        assert straight.state.w.tobytes() == turned.state.w.tobytes()

    @given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=12))
    @settings(max_examples=30)
    def test_a_repeated_update_counts_once(self, consensus, order):
        once = consensus(server(2, **LIGHT), consensus_half, TARGETS)
        again = consensus(server(2, **LIGHT), consensus_half, TARGETS)
        said = []
        for name in order:
            if name in once.state.quorum.arrived:
                continue
            once.deliver(once.answer(name))
            said.append(again.answer(name))
            for update in (said[-1], *said):
                again.deliver(update)
        assert once.state.w.tobytes() == again.state.w.tobytes()
        assert [c.version for c in once.closed] == [c.version for c in again.closed]

    def test_a_slow_update_counts_later_with_its_staleness(self, consensus):
        fleet = consensus(server(2, **LIGHT), consensus_half, TARGETS)
        late = fleet.answer("c")
        for _ in range(3):
            fleet.activate("a", "b")
        fleet.deliver(late)
        fleet.activate("a")
        assert fleet.closed[-1].report["staleness"] == {"a": 0, "c": 3}

    def test_the_synchronous_variant_waits_for_all_present_devices(self, consensus):
        fleet = consensus(server(2, bsfdp, **LIGHT), consensus_half, TARGETS)
        fleet.activate("a", "b")
        assert not fleet.closed
        fleet.deliver(Member("c", present=False))
        assert fleet.closed[0].report["cohort"] == ["a", "b"]

    def test_at_the_deadline_fewer_updates_suffice(self, consensus):
        fleet = consensus(server(3, bsfdp, least=1, **LIGHT), consensus_half, TARGETS)
        fleet.deliver(fleet.due)
        assert not fleet.closed
        fleet.activate("b")
        fleet.deliver(fleet.due)
        assert fleet.closed[0].report["cohort"] == ["b"]
        assert fleet.due == Due(2, "step", after=60.0)

    def test_a_too_stale_device_is_dropped_and_restarts(self, consensus):
        fleet = consensus(
            server(1, staleness_bound=2, **LIGHT), consensus_half, {"a": 0.0, "b": 9.0}
        )
        fleet.activate("b")
        late = fleet.answer("b")
        for _ in range(3):
            fleet.activate("a")
        assert "b" in fleet.state.held  # two behind at the last firing: still counted
        fleet.activate("a")
        assert fleet.closed[-1].report["dropped"] == {"b": "no update for 2 firings"}
        assert "b" not in fleet.state.held
        assert fleet.closed[-1].report["known"] == 2
        fleet.deliver(late)
        assert fleet.tasks["b"].arrays["dual"] == fleet.state.dual["b"]
        fleet.activate("b")
        assert dual_digest(fleet.states["b"].dual) != dual_digest(
            fleet.state.dual["b"]
        )  # before its next task
        fleet.answer("b")

    def test_a_device_at_the_staleness_bound_is_waited_for_if_configured(self, consensus):
        chosen = LIGHT | {"staleness_bound": 2, "overdue": "wait"}
        fleet = consensus(server(1, **chosen), consensus_half, {"a": 0.0, "b": 9.0})
        for _ in range(5):
            fleet.activate("a")
        assert [c.version for c in fleet.closed] == [1, 2, 3]
        fleet.deliver(fleet.due)
        assert len(fleet.closed) == 3
        fleet.activate("b")
        assert fleet.closed[-1].report["cohort"] == ["a", "b"]

    def test_a_late_device_starts_from_the_consensus(self, consensus):
        half = server(2, **LIGHT)
        fleet = consensus(half, consensus_half, {"a": 4.0, "b": 4.0}, start="received")
        for _ in range(60):
            fleet.activate("a", "b")
        fleet.targets["late"] = 4.0
        fleet.join("late")
        assert fleet.closed[-1].report["known"] == 2
        z = fleet.z
        fleet.activate("late", "a")
        assert fleet.w("late") == pytest.approx(z + 0.1 * (4.0 - z), abs=1e-5)
        assert fleet.closed[-1].report["known"] == 3

    def test_a_device_that_left_is_removed_after_the_timeout(self, consensus):
        chosen = LIGHT | {"staleness_bound": 10, "overdue": "wait"}
        fleet = consensus(server(1, **chosen), consensus_half, {"a": 0.0, "b": 9.0})
        fleet.activate("b")
        fleet.deliver(Member("b", present=False))
        for _ in range(12):
            fleet.activate("a")
        assert fleet.closed[-1].report["known"] == 1
        fleet.join("b")
        fleet.activate("b")
        assert fleet.closed[-1].report["known"] == 2

    def test_the_last_round_sends_no_task(self, consensus):
        fleet = consensus(server(1, limit=2, **LIGHT), consensus_half, {"a": 0.0})
        fleet.activate("a")
        before = fleet.tasks["a"]
        fleet.activate("a")
        assert fleet.closed[-1].report["stop"]
        assert fleet.tasks["a"] is before
        assert not fleet.state.is_open


class TestMirror:
    """Both ends hold the dual, neither sends it."""

    def test_both_ends_compute_the_same_duals(self, consensus):
        fleet = consensus(server(2, **CHECKED), consensus_half, {"a": 0.0, "b": 1.0, "c": 5.0})
        for names in ("ab", "bc", "ab", "ac", "cb"):
            fleet.activate(*names)
        told = {name: dual.tobytes() for name, dual in fleet.state.dual.items()}
        for name in "abc":
            fleet.answer(name)  # brings its dual up to date
        assert {name: fleet.states[name].dual.tobytes() for name in "abc"} == told

    def test_a_differing_dual_is_detected_and_the_server_copy_used(self, consensus):
        fleet = consensus(server(1, **CHECKED), consensus_half, {"a": 0.5})
        for _ in range(3):
            fleet.activate("a")
        drifted = replace(fleet.states["a"], dual=np.full(1, -0.2, np.float32))
        fleet.states["a"] = drifted
        seen = [fleet.closed[-1].report["adrift"]]
        for _ in range(5):
            fleet.activate("a")
            seen.append(fleet.closed[-1].report["adrift"])
            if seen[-1]:
                assert fleet.tasks["a"].arrays["dual"].tobytes() == fleet.state.dual["a"].tobytes()
        assert seen.count(["a"]) == 1
        dual = fleet.state.dual["a"]
        fleet.answer("a")
        assert fleet.states["a"].dual.tobytes() == dual.tobytes()

    def test_a_device_that_lost_its_duals_is_detected(self, consensus):
        fleet = consensus(server(1, **CHECKED), consensus_half, {"a": 0.5})
        for _ in range(3):
            fleet.activate("a")
        fleet.states["a"] = fleet.halves["a"].init(np.zeros(1, np.float32))
        fleet.activate("a")
        assert fleet.closed[-1].report["adrift"] == ["a"]

    def test_the_server_never_accepts_a_dual_of_a_device(self, consensus):
        fleet = consensus(server(1, **CHECKED), consensus_half, {"a": 0.5})
        update = fleet.answer("a")
        assert set(update.values) == {"loss", "n"}
        assert update.vector.shape == (1,)


def test_non_finite_steps_are_replaced_by_the_consensus(consensus):
    fleet = consensus(server(1, **(PLAIN | {"rate": 1e3, "steps": 60})), consensus_half, {"a": 1.0})
    with np.errstate(over="ignore", invalid="ignore"):
        update = fleet.answer("a")
    assert (float(update.vector[0]), set(update.values)) == (0.0, {"n"})
    fleet.deliver(update)
    assert fleet.z == 0.0


def test_a_task_for_a_missing_graph_is_refused_and_the_device_continues(consensus):
    fleet = consensus(server(1, **ORACLE), partial(pulled_without, "robust_gradient"), {"a": 1.0})
    with pytest.raises(GraphError, match="robust_gradient"):
        fleet.answer("a")


def pulled_without(graph, local, settings):
    kept = {name: run for name, run in local.graphs.items() if name != graph}
    return consensus_half(replace(local, graphs=kept), settings)


@pytest.mark.parametrize(
    ("chosen", "key"),
    [
        ({"l1_mode": "proxy"}, "l1_mode"),
        ({"l1_mode": "away"}, r"settings\.l1_mode: removed; .* tools/experiments/printed_forms.py"),
        (
            {"damping": "added"},
            r"settings\.damping: removed; .* tools/experiments/printed_forms.py",
        ),
        ({"l1": -1.0}, "l1"),
        ({"rat": 0.1}, "rat"),
        ({"eps_start": 99.0}, "eps_start"),
        ({"kappa_min": 30.0}, "kappa_min"),
        ({"radius_c1": 0.01}, "radius_c1"),
        ({"staleness_bound": 0}, "staleness_bound"),
        ({"overdue": "forget"}, "overdue"),
    ],
)
def test_an_invalid_setting_is_refused_by_its_key(chosen, key):
    with pytest.raises(SchemaError, match=key):
        build(Bafdp, chosen, where="run.settings")
