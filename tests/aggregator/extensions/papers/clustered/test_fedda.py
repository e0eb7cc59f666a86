"""FedDA's clusters from weekly profiles, and its quasi-global model of averaged weeks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.extensions.papers.clustered.fedda import shape_of, traffic_clusters
from aggregator.methods import METHODS, OPEN, Clustered, Rounds, Setup
from aggregator.rules import bind
from aggregator.store import state_codec
from edge_sdk.app.schema import SchemaError
from edge_sdk.extensions.papers.contracts import WEEK_PARTS
from edge_sdk.protocol.contract.method import Closed, Task, Update
from edge_sdk.protocol.contract.parameter_layout import ParamSpec

ONE = ParamSpec.of([("w", (2,))])
HOUR = np.arange(28)
DAY, NIGHT = np.sin(HOUR * np.pi / 2), np.cos(HOUR * np.pi / 2)


def half_of(method="fedda", quorum=2, **settings):
    row = METHODS[method]
    return row.half(Setup(bind("mean"), row.settings(**settings), Rounds(quorum=quorum), ONE))


def started(half, w=(0.0, 0.0)):
    return half.apply(half.init(np.array(w, np.float32)), OPEN)


def closed(half, state, answers, profiles=None):
    effects = ()
    for name, vector in answers.items():
        found = (profiles or {}).get(name)
        numbers = {} if found is None else dict(zip(WEEK_PARTS, map(float, found), strict=True))
        told = Update(name, state.round, state.version, np.asarray(vector, np.float64), numbers)
        state, effects = half.apply(state, told)
    return state, effects


def numbers_of(effects):
    (task,) = (effect for effect in effects if isinstance(effect, Task))
    return task.values


shapes = st.lists(st.floats(0.0, 10.0), min_size=28, max_size=28)


@given(
    profiles=st.dictionaries(st.sampled_from("abcdefgh"), shapes, min_size=1),
    count=st.integers(1, 5),
    seed=st.integers(0, 9),
)
def test_every_client_has_one_cluster_whatever_the_order(profiles, count, seed):
    given_ = {name: np.array(values) for name, values in profiles.items()}
    labels = traffic_clusters(given_, count, seed)
    again = traffic_clusters(dict(reversed(given_.items())), count, seed)
    assert labels == again
    assert labels.keys() == given_.keys()
    used = {int(x.removeprefix("traffic-")) for x in labels.values()}
    assert used == set(range(len(used)))
    assert len(used) <= min(count, len(given_))


@given(level=st.floats(-5.0, 5.0), scale=st.floats(0.1, 50.0), seed=st.integers(0, 9))
def test_clusters_follow_shapes_and_neither_levels_nor_sizes(level, scale, seed):
    wobble = np.random.default_rng(seed).normal(0, 0.05, (6, 28))
    profiles = {
        name: (DAY if name in "ace" else NIGHT) * (scale if name in "ab" else 1.0) + level
        for name in "abcdef"
    }
    noisy = {name: p + wobble[i] * np.ptp(p) for i, (name, p) in enumerate(profiles.items())}
    labels = traffic_clusters(noisy, 2, seed)
    assert len({labels[x] for x in "ace"}) == len({labels[x] for x in "bdf"}) == 1
    assert labels["a"] != labels["b"]


def test_a_flat_profile_has_no_shape():
    assert shape_of(np.full(28, 3.0)).tolist() == [0.0] * 28
    assert traffic_clusters({}, 3, 0) == {}


def test_profiles_of_the_first_round_make_the_clusters_and_are_dropped():
    half = half_of(quorum=3, clustering="profiles", cluster_count=2)
    state, effects = started(half)
    assert numbers_of(effects) | {"week": 168.0, "averaged": 0.0, "profile": 1.0} == numbers_of(
        effects
    )
    said = {"a": [-1.0, 0.0], "b": [0.0, -2.0], "c": [-3.0, 0.0]}
    state, effects = closed(half, state, said, {"a": DAY, "b": 3 * DAY + 1, "c": NIGHT})
    assert "profile" not in numbers_of(effects)
    assert state.w == pytest.approx([4 / 3, 2 / 3])  # a plain mean
    assert isinstance(state, Clustered)
    assert state.clusters == {"traffic-0": ("a", "b"), "traffic-1": ("c",)}
    assert not any(name.startswith("profile-") for name in state.kept)


def test_later_rounds_attend_inside_the_made_clusters_as_inside_configured_ones():
    made = half_of(quorum=3, clustering="profiles", cluster_count=2)
    named = half_of(quorum=3, clusters={"north": ("a", "b"), "south": ("c",)})
    first = {name: [0.0, 0.0] for name in "abc"}
    one, _ = closed(made, started(made)[0], first, {"a": DAY, "b": DAY, "c": NIGHT})
    two, _ = started(named)
    rng = np.random.default_rng(1)
    for _ in range(4):
        said = {name: rng.normal(size=2) for name in "abc"}
        (one, _), (two, _) = closed(made, one, said), closed(named, two, said)
        assert one.w == pytest.approx(two.w, rel=1e-12)


def test_a_client_without_a_profile_is_unlisted():
    half = half_of(clustering="profiles", cluster_count=2)
    state, _ = closed(half, started(half)[0], {"a": [0, 0], "b": [0, 0]}, {"a": DAY})
    assert state.clusters == {"traffic-0": ("a",)}
    state, _ = closed(half, state, {"a": [-1.0, 0.0], "b": [0.0, -1.0]})
    assert set(state.memory) >= {"cluster-traffic-0", "cluster-unlisted"}


def test_part_of_a_profile_counts_as_none():
    half = half_of(clustering="profiles")
    state, _ = started(half)
    told = Update("a", state.round, state.version, np.zeros(2), {"week_00": 1.0})
    state, _ = half.apply(state, told)
    assert state.kept == {}


def test_rounds_on_averaged_weeks_are_plain_averaging_and_then_pull_towards_their_model():
    half = half_of(quasi="weeks", quasi_rounds=2, rho=0.1)
    plain = half_of("fedavg")
    (state, effects), (other, _) = started(half), started(plain)
    for _ in range(2):
        assert numbers_of(effects)["averaged"] == 1.0
        said = {"a": [-1.0, 0.5], "b": [0.0, -2.0]}
        state, effects = closed(half, state, said)
        other, _ = closed(plain, other, said)
        assert state.w == pytest.approx(other.w, rel=1e-12)
    assert "averaged" not in numbers_of(effects)
    quasi = np.array(state.w)
    state, _ = closed(half, state, {"a": quasi - (quasi - 1.0), "b": quasi - (quasi - 1.0)})
    # both devices trained to w - 1 = quasi - 1; algorithms.md 9.8 with one tensor (b = 1)
    assert state.w == pytest.approx(quasi - 1.0)
    state, _ = closed(half, state, {"a": [0.0, 0.0], "b": [0.0, 0.0]})
    assert state.w == pytest.approx(quasi - 1.0 + 0.1, abs=1e-12)


def test_the_start_stays_the_quasi_global_model_while_profiles_are_collected():
    half = half_of(quasi="start", clustering="profiles", cluster_count=1, rho=0.1)
    state, _ = started(half, (1.0, 1.0))
    state, _ = closed(half, state, {"a": [1, 1], "b": [1, 1]}, {"a": DAY, "b": DAY})
    assert state.w == pytest.approx([0.0, 0.0])
    state, _ = closed(half, state, {"a": [-1.0, 0.0], "b": [0.0, -2.0]})
    assert state.w == pytest.approx([0.36894142, 1.56211716], abs=1e-8)


def test_a_restart_between_any_two_updates_changes_no_bit():
    half = half_of(quasi="weeks", quasi_rounds=2, clustering="profiles", cluster_count=2)
    rng = np.random.default_rng(4)
    straight, _ = started(half)
    stopped = straight
    for _ in range(5):
        said = {name: rng.normal(size=2) for name in "ab"}
        profiles = {"a": DAY, "b": NIGHT}
        straight, effects = closed(half, straight, said, profiles)
        for name in "ab":
            fresh = half.init(np.zeros(2, np.float32))
            stopped = state_codec.rebuild(fresh, state_codec.flatten(stopped))
            stopped, _ = closed(half, stopped, {name: said[name]}, profiles)
        assert [x.moved for x in effects if isinstance(x, Closed)] == [True]
    assert state_codec.digest(straight) == state_codec.digest(stopped)
    assert stopped.clusters == {"traffic-0": ("a",), "traffic-1": ("b",)}


def test_configured_clusters_beside_profiles_are_refused():
    with pytest.raises(SchemaError, match=r"^run\.settings\.clusters: expected none beside"):
        half_of(clustering="profiles", clusters={"north": ("a",)})
