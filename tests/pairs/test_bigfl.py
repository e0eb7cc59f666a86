"""BiG-FL: both real halves, its two questions, faults, and finite differences of the whole."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from aggregator.extensions.papers.bilevel.bigfl import BiGFL, bigfl
from aggregator.extensions.papers.bilevel.bilevel import SOLVE, Bilevel
from aggregator.extensions.papers.bilevel.bilevel_math import (
    crossed,
    hypergradient,
    normalised,
    sampled,
    upper,
)
from aggregator.extensions.papers.geo_neighbours import paired
from aggregator.methods import ABANDON, Rounds, Setup
from aggregator.rules import bind
from edge_sdk.app.schema import SchemaError
from edge_sdk.extensions.papers.bilevel import BilevelState, bilevel_half
from edge_sdk.extensions.papers.bilevel_map import Diagonal, MapBlock, unpack_map
from edge_sdk.methods.local_sgd import LocalSgd
from edge_sdk.methods.training_context import Batch, TrainingContext, keyed
from edge_sdk.protocol.contract.method import END, Due, Member, Task, Update
from edge_sdk.protocol.contract.parameter_layout import ParamSpec
from edge_sdk.shared_math.optim import sgd

NAMES = "abc"
SPEC = ParamSpec.of([("body", (1,)), ("head", (1,))])
PATH = "client,neighbour\na,b\nb,c\n"
TARGETS = {"a": (1.0, 0.0), "b": (0.0, 1.0), "c": (1.0, 1.0)}
CURVES = np.array([1.0, 3.0])


class Window:
    """One window; what is to be learned is not in it."""

    def __len__(self):
        return 1

    def draw(self, _rng, _size):
        return Batch(np.zeros((1, 1, 1), np.float32), np.zeros((1, 1), np.float32))


def lend(name, target, spec=SPEC):
    """A device whose loss is a bowl around its target, steeper in its second number."""
    target = np.asarray(target, np.float32)
    curves = np.resize(CURVES, spec.size)

    def gradient(p, x, y):
        del x, y
        return 0.5 * float((curves * (p - target) ** 2).sum()), (curves * (p - target)).astype("f4")

    def hvp(p, x, y, v):
        del p, x, y
        return ((curves * v).astype("f4"),)

    graphs, window = {"gradient": gradient, "hvp": hvp}, Window()
    return TrainingContext(name, spec, graphs, lambda: window, 1, partial(keyed, 0, name))


@pytest.fixture
def server(tmp_path):
    """Makes a server half for a path of three."""

    def made(quorum=3, least=None, limit=None, spec=SPEC, text=PATH, **settings):
        (tmp_path / "near.csv").write_text(text)
        settings = {"neighbours": "near.csv", "rate": 0.1, "steps": 1, "map": "full"} | settings
        rounds = Rounds(quorum=quorum, least=least, deadline=60.0, limit=limit)
        setup = Setup(bind("mean"), BiGFL(**settings), rounds, spec, 0, folder=tmp_path)
        return bigfl(setup)

    return made


@pytest.fixture
def fleet(consensus, server):
    """Makes a path of three devices and their server."""

    def made(targets=None, spec=SPEC, **settings):
        half = server(spec=spec, **settings)
        local = partial(lend, spec=spec)
        return consensus(half, bilevel_half, targets or TARGETS, spec=spec, local=local)

    return made


def asks(fleet):
    return {name: task.ask for name, task in sorted(fleet.tasks.items())}


def weights(fleet, name):
    return fleet.states[name].p.astype(np.float64)


def theta(fleet, names=NAMES):
    return np.stack([weights(fleet, name) for name in names])


class TestRound:
    """One round, step by step."""

    def test_a_round_has_two_requests_and_one_announcement(self, fleet):
        three = fleet()
        assert asks(three) == dict.fromkeys(NAMES, "train")
        three.activate(*NAMES)
        assert asks(three) == dict.fromkeys(NAMES, SOLVE)
        assert (three.state.version, three.closed) == (0, [])
        three.activate(*NAMES)
        assert asks(three) == dict.fromkeys(NAMES, "train")
        (note,) = three.closed
        assert (note.moved, note.version, note.report["cohort"]) == (True, 1, list(NAMES))
        assert note.report["solved"] == list(NAMES)

    def test_the_first_map_is_the_identity_and_is_not_sent(self, fleet):
        three = fleet()
        assert all(set(task.arrays) == {"c"} for task in three.tasks.values())
        three.activate(*NAMES)
        three.activate(*NAMES)
        assert three.tasks["a"].arrays["phi"].shape == (2, 2)

    def test_a_device_step_agrees_with_the_hand_computed_example(self, fleet):
        three = fleet(smooth=1.0, ridge=0.0, map_rate=0.0)
        for name, target in TARGETS.items():
            p = np.array(target, np.float32)
            three.states[name] = replace(three.states[name], p=p)
            held = {**three.state.held, name: p}
            three.state = replace(three.state, version=1, held=held)
        three.deliver(Member("a", present=False))
        three.deliver(Member("a", present=True))
        three.activate("a")
        wanted = np.array([1.0, 0.0]) - 0.1 * np.array([0.25, -0.20412415])
        np.testing.assert_allclose(weights(three, "a"), wanted, atol=1e-6)

    def test_the_map_takes_the_step_of_the_hypergradient(self, fleet):
        settings = {"map_rate": 0.5, "tolerance": 0.0, "damping": 0.0, "smooth": 0.6, "ridge": 0.1}
        three = fleet(**settings)
        for _ in range(2):
            three.activate(*NAMES)
            three.activate(*NAMES)
        three.activate(*NAMES)
        before = three.state
        basis = MapBlock(before.phi["matrix"])
        near = paired([("a", "b"), ("b", "c")]).among(NAMES)
        graph, now = normalised(near), theta(three)
        strange = sampled(near, 10, np.random.default_rng(0))
        told = upper(now, graph, basis, near, strange=strange)
        own, phi = np.diag(graph), before.phi["matrix"]
        q = []
        for i in range(3):
            tilt = own[i] * phi - np.eye(2)
            curved = np.diag(CURVES) + 0.1 * np.eye(2) + 0.6 * tilt @ tilt.T
            q.append(np.linalg.solve(curved, told.p[i]))
        cross = crossed(graph @ now, now, own, basis, q=np.array(q), weight=0.6)
        wanted = phi - 0.5 * hypergradient(told.slopes, cross)["matrix"]
        three.activate(*NAMES)
        np.testing.assert_allclose(three.state.phi["matrix"], wanted, atol=1e-6)
        assert three.state.moved == before.moved + 1

    def test_a_zero_graph_weight_equals_local_training(self, fleet):
        three = fleet(smooth=0.0, ridge=0.0, map_rate=0.0)
        for _ in range(3):
            three.activate(*NAMES)
        for name, target in TARGETS.items():
            alone = np.array(target) * (1 - (1 - 0.1 * CURVES) ** 3)
            np.testing.assert_allclose(weights(three, name), alone, atol=1e-6)

    def test_a_fixed_map_stays_the_identity_with_one_request_per_round(self, fleet):
        three = fleet(map_rate=0.0)
        three.activate(*NAMES)
        assert asks(three) == dict.fromkeys(NAMES, "train")
        assert three.state.version == 1
        assert (three.state.phi["matrix"] == np.eye(2)).all()

    def test_the_first_order_form_moves_the_map_without_solving(self, fleet):
        three = fleet(solver="first_order", curvature=2.0)
        three.activate(*NAMES)
        assert asks(three) == dict.fromkeys(NAMES, "train")
        assert (three.state.moved, three.state.version) == (1, 1)

    @pytest.mark.parametrize("form", ["diagonal", "low_rank", "last_layer", "full"])
    def test_every_form_of_the_map_lowers_the_upper_loss(self, fleet, form):
        three = fleet(map=form, map_rate=0.05, rank=1, smooth=0.5, steps=5)
        for _ in range(60):
            three.activate(*NAMES)
        told = [note.report["upper"] for note in three.closed]
        assert told[-1] < told[0]
        assert three.closed[-1].report["map"] > 0.0

    def test_more_solver_steps_approach_the_exact_hypergradient(self, fleet):
        """Near the solution of the game; the exact slope by differences of that solution."""
        settings = {
            "smooth": 0.5,
            "ridge": 0.1,
            "damping": 0.0,
            "tolerance": 0.0,
            "map_regularisation": 0.0,
        }
        slopes = {}
        for outer in (0, 5):
            three = fleet(**settings, map="diagonal", coupled_solves=outer, map_rate=1e-6, steps=50)
            for _ in range(30 * (2 + outer)):
                three.activate(*NAMES)
            while three.state.turn:
                three.activate(*NAMES)
            before = three.state.phi["scale"]
            three.activate(*NAMES)
            while three.state.turn:
                three.activate(*NAMES)
            slopes[outer] = (before - three.state.phi["scale"]) / 1e-6
        exact = game_slope(0.5, 0.1)
        far = {outer: np.linalg.norm(slope - exact) for outer, slope in slopes.items()}
        assert far[5] < 0.05 * np.linalg.norm(exact)
        assert far[5] < 0.5 * far[0]


def game_slope(s, kappa):
    """The slope, in a diagonal map at the identity, of the upper loss at the game's solution."""
    near = paired([("a", "b"), ("b", "c")]).among(NAMES)
    graph, targets = normalised(near), np.array([TARGETS[name] for name in NAMES])
    strange = sampled(near, 10, np.random.default_rng(0))

    def loss(scale):
        out = np.zeros((3, 2))
        for k in range(2):
            system = np.diag(np.full(3, CURVES[k] + kappa))
            for i in range(3):
                tilt = s * (graph[i, i] * scale[k] - 1.0)
                system[i] += tilt * scale[k] * graph[i]
                system[i, i] -= tilt
            out[:, k] = np.linalg.solve(system, CURVES[k] * targets[:, k])
        return upper(out, graph, Diagonal(scale), near, strange=strange, pull=0.0).value

    step = 1e-5 * np.eye(2)
    return np.array([(loss(1 + step[k]) - loss(1 - step[k])) / 2e-5 for k in range(2)])


class TestFaults:
    """What a network and a power cut do to it."""

    def test_restarts_after_every_event_change_nothing(self, fleet):
        undisturbed, three = fleet(), fleet()
        for _ in range(4):
            for name in NAMES:
                undisturbed.activate(name)
                three.reboot(name)
                three.activate(name)
                three.restart()
        assert three.state.version == undisturbed.state.version == 2
        np.testing.assert_array_equal(theta(three), theta(undisturbed))
        for name, leaf in undisturbed.state.phi.items():
            np.testing.assert_array_equal(three.state.phi[name], leaf)

    def test_the_order_of_arrival_changes_nothing(self, fleet):
        one, other = fleet(), fleet()
        for _ in range(6):
            one.activate("a", "b", "c")
            other.activate("c", "a", "b")
        np.testing.assert_array_equal(one.state.phi["matrix"], other.state.phi["matrix"])

    def test_a_duplicate_update_counts_once(self, fleet):
        three = fleet()
        said = [three.answer(name) for name in NAMES]
        for update in (said[0], said[0], said[1], said[2]):
            three.deliver(update)
        assert three.state.turn == 1
        found = three.answer("a")
        three.deliver(found)
        before = three.state
        three.deliver(replace(found, vector=found.vector + 9))
        assert three.state is before

    def test_a_late_solution_is_excluded_from_the_map_only(self, fleet):
        three = fleet()
        three.activate(*NAMES)
        three.activate("a", "c")
        assert three.state.version == 0
        three.deliver(Due(three.state.round, SOLVE))
        assert three.closed[-1].report["unsolved"] == ["b"]
        assert three.closed[-1].report["cohort"] == list(NAMES)
        assert asks(three) == dict.fromkeys(NAMES, "train")

    def test_without_solutions_the_map_is_unchanged(self, fleet):
        three = fleet()
        three.activate(*NAMES)
        three.deliver(Due(three.state.round, SOLVE))
        assert (three.state.version, three.state.moved) == (1, 0)

    def test_a_round_that_is_abandoned_while_devices_solve_leaves_no_open_solving_task(self, fleet):
        three = fleet()
        three.activate(*NAMES)
        late = three.answer("b")
        three.deliver(Due(three.state.round, ABANDON))
        assert three.closed[-1].moved is False
        assert (three.state.turn, dict(three.state.right), dict(three.state.solved)) == (0, {}, {})
        three.deliver(late)
        assert asks(three) == dict.fromkeys(NAMES, "train")
        three.activate(*NAMES)
        three.activate(*NAMES)
        assert three.state.version == 1

    def test_a_late_solution_is_not_used_as_a_model(self, fleet):
        three = fleet()
        three.activate(*NAMES)
        late = three.answer("b")
        three.deliver(Due(three.state.round, SOLVE))
        before = three.state
        three.deliver(late)
        assert three.state is before

    def test_a_model_that_arrives_during_the_solve_waits_for_the_next_round(self, fleet):
        three = fleet(quorum=2)
        late = three.answer("c")
        three.activate("a", "b")
        assert three.state.turn == 1
        three.deliver(late)
        assert three.state.turn == 1
        three.activate("a", "b")
        assert asks(three) == dict.fromkeys(NAMES, "train")
        assert three.closed[-1].report["cohort"] == list(NAMES)

    def test_a_device_that_joins_during_the_solve_gets_a_task(self, fleet):
        three = fleet(quorum=2)
        three.activate("a", "b")
        three.targets["d"] = (0.0, 0.0)
        three.join("d")
        assert three.tasks["d"].ask == "train"
        three.activate("d")
        assert three.state.turn == 1
        three.activate("a", "b")
        assert "d" in three.closed[-1].report["cohort"]

    def test_a_returning_device_is_asked_to_solve_again(self, fleet):
        three = fleet()
        three.activate(*NAMES)
        three.deliver(Member("a", present=False))
        (again,) = three.deliver(Member("a", present=True))
        assert (again.ask, again.round) == (SOLVE, three.state.round)

    def test_a_device_that_lost_its_model_solves_nothing(self, fleet):
        three = fleet()
        three.activate(*NAMES)
        half, task = three.halves["a"], three.tasks["a"]
        fresh = half.init(three.first.copy())
        assert half.apply(fresh, task) == (fresh, ())
        older = replace(three.states["a"], answered=99)
        assert half.apply(older, task) == (older, ())

    def test_an_excessive_solution_is_clipped(self, fleet):
        three = fleet(ridge=0.1, damping=0.1)
        three.activate(*NAMES)
        right = np.linalg.norm(three.state.right["a"])
        honest = three.answer("a")
        three.deliver(replace(honest, vector=np.full(2, 1e30)))
        assert np.linalg.norm(three.state.solved["a"]) == pytest.approx(right / 0.2, rel=1e-5)

    def test_a_non_finite_map_is_discarded(self, fleet):
        three = fleet(map_rate=1e3, map_regularisation=0.0)
        three.activate(*NAMES)
        for name in NAMES:
            three.deliver(replace(three.answer(name), vector=np.full(2, 1e30)))
        solved = {name: np.full(2, 3e38, np.float32) for name in NAMES}
        three.restart()
        assert three.state.version == 1
        three.activate(*NAMES)
        before = three.state.phi["matrix"]
        three.state = replace(three.state, solved=solved, held=three.state.held | solved)
        three.deliver(Due(three.state.round, SOLVE))
        assert (three.state.phi["matrix"] == before).all()
        assert np.isfinite(three.state.w).all()

    def test_a_silent_device_counts_for_a_limited_number_of_rounds(self, fleet):
        three = fleet(quorum=2, stale_after=2)
        three.activate(*NAMES[:2])
        three.deliver(three.answer("c"))
        three.activate("a", "b")
        three.deliver(Member("c", present=False))
        for _ in range(4):
            three.activate("a", "b")
            three.activate("a", "b")
        assert sorted(three.state.held) == ["a", "b"]

    def test_invalid_updates_change_nothing(self, fleet):
        three = fleet()
        three.activate("a")
        for junk in (
            Update("b", 1, 7, np.zeros(2)),
            Update("b", 1, 0, np.zeros(3)),
            Due(5, SOLVE),
            Due(5, "train"),
        ):
            before = three.state
            three.deliver(junk)
            assert three.state is before

    def test_the_run_ends_after_the_configured_rounds(self, fleet):
        three = fleet(limit=1)
        three.activate(*NAMES)
        three.activate(*NAMES)
        assert three.closed[-1].report["stop"]
        assert not three.state.is_open


class TestDevice:
    """The device half by itself."""

    def half(self, spec=SPEC):
        return bilevel_half(lend("a", (1.0, 0.0), spec), LocalSgd(optimiser=sgd))

    def test_a_device_that_participated_keeps_its_own_model_at_the_end(self):
        half = self.half()
        end = Task("a", 9, END, arrays={"w": np.full(2, 7.0, np.float32)})
        fresh = half.init(np.zeros(2, np.float32))
        assert half.apply(fresh, end)[0].p.tolist() == [7.0, 7.0]
        done = replace(fresh, answered=3)
        assert half.apply(done, end)[0] is done

    def test_a_map_of_another_shape_changes_nothing(self):
        half = self.half()
        state = half.init(np.zeros(2, np.float32))
        arrays = {"c": np.zeros(2, np.float32), "phi": np.zeros((3, 2), np.float32)}
        for form in (1.0, 2.0, 3.0):
            task = Task("a", 1, "train", values={"form": form, "side": 9.0}, arrays=arrays)
            assert half.apply(state, task) == (state, ())

    def test_personal_layers_are_trained_without_penalty(self):
        spec = SPEC.with_shared(("body",))
        half = self.half(spec)
        state = half.init(np.ones(2, np.float32))
        values = {"steps": 1.0, "rate": 0.1, "smooth": 5.0, "optimiser": 1.0, "own": 0.5}
        task = Task("a", 1, "train", values=values, arrays={"c": np.full(1, 9.0, np.float32)})
        after, (update,) = half.apply(state, task)
        assert update.vector.shape == (1,)
        assert after.p[1] == pytest.approx(1.0 - 0.1 * 3.0)

    def test_a_saved_state_is_restored(self):
        state = BilevelState(np.ones(2, np.float32), 4, (3.0, 1.0, 1.0), np.ones((1, 2), "f4"))
        again = BilevelState.from_arrays(state.arrays())
        assert (again.answered, again.form) == (4, state.form)
        assert (again.p == state.p).all()
        assert (again.rows == state.rows).all()

    @pytest.mark.parametrize("solver", [0.0, 1.0])
    def test_the_solve_uses_the_curvature_of_the_whole_objective(self, solver):
        half = self.half()
        state = replace(half.init(np.zeros(2, np.float32)), answered=1)
        values = {
            "own": 0.5,
            "smooth": 2.0,
            "ridge": 0.5,
            "damping": 0.25,
            "solver": solver,
            "of": 1.0,
        }
        values |= {"iterations": 200.0, "tolerance": 1e-7}
        task = Task("a", 2, SOLVE, values=values, arrays={"p": np.ones(2, np.float32)})
        _, (update,) = half.apply(state, task)
        wanted = 1.0 / (CURVES + 2.0 * 0.25 + 0.5 + 0.25)
        np.testing.assert_allclose(update.vector, wanted, rtol=1e-4)

    def test_with_negative_curvature_the_first_order_solution_is_sent(self):
        local = lend("a", (0.0, 0.0))
        bent = replace(local, graphs=local.graphs | {"hvp": lambda v, **_: (-9 * v,)})
        half = bilevel_half(bent, LocalSgd(optimiser=sgd))
        state = replace(half.init(np.zeros(2, np.float32)), answered=1)
        values = {"curvature": 4.0, "of": 1.0}
        task = Task("a", 2, SOLVE, values=values, arrays={"p": np.ones(2, np.float32)})
        _, (update,) = half.apply(state, task)
        assert update.vector.tolist() == [0.25, 0.25]


class TestSettings:
    """What a run may not choose."""

    def test_a_map_that_cannot_be_sent_is_refused(self, server):
        wide = ParamSpec.of([("body.weight", (3000,)), ("head.weight", (5,))])
        with pytest.raises(SchemaError, match=r"run\.settings\.map"):
            server(spec=wide)
        with pytest.raises(SchemaError, match="at once"):
            server(spec=ParamSpec.of([("w", (2000,))]))
        server(spec=wide, map="last_layer")
        with pytest.raises(SchemaError, match="at once"):
            server(spec=ParamSpec.of([("w", (30_000,))]), map="low_rank", rank=64)

    def test_the_last_layer_is_located_by_the_layout(self, server):
        wide = ParamSpec.of([("body.weight", (3,)), ("head.weight", (2,)), ("head.bias", (1,))])
        state = server(spec=wide, map="last_layer").init(np.zeros(6, np.float32))
        assert state.phi["matrix"].shape == (3, 3)

    def test_a_rule_is_refused(self, server, tmp_path):
        del server
        (tmp_path / "n.csv").write_text(PATH)
        setup = Setup(bind("median"), BiGFL(neighbours="n.csv"), Rounds(3), SPEC, folder=tmp_path)
        with pytest.raises(SchemaError, match="combines updates without a rule"):
            bigfl(setup)

    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({"neighbours": "a", "sites": {"a": (0.0, 0.0)}}, "beside sites"),
            ({"threshold": 1.0}, "without sites"),
            ({"neighbours": "a", "map_rate": 2.0}, "swings"),
            ({"neighbours": "a", "coupled_solves": 1, "solver": "first_order"}, "coupled_solves"),
        ],
    )
    def test_contradictory_settings_are_refused(self, settings, said):
        with pytest.raises(ValueError, match=said):
            BiGFL(**settings)

    def test_only_a_solving_form_needs_a_curvature_graph(self):
        assert BiGFL(neighbours="a").graphs == ("gradient", "hvp")
        assert BiGFL(neighbours="a", solver="first_order").graphs == ("gradient",)
        assert BiGFL(neighbours="a", map_rate=0.0).graphs == ("gradient",)


def test_the_state_consists_of_leaves_and_starts_empty(server):
    state = server(map="low_rank", rank=1).init(np.zeros(2, np.float32))
    assert isinstance(state, Bilevel)
    by_client = (state.held, state.right, state.solved, state.questions, state.trained)
    assert not any(by_client)
    assert unpack_map({}, None, 2).excess() == 0.0
