"""The liars' common knowledge: the very round, where there is one, and patience that ends."""

from __future__ import annotations

import numpy as np

from edge_sdk.protocol.contract.method import ALL, Task
from firmware_sim.attacks.coalition import ALONE, KEPT, Coalition


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def coalition(patience=5.0):
    clock = Clock()
    return Coalition(frozenset("bc"), frozenset("a"), patience, clock), clock


def asked(of_round, to=ALL):
    return Task(to, of_round, "train")


def test_a_round_is_complete_when_every_honest_device_has_answered():
    one, _ = coalition()
    one.record("c", 1, np.array([3.0]))
    assert not one.may_answer("a", asked(1))
    one.record("b", 1, np.array([2.0]))
    assert one.may_answer("a", asked(1))
    assert one.rows(asked(1)).tolist() == [[2.0], [3.0]]
    assert not one.may_answer("a", asked(2))
    assert one.rows(asked(2)) is None


def test_a_silent_device_is_waited_for_once_until_its_next_update():
    one, clock = coalition()
    one.record("b", 1, np.array([2.0]))
    assert not one.may_answer("a", asked(1))
    clock.now = 5.0
    assert one.may_answer("a", asked(1))
    one.record("b", 2, np.array([2.0]))
    assert one.may_answer("a", asked(2)), "c is not waited for again"
    one.record("c", 2, np.array([1.0]))
    one.record("b", 3, np.array([1.0]))
    assert not one.may_answer("a", asked(3)), "until it was heard"


def test_with_tasks_for_single_devices_the_latest_updates_count():
    one, _ = coalition()
    one.record("b", 7, np.array([1.0]))
    one.record("b", 9, np.array([2.0]))
    one.record("c", 4, np.array([5.0]))
    assert one.may_answer("a", asked(11, to="a"))
    assert one.rows(asked(11, to="a")).tolist() == [[2.0], [5.0]]


def test_local_rounds_are_not_recorded():
    one, _ = coalition()
    one.record("b", ALONE + 1, np.array([1.0]))
    assert one.rows(asked(ALONE + 1, to="a")) is None


def test_only_a_few_rounds_are_kept():
    one, _ = coalition()
    for number in range(50):
        one.record("b", number, np.zeros(1))
        one.shared_vector(number, lambda: np.zeros(1))
    assert len(one._updates["b"]) == len(one._colluding) == KEPT


def test_the_first_colluding_device_determines_the_vector():
    one, _ = coalition()
    assert one.shared_vector(3, lambda: np.array([1.0])) is one.shared_vector(
        3, lambda: np.array([2.0])
    )
    assert one.shared_vector(4, lambda: np.array([2.0])).item() == 2.0
