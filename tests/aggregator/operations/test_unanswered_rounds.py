"""The likely cause of rounds that nobody answers: the surest first."""

from dataclasses import replace

import pytest

from aggregator.operations.operator_alerts import RunAudience, UnansweredRounds, likely_cause
from aggregator.store.types import Version

ONLINE = RunAudience(labels={"kind": "meter"}, devices=3, online=2)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"devices": 0, "online": 0}, "no enrolled device is in its cohort (kind=meter)"),
        ({"devices": 0, "labels": {}}, "no device is enrolled"),
        ({"devices": 0, "declined": {"UNKNOWN_KIND": 3}}, "declined it: 3 UNKNOWN_KIND"),
        ({"access": "access: lack topics of m1", "online": 0}, "lack topics of m1"),
        (
            {"refusing_root": 2, "refusing_bundle": 1},
            "2 of its 3 devices refuse the announced root",
        ),
        ({"refusing_bundle": 1}, "1 of its 3 devices refuse the bundle"),
        ({"online": 0, "no_windows": 4}, "none of its 3 devices is online"),
        ({"no_windows": 4}, "too few readings"),
        (
            {},
            "2 of its 3 devices are online and do not answer: most likely the broker's access rules",
        ),
    ],
)
def test_the_surest_cause_is_named(changes, says):
    assert says in likely_cause(replace(ONLINE, **changes))


def closed(run, number, cohort=(), *, moved=False):
    return Version(run, number, 0, moved, b"", {"cohort": cohort})


def test_rounds_without_any_answer_are_counted_for_each_run_until_one_is_answered():
    rounds = UnansweredRounds()
    course = [closed(1, 1), closed(2, 1, moved=True), closed(1, 2), closed(2, 2)]
    assert [rounds.count(one) for one in course] == [1, 0, 2, 1]
    assert rounds.count(closed(1, 3, ["meter-1"])) == 0, "too few, but not nobody"
    assert (rounds.of(1), rounds.of(2)) == (0, 1)
