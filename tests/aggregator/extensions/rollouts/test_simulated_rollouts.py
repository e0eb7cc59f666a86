"""Rollouts on 200 simulated devices: what a planted fault reaches, and how often a good version stops.

A device's day has 24 hourly errors of both versions. Errors are heavy-tailed, of another size on every
device and day, and those of the two versions are exchangeable but for the planted factor, and correlated,
as forecasts of the same readings are.
"""

import numpy as np
import pytest

from aggregator.extensions.rollouts.stages import DayResults, RolloutState
from edge_sdk.extensions.rollouts.messages import RolloutMessage
from edge_sdk.extensions.rollouts.rollout_roles import role

DEVICES = [f"meter-{i:03}" for i in range(200)]
FIRST, LONGEST = 20_780, 40


def plan(salt):
    return RolloutMessage(
        serial=1, name="load", version=2, digest=b"t" * 32, size=900,
        served=b"s" * 32, salt=salt,
        waves=(0.01, 0.05, 0.25, 1.0), shadow=1.0, days=3, least=5, margin=0.015, bound=0.01,
    )  # fmt: skip


def lost_days(rng, factor, shared=0.8):
    """Return for every device whether the new version loses a day.

    Args:
        rng: Random generator.
        factor: Mean error of the new version as a multiple of the served one's.
        shared: Correlation of the two versions' errors.
    """
    common, one, two = rng.standard_t(4, (3, len(DEVICES), 24))
    own = np.sqrt(1.0 - shared**2)
    served = np.abs(shared * common + own * one)
    new = factor * np.abs(shared * common + own * two)
    return new.sum(axis=1) > 1.015 * served.sum(axis=1)


def rollout(seed, factor):
    """Return the end of a rollout, its day, and the most devices that served the version."""
    rng = np.random.default_rng([20_261_123, seed])
    description = plan(rng.bytes(16))
    state, days, most = RolloutState(since=FIRST - 1), {}, 0
    for day in range(FIRST, FIRST + LONGEST):
        places = [role(description, state.stage, device) for device in DEVICES]
        lost = lost_days(rng, factor)
        most = max(most, places.count("serve"))
        members = np.array([place != "none" for place in places])
        number = int(lost[members].sum())
        days[day] = DayResults(number, int(members.sum()) - number, places.count("serve"))
        state = state.advanced(description, days, day + 1, drawn="serve" in places)
        if state.is_over:
            return state, day + 1 - FIRST, most
    return state, LONGEST, most


def test_twice_the_error_is_served_by_no_device_and_gone_after_a_day():
    for seed in range(20):
        state, day, most = rollout(seed, 2.0)
        assert (state.phase, state.why, day, most) == ("return", "harm", 1, 0)


@pytest.mark.soak
def test_ten_per_cent_more_error_is_stopped_within_three_days_in_19_of_20():
    """The rate is judged on 200 rollouts: 20 are too few to tell 18 from 19 of 20."""
    ends = [rollout(seed, 1.1) for seed in range(5000, 5200)]
    stopped = [day for state, day, _ in ends if state.why == "harm"]
    assert sum(day <= 3 for day in stopped) >= 190
    assert max(most for _, _, most in ends) <= 0.05 * len(DEVICES)


@pytest.mark.soak
def test_an_equal_version_is_stopped_in_at_most_one_of_a_hundred():
    ends = [rollout(seed, 1.0)[0].phase for seed in range(100)]
    assert ends.count("return") <= 1
    assert ends.count("done") >= 99
