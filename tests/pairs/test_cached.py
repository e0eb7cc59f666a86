"""Cached updates: worked numbers, fast liars, delay limit, restart, and both real halves on a clock."""

from __future__ import annotations

import numpy as np
import pytest

from aggregator.methods import METHODS as SERVERS
from aggregator.methods import OPEN, Rounds, Setup
from aggregator.rules import bind
from aggregator.store import state_codec
from edge_sdk.app.schema import SchemaError
from edge_sdk.protocol.codec import pack_leaves, unpack_leaves
from edge_sdk.protocol.contract.method import Closed, Due, Member, Task, Update
from tests.pairs.line import SPEC, device

pytestmark = pytest.mark.extension


def server(quorum=1, rule="mean", parameters=None, **settings):
    row = SERVERS["cached"]
    bound = bind(rule, **(parameters or {}))
    rounds = Rounds(quorum=quorum, deadline=60.0)
    return row.half(Setup(bound, row.settings(**settings), rounds, SPEC))


def begun(half, names="abc", w=0.0):
    state, effects = half.init(np.array([w], np.float32)), ()
    for event in (*(Member(name, present=True) for name in names), OPEN):
        state, effects = half.apply(state, event)
    return state, effects


def update(sender, base, value, turn=None):
    return Update(sender, base + 1 if turn is None else turn, base, np.array([value]), {"n": 1.0})


def feed(half, state, *events):
    effects = ()
    for event in events:
        state, more = half.apply(state, event)
        effects += more
    return state, effects


def test_each_answer_moves_by_its_part_of_the_mean_of_all_newest():
    """a: 3 / 1; then a and b: (3 + 1) / 2 / 2; then b again: (3 - 5) / 2 / 2."""
    half = server(server_rate=1.0)
    state, _ = begun(half)
    found = []
    for said in (update("a", 0, 3.0), update("b", 0, 1.0), update("b", 2, -5.0)):
        state, _ = half.apply(state, said)
        found.append(float(state.w[0]))
    assert found == [-3.0, -4.0, -3.5]


def test_with_answers_of_all_it_is_federated_averaging():
    avg = SERVERS["fedavg"]
    rounds, vectors = Rounds(quorum=3), {"a": 0.1, "b": -7.3, "c": 2.0}
    plain = avg.half(Setup(bind("mean"), avg.settings(), rounds, SPEC))
    said = [update(name, 0, float(np.float32(x))) for name, x in vectors.items()]
    one, _ = feed(server(quorum=3), begun(server(quorum=3))[0], *said)
    two, _ = feed(plain, begun(plain)[0], *said)
    assert one.version == two.version == 1
    assert one.w == pytest.approx(two.w, rel=1e-6)


def test_a_device_that_answers_twenty_times_as_often_is_one_row():
    """The median of 1, 1 and a liar's number is 1, whoever fires the move."""
    half = server(rule="median", parameters={"f": 1}, min_rows=3)
    state, _ = begun(half)
    state, _ = feed(half, state, update("a", 0, 1.0), update("b", 0, 1.0), update("c", 0, 1e9))
    assert state.w.tolist() == [-1.0]
    for version in range(1, 20):
        state, effects = half.apply(state, update("c", version, -1e9))
        assert state.w[0] == pytest.approx(-1.0 - version / 3)
        assert next(x for x in effects if isinstance(x, Task)).to == "c"


def test_nothing_moves_before_enough_devices_are_known_and_the_deadline_waits_on():
    half = server(min_rows=3)
    state, _ = begun(half)
    state, effects = feed(half, state, update("a", 0, 1.0), update("b", 0, 1.0))
    assert (state.version, effects) == (0, ())
    state, (due,) = half.apply(state, Due(1, "train"))
    assert (state.version, due) == (0, Due(1, "train", after=60.0))
    state, effects = half.apply(state, update("c", 0, 1.0))
    assert state.w.tolist() == [-1.0]
    assert {x.to for x in effects if isinstance(x, Task)} == {"a", "b", "c"}


def test_a_difference_beyond_the_delay_limit_counts_no_more_until_its_device_answers():
    half = server(stale_after=2)
    state, _ = begun(half, "ab")
    state, _ = half.apply(state, update("b", 0, 8.0))
    reports = []
    for version in range(1, 5):
        state, effects = half.apply(state, update("a", version, 0.0))
        reports.append(next(x.report for x in effects if isinstance(x, Closed)))
    assert [one["rows"] for one in reports] == [["a", "b"], ["a", "b"], ["a"], ["a"]]
    assert [one["silent"] for one in reports] == [[], [], ["b"], []]
    late, _ = half.apply(state, update("b", 1, 8.0, turn=2))
    assert sorted(late.held) == ["a", "b"]


def test_a_replayed_or_unknown_version_changes_nothing():
    half = server()
    state, _ = begun(half)
    state, _ = half.apply(state, update("a", 0, 3.0))
    for said in (update("a", 0, 3.0), update("a", 5, 1.0), update("b", 5, 1.0)):
        assert half.apply(state, said) == (state, ())


def test_a_trusted_device_that_is_not_known_moves_nothing():
    half = server(rule="fltrust", parameters={"root": "c"}, min_rows=2)
    state, _ = begun(half)
    state, effects = feed(half, state, update("a", 0, 1.0), update("b", 0, 1.0))
    closed = next(x for x in effects if isinstance(x, Closed))
    assert not closed.moved
    assert "trusted" in closed.report["why"]
    assert state.w.tolist() == [0.0]


def test_a_rule_that_needs_more_rows_is_refused():
    with pytest.raises(SchemaError, match=r"min_rows: expected at least 5, got 4"):
        server(rule="median", parameters={"f": 2}, min_rows=4)


def on_a_clock(half, aims, seconds, moves, kept=lambda state: state):
    """Drive both halves; each device answers after its own seconds. Return the models of all moves."""
    devices = {name: device("cached", name, aim) for name, aim in aims.items()}
    states = {name: one.init(np.zeros(2, np.float32)) for name, one in devices.items()}
    state, effects = begun(half, sorted(aims))
    due, found = {}, []

    def ask(effects, now):
        for task in (x for x in effects if isinstance(x, Task)):
            states[task.to], answers = devices[task.to].apply(states[task.to], task)
            due[task.to] = (now + seconds[task.to], answers[0])

    ask(effects, 0.0)
    while len(found) < moves:
        name = min(due, key=lambda x: (due[x][0], x))
        now, said = due.pop(name)
        state, effects = half.apply(kept(state), said)
        found += [state.w.tobytes()] * any(isinstance(x, Closed) for x in effects)
        ask(effects, now)
    return state, found


AIMS = {"a": 4.0, "b": 4.2, "c": 3.8, "d": -900.0, "e": 4.1}
SECONDS = {"a": 20.0, "b": 9.0, "c": 4.0, "d": 1.0, "e": 2.0}
MEDIAN = {"rule": "median", "parameters": {"f": 1}, "min_rows": 5, "steps": 1, "rate": 0.05}


def test_speeds_of_one_to_twenty_and_the_fastest_lies():
    """Model and personal part meet the honest aims together; the liar's alone is 900 away."""
    state, _ = on_a_clock(server(**MEDIAN), AIMS, SECONDS, 300)
    assert 0.5 < state.w[0] < 4.5


def test_a_restart_at_every_event_changes_no_bit():
    half = server(**MEDIAN)
    first = np.zeros(1, np.float32)

    def restarted(state):
        leaves = pack_leaves(dict(state_codec.flatten(state)))
        return state_codec.rebuild(half.init(first), unpack_leaves(leaves))

    _, straight = on_a_clock(half, AIMS, SECONDS, 60)
    _, again = on_a_clock(half, AIMS, SECONDS, 60, restarted)
    assert straight == again
    assert len(set(straight)) == 60
