"""The simulated clock: the timeline of the specification, lies, and repeatability."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest

from edge_sdk.protocol.contract.method import Closed, Due, Half, Task, Update
from tools.experiments.simulated_clock import World, log_normal

SECONDS = {"1": 1.0, "2": 2.0, "3": 5.0}


@dataclass(frozen=True)
class Count:
    version: int = 0
    total: float = 0.0
    arrived: Mapping[str, float] = None


def counting(enough):
    """A server half that fires at so many answers and asks again only whom it heard."""

    def apply(state, event):
        if isinstance(event, Due):
            names = sorted(SECONDS)
            return state, tuple(Task(x, 1, "go", base=0) for x in names)
        if not isinstance(event, Update):
            return state, ()
        arrived = {**(state.arrived or {}), event.sender: float(event.vector[0])}
        if len(arrived) < enough:
            return replace(state, arrived=arrived), ()
        version = state.version + 1
        total = state.total + sum(arrived.values())
        tasks = (Task(x, version + 1, "go", base=version) for x in sorted(arrived))
        return Count(version, total, {}), (Closed(version, version, moved=True), *tasks)

    return Half(lambda w: Count(), apply, model=lambda state: {"p": np.zeros(1)})


def device(name):
    def apply(state, task):
        return state, (Update(name, task.round, task.base, np.ones(1, np.float32)),)

    return Half(lambda p: None, apply, model=lambda state: {})


def world(enough, **more):
    halves = {x: device(x) for x in SECONDS}
    latency = more.pop("latency", lambda name, _: SECONDS[name])
    return World(counting(enough), halves, latency, states=dict.fromkeys(halves), **more)


def until(some, end):
    for moment in some.moments(np.zeros(1)):
        if moment.time > end:
            return
        yield moment


def test_two_of_three_fire_as_the_specification_says():
    fired = [(m.time, tuple(m.late), tuple(m.late.values())) for m in until(world(2), 20)]
    assert fired[:9] == [
        (2, ("1", "2"), (0, 0)),
        (4, ("1", "2"), (0, 0)),
        (5, ("1", "3"), (0, 2)),
        (6, ("1", "2"), (0, 1)),
        (8, ("1", "2"), (0, 0)),
        (10, ("1", "2"), (0, 0)),
        (11, ("1", "3"), (0, 3)),
        (12, ("1", "2"), (0, 1)),
        (14, ("1", "2"), (0, 0)),
    ]
    assert len(fired) == 13


@pytest.mark.parametrize(("enough", "firings"), [(3, 4), (1, 34)])
def test_everybody_and_anybody(enough, firings):
    fired = list(until(world(enough), 20))
    assert len(fired) == firings
    if enough == 1:
        first = next(m for m in fired if "3" in m.late)
        assert (first.time, first.late["3"]) == (5, 7)


def test_a_liar_sees_the_honest_and_is_screened():
    seen = []

    def lie(update, task, honest):
        seen.append(sorted(honest))
        return replace(update, vector=np.full(1, np.nan) if len(seen) == 1 else np.full(1, 100.0))

    fired = list(until(world(2, liars={"1": lie}), 6))
    assert seen[0] == ["2", "3"]
    assert [tuple(m.late) for m in fired] == [("2", "3")]


def test_latencies_repeat_and_a_straggler_is_slow():
    one, two = log_normal(3, slow={"2": 10.0}), log_normal(3)
    assert one("1", 0) == two("1", 0) != two("1", 1)
    assert one("2", 4) == pytest.approx(10 * two("2", 4))
