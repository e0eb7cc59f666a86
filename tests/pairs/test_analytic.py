"""Federation in closed form: both real halves, pooled ridge regression as the oracle."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from aggregator.extensions.analytic import fleet as fleet_server
from aggregator.extensions.analytic.settings import Analytic, fault_of
from aggregator.extensions.authoring.closed_form import ANALYTIC, AnalyticRecipe, made
from aggregator.methods import METHODS as SERVERS
from aggregator.methods import OPEN, Rounds, Setup
from aggregator.rules import bind
from aggregator.store import state_codec
from edge_sdk.app.schema import SchemaError
from edge_sdk.extensions.analytic.bundle_functions import AnalyticModel
from edge_sdk.extensions.analytic.half import AnalyticState
from edge_sdk.extensions.analytic.solve import ridge
from edge_sdk.extensions.analytic.statistics import from_vector, gather, to_vector, total
from edge_sdk.methods import METHODS as DEVICES
from edge_sdk.methods.local_sgd import LocalSgd
from edge_sdk.methods.training_context import Batch, TrainingContext
from edge_sdk.protocol.contract.manifest import Loss
from edge_sdk.protocol.contract.method import END, Closed, Member, Task, Unlearned, Update

RECIPE = AnalyticRecipe(step_seconds=21_600, lookback=4, days=(1,), units=3, loss=Loss("absolute"))
NAMES = ("a", "b", "c")


def bundle(recipe=RECIPE, name="small", **changes):
    manifest, initial = made(recipe, name=name, version=1)
    section = replace(manifest.analytic, **changes)
    return replace(manifest, analytic=section), np.frombuffer(initial, "<f4")


MANIFEST, FIRST = bundle()
WIDTH, FEATURES = MANIFEST.analytic.width, len(MANIFEST.analytic.features)


def server(quorum=3, manifest=MANIFEST, rule="mean", least=None, limit=None, **settings):
    row = SERVERS["analytic"]
    rounds = Rounds(quorum=quorum, least=least, deadline=60.0, limit=limit)
    setup = Setup(bind(rule), row.settings(**settings), rounds, manifest.spec())
    return row.half(replace(setup, analytic=manifest.analytic))


def rows(seed, count=40):
    """Return design rows and targets whose sums float32 holds exactly: small whole numbers."""
    rng = np.random.default_rng(seed)
    design = rng.integers(-3, 4, (count, WIDTH)).astype(np.float64)
    design[:, -1] = 1.0
    return design, rng.integers(-2, 3, (count, 1)).astype(np.float64)


def statistic(seed, count=40):
    return to_vector(gather(*rows(seed, count)))


def begun(half, version=1):
    """Return a state whose features are standardised already."""
    state, _ = half.apply(half.init(FIRST), OPEN)
    for name in NAMES:
        state, _ = half.apply(state, Member(name, present=True))
    return replace(state, version=version)


def update(state, name, vector, base=None):
    return Update(name, state.round, state.version if base is None else base, vector)


def fed(half, state, answers):
    effects = ()
    for name, vector in answers:
        state, more = half.apply(state, update(state, name, vector))
        effects += more
    return state, effects


def coefficients(state):
    return state.w[2 * FEATURES :].reshape(1, WIDTH)


def pooled(seeds):
    design, targets = map(np.concatenate, zip(*(rows(seed) for seed in seeds), strict=True))
    return ridge(gather(design, targets), MANIFEST.analytic.penalty * len(design))


class TestServer:
    @pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
    def test_the_model_is_pooled_ridge_in_any_order(self, order):
        half = server()
        first, _ = fed(half, begun(half), [(NAMES[i], statistic(i)) for i in range(3)])
        state, _ = fed(half, begun(half), [(NAMES[i], statistic(i)) for i in order])
        np.testing.assert_allclose(coefficients(state), pooled(range(3)), rtol=0, atol=1e-10)
        assert state.w.tobytes() == first.w.tobytes()

    def test_only_the_newest_statistic_of_a_device_counts(self):
        half = server()
        answers = [
            ("a", statistic(0)),
            ("a", statistic(0)),
            ("b", statistic(1)),
            ("a", statistic(7)),
        ]
        state, _ = fed(half, begun(half), [*answers, ("c", statistic(2))])
        np.testing.assert_allclose(coefficients(state), pooled([7, 1, 2]), rtol=0, atol=1e-10)

    def test_a_silent_device_counts_with_its_newest_statistic(self):
        half = server()
        state, _ = fed(half, begun(half), [(name, statistic(i)) for i, name in enumerate(NAMES)])
        half = server(quorum=1)
        state, _ = fed(half, state, [("b", statistic(5))])
        np.testing.assert_allclose(coefficients(state), pooled([0, 5, 2]), rtol=0, atol=1e-10)

    def test_the_first_round_standardises_the_features(self):
        half = server(passes=1)
        state = begun(half, version=0)
        state, effects = fed(half, state, [(n, statistic(i)) for i, n in enumerate(NAMES)])
        design = np.concatenate([rows(i)[0] for i in range(3)])[:, :FEATURES]
        np.testing.assert_allclose(state.w[:FEATURES], design.mean(0), atol=1e-12)
        np.testing.assert_allclose(state.w[FEATURES : 2 * FEATURES], design.std(0), atol=1e-12)
        assert not coefficients(state).any()
        assert dict(state.held) == {}
        asked = [effect for effect in effects if isinstance(effect, Task)]
        assert [task.values for task in asked] == [{"weighted": 0.0}] * 3

    def test_a_statistic_of_unstandardised_features_is_requested_again(self):
        half = server(quorum=2)
        state = begun(half, version=0)
        state, _ = fed(half, state, [("a", statistic(0)), ("b", statistic(1))])
        after, effects = half.apply(state, update(state, "c", statistic(2), base=0))
        assert after is state
        assert [(task.to, task.base) for task in effects] == [("c", 1)]

    def test_the_run_ends_after_its_passes(self):
        half = server(passes=2)
        state = begun(half, version=0)
        for _ in range(3):
            state, effects = fed(half, state, [(n, statistic(i)) for i, n in enumerate(NAMES)])
        assert (state.version, state.is_open) == (3, False)
        assert effects[-1].report["stop"]

    def test_a_bundle_with_feature_constants_needs_no_first_round(self):
        manifest, _ = bundle(standardised=True)
        half = server(manifest=manifest, passes=1)
        state = begun(half, version=0)
        state, _ = fed(half, state, [(n, statistic(i)) for i, n in enumerate(NAMES)])
        assert coefficients(state).any()
        assert not state.is_open

    def test_later_passes_weigh_windows_by_their_residuals(self):
        half = server()
        _, effects = fed(half, begun(half), [(n, statistic(i)) for i, n in enumerate(NAMES)])
        asked = [effect for effect in effects if isinstance(effect, Task)]
        assert [task.values for task in asked] == [{"weighted": 1.0}] * 3

    def test_a_vector_of_another_width_changes_nothing(self):
        half = server()
        state = begun(half)
        assert half.apply(state, update(state, "a", np.zeros(9)))[0] is state

    def test_votes_combine_solutions_by_the_rule(self):
        half = server(rule="median", combine="votes")
        honest = [statistic(i) for i in range(2)]
        wild = to_vector(from_vector(statistic(2), 1, WIDTH).scaled(1.0))
        wild[WIDTH * (WIDTH + 1) // 2 :][:WIDTH] *= 1e6
        state, _ = fed(half, begun(half), list(zip(NAMES, [*honest, wild], strict=True)))
        each = [ridge(from_vector(one, 1, WIDTH), 40 * MANIFEST.analytic.penalty) for one in honest]
        low, high = np.minimum(*each), np.maximum(*each)
        assert ((coefficients(state) >= low - 1e-9) & (coefficients(state) <= high + 1e-9)).all()

    def test_a_state_is_saved_and_rebuilt_to_the_bit(self):
        half = server()
        state, _ = fed(half, begun(half), [("a", statistic(0)), ("b", statistic(1))])
        again = state_codec.rebuild(half.init(FIRST), state_codec.flatten(state))
        one, _ = fed(half, state, [("c", statistic(2))])
        two, _ = fed(half, again, [("c", statistic(2))])
        assert state_codec.digest(one) == state_codec.digest(two)

    def test_invalid_settings_are_refused(self):
        with pytest.raises(SchemaError):
            server(rule="median")

    def test_a_number_of_rounds_counts_them_all(self):
        half = server(limit=2)
        state = begun(half, version=0)
        for _ in range(2):
            state, _ = fed(half, state, [(n, statistic(i)) for i, n in enumerate(NAMES)])
        assert (state.version, state.is_open) == (2, False)


class TestUnlearning:
    def test_sums_after_a_removal_are_those_of_a_fleet_that_never_had_the_device(self):
        half = server()
        state, _ = fed(half, begun(half), [("a", statistic(0)), ("b", statistic(1))])
        state, effects = half.apply(state, Unlearned("b"))
        assert effects == ()
        state, _ = fed(half, state, [("b", statistic(2)), ("c", statistic(3))])
        never, _ = fed(
            half, begun(half), [("a", statistic(0)), ("c", statistic(3)), ("b", statistic(2))]
        )
        assert state.w.tobytes() == never.w.tobytes()

    def test_after_a_run_of_one_pass_the_model_has_the_bits_of_a_fleet_without_the_device(self):
        """With the bundle's constants no statistic depends on the others' devices."""
        manifest = bundle(standardised=True)[0]
        said = [(name, statistic(i)) for i, name in enumerate(NAMES)]
        models = []
        for names in ("abc", "ac"):
            half = server(quorum=len(names), passes=1, manifest=manifest)
            state, _ = half.apply(half.init(FIRST), OPEN)
            state, _ = fed(half, state, [one for one in said if one[0] in names])
            assert not state.is_open
            models += [state.w.tobytes(), half.apply(state, Unlearned("b"))[0].w.tobytes()]
        assert models[0] != models[1] == models[2] == models[3]

    def test_unlearning_after_the_run_announces_a_new_solution(self):
        half = server(passes=1)
        state, _ = fed(half, begun(half), [(n, statistic(i)) for i, n in enumerate(NAMES)])
        assert not state.is_open
        state, (note,) = half.apply(state, Unlearned("b"))
        np.testing.assert_allclose(coefficients(state), pooled([0, 2]), rtol=0, atol=1e-10)
        assert isinstance(note, Closed)
        assert (note.moved, note.report["unlearned"], note.report["stop"]) == (True, "b", True)
        assert (state.version, sorted(state.held)) == (3, ["a", "c"])

    def test_removing_the_last_device_leaves_zero_coefficients(self):
        half = server(quorum=1, passes=1)
        state, _ = fed(half, begun(half), [("a", statistic(0))])
        state, _ = half.apply(state, Unlearned("a"))
        assert not coefficients(state).any()

    def test_a_device_without_a_statistic_changes_nothing(self):
        half = server()
        state = begun(half)
        assert half.apply(state, Unlearned("a"))[0] is state

    def test_a_removal_in_the_last_round_adds_one_whose_tasks_are_without_it(self):
        half = server(quorum=2, passes=2)
        state, effects = fed(half, begun(half), [("a", statistic(0)), ("b", statistic(1))])
        assert sorted(state.others) == ["a", "b"]
        state, _ = half.apply(state, Unlearned("c"))  # it has no statistic: nothing changes
        state, _ = half.apply(state, Unlearned("b"))
        assert (dict(state.others), sorted(state.held)) == ({}, ["a"])
        state, effects = fed(half, state, [("a", statistic(3)), ("c", statistic(2))])
        assert not any(e.report["stop"] for e in effects if isinstance(e, Closed))
        sent = {e.to: e.arrays["w"] for e in effects if isinstance(e, Task)}
        np.testing.assert_allclose(only(sent["a"]), pooled([2]), rtol=1e-6, atol=1e-7)
        state, effects = fed(half, state, [("a", statistic(3)), ("c", statistic(2))])
        assert [e.report["stop"] for e in effects if isinstance(e, Closed)] == [True]


def only(w):
    return w[2 * FEATURES :].reshape(1, WIDTH)


class TestOthers:
    """A device receives the model of all others: its own windows would count twice."""

    def test_a_task_brings_the_pooled_solution_of_all_others(self):
        half = server()
        _, effects = fed(half, begun(half), [(n, statistic(i)) for i, n in enumerate(NAMES)])
        sent = {e.to: e.arrays["w"] for e in effects if isinstance(e, Task)}
        for i, name in enumerate(NAMES):
            wanted = pooled(set(range(3)) - {i})
            np.testing.assert_allclose(only(sent[name]), wanted, rtol=1e-5, atol=1e-6)

    def test_a_device_whose_task_is_repeated_in_the_round_gets_the_same_bits(self):
        half = server(quorum=3)
        state, effects = fed(half, begun(half), [(n, statistic(i)) for i, n in enumerate(NAMES)])
        first = {e.to: e.arrays["w"] for e in effects if isinstance(e, Task)}
        state, _ = half.apply(state, update(state, "b", statistic(8)))
        _, effects = half.apply(state, Member("a", present=True))
        assert [e.arrays["w"].tobytes() for e in effects] == [first["a"].tobytes()]

    @pytest.mark.parametrize("more", [{"combine": "votes", "rule": "median"}, {"small": 2}])
    def test_with_a_rule_and_in_a_large_fleet_all_receive_the_common_model(self, monkeypatch, more):
        rule = more.pop("rule", "mean")
        monkeypatch.setattr(fleet_server, "SMALL", more.pop("small", 100))
        half = server(rule=rule, **more)
        state, effects = fed(half, begun(half), [(n, statistic(i)) for i, n in enumerate(NAMES)])
        sent = [e.arrays["w"].tobytes() for e in effects if isinstance(e, Task)]
        assert sent == [state.w.astype(np.float32).tobytes()] * 3

    def test_after_the_final_model_a_device_is_drawn_towards_its_last_tasks(self):
        half, common, others = device(Windows(MANIFEST, 0)), FIRST.copy(), FIRST.copy()
        common[2 * FEATURES :], others[2 * FEATURES :] = 0.02, 0.01
        before, _ = half.apply(half.init(FIRST), asked(others))
        after, _ = half.apply(before, replace(asked(common, END), base=2))
        assert after.p.tobytes() == common.tobytes()
        assert after.towards.tobytes() == others.tobytes()
        assert after.own.tobytes() == before.own.tobytes()
        again, _ = half.apply(after, replace(asked(common, END), base=2))
        assert again.towards.tobytes() == others.tobytes()
        removed, _ = half.apply(after, replace(asked(common, END), base=3))
        assert removed.towards.tobytes() == common.tobytes()

    def test_features_on_another_scale_are_not_drawn_towards(self):
        half, common, others = device(Windows(MANIFEST, 0)), FIRST.copy(), FIRST.copy()
        common[2 * FEATURES :], others[2 * FEATURES :] = 0.02, 0.01
        others[0] += 1.0
        before, _ = half.apply(half.init(FIRST), asked(others))
        after, _ = half.apply(before, replace(asked(common, END), base=2))
        assert after.towards.tobytes() == common.tobytes()


class TestAdmission:
    def test_an_honest_statistic_has_no_fault(self):
        assert fault_of(MANIFEST, Analytic(), statistic(0)) == ""

    def test_an_impossible_statistic_is_refused_with_a_reason(self):
        count = WIDTH * (WIDTH + 1) // 2
        wild = statistic(0)
        wild[count : count + WIDTH] *= 100.0
        assert "not semidefinite" in fault_of(MANIFEST, Analytic(), wild)
        wild = statistic(0) * np.float32(1e4)
        assert "count" in fault_of(MANIFEST, Analytic(), wild)


class Windows:
    """Windows of a series with a daily wave, numbered from 0."""

    def __init__(self, manifest, seed, count=200):
        rng, lookback = np.random.default_rng(seed), manifest.window.lookback
        day = 86_400 // manifest.window.step_seconds
        number = np.arange(count + lookback + manifest.window.horizon)
        load = 0.5 + 0.3 * np.sin(2 * np.pi * number / day) + 0.05 * rng.normal(size=len(number))
        channels = np.stack([load, number % day / day, number // day % 7 / 7.0], 1)
        self.load, self.number = load, number
        ends = np.arange(lookback - 1, lookback - 1 + count)
        reach = np.arange(1 - lookback, 1)
        self.x = channels[ends[:, None] + reach].astype(np.float32)
        ahead = ends[:, None] + 1 + np.arange(manifest.window.horizon)
        self.y = (load[ahead] - load[ends, None]).astype(np.float32)

    def __len__(self):
        return len(self.x)

    def span(self):
        return (0, len(self.x) - 1) if len(self.x) else None

    def named(self, ids):
        here = (ids >= 0) & (ids < len(self.x))
        return here, Batch(self.x[ids[here]], self.y[ids[here]])


def device(windows, manifest=MANIFEST, name="a"):
    functions = AnalyticModel(manifest).functions()
    local = TrainingContext(name, manifest.spec(), functions, lambda: windows, 64, None)
    return DEVICES["analytic"](local, LocalSgd())


def asked(w, ask="train", weighted=0.0):
    return Task("a", 1, ask, base=1, values={"weighted": weighted}, arrays={"w": w})


class TestDevice:
    def test_a_device_sends_the_sums_over_all_its_windows(self):
        windows = Windows(MANIFEST, 0, 700)
        half = device(windows)
        state, (said,) = half.apply(half.init(FIRST), asked(FIRST))
        (design,) = AnalyticModel(MANIFEST).design(FIRST, windows.x)
        wanted = to_vector(gather(design[:, 0], windows.y.astype(float), None, windows.y))
        np.testing.assert_allclose(said.vector, wanted, rtol=1e-6, atol=1e-6)  # of float32 rows
        assert said.values["n"] == 700
        assert state.own is state.p

    def test_weights_have_mean_one_and_follow_the_residuals(self):
        windows = Windows(MANIFEST, 0)
        half = device(windows)
        _, (said,) = half.apply(half.init(FIRST), asked(FIRST, weighted=1.0))
        found = from_vector(said.vector, 1, WIDTH)
        assert found.matrix(0)[-1, -1] == pytest.approx(200.0, rel=1e-5)
        assert fault_of(MANIFEST, Analytic(), said.vector) == ""

    def test_the_final_model_is_adopted_and_made_personal_without_an_answer(self):
        windows = Windows(MANIFEST, 0)
        half = device(windows)
        w = FIRST.copy()
        w[2 * FEATURES :] = 0.01
        state, effects = half.apply(half.init(FIRST), asked(w, END))
        assert effects == ()
        assert state.p.tobytes() == w.tobytes()
        before, after = (
            np.abs(AnalyticModel(MANIFEST).forecast(p, windows.x)[0] - windows.y).mean()
            for p in (state.p, state.own)
        )
        assert after < 0.5 * before

    def test_a_device_without_windows_adopts_the_model_and_answers_nothing(self):
        half = device(Windows(MANIFEST, 0, 0))
        w = FIRST + np.float32(1.0)
        state, effects = half.apply(half.init(FIRST), asked(w))
        assert (state.p.tobytes(), effects) == (w.tobytes(), ())

    def test_a_vector_of_another_width_changes_nothing(self):
        half = device(Windows(MANIFEST, 0))
        state = half.init(FIRST)
        assert half.apply(state, asked(FIRST[:-1]))[0] is state

    def test_a_state_is_saved_and_rebuilt(self):
        state = AnalyticState(FIRST, FIRST + 1)
        again = AnalyticState.from_arrays(state.arrays())
        assert (again.own == state.own).all()

    def test_a_state_saved_before_a_device_kept_its_choice_is_rebuilt_without_one(self):
        again = AnalyticState.from_arrays({"p": FIRST, "own": FIRST + 1})
        assert (again.base, again.upto) == (-1, -1)
        assert set(again.model()) == {"p"}
        after, _ = device(Windows(MANIFEST, 0)).apply(again, asked(FIRST + 0.01, END))
        assert after.towards.tobytes() == after.p.tobytes()

    def test_a_choice_is_saved_and_rebuilt(self):
        half, w = device(Windows(MANIFEST, 0)), FIRST.copy()
        w[2 * FEATURES :] = 0.01
        state, _ = half.apply(half.init(FIRST), asked(w))
        again = AnalyticState.from_arrays(state.arrays())
        assert (again.base, again.upto) == (1, 199)
        for name, array in state.model().items():
            np.testing.assert_array_equal(again.model()[name], array)

    def test_a_record_beyond_the_cap_is_scaled_down(self):
        manifest, first = bundle(windows=50)
        half = device(Windows(manifest, 0), manifest)
        _, (said,) = half.apply(half.init(first), asked(first))
        assert from_vector(said.vector, 1, WIDTH).count == 50.0


class TestBothHalves:
    def test_a_fleets_passes_approach_the_smallest_absolute_error(self):
        half = server(passes=6)
        homes = {name: Windows(MANIFEST, seed) for seed, name in enumerate(NAMES)}
        devices = {name: device(windows, name=name) for name, windows in homes.items()}
        states = {name: one.init(FIRST) for name, one in devices.items()}
        state, _ = half.apply(half.init(FIRST), OPEN)
        tasks = []
        for name in NAMES:
            state, more = half.apply(state, Member(name, present=True))
            tasks += more
        losses = []
        while tasks:
            answers = []
            for task in tasks:
                if isinstance(task, Task):
                    states[task.to], said = devices[task.to].apply(states[task.to], task)
                    answers += said
            tasks = []
            for answer in answers:
                state, more = half.apply(state, answer)
                tasks += more
            x = np.concatenate([one.x for one in homes.values()])
            y = np.concatenate([one.y for one in homes.values()])
            told = AnalyticModel(MANIFEST).forecast(state.w.astype(np.float32), x)[0]
            losses.append(float(np.abs(told - y).mean()))
        assert state.version == 7
        assert losses[1] > losses[-1]
        known = {n: from_vector(v, 1, WIDTH) for n, v in state.held.items()}
        wanted = ridge(total(known), MANIFEST.analytic.penalty * 600)
        np.testing.assert_allclose(coefficients(state), wanted, rtol=0, atol=1e-12)

    def test_bundles_of_different_width_have_different_layouts(self):
        wide, _ = bundle(replace(RECIPE, units=4), "wide")
        assert wide.spec().digest != MANIFEST.spec().digest


class TestFunctions:
    @pytest.mark.parametrize(
        "loss", [Loss("mse"), Loss("absolute"), Loss("pinball", levels=(0.1, 0.5, 0.9))]
    )
    def test_the_gradient_is_that_of_the_loss(self, loss):
        manifest, first = bundle(replace(RECIPE, loss=loss, horizon=2))
        model, windows = AnalyticModel(manifest), Windows(manifest, 3, 30)
        rng = np.random.default_rng(1)
        p = first.astype(np.float64) + 0.0
        p[2 * FEATURES :] = rng.normal(0, 0.05, len(p) - 2 * FEATURES)
        _, g = model.gradient(p, windows.x, windows.y)
        direction = np.zeros(len(p))
        direction[2 * FEATURES :] = rng.normal(size=len(p) - 2 * FEATURES)
        steps = [model.gradient(p + s * 1e-4 * direction, windows.x, windows.y)[0] for s in (1, -1)]
        slope = (float(steps[0]) - float(steps[1])) / 2e-4
        assert slope == pytest.approx(float(g @ direction), rel=0.02, abs=1e-3)

    def test_windows_of_one_call_do_not_see_each_other(self):
        model, windows = AnalyticModel(MANIFEST), Windows(MANIFEST, 3, 30)
        (together,) = model.design(FIRST, windows.x)
        alone = np.concatenate([model.design(FIRST, windows.x[i : i + 1])[0] for i in range(30)])
        np.testing.assert_allclose(together, alone, rtol=0, atol=1e-9)

    def test_the_shipped_recipe_reads_a_week_and_no_more(self):
        manifest, _ = made(ANALYTIC["load-analytic"], name="load-analytic", version=1)
        assert manifest.window.lookback == 170
