"""A device takes the first named run that it is able to take part in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.errors import ABILITIES, Reason
from edge_sdk.session.participation import RunChoice, declined_runs
from edge_sdk.store.store import DeviceStore


class Papers(dict):
    """The records of a store."""

    def paper(self, name):
        return self.get(name)

    def file_paper(self, name, content):
        self[name] = content


@pytest.mark.parametrize("reason", [one for one in Reason if one not in ABILITIES])
def test_a_reason_that_says_nothing_of_abilities_changes_no_run(reason):
    choice = RunChoice(Papers())
    choice.offer(("meters", "cells"))
    assert choice.decline("meters", reason) is None
    assert choice.declined == {}


@given(
    names=st.lists(st.sampled_from("abcdef"), unique=True),
    declines=st.lists(st.tuples(st.sampled_from("abcdefg"), st.sampled_from(sorted(ABILITIES)))),
)
def test_each_choice_is_the_first_named_run_that_was_not_declined(names, declines):
    choice = RunChoice(Papers())
    current = choice.offer(names)
    assert current == (names[0] if names else "")
    refused = set()
    for name, reason in declines:
        other = choice.decline(name, reason)
        refused |= {name} & set(names)
        left = [one for one in names if one not in refused]
        assert other == (left[0] if left and name in names else None)
        assert set(choice.declined) == refused
    assert choice.offer(names) == current
    assert choice.declined == {}


def test_declined_runs_are_read_beside_the_agent_and_forgotten_at_the_next_welcome(tmp_path):
    with DeviceStore.open(tmp_path) as store:
        assert declined_runs(store) == {}
        choice = RunChoice(store)
        choice.offer(("meters", "cells"))
        assert choice.decline("meters", Reason.WRONG_ENCODING) == "cells"
        assert declined_runs(store) == {"meters": "WRONG_ENCODING"}
        restarted = RunChoice(store)
        assert restarted.offer(("meters", "cells")) == "meters"
        assert declined_runs(store) == {}
        store.file_paper("runs declined", b"\xff")
        assert declined_runs(store) == {}
