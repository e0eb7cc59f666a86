"""IFCA: worked numbers, both halves together, rules inside clusters, and what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from aggregator.extensions.papers.clustered.ifca import first_centres
from aggregator.methods import METHODS as SERVERS
from aggregator.methods import OPEN, Rounds, Setup
from aggregator.rules import bind
from aggregator.store import state_codec
from edge_sdk.app.schema import SchemaError
from edge_sdk.protocol.contract.method import END, Closed, Member, Task, Update
from tests.pairs.line import SPEC, device

START = np.zeros(2, np.float32)


def server(quorum=2, rule="mean", said=None, **settings):
    row = SERVERS["ifca"]
    rule = bind(rule, **(said or {}))
    return row.half(Setup(rule, row.settings(**settings), Rounds(quorum=quorum), SPEC))


def with_centres(*centres, **values):
    arrays = {"centres": np.array(centres, np.float32).reshape(-1, 1)}
    return Task("a", 1, "train", values={"steps": 1.0, "rate": 0.1, **values}, arrays=arrays)


def begun(half, names="ab", w=1.0):
    state = half.init(np.array([w], np.float32))
    effects = ()
    for event in (*(Member(name, present=True) for name in names), OPEN):
        state, effects = half.apply(state, event)
    return state, {one.to: one for one in effects if isinstance(one, Task)}


def test_a_device_trains_from_the_centre_with_the_least_loss():
    """Loss (phi + psi - 4)^2 with psi 0: 3.5 is nearer than 0 and 9; its slope there is -1."""
    half = device("ifca", "a", 4.0)
    state, (update,) = half.apply(half.init(START), with_centres(0.0, 3.5, 9.0))
    assert update.values["cluster"] == 1.0
    assert update.vector.tolist() == pytest.approx([3.6])
    assert state.p.tolist() == pytest.approx([3.6, 0.1])


def test_equal_losses_choose_the_first_and_a_centre_that_is_not_finite_is_never_chosen():
    half = device("ifca", "a", 4.0)
    assert half.apply(half.init(START), with_centres(3.0, 5.0))[1][0].values["cluster"] == 0.0
    found = half.apply(half.init(START), with_centres(np.nan, 9.0))[1]
    assert found[0].values["cluster"] == 1.0


def test_a_task_without_centres_changes_nothing():
    half = device("ifca", "a", 4.0)
    state = half.init(START)
    plain = Task("a", 1, "train", values={"steps": 1.0, "rate": 0.1}, arrays={"w": np.zeros(1)})
    assert half.apply(state, plain) == (state, ())


def test_a_device_that_answered_keeps_its_model_at_the_end_and_another_adopts():
    half = device("ifca", "a", 4.0)
    over = Task("a", 9, END, arrays={"w": np.array([7.0], np.float32)})
    after, _ = half.apply(half.init(START), with_centres(3.5))
    assert half.apply(after, over)[0] is after
    assert half.apply(half.init(START), over)[0].p[0] == 7.0


def test_each_centre_moves_to_the_mean_of_its_answers():
    half = server(quorum=3, centres=3, spread=0.0)
    state, tasks = begun(half, "abc")
    assert tasks["a"].arrays["centres"].tolist() == [[1.0]] * 3
    for name, vector, cluster in (("a", 2.0, 0), ("b", 4.0, 0), ("c", 9.0, 2)):
        said = Update(name, 1, 0, np.array([vector]), {"cluster": float(cluster)})
        state, effects = half.apply(state, said)
    assert state.centres.ravel().tolist() == [3.0, 1.0, 9.0]
    assert state.w.tolist() == pytest.approx([5.0])
    report = next(one.report for one in effects if isinstance(one, Closed))
    assert report["clusters"] == {"0": ["a", "b"], "1": [], "2": ["c"]}


def test_a_cluster_that_does_not_exist_counts_nowhere():
    half = server(quorum=2, centres=2, spread=0.0)
    state, _ = begun(half)
    for name, cluster in (("a", 1), ("b", 200)):
        said = Update(name, 1, 0, np.array([5.0]), {"cluster": float(cluster)})
        state, _ = half.apply(state, said)
    assert state.centres.ravel().tolist() == [1.0, 5.0]
    assert state.clusters == {"0": (), "1": ("a",)}


def test_a_rule_counts_inside_each_cluster():
    half = server(quorum=4, rule="median", centres=2, spread=0.0)
    state, _ = begun(half, "abcd")
    for name, vector, cluster in (("a", 2.0, 0), ("b", 3.0, 0), ("c", 1e6, 0), ("d", 7.0, 1)):
        said = Update(name, 1, 0, np.array([vector]), {"cluster": float(cluster)})
        state, _ = half.apply(state, said)
    assert state.centres.ravel().tolist() == [3.0, 7.0]


def test_two_kinds_of_devices_find_their_centres():
    aims = {"a": 4.0, "b": 4.2, "c": -4.0, "d": -4.2}
    halves = {name: device("ifca", name, aim) for name, aim in aims.items()}
    states = {name: half.init(START) for name, half in halves.items()}
    half = server(quorum=4, centres=2, spread=1.0, steps=2, rate=0.05)
    state, tasks = begun(half, "abcd", w=0.5)
    for _ in range(20):
        for name in aims:
            states[name], (update,) = halves[name].apply(states[name], tasks[name])
            state, effects = half.apply(state, update)
            tasks |= {one.to: one for one in effects if isinstance(one, Task)}
    groups = sorted(state.clusters.values())
    assert groups == [("a", "b"), ("c", "d")]


def test_the_state_is_saved_and_continues():
    half = server(quorum=2, centres=2)
    state, _ = begun(half)
    state, _ = half.apply(state, Update("a", 1, 0, np.array([2.0]), {"cluster": 0.0}))
    saved = state_codec.rebuild(half.init(START[:1]), state_codec.flatten(state))
    last = Update("b", 1, 0, np.array([4.0]), {"cluster": 1.0})
    assert (
        half.apply(saved, last)[0].centres.tolist() == half.apply(state, last)[0].centres.tolist()
    )


def test_the_first_centres_differ_by_the_seed_alone():
    w = np.array([3.0, -4.0])
    one, again, other = (first_centres(w, 3, 0.5, seed) for seed in (1, 1, 2))
    assert one.tolist() == again.tolist() != other.tolist()
    assert one[0].tolist() == w.tolist()


def test_a_trusted_device_is_refused():
    with pytest.raises(SchemaError, match="without a trusted device"):
        server(rule="fltrust", said={"root": "a"})
