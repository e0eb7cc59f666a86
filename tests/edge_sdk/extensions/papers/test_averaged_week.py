"""FedDA's averaged week on a device: worked numbers, linearity, and who may disclose what."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.extensions.papers import averaged_week as module
from edge_sdk.extensions.papers.averaged_week import LEAST_WEEKS, averaged_week, fedda
from edge_sdk.extensions.papers.contracts import WEEK_PARTS
from edge_sdk.methods.local_sgd import LocalSgd
from edge_sdk.methods.training_context import Batch, TrainingContext, keyed
from edge_sdk.protocol.contract.method import CONTRACTS, Task
from edge_sdk.shared_math.optim import sgd
from tests.pairs.line import SPEC, line

LENGTH = 56


class Readings:
    """Windows of a series: the last two readings, and the next one as the target."""

    def __init__(self, values, first=0, missing=()):
        self.values, self.first, self.missing = np.asarray(values, np.float32), first, set(missing)

    def __len__(self):
        return max(0, len(self.values) - 2)

    def span(self):
        return (self.first + 1, self.first + len(self.values) - 2) if len(self) > 0 else None

    def draw(self, _rng, _size):
        return self.named(np.arange(self.span()[0], self.span()[1] + 1))[1]

    def named(self, ids):
        low, high = self.span()
        there = np.array([low <= i <= high and i not in self.missing for i in ids], bool)
        at = np.asarray(ids)[there] - self.first
        x = np.stack([self.values[at - 1], self.values[at]], axis=1)[..., None]
        return there, Batch(x.astype(np.float32), self.values[at + 1][:, None])


def context(windows):
    return TrainingContext(
        "a", SPEC, {"gradient": line}, lambda: windows, 64, partial(keyed, 0, "a")
    )


def asked(**values):
    numbers = {"steps": 2.0, "rate": 0.1, **values}
    return Task("a", 1, "train", base=0, values=numbers, arrays={"w": np.zeros(1, np.float32)})


def answered(windows, task, *, allowed=True):
    half = fedda(context(windows), LocalSgd(optimiser=sgd, weekly_profile=allowed))
    _, effects = half.apply(half.init(np.zeros(2, np.float32)), task)
    (update,) = effects
    return update


def test_two_weeks_of_three_readings_agree_with_the_hand_computed_example():
    week = averaged_week(context(Readings([1, 2, 3, 5, 6, 9])), 3)
    assert week.times.tolist() == [0, 1, 2]
    assert week.weeks.tolist() == [1, 1, 2]
    assert week.windows.y[:, 0].tolist() == [5.0, 6.0, 6.0]  # the third: the mean of 3 and 9
    assert week.windows.x[2, :, 0].tolist() == [3.0, 4.0]  # of (1, 2) and (5, 6)


@given(
    weeks=st.integers(2, 5),
    seed=st.integers(0, 99),
    first=st.integers(0, 500),
    chunk=st.integers(1, 40),
)
def test_windows_of_the_average_are_the_average_of_the_windows(weeks, seed, first, chunk):
    length = 7
    values = np.random.default_rng(seed).random(weeks * length + 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK", chunk)
        week = averaged_week(context(Readings(values, first)), length)
    assert week.weeks.tolist() == [weeks] * length
    for at, time in enumerate(week.times):
        rows = [i for i in range(2, len(values)) if (first + i) % length == time]
        assert week.windows.y[at, 0] == pytest.approx(values[rows].mean(), rel=1e-5)
        means = [values[np.array(rows) - back].mean() for back in (2, 1)]
        assert week.windows.x[at, :, 0] == pytest.approx(means, rel=1e-5)


def test_missing_windows_are_left_out_of_the_average():
    week = averaged_week(context(Readings([1, 2, 3, 5, 6, 9], missing=[4])), 3)
    assert week.windows.y[:, 0].tolist() == [5.0, 6.0, 3.0]


def test_a_device_without_windows_has_no_week_and_no_answer():
    assert averaged_week(context(Readings([])), 3) is None
    half = fedda(context(Readings([1.0])), LocalSgd(optimiser=sgd))
    _, effects = half.apply(half.init(np.zeros(2, np.float32)), asked(week=3, averaged=1))
    assert effects == ()


def test_training_on_the_averaged_week_uses_it_whole():
    values = np.tile([1.0, 2.0, 6.0], 5)
    update = answered(Readings(values), asked(week=3, averaged=1))
    assert update.values["n"] == 3.0
    # line(): the error is (phi + psi) x - y, with means of 3; a step of 0.1 moves both by 0.2 of it
    assert update.vector == pytest.approx([-(0.2 * 3 + 0.2 * (3 - 1.2 * 3))], rel=1e-5)


def test_a_plain_task_is_answered_as_fedavg_does():
    windows = Readings(np.arange(12.0))
    other = fedda(context(windows), LocalSgd(optimiser=sgd, weekly_profile=True))
    _, (one,) = other.apply(other.init(np.zeros(2, np.float32)), asked())
    assert set(one.values) == {"loss", "n"}


def profile(windows, **more):
    found = answered(windows, asked(week=LENGTH, profile=1), **more).values
    return {name: found[name] for name in WEEK_PARTS if name in found}


def test_an_allowed_profile_has_the_mean_of_every_six_hours():
    values = np.tile(np.arange(LENGTH, dtype=float), LEAST_WEEKS + 1)
    found = profile(Readings(values, first=2 * LENGTH))
    assert list(found) == list(WEEK_PARTS)
    assert list(found.values()) == pytest.approx([2 * i + 0.5 for i in range(28)])


def test_no_profile_without_the_owners_permission():
    values = np.tile(np.arange(LENGTH, dtype=float), LEAST_WEEKS + 1)
    assert profile(Readings(values), allowed=False) == {}


@pytest.mark.parametrize("weeks", [1, LEAST_WEEKS])
def test_no_profile_over_too_few_weeks(weeks):
    values = np.tile(np.arange(LENGTH, dtype=float), weeks)  # its first two have no window
    assert profile(Readings(values)) == {}


def test_no_profile_unless_the_task_asks():
    values = np.tile(np.arange(LENGTH, dtype=float), LEAST_WEEKS + 1)
    found = answered(Readings(values), asked(week=LENGTH, averaged=1)).values
    assert not set(WEEK_PARTS) & set(found)


def test_the_numbers_of_a_profile_are_measured_so_that_mechanisms_withhold_them():
    (ask,) = CONTRACTS["fedda"].values()
    numbers = {number.name: number for number in ask.report}
    assert all(numbers[name].measured and not numbers[name].needed for name in WEEK_PARTS)


def test_a_long_week_takes_no_more_windows_than_there_are():
    week = averaged_week(context(Readings([1, 2, 3, 5, 6, 9], first=10_070)), 10_080)
    assert len(week.windows) == 4
    assert week.times.tolist() == [10_072, 10_073, 10_074, 10_075]
