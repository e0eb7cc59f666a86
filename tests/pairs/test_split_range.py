"""One station of four that leaves the range of its past does not mute the graph of the others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aggregator.extensions.papers.split.activation_clipping import (
    RANGE,
    WEIGHTS_RANGE,
    astray,
    remembered,
)
from aggregator.store import state_codec
from edge_sdk.protocol.contract.method import Due, Signal, Task, Update
from tests.pairs.joint import SPEC, F, Joint, L

NAMES = ("a", "b", "c", "d")
LARGEST = float(np.finfo(np.float32).max)


class Lying(Joint):
    """A fleet of four in which ``d`` lies for some rounds; it notes what the graph says."""

    def __init__(self, value, *, lies=(1, 2), of=("encode", "decode", "share"), **said):
        self.value, self.lies, self.of, self.z = value, lies, of, {}
        turns = {"clip_factor": 3.0} | said.pop("turns", {})
        super().__init__(NAMES, kind=np.float32, turns=turns, **said)

    def tell(self, task):
        if task.ask == "decode" and task.arrays:
            self.z.setdefault(task.round, []).append((task.to, task.arrays["z"]))
        answers = super().tell(task)
        if task.to != "d" or task.round not in self.lies:
            return answers
        return [self.spoilt(task, answer) for answer in answers]

    def spoilt(self, task, answer):
        if isinstance(answer, Signal) and answer.ask in self.of and answer.array.size:
            return replace(answer, array=self.made(answer.array))
        if isinstance(answer, Update) and "share" in self.of:
            return replace(answer, vector=self.made(answer.vector))
        return answer

    def made(self, array):
        return np.full(array.shape, self.value, np.float32)

    def said(self, round_):
        """All that honest stations were told in a round, in one array."""
        return np.stack([z for name, z in self.z.get(round_, []) if name != "d"])


def honest(rounds=3):
    return Lying(0.0, lies=()).run(rounds)


@pytest.mark.parametrize("value", [LARGEST, -LARGEST, 1e30, 1e12, np.nan, np.inf])
@pytest.mark.parametrize("lies", [(1, 2), (2, 3)], ids=["from the first turn", "later"])
def test_the_graph_still_serves_the_three_stations_in_range(value, lies):
    """Before: the liar's mean went into the graph unclipped, and no z was finite."""
    joint = Lying(value, lies=lies).run(3)
    calm = Lying(0.0, lies=()).run(3)
    for number in (1, 2, 3):
        said, wanted = joint.said(number), calm.said(number)
        assert said.shape == wanted.shape
        assert np.isfinite(said).all()
        assert np.abs(said).max() > 0.0
    first = np.abs(joint.said(lies[0]) - calm.said(lies[0])).max()
    assert first < 2.0 * np.abs(calm.said(lies[0])).max()
    for name in ("a", "b", "c"):
        assert np.isfinite(joint.states[name].p).all()
        assert np.abs(joint.states[name].p).max() < 3 * np.abs(calm.states[name].p).max()
    assert all(np.isfinite(one).all() for one in joint.state.net.values())
    assert np.isfinite(joint.state.w).all()
    assert np.abs(joint.state.w).max() < 10.0


@pytest.mark.parametrize("value", [LARGEST, 1e30, np.nan])
def test_a_mean_of_all_weights_leaves_out_what_is_out_of_range(value):
    """``cnfgnn`` has no credit that would; the liar counts with what stands for all instead."""
    joint = Lying(value, of=("share",), method="cnfgnn", lies=(1, 2, 3)).run(3)
    assert [closed.report["dropped"] for closed in joint.closed] == [{"d": "out of range"}] * 3
    assert np.isfinite(joint.state.w).all()
    assert np.abs(joint.state.w).max() < 10.0


def test_an_excluded_station_is_counted_masked_and_readmitted():
    joint = Lying(LARGEST, lies=(1, 2)).run(4)
    for closed in joint.closed[:2]:
        assert closed.report["dropped"]["d"] == "out of range"
        assert closed.report["cohort"] == list(NAMES), "nobody waited for a deadline"
    assert joint.closed[0].report["astray"] == {"d": 3}
    assert "astray-h d" in joint.closed[0].report["turns"]
    assert "astray" not in joint.closed[3].report
    assert joint.closed[3].report["dropped"].get("d") != "out of range"
    assert joint.state.past["d"]["w"] < 100.0
    d = joint.state.held["d"]
    np.testing.assert_allclose(d, joint.states["d"].p, rtol=1e-6)


def test_gradients_out_of_range_do_not_reach_the_graphs_optimiser():
    joint, calm = Lying(LARGEST, of=("decode",), lies=(2,)).run(2), honest(2)
    assert joint.closed[1].report["astray"] == {"d": 3}
    assert np.isfinite(joint.state.net["second"]).all()
    apart = np.abs(joint.state.net["p"] - calm.state.net["p"]).max()
    assert apart < 3 * 0.01 * 3  # three steps of Adam, either way


def test_a_slow_rise_is_bounded_by_the_median_of_the_stations():
    """Each length is within the range of the one before; the stations' median bounds them all."""
    past, length = dict.fromkeys(NAMES, 1.0), 1.0
    for _ in range(50):
        length *= 0.9 * RANGE
        lengths = {"a": 1.0, "b": 1.1, "c": 0.9, "d": length}
        out = astray(lengths, past)
        past = remembered(past, lengths, out)
    assert out == {"d"}
    assert past["d"] <= RANGE**2 * 1.1


def test_a_fleet_that_shifts_together_is_not_excluded():
    past = dict.fromkeys(NAMES, 1.0)
    assert not astray(dict.fromkeys(NAMES, 1e3), past)
    assert not astray({"a": 1e9}, past | {"a": 1e8}), "one that is alone has nobody to compare with"


def test_weights_within_range_are_used_unchanged():
    joint, calm = Lying(1.0, lies=()).run(2), honest(2)
    for name in NAMES:
        assert joint.state.held[name].tobytes() == calm.state.held[name].tobytes()
    norm = float(np.linalg.norm(joint.state.held["a"]))
    assert joint.state.past["a"]["w"] >= 0.9 * norm
    assert WEIGHTS_RANGE * norm < LARGEST


@pytest.mark.parametrize("value", [LARGEST, 1e30])
def test_the_state_is_rebuilt_from_the_journal_after_a_kill(value):
    joint = Lying(value).run(3)
    again = joint.server.init(np.zeros(SPEC.size, np.float32))
    for event in joint.journal:
        again, _ = joint.server.apply(again, event)
    assert state_codec.digest(again) == state_codec.digest(joint.state)


def test_a_killed_server_repeats_the_round_with_the_same_exclusions():
    joint = Lying(LARGEST, lies=(1, 2))
    joint.run(until=lambda j: (j.act.step, j.act.phase) == (1, "decode"))
    joint.kill_server()
    joint.run(2)
    for closed in joint.closed:
        assert closed.report["dropped"]["d"] == "out of range"
    assert np.isfinite(joint.said(1)).all()
    assert np.isfinite(joint.said(2)).all()
    assert "w" not in joint.state.past.get("d", {})


def test_a_forecast_of_two_is_not_changed_by_an_attacker():
    """The median of two lengths is no guard: half of it is the liar's."""
    joint, calm = honest(2), honest(2)

    def asked(one, spoil):
        for name in ("c", "d"):
            h = np.ones((1, F, L), np.float32)
            h = np.full_like(h, LARGEST) if spoil and name == "d" else h
            one.act, _ = one.server.play.apply(one.act, Signal(name, 0, "serve", 7, h))
        one.act, effects = one.server.play.apply(one.act, Due(0, "serve", 0))
        return {e.to: e.arrays["z"] for e in effects if isinstance(e, Task)}

    lied, wanted = asked(joint, True), asked(calm, False)
    assert set(wanted) == {"c", "d"}
    assert set(lied) == {"c"}
    assert np.isfinite(lied["c"]).all()
    assert np.abs(lied["c"]).max() <= 3 * np.abs(wanted["c"]).max()
