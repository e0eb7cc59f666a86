"""Momentum on the device: worked numbers, restart, and what it gives under a small lie in each round."""

from __future__ import annotations

import numpy as np
import pytest

from aggregator.methods import METHODS as SERVERS
from aggregator.methods import OPEN, Rounds, Setup
from aggregator.rules import bind
from edge_sdk.extensions.papers.worker_momentum import MomentumState
from edge_sdk.protocol.contract.method import END, Task
from tests.pairs.line import SPEC, device

START = np.zeros(2, np.float32)


def task(w=0.0, beta=0.5, number=1):
    values = {"steps": 1.0, "rate": 0.1, "beta": beta}
    return Task("a", number, "train", values=values, arrays={"w": np.array([w], np.float32)})


def test_the_first_answer_is_the_difference_and_later_ones_its_moving_average():
    """Loss (phi + psi - 4)^2 at rate 0.1: -0.8, and with psi at 0.8 and phi at 1 again -0.44."""
    half = device("worker_momentum", "a", 4.0)
    state, (first,) = half.apply(half.init(START), task())
    assert first.vector.tolist() == pytest.approx([-0.8])
    state, (second,) = half.apply(state, task(w=1.0, number=2))
    assert second.vector.tolist() == pytest.approx([0.5 * -0.8 + 0.5 * -0.44])
    assert state.average.tolist() == second.vector.tolist()
    assert second.vector.dtype == np.float32


def test_with_nothing_kept_it_is_federated_averaging_to_the_bit():
    plain, half = device("fedavg", "a", 4.0), device("worker_momentum", "a", 4.0)
    one, two = plain.init(START), half.init(START)
    for number in (1, 2, 3):
        one, (first,) = plain.apply(one, task(number=number))
        two, (second,) = half.apply(two, task(beta=0.0, number=number))
        assert first.vector.tobytes() == second.vector.tobytes()
        assert one.p.tobytes() == two.p.tobytes()


def test_a_restart_changes_no_bit_and_an_end_keeps_the_average():
    half = device("worker_momentum", "a", 4.0)
    state, _ = half.apply(half.init(START), task())
    again = MomentumState.from_arrays(state.arrays())
    one, (first,) = half.apply(state, task(number=2))
    two, (second,) = half.apply(again, task(number=2))
    assert first.vector.tobytes() == second.vector.tobytes()
    over = Task("a", 9, END, arrays={"w": np.array([7.0], np.float32)})
    ended, effects = half.apply(one, over)
    assert (effects, ended.p[0], ended.average.tolist()) == ((), 7.0, two.average.tolist())
    assert MomentumState.from_arrays(half.init(START).arrays()).average is None


def test_another_message_changes_nothing():
    half = device("worker_momentum", "a", 4.0)
    state, _ = half.apply(half.init(START), task())
    wide = Task("a", 2, "train", values={"beta": 0.5}, arrays={"w": np.zeros(3, np.float32)})
    assert half.apply(state, wide) == (state, ())


def test_both_halves_learn_and_the_task_names_the_part():
    row = SERVERS["worker_momentum"]
    setup = Setup(bind("median", f=1), row.settings(rate=0.05, steps=1), Rounds(quorum=3), SPEC)
    server = row.half(setup)
    halves = {
        name: device("worker_momentum", name, aim)
        for name, aim in zip("abc", (4, 5, 6), strict=True)
    }
    states = {name: half.init(START) for name, half in halves.items()}
    state, effects = server.apply(server.init(START[:1]), OPEN)
    for _ in range(60):
        asked = next(one for one in effects if isinstance(one, Task))
        assert asked.values["beta"] == 0.9
        for name, half in halves.items():
            states[name], (update,) = half.apply(states[name], asked)
            state, effects = server.apply(state, update)
    ends = [float(state.w[0] + states[name].p[1]) for name in "abc"]
    assert ends == pytest.approx([4.0, 5.0, 6.0], abs=0.2)
