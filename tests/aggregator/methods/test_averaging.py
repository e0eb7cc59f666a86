"""Rounds of the averaging family, event by event."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.methods import METHODS, OPEN, Rounds, Setup
from aggregator.methods.averaging import averaging
from aggregator.methods.base.round_machine import Averaging
from aggregator.rules import RuleVerdict, TooFewRows, bind
from edge_sdk.protocol.contract.method import (
    ALL,
    CONTRACTS,
    Closed,
    Due,
    Member,
    Signal,
    Task,
    Update,
    answered,
)
from edge_sdk.shared_math.fedavg import server_sgd


def half_of(rounds, rule=None, optimiser=None, values=None):
    return averaging(
        rule or bind("mean"),
        Averaging(optimiser or server_sgd(1.0), rounds, values or {"steps": 1.0}),
    )


def started(half, w=(0.0,)):
    state, effects = half.apply(half.init(np.array(w, np.float32)), OPEN)
    return state, effects


def answer(state, sender, vector, **changes):
    vector = np.atleast_1d(np.array(vector, np.float32))
    facts = {"round": state.round, "base": state.version, "values": {"n": 1.0}} | changes
    return Update(sender, vector=vector, **facts)


def feed(half, state, *events):
    effects = ()
    for event in events:
        state, more = half.apply(state, event)
        effects += more
    return state, effects


def test_opening_asks_everybody_and_sets_the_deadline():
    state, (task, due) = started(half_of(Rounds(quorum=2, deadline=60)), (1.5,))
    assert (task.to, task.round, task.ask, task.base, task.values) == (
        ALL,
        1,
        "train",
        0,
        {"steps": 1.0},
    )
    assert task.arrays["w"].dtype == np.float32
    assert task.arrays["w"] == [1.5]
    assert due == Due(1, "train", after=60)
    assert half_of(Rounds()).apply(state, OPEN) == (state, ())


def test_quorum_closes_at_once_and_opens_the_next():
    half = half_of(Rounds(quorum=3, weighting="samples"))
    state, _ = started(half)
    updates = [answer(state, name, -x, values={"n": n, "loss": x})
               for name, x, n in (("a", 1, 1), ("b", 2, 1), ("c", 4, 2))]  # fmt: skip
    state, (closed, task, due) = feed(half, state, *updates)
    assert half.model(state)["p"] == [2.75]
    assert (closed.round, closed.version, closed.moved) == (1, 1, True)
    assert closed.report["cohort"] == ["a", "b", "c"]
    assert closed.report["weights"] == {"a": 0.25, "b": 0.25, "c": 0.5}
    assert closed.report["norms"] == {"a": 1.0, "b": 2.0, "c": 4.0}
    assert closed.report["loss"] == pytest.approx(7 / 3)
    assert (task.round, task.base) == (2, 1)
    assert due.round == 2


@given(order=st.permutations(range(5)))
def test_order_of_arrival_does_not_reach_the_model(order):
    half = half_of(Rounds(quorum=5))
    state, _ = started(half, (0.0, 0.0))
    vectors = [(1e-8 * i, 1e8 / (i + 1)) for i in range(5)]
    state, _ = feed(half, state, *(answer(state, f"m{i}", vectors[i]) for i in order))
    straight, _ = started(half, (0.0, 0.0))
    straight, _ = feed(half, straight, *(answer(straight, f"m{i}", vectors[i]) for i in range(5)))
    assert state.w.tobytes() == straight.w.tobytes()


@pytest.mark.parametrize("present", [0, 1, 2, 3])
def test_deadline_with_none_too_few_enough_and_all(present):
    half = half_of(Rounds(quorum=4, least=2))
    state, _ = started(half)
    state, _ = feed(half, state, *(answer(state, f"m{i}", -1) for i in range(present)))
    state, (closed, task, _) = half.apply(state, Due(1, "train"))
    assert closed.moved == (present >= 2)
    assert (state.version, state.round, task.base) == (int(present >= 2), 2, int(present >= 2))
    assert half.model(state)["p"] == [float(present >= 2)]
    if present < 2:
        assert closed.report["why"] == f"{present} of 2 answers"


def test_an_abandoned_round_uses_nobodys_answer_ever():
    half = half_of(Rounds(quorum=2))
    state, _ = started(half)
    state, _ = feed(half, state, answer(state, "liar", 1e6), Due(1, "train"))
    assert (state.round, state.version, dict(state.pending)) == (2, 0, {})
    state, _ = feed(half, state, answer(state, "a", -1), answer(state, "b", -3))
    assert half.model(state)["p"] == [2.0]


@pytest.mark.parametrize(
    "change",
    [{"round": 0}, {"round": 2}, {"base": 1}, {"vector": np.zeros(2, np.float32)}],
    ids=str,
)
def test_what_belongs_elsewhere_changes_nothing(change):
    half = half_of(Rounds(quorum=1))
    state, _ = started(half)
    facts = {"round": 1, "base": 0, "vector": np.ones(1, np.float32)} | change
    assert half.apply(state, Update("a", **facts)) == (state, ())


def test_one_client_is_one_row_and_its_first_answer_counts():
    half = half_of(Rounds(quorum=2))
    state, _ = started(half)
    state, effects = feed(half, state, answer(state, "a", -1), answer(state, "a", -100))
    assert effects == ()
    state, _ = feed(half, state, answer(state, "b", -1))
    assert half.model(state)["p"] == [1.0]


def test_other_events_and_old_deadlines_change_nothing():
    half = half_of(Rounds(quorum=1))
    state, _ = started(half)
    for event in (
        Member("a", present=True),
        Due(7, "train"),
        Due(1, "other"),
        Signal("a", 1, "encode", 0, np.zeros(1)),
        Task(ALL, 1, "train"),
        Closed(1, 1, moved=True),
    ):
        assert half.apply(state, event) == (state, ())


def test_the_last_round_says_stop_and_opens_nothing():
    half = half_of(Rounds(quorum=1, limit=2))
    state, _ = started(half)
    state, (closed, *_) = feed(half, state, answer(state, "a", -1))
    assert closed.report["stop"] is False
    state, effects = feed(half, state, answer(state, "a", -1))
    (closed,) = effects
    assert closed.report["stop"] is True
    assert not state.is_open
    assert half.apply(state, Due(2, "train")) == (state, ())
    assert half.apply(state, answer(state, "b", -1)) == (state, ())


def test_a_rule_that_has_too_few_rows_abandons_by_name():
    def picky(rows, _shares, _memory):
        if len(rows) < 3:
            raise TooFewRows(needed=3, got=len(rows))
        return RuleVerdict(rows.values[0])

    half = half_of(Rounds(quorum=2), rule=picky)
    state, _ = started(half)
    state, (closed, *_) = feed(half, state, answer(state, "a", -1), answer(state, "b", -1))
    assert not closed.moved
    assert closed.report["why"] == "needs at least 3 rows, got 2"
    assert half.model(state)["p"] == [0.0]


def test_a_step_out_of_the_finite_numbers_is_not_taken():
    half = half_of(Rounds(quorum=2))
    state, _ = started(half, (3e38,))
    state, (closed, *_) = feed(half, state, answer(state, "a", -3e38), answer(state, "b", -3e38))
    assert not closed.moved
    assert half.model(state)["p"] == [np.float32(3e38)]


def test_one_device_is_followed_to_its_model():
    half = half_of(Rounds(quorum=1))
    state, _ = started(half, (0.1, -7.0))
    for trained in ((0.2, 1e-3), (-5.0, 3.0)):
        received = half.model(state)["p"]
        state, _ = feed(half, state, answer(state, "a", received - np.array(trained, np.float32)))
        np.testing.assert_allclose(half.model(state)["p"], trained, atol=1e-6)


def test_no_steps_no_change():
    half = half_of(Rounds(quorum=1))
    state, _ = started(half, (0.3,))
    state, _ = feed(half, state, answer(state, "a", 0.0))
    assert half.model(state)["p"] == [np.float32(0.3)]


FAMILY = ("fedsgd", "fedavg", "fedprox", "fedavgm", "fedadam")


def test_methods_have_the_contracts_keys():
    assert METHODS.keys() == CONTRACTS.keys()


@pytest.mark.parametrize("name", FAMILY)
def test_tasks_carry_exactly_the_numbers_of_the_contract(name):
    method, (ask_name, ask) = METHODS[name], answered(CONTRACTS[name])
    half = method.half(Setup(bind("mean"), method.settings()))
    _, (task, _) = started(half)
    numbers = {number.name: number for number in ask.numbers}
    assert task.ask == ask_name
    assert task.values.keys() <= numbers.keys()
    assert all(numbers[key].admits(value) for key, value in task.values.items())
    assert task.arrays.keys() == set(ask.down)


def test_a_gradient_is_subtracted_at_the_rate():
    method = METHODS["fedsgd"]
    half = method.half(Setup(bind("mean"), method.settings(rate=0.5), Rounds(quorum=2)))
    state, _ = started(half, (1.0,))
    state, _ = feed(half, state, answer(state, "a", 1.0), answer(state, "b", 3.0))
    assert half.model(state)["p"] == [0.0]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"beta": 0.9}, (0.275, 0.6225, 0.88525)),
        ({"beta": 0.9, "momentum_form": "heavy_ball"}, (2.75, 6.225, 8.8525)),
    ],
)
def test_momentum_reaches_the_model_through_rounds(settings, expected):
    method = METHODS["fedavgm"]
    half = method.half(Setup(bind("mean"), method.settings(**settings)))
    state, _ = started(half)
    path = []
    for delta in (-2.75, -1.0, 0.5):
        state, _ = feed(half, state, answer(state, "a", delta))
        path.append(float(half.model(state)["p"][0]))
    assert path == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [{"quorum": 0}, {"quorum": 2, "least": 3}, {"deadline": 0}, {"cap": 0.5}, {"limit": 0}],
    ids=str,
)
def test_rounds_that_cannot_be_meant_are_refused(wrong):
    with pytest.raises(ValueError, match=r"expected"):
        Rounds(**wrong)
