"""Blocks of columns of a rule on a Ray cluster: the bits of one process, also after a kill."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from aggregator.rules import Rows, bind
from aggregator.rules.blocked_ops import executed_by
from aggregator.rules.parameters import uniform
from aggregator.store.row_file import pending_rows
from firmware_sim.bench.ray_runs import LOCAL, RayColumns, RayRunError, ray_cluster

pytest.importorskip("ray", reason="needs the extra ray")
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ROWS, WIDTH = 300, 120
RULES = ["mean", "median", "trimmed_mean", "multi_krum", "geometric_median", "centred_clipping"]


@pytest.fixture(scope="module")
def ray():
    with ray_cluster(LOCAL, 2) as cluster:
        yield cluster.ray


@pytest.fixture
def stored(tmp_path):
    rng = np.random.default_rng(8)
    add, pending = pending_rows(tmp_path, limit=1), {}
    for number in range(ROWS):
        row = rng.standard_normal(WIDTH, np.float32) * (-30 if number % 40 == 0 else 1)
        pending = add(pending, f"m{number:03}", row)
    return Rows.of(pending)


@pytest.mark.parametrize("name", RULES)
def test_a_cluster_changes_no_bit(name, ray, stored):
    rule, shares = bind(name, f=0 if name == "mean" else 10), uniform(ROWS)
    here = rule(stored, shares, {}).value
    with executed_by(RayColumns(ray, block_bytes=ROWS * 4 * 13, in_flight=3)):
        there = rule(stored, shares, {}).value
    assert there.tobytes() == here.tobytes()


def test_results_are_in_the_order_of_the_blocks_and_few_are_handed_over(ray):
    taken = []

    def blocks():
        for number in range(9):
            taken.append(number)
            yield number

    found = RayColumns(ray, in_flight=2).map(lambda number: number**2, blocks())
    assert (next(found), taken) == (0, [0, 1])
    assert [*found] == [number**2 for number in range(1, 9)]


def test_the_task_of_a_killed_process_is_repeated(ray, tmp_path):
    mark = tmp_path / "killed"

    def block_of(number, mark=mark, signal=signal.SIGKILL):
        if number == 1 and not mark.exists():
            mark.write_text("once")
            os.kill(os.getpid(), signal)
        return number

    assert [*RayColumns(ray).map(block_of, range(4))] == [0, 1, 2, 3]
    assert Path(mark).exists()


def test_an_error_in_a_block_is_reported(ray):
    with pytest.raises(RayRunError, match="ZeroDivisionError"):
        [*RayColumns(ray).map(lambda number: 1 // number, [1, 0])]
