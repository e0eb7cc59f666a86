"""AFL, FedAtt, FedDA, FedGRU, Fed-NTP, NbAFL and UDP: worked numbers, invariants, both halves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.extensions.papers.averaging.afl import ascended, capped, joined
from aggregator.extensions.papers.averaging.dp_averaging import nbafl
from aggregator.extensions.papers.averaging.fedatt import labelled
from aggregator.methods import METHODS as SERVERS
from aggregator.methods import OPEN, Rounds, Setup
from aggregator.rules import bind
from aggregator.store import state_codec
from edge_sdk.app.schema import SchemaError, build
from edge_sdk.protocol.contract.method import CONTRACTS, Closed, Task, Update, answered
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from tests.pairs.line import SPEC, device

KIN = ("afl", "fedatt", "fedda", "fedgru", "fedntp", "nbafl", "udp")
QUIET = {"nbafl": {"downlink_noise": False}}
ONE = ParamSpec.of([("w", (2,))])
TWO = ParamSpec.of([("a", (1,)), ("b", (2,))])


def half_of(method, quorum=2, spec=None, rule="mean", limit=None, **settings):
    row = SERVERS[method]
    rounds = Rounds(quorum=quorum, limit=limit)
    chosen = row.settings(**(QUIET.get(method, {}) | settings))
    return row.half(Setup(bind(rule), chosen, rounds, spec))


def started(half, w):
    return half.apply(half.init(np.atleast_1d(np.array(w, np.float32))), OPEN)


def answer(state, sender, vector, **values):
    vector = np.atleast_1d(np.asarray(vector, np.float64))
    return Update(sender, state.round, state.version, vector, values)


def closed(half, state, answers):
    """Answer the open round: ``{name: vector}`` or ``{name: (vector, loss)}``."""
    effects = ()
    for name, said in answers.items():
        vector, loss = said if isinstance(said, tuple) else (said, None)
        told = {} if loss is None else {"loss": loss}
        state, effects = half.apply(state, answer(state, name, vector, **told))
    return state, effects


class TestAFL:
    """Weights that climb towards the clients with the highest loss."""

    def test_one_round_agrees_with_the_hand_computed_example(self):
        half = half_of("afl", quorum=3, server_rate=0.1, weight_rate=0.1)
        state, _ = started(half, 1.0)
        state, _ = closed(half, state, {"a": (1.0, 1.0), "b": (-2.0, 2.0), "c": (4.0, 0.5)})
        assert state.w == pytest.approx([0.9], rel=1e-12)
        weights = [float(state.kept[f"weight-{name}"]) for name in "abc"]
        assert weights == pytest.approx([0.31666667, 0.41666667, 0.26666667], abs=1e-8)

    def test_a_large_weight_step_puts_all_weight_on_the_worst_device(self):
        third = dict.fromkeys("abc", 1 / 3)
        moved = ascended(third, {"a": 1.0, "b": 2.0, "c": 0.5}, 1.0)
        assert list(moved.values()) == [0.0, 1.0, 0.0]

    def test_a_zero_weight_step_equals_uniform_averaging(self):
        afl, avg = half_of("afl", weight_rate=0.0), half_of("fedavg")
        one, _ = started(afl, [0.0, 1.0])
        two, _ = started(avg, [0.0, 1.0])
        for _ in range(3):
            said = {"a": ([1.0, -0.3], 5.0), "b": ([0.7, 2.0], 0.1)}
            (one, _), (two, _) = closed(afl, one, said), closed(avg, two, said)
        assert one.w == pytest.approx(two.w, rel=1e-12)

    def test_equal_losses_keep_the_weights(self):
        half = half_of("afl", quorum=3)
        state, _ = started(half, 0.0)
        for _ in range(4):
            state, _ = closed(half, state, dict.fromkeys("abc", (1.0, 0.7)))
        weights = [float(state.kept[f"weight-{name}"]) for name in "abc"]
        assert weights == pytest.approx([1 / 3] * 3, rel=1e-12)

    def test_a_reported_loss_is_capped(self):
        assert capped([1.0, 2.0, 3e38], 10.0).tolist() == [1.0, 2.0, 20.0]
        honest, lied = ([float(w) for w in _weights_after(loss)] for loss in (1e6, 3e38))
        assert honest == lied

    def test_a_missing_loss_gains_no_weight(self):
        half = half_of("afl", quorum=2, weight_rate=0.1)
        state, _ = started(half, 0.0)
        state, _ = closed(half, state, {"a": (1.0, 1.0), "b": 1.0})
        assert float(state.kept["weight-a"]) > float(state.kept["weight-b"])

    def test_the_average_of_the_models_is_published_when_the_run_is_over(self):
        path = {}
        for output in ("average", "last"):
            half = half_of("afl", quorum=1, limit=3, output=output)
            state, _ = started(half, 0.0)
            for delta in (-1.0, -2.0, -6.0):
                assert half.model(state)["p"] == state.w.astype(np.float32)
                state, effects = closed(half, state, {"a": (delta, 1.0)})
            assert effects[-1].report["stop"]
            path[output] = float(half.model(state)["p"][0])
        assert path == {"average": pytest.approx((1 + 3 + 9) / 3), "last": 9.0}

    def test_a_new_device_gets_an_equal_share_and_an_absent_one_gains_nothing(self):
        assert joined({"a": 0.75, "b": 0.25}, ["c"]) == {
            "a": pytest.approx(0.5), "b": pytest.approx(1 / 6), "c": pytest.approx(1 / 3)
        }  # fmt: skip
        half = half_of("afl", quorum=2)
        state, _ = started(half, 0.0)
        state, _ = closed(half, state, {"a": (1.0, 1.0), "b": (1.0, 1.0)})
        state, _ = closed(half, state, {"a": (1.0, 1.0), "c": (1.0, 1.0)})
        weights = [float(state.kept[f"weight-{name}"]) for name in "abc"]
        assert sum(weights) == pytest.approx(1.0)
        assert weights[1] < weights[0] == pytest.approx(weights[2])

    def test_updates_without_weight_leave_the_model_unchanged(self):
        half = half_of("afl", quorum=2, weight_rate=1000.0)
        state, _ = started(half, 0.0)
        state, _ = closed(half, state, {"a": (1.0, 1.0), "b": (1.0, 9.0)})
        assert float(state.kept["weight-a"]) == 0.0
        half = half_of("afl", quorum=1, weight_rate=0.01)
        before = state.w.copy()
        state, (note, *_) = closed(half, state, {"a": (5.0, 1.0)})
        assert state.w.tolist() == before.tolist()
        assert note.moved
        assert float(state.kept["weight-a"]) > 0.0


def _weights_after(loss):
    half = half_of("afl", quorum=3, weight_rate=0.01)
    state, _ = started(half, 0.0)
    state, _ = closed(half, state, {"a": (1.0, 1.0), "b": (1.0, 1.0), "c": (1.0, loss)})
    return [state.kept[f"weight-{name}"] for name in "abc"]


class TestAttention:
    """FedAtt and FedDA through their rounds."""

    @pytest.mark.parametrize(
        ("rate", "expected"),
        [(1.0, (0.26894142, 1.46211716)), (1.2, (0.32272971, 1.75454059))],
    )
    @pytest.mark.parametrize("method", ["fedatt", "fedda"])
    def test_two_devices_agree_with_the_hand_computed_example(self, method, rate, expected):
        half = half_of(method, spec=ONE, server_rate=rate)
        state, _ = started(half, [0.0, 0.0])
        state, _ = closed(half, state, {"a": [-1.0, 0.0], "b": [0.0, -2.0]})
        assert state.w == pytest.approx(expected, abs=1e-8)

    def test_the_penalty_to_the_initial_model_agrees_with_the_example(self):
        half = half_of("fedda", spec=ONE, quasi="start", rho=0.1)
        state, _ = started(half, [1.0, 1.0])  # the quasi-global model
        state, _ = closed(half, state, {"a": [1.0, 1.0], "b": [1.0, 1.0]})
        assert state.w == pytest.approx([0.0, 0.0], abs=1e-12)
        state, _ = closed(half, state, {"a": [-1.0, 0.0], "b": [0.0, -2.0]})
        assert state.w == pytest.approx([0.36894142, 1.56211716], abs=1e-8)

    def test_one_cluster_without_a_penalty_equals_fedatt(self):
        rng = np.random.default_rng(2)
        one, two = half_of("fedatt", 3, TWO), half_of("fedda", 3, TWO)
        first, _ = started(one, [0.5, -1.0, 2.0])
        second, _ = started(two, [0.5, -1.0, 2.0])
        for _ in range(6):
            said = {name: rng.normal(size=3) for name in "abc"}
            (first, _), (second, _) = closed(one, first, said), closed(two, second, said)
        assert second.w == pytest.approx(first.w, rel=1e-12)

    def test_attention_is_computed_within_and_then_across_clusters(self):
        clusters = {"north": ("a", "b"), "south": ("c",)}
        half = half_of("fedda", quorum=3, spec=ONE, clusters=clusters)
        state, _ = started(half, [0.0, 0.0])
        state, _ = closed(half, state, {"a": [-1.0, 0.0], "b": [0.0, -2.0], "c": [-4.0, 0.0]})
        north, south = np.array([0.26894142, 1.46211716]), np.array([4.0, 0.0])
        near, far = np.exp(np.linalg.norm(north)), np.exp(4.0)
        assert state.w == pytest.approx((near * north + far * south) / (near + far), abs=1e-7)
        assert state.memory["cluster-north"] + state.w == pytest.approx(north, abs=1e-7)
        assert state.memory["cluster-south"] + state.w == pytest.approx(south, abs=1e-12)

    def test_a_cluster_without_updates_keeps_its_model(self):
        clusters = {"north": ("a",), "south": ("c",)}
        half = half_of("fedda", quorum=1, spec=ONE, clusters=clusters)
        state, _ = started(half, [0.0, 0.0])
        state, _ = closed(half, state, {"c": [-4.0, 0.0]})
        south = state.memory["cluster-south"] + state.w
        state, _ = closed(half, state, {"a": [-1.0, 1.0]})
        assert state.memory["cluster-south"] + state.w == pytest.approx(south, rel=1e-12)

    def test_one_byzantine_device_dominates_the_attention(self):
        half = half_of("fedatt", 4, ONE)
        state, _ = started(half, [0.0, 0.0])
        said = {name: [-1.0, -1.0] for name in "abc"} | {"x": [1e6, 1e6]}
        state, (note, *_) = closed(half, state, said)
        assert state.w == pytest.approx([-1e6, -1e6])
        assert note.report["weights"]["x"] == 1.0

    @pytest.mark.parametrize("method", ["fedatt", "fedda", "afl", "fedasync"])
    def test_a_rule_beside_the_methods_own_is_refused(self, method):
        with pytest.raises(SchemaError, match=r"^run\.rule: expected none"):
            half_of(method, quorum=1, rule="median")

    @pytest.mark.parametrize("method", ["fedatt", "fedda", "afl", "fedasync", "fedbuff"])
    def test_a_weighting_beside_the_methods_own_is_refused(self, method):
        row, rounds = SERVERS[method], Rounds(quorum=1, weighting="samples")
        with pytest.raises(SchemaError, match=r"^run\.weighting: expected uniform"):
            row.half(Setup(bind("mean"), row.settings(), rounds))

    @pytest.mark.parametrize("method", ["fedasync", "fedbuff"])
    def test_a_cohort_share_of_an_asynchronous_method_is_refused(self, method):
        row = SERVERS[method]
        with pytest.raises(SchemaError, match=r"^run\.client_fraction: expected 1"):
            row.half(Setup(bind("mean"), row.settings(), share=0.5))

    def test_invalid_clusters_are_refused(self):
        with pytest.raises(
            SchemaError, match=r"^run\.settings\.clusters: expected each client in one"
        ):
            labelled({"north": ("a", "b"), "south": ("b",)})
        with pytest.raises(SchemaError, match="names of letters"):
            labelled({"north.east": ("a",)})


class TestNoised:
    """NbAFL and UDP at the server: what the papers' noise does there."""

    def test_without_noise_the_method_equals_averaging(self):
        half = half_of("nbafl", quorum=2)
        state, _ = started(half, [0.5, 0.5])
        state, _ = closed(half, state, {"a": [1.2, 1.6], "b": [0.2, -0.6]})
        assert state.w == pytest.approx([0.7, 0.5], rel=1e-12)

    def noisy(self, entropy, limit=25, **settings):
        row = SERVERS["nbafl"]
        told = {
            "weights_clip_norm": 1.0,
            "epsilon": 10.0,
            "min_samples": 1000,
            "uploads": 1,
        } | settings
        setup = Setup(bind("mean"), row.settings(**told), Rounds(quorum=1, limit=limit))
        return nbafl(setup, entropy)

    def rounds(self, half, count, w=1000):
        state, _ = started(half, np.zeros(w))
        path = []
        for _ in range(count):
            state, _ = closed(half, state, {"a": np.zeros(w)})
            path.append(state.w)
        return state, path

    def test_the_downlink_noise_has_the_papers_calibration(self):
        wanted = 2 * 4.844805 * np.sqrt(25**2 - 1) / (1000 * 1 * 10.0)
        _, path = self.rounds(self.noisy(bytes), 24, 4000)
        assert np.std(path) == pytest.approx(wanted, rel=0.02)
        assert abs(np.corrcoef(path[0], path[1])[0, 1]) < 0.08

    def test_the_noise_is_equal_after_a_restart_and_differs_between_runs(self):
        half = self.noisy(lambda size: b"\1" * size)
        straight, _ = self.rounds(half, 6)
        state, _ = self.rounds(half, 3)
        other = self.noisy(lambda size: b"\2" * size)  # what a restart would draw is not used
        fresh = other.init(np.zeros(1000, np.float32))
        state = state_codec.rebuild(fresh, state_codec.flatten(state))
        for _ in range(3):
            state, _ = closed(other, state, {"a": np.zeros(1000)})
        assert state.w.tobytes() == straight.w.tobytes()
        elsewhere, _ = self.rounds(other, 6)
        assert not (elsewhere.w == straight.w).any()

    def test_every_run_has_its_own_secret(self):
        half = half_of("nbafl", quorum=1, limit=9, downlink_noise=True)
        first, second = (half.init(np.zeros(3, np.float32)) for _ in range(2))
        assert (first.moments["secret"] != second.moments["secret"]).any()

    def test_sufficient_uplink_noise_needs_no_downlink_noise(self):
        _, path = self.rounds(self.noisy(bytes, limit=1), 1)
        assert not path[0].any()

    def test_downlink_noise_needs_a_planned_number_of_rounds(self):
        with pytest.raises(SchemaError, match=r"^run\.rounds: "):
            half_of("nbafl", downlink_noise=True)
        with pytest.raises(SchemaError, match=r"^run\.rounds: "):
            half_of("udp", crd=True)

    def test_the_planned_rounds_shrink_while_the_loss_does_not_fall(self):
        half = half_of("udp", quorum=1, limit=10, crd=True, discount_factor=0.5)
        state, _ = started(half, 0.0)
        plans = []
        for loss in (1.0, 0.9, 0.9, 0.8, 0.7):
            state, (note, *_) = closed(half, state, {"a": (0.1, loss)})
            plans.append(float(state.kept["plan"]))
        assert plans == [10.0, 10.0, 5.0, 5.0, 5.0]
        assert note.report["stop"]
        assert not state.is_open

    def test_the_planned_rounds_are_never_fewer_than_the_completed_ones(self):
        half = half_of("udp", quorum=1, limit=10, crd=True, discount_factor=0.01)
        state, _ = started(half, 0.0)
        state, _ = closed(half, state, {"a": (0.1, 1.0)})
        state, (note, *_) = closed(half, state, {"a": (0.1, 1.0)})
        assert (state.version, note.report["stop"]) == (2, True)

    def test_without_losses_the_planned_rounds_stay(self):
        half = half_of("udp", quorum=1, limit=5, crd=True, discount_factor=0.5)
        state, _ = started(half, 0.0)
        for _ in range(4):
            state, (note, *_) = closed(half, state, {"a": 0.1})
        assert float(state.kept["plan"]) == 5.0
        assert not note.report["stop"]

    def test_without_a_discount_the_planned_rounds_stay(self):
        half = half_of("udp", quorum=1, limit=4)
        state, _ = started(half, 0.0)
        for loss in (1.0, 2.0, 3.0):
            state, (note, *_) = closed(half, state, {"a": (0.1, loss)})
        assert not note.report["stop"]
        assert state.kept == {}

    def test_a_robust_rule_sees_differences_though_weights_are_sent(self):
        seen = []

        def spy(rows, shares, memory):
            seen.append(rows.values.copy())
            return bind("mean")(rows, shares, memory)

        row = SERVERS["nbafl"]
        half = row.half(Setup(spy, row.settings(downlink_noise=False), Rounds(quorum=2)))
        state, _ = started(half, [10.0])
        closed(half, state, {"a": 9.0, "b": 12.0})
        assert seen[0].tolist() == [[1.0], [-2.0]]


class TestRecurrent:
    """FedGRU and Fed-NTP: FedAvg that insists on its model."""

    @pytest.mark.parametrize(("method", "layer"), [("fedgru", "gru"), ("fedntp", "lstm")])
    def test_fedgru_equals_federated_averaging_on_recurrent_models(self, method, layer):
        spec = ParamSpec.of([(f"{layer}.weight_ih_l0", (2,)), ("head.weight", (1,))])
        one, two = half_of(method, 2, spec), half_of("fedavg", 2, spec)
        first, _ = started(one, [1.0, 2.0, 3.0])
        second, _ = started(two, [1.0, 2.0, 3.0])
        said = {"a": [0.1, 0.2, 0.3], "b": [-1.0, 4.0, 0.5]}
        (first, _), (second, _) = closed(one, first, said), closed(two, second, said)
        assert first.w.tobytes() == second.w.tobytes()

    @pytest.mark.parametrize(("method", "gates"), [("fedgru", 3), ("fedntp", 4)])
    def test_a_recurrent_layer_is_recognised_by_its_gates(self, method, gates):
        half_of(method, 2, ParamSpec.of([("body.weight_hh_l0", (gates * 8, 8))]))
        with pytest.raises(SchemaError, match=r"^run\.bundle"):
            half_of(method, 2, ParamSpec.of([("body.weight_hh_l0", ((7 - gates) * 8, 8))]))

    @pytest.mark.parametrize("method", ["fedgru", "fedntp"])
    def test_a_model_of_another_kind_or_a_too_small_share_is_refused(self, method):
        with pytest.raises(SchemaError, match=r"^run\.bundle: expected a model with a layer"):
            half_of(method, 2, ParamSpec.of([("body.weight", (2,))]))
        row = SERVERS[method]
        with pytest.raises(SchemaError, match=r"^run\.client_fraction: expected from 0\.1 to 1"):
            row.half(Setup(bind("mean"), row.settings(), share=0.05))


@pytest.mark.parametrize("method", KIN)
def test_tasks_carry_exactly_the_numbers_of_the_contract(method):
    _, (task, _) = started(half_of(method), [0.0])
    name, ask = answered(CONTRACTS[method])
    numbers = {number.name: number for number in ask.numbers}
    assert task.ask == name
    assert task.values.keys() <= numbers.keys()
    assert all(numbers[key].admits(value) for key, value in task.values.items())
    assert task.arrays.keys() == set(ask.down)


@pytest.mark.parametrize("method", KIN)
@given(order=st.permutations(range(4)))
def test_the_order_of_arrival_does_not_change_the_model(method, order):
    half, ends = half_of(method, quorum=4), []
    for names in (range(4), order):
        state, _ = started(half, [0.0, 0.0])
        for turn in range(2):
            said = {f"m{i}": ([1e-8 * i + turn, 1e3 / (i + 1)], 1.0 + i) for i in names}
            state, _ = closed(half, state, said)
        ends.append(state.w.tobytes())
    assert ends[0] == ends[1]


WRONG = {
    "afl": ({"weight_rate": -1.0}, {"loss_cap": 0.5}, {"output": "mean"}),
    "fedatt": ({"server_rate": -0.1}, {"epsilon": 1.0}),
    "fedda": ({"rho": 1.5}, {"quasi": "on"}, {"clusters": {"north": "a"}}),
    "fedgru": ({"steps": -1},),
    "nbafl": ({"epsilon": 0.0}, {"delta": 1.0}, {"min_samples": 0}, {"weights_clip_norm": 0.0}),
    "udp": (
        {"discount_factor": 0.0},
        {"discount_factor": 1.5},
        {"update_clip_norm": -1.0},
        {"crd": 1},
    ),
    "fedasync": ({"alpha": 0.0}, {"discount": "none"}, {"max_staleness": -1}),
    "fedbuff": ({"power": -1.0}, {"grace": 1.5}),
}


@pytest.mark.parametrize(
    ("method", "wrong"), [(name, one) for name, many in WRONG.items() for one in many], ids=str
)
def test_invalid_settings_are_refused_by_their_key(method, wrong):
    (key,) = wrong
    with pytest.raises(SchemaError) as caught:
        build(SERVERS[method].settings, wrong, where="run.settings")
    assert caught.value.path.startswith(f"run.settings.{key}")


class Pair:
    """Both halves of a method and, in the place of the shells, a driver that can restart either."""

    def __init__(self, method, targets, **settings):
        spec = None if method in {"fedgru", "fedntp"} else SPEC
        self.server = half_of(method, len(targets), spec, **settings)
        self.devices = {name: device(method, name, t) for name, t in targets.items()}
        whole = np.zeros(2, np.float32)
        self.states = {name: half.init(whole) for name, half in self.devices.items()}
        self.state, (self.task, _) = self.server.apply(self.server.init(whole[:1]), OPEN)

    def round(self, *, restart=False):
        answers = []
        for name, half in self.devices.items():
            self.states[name], effects = half.apply(self.states[name], self.task)
            answers += effects
        for number, said in enumerate(answers):
            if restart and number == 1:
                fresh = self.server.init(np.zeros(1, np.float32))
                self.state = state_codec.rebuild(fresh, state_codec.flatten(self.state))
            self.state, effects = self.server.apply(self.state, said)
        (self.task,) = (effect for effect in effects if isinstance(effect, Task))
        assert [effect.moved for effect in effects if isinstance(effect, Closed)] == [True]

    @property
    def sums(self):
        phi = float(self.server.model(self.state)["p"][0])
        return [phi + float(state.p[1]) for state in self.states.values()]


TARGETS = {"a": 1.0, "b": 3.0, "c": 4.0}


@pytest.mark.parametrize("method", KIN)
def test_devices_reach_the_common_minimum(method):
    pair = Pair(method, TARGETS, steps=4, rate=0.05)
    for _ in range(60):
        pair.round()
    assert pair.sums == pytest.approx(list(TARGETS.values()), abs=0.05)


@pytest.mark.parametrize("method", KIN)
def test_a_restarted_server_loses_no_bit(method):
    settings = {"steps": 2, "rate": 0.1}
    settings |= {"fedda": {"clusters": {"n": ("a",), "s": ("b", "c")}, "quasi": "start"}}.get(
        method, {}
    )
    settings |= {"udp": {"crd": True, "limit": 99}}.get(method, {})
    straight, stopped = Pair(method, TARGETS, **settings), Pair(method, TARGETS, **settings)
    for _ in range(6):
        straight.round()
        stopped.round(restart=True)
    assert state_codec.digest(straight.state) == state_codec.digest(stopped.state)


def test_clipped_updates_reach_the_server_clipped():
    pair = Pair("nbafl", {"a": 100.0}, steps=8, rate=0.3, weights_clip_norm=2.0)
    for _ in range(3):
        pair.round()
        assert abs(pair.state.w[0]) <= 2.0 + 1e-6
    short = Pair("udp", {"a": 100.0}, steps=8, rate=0.3, update_clip_norm=0.5)
    for number in range(1, 4):
        short.round()
        assert pair.state.w.size == 1
        assert abs(short.state.w[0]) <= 0.5 * number + 1e-6
