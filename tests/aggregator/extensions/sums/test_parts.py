"""The part of a cohort that is in a sum, by the numbers of a label."""

from types import SimpleNamespace

import numpy as np
import pytest

from aggregator.extensions.sums.opened_sum import StoredSum, _with_parts

SUM = StoredSum("h", "history", "F1", 0, 3_600_000, 2, 3, np.ones(24), "kWh", 0)
TABLE = SimpleNamespace(
    contracts=lambda: [SimpleNamespace(terms=SimpleNamespace(name="h", cohort="feeder"))],
    members=lambda *_: ["a", "b"],
)
LABELS = {
    "a": {"feeder": "F1", "kva": "10"},
    "b": {"feeder": "F1", "kva": "5"},
    "c": {"feeder": "F1", "kva": "5"},
    "d": {"feeder": "F2"},
}


def part(labels):
    (found,) = _with_parts([SUM], TABLE, labels, "kva")
    return found.part


def test_it_is_that_of_the_members_over_all_of_the_cohort():
    assert part(LABELS) == pytest.approx(0.75)


def test_a_member_that_has_moved_to_another_cohort_still_counts():
    moved = {**LABELS, "b": {"feeder": "F2", "kva": "5"}}
    assert part(moved) == pytest.approx(0.75)


@pytest.mark.parametrize("kva", ["", "0", "-1", "ten", "nan", "inf"])
def test_it_is_unknown_where_one_device_has_no_number_above_0(kva):
    assert part({**LABELS, "c": {"feeder": "F1", "kva": kva}}) is None
    assert part({name: one for name, one in LABELS.items() if name != "b"}) is None
