"""FeSEM: worked numbers, faults, both real halves, and scikit-learn as a second opinion."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from aggregator.extensions.papers.clustered.fesem import multicentre
from aggregator.extensions.papers.clustered.kmeans import distances, draws, plus_plus
from aggregator.methods import METHODS as SERVERS
from aggregator.methods import OPEN, Rounds, Setup
from aggregator.rules import bind
from aggregator.store import state_codec
from edge_sdk.app.schema import SchemaError
from edge_sdk.extensions.papers.fesem import ClusterState
from edge_sdk.methods import METHODS as DEVICES
from edge_sdk.protocol.contract.method import END, Closed, Due, Member, Task, Update
from edge_sdk.protocol.contract.parameter_layout import ParamSpec

NAMES = "abcde"
FIVE = dict(zip(NAMES, (0.0, 1.0, 10.0, 11.0, 50.0), strict=True))


def server(
    quorum, rule="mean", *, least=None, spec=None, limit=None, seed=0, said=None, **settings
):
    row = SERVERS["fesem"]
    rounds = Rounds(quorum=quorum, least=least, deadline=60.0, limit=limit)
    rule = bind(rule, **(said or {}))
    return row.half(Setup(rule, row.settings(**settings), rounds, spec, seed))


def at(half, centres, version=1, **more):
    """A run under way with these centres."""
    placed = np.array(centres, np.float64).reshape(len(centres), -1)
    state = half.init(placed[0])
    return replace(
        state, round=version + 1, version=version, is_open=True, seeded=True, centres=placed, **more
    )


def update(state, sender, vector, **values):
    vector = np.atleast_1d(np.asarray(vector, np.float64))
    return Update(sender, state.round, state.version, vector, values)


def feed(half, state, answers, *, order=None):
    """Let answers arrive; the state after, and what the last of them brought about."""
    effects = ()
    said = [update(state, name, answers[name]) for name in order or answers]
    for one in said:
        state, more = half.apply(state, one)
        effects += more
    return state, effects


def closed(effects):
    return next(effect for effect in effects if isinstance(effect, Closed))


def tasks(effects):
    return {effect.to: effect for effect in effects if isinstance(effect, Task)}


def given_to(effects):
    return {name: float(task.arrays["w"][0]) for name, task in tasks(effects).items()}


class TestNumbers:
    """As calculated by hand in the specification."""

    def test_five_devices_converge_in_two_rounds(self):
        half = server(5, centres=2)
        state, effects = feed(half, at(half, [0.0, 10.0]), FIVE)
        assert state.labels == dict(zip(NAMES, (0, 0, 1, 1, 1), strict=True))
        assert state.centres[:, 0] == pytest.approx([0.5, 23.6666667])
        state, effects = feed(half, state, FIVE)
        assert state.labels == dict(zip(NAMES, (0, 0, 0, 0, 1), strict=True))
        assert state.centres[:, 0] == pytest.approx([5.5, 50.0])
        after, effects = feed(half, state, FIVE)
        np.testing.assert_allclose(after.centres, state.centres, rtol=1e-12)
        assert after.labels == state.labels
        assert closed(effects).report["changed"] == []

    def test_every_device_gets_the_centre_of_its_cluster(self):
        half = server(5, centres=2)
        _, effects = feed(half, at(half, [0.0, 10.0]), FIVE)
        near, far = np.float32(0.5), pytest.approx(np.float32(71 / 3))
        assert given_to(effects) == {"a": near, "b": near, "c": far, "d": far, "e": far}
        asked = tasks(effects)
        assert asked["a"].arrays["w"] is asked["b"].arrays["w"]  # kept and sent once

    def test_an_empty_cluster_keeps_its_centre(self):
        half = server(5, centres=2)
        state, effects = feed(half, at(half, [0.0, 1000.0]), FIVE)
        assert state.centres[:, 0] == pytest.approx([14.4, 1000.0])
        assert state.empty.tolist() == [0, 1]
        assert closed(effects).report["clusters"] == {"0": list(NAMES), "1": []}

    def test_a_cluster_empty_twice_is_reseeded_at_the_farthest_member(self):
        half = server(5, centres=2)
        state = at(half, [0.0, 1000.0])
        state, _ = feed(half, state, FIVE)
        state, effects = feed(half, state, FIVE)
        assert closed(effects).report["reseeded"] == {"1": "e"}
        assert state.centres[:, 0] == pytest.approx([14.4, 50.0])
        assert given_to(effects)["e"] == 50.0
        state, _ = feed(half, state, FIVE)
        assert state.centres[:, 0] == pytest.approx([5.5, 50.0])

    def test_without_reseeding_an_empty_cluster_stays(self):
        half = server(5, centres=2, empty_clusters="keep")
        state = at(half, [0.0, 1000.0])
        for _ in range(6):
            state, _ = feed(half, state, FIVE)
        assert state.centres[:, 0] == pytest.approx([14.4, 1000.0])
        assert state.empty.tolist() == [0, 6]

    def test_ties_go_to_the_lower_cluster_number(self):
        half = server(2, centres=2)
        state, _ = feed(half, at(half, [0.0, 10.0]), {"a": 5.0, "b": 10.0})
        assert state.labels == {"a": 0, "b": 1}

    def test_identical_starts_form_one_cluster(self):
        half = server(5, centres=3, seeding="common", empty_clusters="keep")
        state, _ = half.apply(half.init(np.zeros(1)), OPEN)
        state, _ = feed(half, state, FIVE)
        assert set(state.labels.values()) == {0}
        assert state.centres[:, 0].tolist() == [pytest.approx(14.4), 0.0, 0.0]

    def test_one_centre_without_a_penalty_equals_federated_averaging(self):
        half, rng = server(5, centres=1, mu=0.0), np.random.default_rng(5)
        start = rng.normal(size=7).astype(np.float32)
        average = SERVERS["fedavg"]
        other = average.half(Setup(bind("mean"), average.settings(), Rounds(quorum=5)))
        state, _ = half.apply(half.init(start), OPEN)
        theirs, _ = other.apply(other.init(start), OPEN)
        for _ in range(3):
            said = {name: rng.normal(size=7).astype(np.float32) for name in NAMES}
            base = theirs.w
            state, _ = feed(half, state, said)
            theirs, _ = feed(other, theirs, {name: base - said[name] for name in NAMES})
            np.testing.assert_allclose(state.w, theirs.w, rtol=1e-12, atol=1e-12)
            np.testing.assert_array_equal(state.w, state.centres[0])

    @pytest.mark.parametrize("seed", range(5))
    def test_one_centre_per_device_equals_local_training(self, seed):
        half = server(5, centres=5, seed=seed)
        state, _ = half.apply(half.init(np.zeros(1)), OPEN)
        for shift in (0.0, 0.25, 0.1):
            said = {name: value + shift for name, value in FIVE.items()}
            state, effects = feed(half, state, said)
            assert given_to(effects) == {name: np.float32(v) for name, v in said.items()}
        assert sorted(state.labels.values()) == [0, 1, 2, 3, 4]


class TestSeeding:
    """k-means++ on the first answers."""

    @given(st.integers(0, 2**63 - 1))
    def test_distant_groups_get_one_centre_each(self, seed):
        half = server(6, centres=3, seed=seed)
        state, _ = half.apply(half.init(np.zeros(1)), OPEN)
        values = (0.0, 1e-6, 1e6, 1e6 + 1e-1, -1e6, -1e6 - 1e-1)
        state, _ = feed(half, state, dict(zip("abcdef", values, strict=True)))
        assert sorted(map(len, state.clusters.values())) == [2, 2, 2]

    @given(st.integers(0, 2**63 - 1), st.integers(1, 6))
    def test_no_point_is_chosen_twice(self, seed, count):
        points = [np.array([value]) for value in (0.0, 0.0, 3.0, 3.0, 7.0, 7.0)]
        chosen = plus_plus(points, draws(seed, 0, count))
        assert len(set(chosen)) == count
        assert len({float(points[i][0]) for i in chosen}) == min(3, count)

    def test_seeding_draws_points_by_their_squared_distance(self):
        points = [np.array([0.0]), np.array([1.0]), np.array([3.0])]
        counts = np.zeros(3)
        for u in (np.arange(1000) + 0.5) / 1000:
            counts[plus_plus(points, np.array([0.0, u]))[1]] += 1
        assert counts.tolist() == [0, 100, 900]

    def test_the_first_seed_is_drawn_uniformly(self):
        points = [np.array([float(i)]) for i in range(4)]
        chosen = [plus_plus(points, np.array([u]))[0] for u in (0.0, 0.3, 0.6, 1 - 2**-53)]
        assert chosen == [0, 1, 2, 3]

    def test_the_draws_depend_on_the_run_only(self):
        assert draws(7, 0, 3).tolist() == draws(7, 0, 3).tolist()
        assert (draws(7, 0, 3) != draws(8, 0, 3)).all()
        assert (draws(7, 0, 3) != draws(7, 1, 3)).all()


@given(
    order=st.permutations(NAMES),
    vectors=arrays(np.float32, (5, 2), elements=st.floats(-1e6, 1e6, width=32)),
    count=st.integers(1, 5),
    rule=st.sampled_from(["mean", "median", "geometric_median"]),
)
def test_the_order_of_arrival_changes_no_bit(order, vectors, count, rule):
    half = server(5, rule, centres=count)
    said = dict(zip(NAMES, vectors, strict=True))
    begun, _ = half.apply(half.init(np.zeros(2)), OPEN)
    straight, _ = feed(half, begun, said)
    turned, _ = feed(half, begun, said, order=order)
    assert straight.centres.tobytes() == turned.centres.tobytes()
    assert straight.labels == turned.labels
    assert straight.w.tobytes() == turned.w.tobytes()


@given(
    vectors=arrays(np.float32, (6, 2), elements=st.integers(-1000, 1000).map(float)),
    shift=st.integers(-1000, 1000),
)
def test_shifting_all_weights_does_not_change_the_clusters(vectors, shift):
    half = server(6, centres=3)
    names = [f"m{number}" for number in range(6)]
    begun = [vectors[0], vectors[2], vectors[4]]
    here, _ = feed(half, at(half, begun), dict(zip(names, vectors, strict=True)))
    there, _ = feed(
        half, at(half, np.array(begun) + shift), dict(zip(names, vectors + shift, strict=True))
    )
    assert here.labels == there.labels
    np.testing.assert_allclose(here.centres + shift, there.centres, atol=1e-9)


@given(
    vectors=arrays(np.float32, (7, 2), elements=st.floats(-1e3, 1e3, width=32)),
    count=st.integers(1, 4),
    seed=st.integers(0, 100),
)
def test_the_sum_of_distances_decreases_to_a_fixed_point(vectors, count, seed):
    half = server(7, centres=count, seed=seed, empty_clusters="keep")
    said = {f"m{number}": vector for number, vector in enumerate(vectors)}
    state, _ = half.apply(half.init(np.zeros(2)), OPEN)
    sums, rows = [], list(vectors.astype(np.float64))
    for _ in range(12):
        state, _ = feed(half, state, said)
        sums.append(float(distances(rows, state.centres).min(axis=1).sum()))
    assert all(after <= one * (1 + 1e-9) + 1e-6 for one, after in pairwise(sums))
    assert sums[-1] == pytest.approx(sums[-2], rel=1e-9, abs=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_a_clustering_step_equals_that_of_scikit_learn(seed):
    """Its ``labels_`` after one step are already those of the next E-step."""
    cluster = pytest.importorskip("sklearn.cluster")
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(12, 3)) + 4 * rng.integers(0, 3, (12, 1))
    begun = points[rng.choice(12, 3, replace=False)]
    said = {f"m{number:02}": row.astype(np.float32) for number, row in enumerate(points)}
    rows = np.stack(list(said.values())).astype(np.float64)
    theirs = cluster.KMeans(3, init=begun, n_init=1, max_iter=1).fit(rows)
    half = server(12, centres=3)
    state, _ = feed(half, at(half, begun), said)
    np.testing.assert_allclose(state.centres, theirs.cluster_centers_, rtol=1e-9, atol=1e-9)
    state, _ = feed(half, state, said)
    assert list(state.labels.values()) == theirs.labels_.tolist()


def test_the_worked_example_equals_scikit_learn():
    cluster = pytest.importorskip("sklearn.cluster")
    points = np.array(list(FIVE.values()))[:, None]
    theirs = cluster.KMeans(2, init=np.array([[0.0], [10.0]]), n_init=1, max_iter=1).fit(points)
    assert theirs.cluster_centers_[:, 0] == pytest.approx([0.5, 23.6666667])
    assert theirs.labels_.tolist() == [0, 0, 0, 0, 1]


class TestSilence:
    """Who is not heard, comes late, or comes back."""

    def run(self, half, rounds, **said):
        state, _ = half.apply(half.init(np.zeros(1)), OPEN)
        for name in said:
            state, _ = half.apply(state, Member(name, present=True))
        reports = []
        for number in range(rounds):
            now = {name: value for name, value in said.items() if name != "c" or not number}
            state, effects = feed(half, state, now)
            late = closed(half.apply(state, Due(state.round, "train"))[1]) if not effects else None
            if late is not None:
                state, effects = half.apply(state, Due(state.round, "train"))
            reports.append(closed(effects).report)
        return state, reports

    def test_the_last_weights_count_for_five_rounds(self):
        half = server(3, least=2, centres=1)
        state, reports = self.run(half, 7, a=0.0, b=3.0, c=9.0)
        assert [report["silent"] for report in reports] == [[]] * 6 + [["c"]]
        averages = [report["clusters"]["0"] for report in reports]
        assert averages == [["a", "b", "c"]] * 6 + [["a", "b"]]
        assert state.centres[0, 0] == pytest.approx(1.5)

    def test_weights_within_the_limit_still_count(self):
        state, _ = self.run(server(3, least=2, centres=1), 6, a=0.0, b=3.0, c=9.0)
        assert state.centres[0, 0] == pytest.approx(4.0)

    def test_an_update_from_an_older_centre_counts_on_arrival(self):
        half = server(2, centres=1)
        state, _ = half.apply(half.init(np.zeros(1)), OPEN)
        late = update(state, "c", 6.0)
        state, _ = feed(half, state, {"a": 0.0, "b": 3.0})
        state, _ = half.apply(state, late)
        assert state.waiting == 1
        state, effects = feed(half, state, {"a": 0.0})
        assert state.centres[0, 0] == pytest.approx(3.0)
        assert closed(effects).report["staleness"] == {"a": 0, "c": 1}

    def test_a_returning_device_gets_the_centre_of_its_cluster(self):
        half = server(5, centres=2)
        state, _ = feed(half, at(half, [0.0, 10.0]), FIVE)
        state, _ = half.apply(state, Member("b", present=False))
        state, effects = half.apply(state, Member("b", present=True))
        assert given_to(effects) == {"b": 0.5}

    @pytest.mark.parametrize(("newcomer", "start"), [("average", 14.4), ("largest", 71 / 3)])
    def test_a_new_device_starts_from_the_configured_model(self, newcomer, start):
        half = server(5, centres=2, newcomer=newcomer)
        state, _ = feed(half, at(half, [0.0, 10.0]), FIVE)
        _, effects = half.apply(state, Member("late", present=True))
        assert given_to(effects) == {"late": pytest.approx(start, rel=1e-6)}

    def test_before_the_first_round_every_device_starts_from_the_same_model(self):
        half = server(2, centres=2)
        state, _ = half.apply(half.init(np.full(1, 7.0)), OPEN)
        for name in "abc":
            state, effects = half.apply(state, Member(name, present=True))
            assert given_to(effects) == {name: 7.0}

    def test_at_the_deadline_fewer_updates_suffice_or_it_is_extended(self):
        half = server(4, least=2, centres=2)
        state, _ = half.apply(half.init(np.zeros(1)), OPEN)
        state, _ = feed(half, state, {"a": 1.0})
        after, (due,) = half.apply(state, Due(1, "train"))
        assert after is state
        assert due.after == 60.0
        state, _ = feed(half, state, {"b": 2.0})
        state, effects = half.apply(state, Due(1, "train"))
        assert closed(effects).moved
        assert tasks(effects).keys() == {"a", "b"}

    @pytest.mark.parametrize(
        "wrong",
        [
            Update("a", 9, 5, np.zeros(1)),
            Update("a", 2, 0, np.zeros(1)),
            Update("a", 2, 1, np.zeros(2)),
            Due(1, "train"),
            Due(2, "else"),
            Member("nobody", present=False),
        ],
        ids=["of the future", "counted", "of another size", "an old deadline", "no ask", "a ghost"],
    )
    def test_a_message_of_another_run_changes_nothing(self, wrong):
        half = server(5, centres=2)
        state, _ = feed(half, at(half, [0.0, 10.0], version=0), FIVE)
        assert half.apply(state, wrong) == (state, ())


class TestRules:
    """A rule decides inside a cluster."""

    def test_a_byzantine_device_inside_a_cluster_is_outvoted(self):
        values = {"a": 0.0, "b": 1.0, "c": 2.0, "x": 40.0, "y": 100.0, "z": 101.0, "w": 102.0}
        half = server(7, "median", centres=2)
        state, _ = feed(half, at(half, [0.0, 100.0]), values)
        assert state.labels["x"] == 0
        assert state.centres[:, 0] == pytest.approx([1.5, 101.0])
        mean = server(7, centres=2)
        other, _ = feed(mean, at(mean, [0.0, 100.0]), values)
        assert other.centres[0, 0] == pytest.approx(10.75)

    def test_a_distant_byzantine_device_gets_its_own_cluster(self):
        values = {"a": 0.0, "b": 1.0, "c": 10.0, "d": 11.0, "liar": 1e6}
        half = server(5, "median", centres=2, seed=3)
        state, _ = half.apply(half.init(np.zeros(1)), OPEN)
        state, _ = feed(half, state, values)
        assert state.clusters[str(state.labels["liar"])] == ("liar",)

    def test_a_cluster_too_small_for_its_rule_keeps_its_centre(self):
        half = server(6, "trimmed_mean", said={"f": 1}, centres=2)
        values = dict(zip("abcdef", (0.0, 1.0, 2.0, 3.0, 4.0, 90.0), strict=True))
        state, effects = feed(half, at(half, [0.0, 100.0]), values)
        assert closed(effects).report["kept"] == {"1": "needs at least 3 rows, got 1"}
        assert state.centres[:, 0] == pytest.approx([2.0, 100.0])

    def test_a_round_without_a_sufficient_cluster_is_abandoned(self):
        settings = SERVERS["fesem"].settings(centres=2)
        strict = multicentre(
            bind("trimmed_mean", f=1), settings.bound(Setup(bind("mean"), settings, Rounds(2)))
        )
        state, few = at(strict, [0.0, 100.0]), {"a": 0.0, "b": 100.0}
        after, effects = feed(strict, state, few)
        note = closed(effects)
        assert not note.moved
        assert "cluster 0: needs at least 3 rows" in note.report["why"]
        assert after.centres is state.centres
        assert after.version == 1
        assert tasks(effects).keys() == {"a", "b"}

    def test_each_cluster_has_its_own_optimiser_state(self):
        half = server(6, "centred_clipping", said={"radius": 1.0}, centres=2)
        values = dict(zip("abcdef", (0.0, 1.0, 2.0, 90.0, 95.0, 100.0), strict=True))
        state = at(half, [0.0, 100.0])
        for _ in range(2):
            state, _ = feed(half, state, values)
        assert state.memories.keys() == {"0", "1"}
        restored = state_codec.rebuild(half.init(np.zeros(1)), state_codec.flatten(state))
        one, _ = feed(half, state, values)
        two, _ = feed(half, restored, values)
        assert state_codec.digest(one) == state_codec.digest(two)


class TestRefusals:
    """What cannot be meant is refused, with its key."""

    @pytest.mark.parametrize(
        ("made", "key"),
        [
            (lambda: server(2, centres=3), "run.settings.centres: expected at most 2"),
            (lambda: server(5, least=2, centres=3), "run.settings.centres: expected at most 2"),
            (
                lambda: server(8, "krum", said={"f": 1}, centres=2),
                "at most 1, for a round may have",
            ),
            (
                lambda: server(8, "fltrust", said={"root": "m"}, centres=2),
                "run.rule.name: expected a rule without a trusted device",
            ),
        ],
        ids=["more centres than answers", "than may be enough", "than rows for a rule", "a root"],
    )
    def test_invalid_settings_are_refused(self, made, key):
        with pytest.raises(SchemaError, match=key):
            made()

    def test_as_many_clusters_as_devices_are_allowed(self):
        assert server(3, centres=3).init(np.zeros(1)).centres.shape == (3, 1)


class TestDistances:
    """What lies near."""

    def test_distances_weigh_all_coordinates_by_default(self):
        spec = ParamSpec.of([("small", (1,)), ("large", (100,))])
        device = np.concatenate([[2.0], np.full(100, 0.3)])
        centres = np.stack([np.zeros(101), np.concatenate([[2.0], np.zeros(100)]) - 0.35])
        for distance, label in (("plain", 0), ("layers", 1)):
            half = server(2, spec=spec, centres=2, distance=distance)
            state, _ = feed(half, at(half, centres), {"a": device, "b": centres[1]})
            assert state.labels["a"] == label, distance

    def test_the_largest_sendable_numbers_give_finite_centres(self):
        half = server(4, centres=2)
        state, _ = half.apply(half.init(np.zeros(3)), OPEN)
        huge = np.full(3, np.finfo(np.float32).max, np.float64)
        answers = {"a": huge, "b": -huge, "c": np.zeros(3), "d": np.ones(3)}
        for _ in range(3):
            state, effects = feed(half, state, answers)
            assert closed(effects).moved
            assert np.isfinite(state.centres).all()
            assert all(np.isfinite(t.arrays["w"]).all() for t in tasks(effects).values())


@pytest.fixture
def pair(consensus):
    """The real halves, one number a device."""

    def make(targets, quorum=None, **settings):
        said = {"centres": 2, "steps": 5, "first_steps": 5, "rate": 0.1} | settings
        half = server(quorum or len(targets), **said)
        return consensus(half, DEVICES["fesem"], targets, start="received")

    return make


class TestBothHalves:
    """Real server half, real device halves."""

    def test_groups_of_devices_find_their_own_model(self, pair):
        fleet = pair(dict(zip("abcd", (0.0, 1.0, 9.0, 10.0), strict=True)))
        for _ in range(25):
            fleet.activate(*"abcd")
        groups = {frozenset(names) for names in fleet.state.clusters.values()}
        assert groups == {frozenset("ab"), frozenset("cd")}
        assert sorted(fleet.state.centres[:, 0]) == pytest.approx([0.5, 9.5], abs=1e-2)

    def test_the_penalty_is_the_squared_distance(self, pair):
        fleet = pair({"a": 4.0, "b": 4.0}, first_steps=2, rate=0.1, mu=0.3, centres=1)
        update = fleet.answer("a")  # from 0: w1 = .4, w2 = .4 - .1 (.4 - 4 + 2 .3 .4)
        assert update.vector[0] == pytest.approx(0.4 - 0.1 * (0.4 - 4.0 + 0.6 * 0.4), rel=1e-6)

    def test_the_first_round_trains_longer_from_the_common_model(self, pair):
        fleet = pair({"a": 1.0, "b": 9.0}, first_steps=20, steps=3, mu=0.25)
        first = {name: task.values for name, task in fleet.tasks.items()}
        assert {name: values["steps"] for name, values in first.items()} == {"a": 20.0, "b": 20.0}
        fleet.activate("a", "b")
        asked = fleet.tasks["a"]
        assert (asked.values["steps"], asked.values["prox"]) == (3.0, 0.5)
        assert asked.arrays["w"][0] != fleet.tasks["b"].arrays["w"][0]

    def test_a_participating_device_keeps_its_model_at_the_end(self, pair):
        fleet = pair({"a": 0.0, "b": 9.0})
        fleet.activate("a", "b")
        fleet.activate("a", "b")
        final = Task("_all", 9, END, base=2, arrays={"w": np.full(1, 4.5, np.float32)})
        half, state = fleet.halves["b"], fleet.states["b"]
        assert half.apply(state, final) == (state, ())
        fresh = half.init(np.zeros(1, np.float32))
        after, effects = half.apply(fresh, final)
        assert (float(after.p[0]), effects) == (4.5, ())
        assert half.model(after)["p"] is after.p

    def test_restarts_on_either_side_change_no_bit(self, pair):
        targets = dict(zip("abcd", (0.0, 1.0, 9.0, 10.0), strict=True))
        calm, one = pair(targets), pair(targets)
        for number in range(6):
            for name in "abcd":
                calm.activate(name)
                one.restart()
                one.reboot("abcd"[number % 4])
                one.activate(name)
        assert state_codec.digest(one.state) == state_codec.digest(calm.state)
        assert [one.w(name) for name in "abcd"] == [calm.w(name) for name in "abcd"]

    def test_a_saved_device_state_is_restored(self, pair):
        fleet = pair({"a": 0.0, "b": 9.0})
        fleet.activate("a", "b")
        saved = fleet.states["a"].arrays()
        again = ClusterState.from_arrays(saved)
        assert (again.answered, float(again.p[0])) == (1, fleet.w("a"))

    def test_after_the_last_round_no_device_is_busy(self, pair):
        fleet = pair({"a": 0.0, "b": 9.0})
        half = server(2, centres=2, limit=1)
        state, _ = half.apply(half.init(np.zeros(1)), OPEN)
        state, effects = feed(half, state, {"a": 0.0, "b": 9.0})
        assert closed(effects).report["stop"]
        assert not tasks(effects)
        assert half.apply(state, Member("a", present=True))[1] == ()
        assert half.model(state)["p"].tolist() == [4.5]
        assert fleet.state.version == 0
