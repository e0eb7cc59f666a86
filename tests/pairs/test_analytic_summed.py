"""Statistics in sums alone: the same model as with every device's own, and no answer of one device."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from aggregator.extensions.analytic.summed_fleet import period_of
from aggregator.methods import OPEN
from aggregator.store import state_codec
from edge_sdk.app.schema import SchemaError
from edge_sdk.errors import Refused
from edge_sdk.extensions.analytic.half import AnalyticState
from edge_sdk.extensions.analytic.summed_statistic import bounds_of, statistic_of
from edge_sdk.extensions.sums.masked_sum import added, noised, rounded, values_of
from edge_sdk.extensions.sums.messages import SumContract
from edge_sdk.protocol.contract.method import (
    CONTRACTS,
    Closed,
    Member,
    Played,
    Task,
    Unlearned,
    Update,
)
from edge_sdk.session.manifest_checks import judge_numbers
from tests.pairs.test_analytic import FIRST, MANIFEST, Windows, device, server

pytestmark = pytest.mark.extension

DAY = 86_400_000
HOMES = tuple(f"home-{number}" for number in range(8))
BOUNDS = bounds_of(MANIFEST.analytic, 1)
TERMS = SumContract(
    "statistics", "statistic", MANIFEST.name, "1", len(BOUNDS), -1.0, 1.0, 2.0**-40, DAY, DAY + 1, 7,
    bytes(32),
)  # fmt: skip


def summed(**changes):
    return server(quorum=1, contract="statistics", **changes)


def opened(half, present=HOMES):
    state, _ = half.apply(half.init(FIRST), OPEN)
    for name in present:
        state, effects = half.apply(state, Member(name, present=True))
        assert effects == ()  # no task before the period of a sum is known
    return state


def begun(half, state, period):
    return half.apply(state, Played(state.round, 0, {}, {"period": float(period)}))


def given(state, period):
    """Return what a device gives to the sum of a period."""
    learner = SimpleNamespace(manifest=MANIFEST)
    parts = SimpleNamespace(active=SimpleNamespace(state=state, learner=learner))
    return statistic_of(parts, MANIFEST.name, period)


def run(half, homes, terms=TERMS, silent=()):
    """Return the server's last state, and the sums that were opened."""
    halves = {name: device(Windows(MANIFEST, seed), name=name) for seed, name in enumerate(homes)}
    states = {name: one.init(FIRST) for name, one in halves.items()}
    state, period, sums = opened(half, homes), 20_000 * DAY, 0
    while state.is_open:
        period += DAY
        state, effects = begun(half, state, period)
        tasks = {one.to: one for one in effects if isinstance(one, Task)}
        assert sorted(tasks) == sorted(homes)
        sent = []
        for name in sorted(set(homes) - set(silent)):
            states[name], said = halves[name].apply(states[name], tasks[name])
            assert said == ()
            states[name] = AnalyticState.from_arrays(states[name].arrays())  # after a restart
            sent.append(noised(rounded(given(states[name], period), terms), terms))
            assert given(states[name], period + DAY) is None
        total = values_of(added(sent, len(BOUNDS)), len(sent), terms) * BOUNDS
        state = rebuilt(half, state)
        values = {"period": float(period), "members": float(len(sent)), "deviation": 0.0}
        state, effects = half.apply(state, Played(state.round, 0, {"total": total}, values))
        (closed,) = (one for one in effects if isinstance(one, Closed))
        assert (closed.moved, closed.report["members"]) == (True, len(sent))
        assert not any(isinstance(one, Task) for one in effects)
        sums += 1
    return state, sums


def rebuilt(half, state):
    """Return a state as a restarted aggregator reads it."""
    return state_codec.rebuild(half.init(FIRST), state_codec.flatten(state))


def plain(homes):
    """Return the last state of the same run with every device's own statistic."""
    half = server(quorum=len(homes))
    halves = {name: device(Windows(MANIFEST, seed), name=name) for seed, name in enumerate(homes)}
    state, effects = half.apply(half.init(FIRST), OPEN)
    tasks = {}
    for name in homes:
        state, effects = half.apply(state, Member(name, present=True))
        tasks |= {one.to: one for one in effects if isinstance(one, Task)}
    states = {name: one.init(FIRST) for name, one in halves.items()}
    while state.is_open:
        now, tasks = tasks, {}
        for name in homes:
            task = replace(now[name], arrays={"w": state.w.astype(np.float32)})
            states[name], (said,) = halves[name].apply(states[name], task)
            state, effects = half.apply(state, replace(said, sender=name))
            tasks |= {one.to: one for one in effects if isinstance(one, Task)}
    return state


def test_the_model_of_sums_is_that_of_single_statistics_to_four_digits():
    state, sums = run(summed(), HOMES)
    wanted = plain(HOMES)
    assert (sums, state.version) == (4, wanted.version)  # the constants, and three passes
    np.testing.assert_allclose(state.w, wanted.w, rtol=1e-4, atol=1e-4 * np.abs(wanted.w).max())


def test_a_silent_device_is_missing_from_the_sum_alone():
    state, _ = run(summed(), HOMES, silent=HOMES[7:])
    wanted = plain(HOMES[:7])
    np.testing.assert_allclose(state.w, wanted.w, rtol=1e-4, atol=1e-4 * np.abs(wanted.w).max())


def test_noise_of_the_contract_raises_the_penalty():
    terms = replace(TERMS, Noise=1e-6)
    noisy, _ = run(summed(passes=1), HOMES, terms)
    assert np.isfinite(noisy.w).all()
    half = summed(passes=1)
    state = replace(opened(half), version=1)
    state, _ = begun(half, state, DAY)
    total = sum(given_once(seed) for seed in range(8))
    values = {"period": float(DAY), "members": 8.0, "deviation": 0.0}
    quiet, _ = half.apply(state, Played(state.round, 0, {"total": total}, values))
    values["deviation"] = 1e4
    loud, _ = half.apply(state, Played(state.round, 0, {"total": total}, values))
    fixed = 2 * len(MANIFEST.analytic.features)
    assert np.linalg.norm(loud.w[fixed:]) < 0.5 * np.linalg.norm(quiet.w[fixed:])


def given_once(seed):
    half = device(Windows(MANIFEST, seed))
    task = Task("a", 1, "train", values={"weighted": 0.0}, arrays={"w": FIRST})
    _, (said,) = half.apply(half.init(FIRST), task)
    return said.vector.astype(np.float64)


def test_a_period_that_is_given_up_begins_the_pass_again_with_the_same_model():
    half = summed()
    state, _ = begun(half, opened(half), DAY)
    after, effects = begun(half, state, 3 * DAY)
    (closed,) = (one for one in effects if isinstance(one, Closed))
    assert (closed.moved, closed.report["why"]) == (False, "its sum was not opened")
    assert (after.version, after.round, period_of(after)) == (0, state.round + 1, 3 * DAY)
    tasks = [one for one in effects if isinstance(one, Task)]
    assert {one.values["period"] for one in tasks} == {3.0 * DAY}
    assert len(tasks) == len(HOMES)


def test_a_sum_of_another_period_or_round_and_a_devices_own_statistic_change_nothing():
    half = summed()
    state, _ = begun(half, opened(half), DAY)
    total = {"total": BOUNDS}
    for event in (
        Played(state.round, 0, total, {"period": 2.0 * DAY}),
        Played(state.round + 1, 0, total, {"period": float(DAY), "deviation": 0.0}),
        Update(HOMES[0], state.round, 0, to_vector_of_zeros()),
        Unlearned(HOMES[0]),
    ):
        assert half.apply(state, event) == (state, ())


def to_vector_of_zeros():
    return np.zeros(len(BOUNDS), np.float32)


def test_a_sum_without_a_solution_moves_nothing():
    half = summed()
    state, _ = begun(half, replace(opened(half), version=1), DAY)
    total = {"total": np.full(len(BOUNDS), np.nan)}
    after, effects = half.apply(
        state, Played(state.round, 0, total, {"period": float(DAY), "deviation": 0.0})
    )
    (closed,) = (one for one in effects if isinstance(one, Closed))
    assert (closed.moved, after.version, period_of(after)) == (False, 1, 0)


def test_a_device_that_does_not_know_the_period_refuses_the_task():
    ask = CONTRACTS["analytic"]["train"]
    judge_numbers({"weighted": 1.0, "period": float(20_000 * DAY)}, ask, {})
    older = replace(ask, numbers=ask.numbers[:1])
    with pytest.raises(Refused, match="period"):
        judge_numbers({"period": float(DAY)}, older, {})


@pytest.mark.parametrize("more", [{"combine": "votes"}, {"noise": 1.0, "clip_norm": 1.0}])
def test_votes_and_local_noise_are_refused(more):
    with pytest.raises((SchemaError, ValueError), match="contract"):
        summed(**more)
