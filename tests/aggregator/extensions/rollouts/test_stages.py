"""The stages of a rollout: a state machine over values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aggregator.extensions.rollouts.stages import DayResults, RolloutError, RolloutState
from edge_sdk.extensions.rollouts.messages import RolloutMessage
from edge_sdk.extensions.rollouts.rollout_roles import role, scored_share, served_share


def plan(**changes):
    fields = {
        "serial": 1, "name": "load", "version": 2, "digest": b"t" * 32, "size": 900, "served": b"s" * 32,
        "salt": bytes(16), "waves": (0.01, 0.05, 0.25, 1.0), "shadow": 0.25, "days": 2, "least": 5, "margin": 0.02,
        "bound": 0.01,
    }  # fmt: skip
    return RolloutMessage(**{**fields, **changes})


WELL = DayResults(lost=20, kept=30, serving=2)
HARM = DayResults(lost=48, kept=2)


def test_a_rollout_passes_every_stage_by_results():
    state, days = RolloutState(since=100), {}
    stages = []
    for today in range(101, 120):
        days[today - 1] = WELL
        state = state.advanced(plan(), days, today)
        stages.append((state.phase, state.stage))
    assert stages[:3] == [("run", 0), ("run", 0), ("run", 1)]
    assert stages[-1] == ("done", 4)
    assert stages == sorted(stages, key=lambda one: one[1])


def test_a_rollout_without_results_stays():
    state = RolloutState(since=100)
    assert state.advanced(plan(), {}, 500) is state
    few = {day: DayResults(1, 3, 1) for day in range(101, 130)}
    assert state.advanced(plan(), few, 500) is state


def test_days_that_nobody_served_do_not_pass_a_wave():
    state = RolloutState(stage=1, since=100)
    days = {day: DayResults(10, 40) for day in range(101, 130)}
    assert state.advanced(plan(), days, 130) is state
    assert state.advanced(plan(), days, 130, drawn=False).stage == 2  # a wave without a device


def test_the_day_on_which_a_stage_begins_does_not_count():
    days = {100: WELL, 101: WELL}
    assert RolloutState(since=100).advanced(plan(), days, 102).stage == 0


@pytest.mark.parametrize("phase", ["run", "pause"])
@pytest.mark.parametrize("stage", range(5))
def test_harm_ends_a_rollout_in_every_stage(phase, stage):
    found = RolloutState(phase, stage, 100).advanced(plan(), {101: HARM}, 102)
    assert (found.phase, found.stage, found.why) == ("return", stage, "harm")


def test_a_pause_holds_the_stage_and_counts_its_days_anew():
    days = {101: WELL, 102: WELL, 103: WELL}
    held = RolloutState(since=100).paused()
    assert held.advanced(plan(), days, 104) is held
    running = held.resumed(104)
    assert running.advanced(plan(), days, 104) is running
    later = days | {105: WELL, 106: WELL}
    assert running.advanced(plan(), later, 107).stage == 1


def test_acts_that_a_phase_does_not_allow_are_refused():
    done, over = RolloutState("done", 4, 9), RolloutState("return", 1, 9)
    for state in (done, over):
        for act in (state.paused, lambda state=state: state.resumed(10)):
            with pytest.raises(RolloutError, match="the rollout is"):
                act()
    with pytest.raises(RolloutError, match="abort: the rollout is done"):
        done.aborted(10)
    with pytest.raises(RolloutError, match="is not paused"):
        RolloutState().resumed(10)
    assert over.aborted(10) is over


class Rollout(RuleBasedStateMachine):
    """Any order of results and acts."""

    def __init__(self):
        super().__init__()
        self.state, self.days, self.today, self.before = RolloutState(since=100), {}, 100, []

    @rule(lost=st.integers(0, 50), kept=st.integers(0, 50), serving=st.integers(0, 3))
    def day(self, lost, kept, serving):
        self.before.append(self.state)
        self.days[self.today] = DayResults(lost, kept, serving)
        self.today += 1
        self.state = self.state.advanced(plan(), self.days, self.today)

    @precondition(lambda self: not self.state.is_over)
    @rule()
    def pause(self):
        self.state = self.state.paused()

    @precondition(lambda self: self.state.phase == "pause")
    @rule()
    def resume(self):
        self.state = self.state.resumed(self.today)

    @precondition(lambda self: self.state.phase != "done")
    @rule()
    def abort(self):
        self.state = self.state.aborted(self.today)

    @invariant()
    def the_stage_rises_by_one_and_an_end_is_an_end(self):
        assert 0 <= self.state.stage <= 4
        if self.before:
            last = self.before[-1]
            assert 0 <= self.state.stage - last.stage <= 1
            assert not last.is_over or self.state == last

    @invariant()
    def looking_again_changes_nothing(self):
        once = self.state.advanced(plan(), self.days, self.today)
        assert once.advanced(plan(), self.days, self.today) == once


TestRollout = Rollout.TestCase


@given(st.text("abcdefgh-0123456789", min_size=1, max_size=20), st.binary(min_size=16, max_size=16))
def test_a_device_never_leaves_a_wave_that_it_has_reached(device, salt):
    order = {"none": 0, "score": 1, "serve": 2}
    found = [order[role(plan(salt=salt), stage, device)] for stage in range(5)]
    assert found == sorted(found)
    assert found[-1] == 2


def test_shares_of_every_stage():
    assert [served_share(plan(), stage) for stage in range(5)] == [0.0, 0.01, 0.05, 0.25, 1.0]
    assert [scored_share(plan(), stage) for stage in range(5)] == [0.25, 0.25, 0.25, 1.0, 1.0]


def test_salts_draw_different_waves_of_the_right_size():
    ids = [f"meter-{i:04}" for i in range(4000)]
    waves = [
        {one for one in ids if role(plan(salt=bytes([salt] * 16)), 3, one) == "serve"}
        for salt in range(8)
    ]
    assert all(abs(len(wave) - 1000) < 4 * (4000 * 0.25 * 0.75) ** 0.5 for wave in waves)
    assert len({frozenset(wave) for wave in waves}) == 8


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"waves": (0.05, 0.01)}, "do not rise"),
        ({"waves": (0.0, 0.01)}, "do not rise"),
        ({"served": b"t" * 32}, "the same archive"),
    ],
)
def test_a_description_that_cannot_be_followed_is_refused(change, why):
    with pytest.raises(ValueError, match=why):
        plan(**change)
