"""Rows with names, and every rule with settings that let a few rows lie."""

import numpy as np
import pytest

from aggregator.rules import Rows

CROSS = np.array([[1, 0], [0, 1], [1, 1], [2, 1], [10, -10.0]])


OF_EXTENSION = (
    *("autogm", "clipped_clustering", "fltrust", "geometric_median"),
    *("mean_around_median", "mda", "monna", "dnc", "caf"),
)


def pytest_collection_modifyitems(items):
    """Mark the tests of rules that are no part of the core."""
    for item in items:
        if any(name in item.nodeid for name in OF_EXTENSION):
            item.add_marker(pytest.mark.extension)


@pytest.fixture(scope="session")
def rows_of():
    def build(matrix, names=None):
        names = names or [f"m{i:03}" for i in range(len(matrix))]
        return Rows.of(dict(zip(names, matrix, strict=True)))

    return build


@pytest.fixture
def cross():
    """The five rows of the specification, the last one a liar."""
    return CROSS.copy()
