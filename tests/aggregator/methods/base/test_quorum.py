"""S of M: who is counted, who is waited for, who is let go of."""

from hypothesis import given
from hypothesis import strategies as st

from aggregator.methods.base.quorum import QuorumSettings, QuorumState

NAMES = st.sampled_from("abcde")


def joined(*names, version=0):
    seen = QuorumState()
    for name in names:
        seen = seen.joined(name, version)
    return seen


def test_a_client_that_comes_again_keeps_when_it_was_counted():
    seen = joined("a").received("a", 0).counted(1)
    again = seen.left("a").joined("a", 5)
    assert (again.since, again.task_version, again.present) == ({"a": 1}, {"a": 5}, {"a": True})


def test_answers_from_before_the_last_counted_one_or_from_the_future_are_no_news():
    seen = joined("a").received("a", 0).counted(3)
    assert [seen.counts("a", base, 4) for base in (2, 3, 4, 5)] == [False, True, True, False]
    assert seen.counts("stranger", 0, 4)


def test_a_stranger_who_answers_is_known_from_then_on():
    seen = QuorumState().received("a", 2)
    assert (seen.present, seen.arrived) == ({"a": True}, {"a": 2})


def test_a_quorum_of_absent_answers_counts_but_is_not_waited_for():
    seen = joined("a", "b").received("a", 0).left("a")
    assert seen.is_ready(0, QuorumSettings(1))
    assert not seen.is_ready(0, QuorumSettings(1, waits_for_all=True))  # b is there
    assert seen.left("b").is_ready(0, QuorumSettings(1, waits_for_all=True))


def test_only_the_absent_are_forgotten():
    seen = joined("a", "b").left("b").without(["a", "b"])
    assert seen.present.keys() == seen.task_version.keys() == seen.since.keys() == {"a"}


@given(st.lists(st.tuples(NAMES, st.booleans()), max_size=40), st.integers(1, 4))
def test_nobody_is_counted_twice_and_nobody_waits_beyond_the_bound(events, staleness_bound):
    """Whatever happens when, with the theory's waiting: a staleness of bound + 1 at most."""
    quorum, seen, version = (
        QuorumSettings(2, staleness_bound=staleness_bound, overdue="wait"),
        joined(*"abcde"),
        0,
    )
    for name, answers in events:
        if answers and seen.task_version[name] <= version:
            seen = seen.received(name, seen.task_version[name])
        if seen.is_ready(version, quorum):
            assert len(seen.arrived) >= 2
            assert all(version - base <= staleness_bound + 1 for base in seen.arrived.values())
            version += 1
            counted = sorted(seen.arrived)
            seen = seen.counted(version)
            assert not seen.arrived
            assert all(seen.task_version[one] == seen.since[one] == version for one in counted)
