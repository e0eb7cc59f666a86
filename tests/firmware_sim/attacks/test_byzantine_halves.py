"""A liar's half: what is twisted, what is not, and that a repeat lies the same."""

from __future__ import annotations

import numpy as np
import pytest

from edge_sdk.protocol.contract.method import ALL, Due, Half, Signal, Task, Update
from firmware_sim.attacks import bind
from firmware_sim.attacks.byzantine_halves import ByzantineHalves
from firmware_sim.attacks.coalition import ALONE, Coalition

RECEIVED = np.array([5.0, 5.0], np.float32)
TRAINED = np.array([4.0, 6.0], np.float32)


def honest(_local):
    """A half that answers the difference, and says something on the way."""

    def apply(state, event):
        if not isinstance(event, Task):
            return state, ()
        vector = RECEIVED - TRAINED + np.float32(event.round)
        said = Signal("a", event.round, "feat", 0, np.ones(2, np.float32))
        return state + 1, (said, Update("a", event.round, event.base, vector, {"loss": 0.5}))

    return Half(lambda _w: 0, apply, model=lambda _state: {})


def attacker(attack, *, options=None, **given):
    coalition = Coalition(frozenset("b"), frozenset("a"), 1.0, lambda: 0.0)
    return ByzantineHalves("a", bind(attack, options or {}), coalition, **given)


def said(one, of_round, method="fedavg"):
    half = one._attacking(method, honest)(None)
    task = Task(ALL, of_round, "train", arrays={"w": RECEIVED})
    state, effects = half.apply(0, task)
    assert state == 1, "its own state is that of an honest device"
    return effects


def test_an_attack_changes_the_vector_and_not_the_numbers():
    signal, update = said(attacker("flipping", options={"target": "update"}), 1)
    assert update.vector.tolist() == [-2.0, 0.0]
    assert update.vector.dtype == np.float32
    assert update.values == {"loss": 0.5}
    assert signal.array.tolist() == [1, 1]


def test_only_signal_attacks_change_signals():
    signal, update = said(attacker("signal_scale", options={"factor": "-3"}), 1)
    assert signal.array.tolist() == [-3, -3]
    assert update.vector.tolist() == [2.0, 0.0]


@pytest.mark.parametrize("attack", ["flipping", "signal_flip"])
@pytest.mark.parametrize("of_round", [1, 6, ALONE + 3])
def test_before_the_start_round_and_in_local_rounds_a_device_is_honest(attack, of_round):
    signal, update = said(attacker(attack, start_round=7), of_round)
    np.testing.assert_array_equal(update.vector, RECEIVED - TRAINED + np.float32(of_round))
    assert signal.array.tolist() == [1, 1]


def test_a_repeated_round_gets_the_same_attack_vector():
    one, other = attacker("gaussian", seed=3), attacker("gaussian", seed=4)
    first, again, later = (said(one, number)[1].vector.tolist() for number in (2, 2, 3))
    assert first == again != later
    assert said(other, 2)[1].vector.tolist() != first


def test_a_replay_counts_rounds_and_not_repeats():
    one = attacker("replay", options={"rounds": "2"})
    sent = [said(one, number)[1].vector.tolist() for number in (1, 2, 2, 3, 4)]
    truth = [(RECEIVED - TRAINED + np.float32(n)).tolist() for n in (1, 2, 3, 4)]
    assert sent == [truth[0], truth[0], truth[0], truth[0], truth[1]]


def test_events_other_than_tasks_are_not_changed():
    one = attacker("flipping")
    half = one._attacking("fedavg", honest)(None)
    state = object()
    assert half.apply(state, Update("x", 1, 0, RECEIVED))[0] is state


def test_an_infinite_attack_vector_is_clamped_to_float32():
    _, update = said(attacker("scaling", options={"factor": "1e300"}), 1)
    assert np.isfinite(update.vector).all()
    assert abs(update.vector).max() > 1e38


def test_signals_for_forecasts_are_poisoned_from_the_start_round():
    def asking(*_):
        def apply(state, event):
            if isinstance(event, Due):
                return state, (Signal("a", 0, "serve", 7, np.ones(2, np.float32)),)
            return state, ()

        return Half(lambda p: p, apply, lambda p: {"p": p})

    one = attacker("signal_scale", options={"factor": "-3"}, start_round=2)
    half = one._attacking("pfgl", asking)(None)
    asked = Due(0, "serve", 7)
    assert half.apply(0, asked)[1][0].array.tolist() == [1, 1]
    half.apply(0, Task("a", 2, "train"))
    half.apply(0, Task("a", 0, "serve"))  # an answer to a forecast is of no round
    assert half.apply(0, asked)[1][0].array.tolist() == [-3, -3]
