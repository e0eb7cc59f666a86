"""Analytic federation at both ends: statistics of liars that pass admission, and the rules' catalogue."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aggregator.rules import RULES, Rows, bind
from edge_sdk.extensions.analytic.solve import fleet_solution, votes
from edge_sdk.extensions.analytic.statistics import gather, total
from edge_sdk.extensions.analytic.validation import StatisticBounds, statistic_fault

DEVICES, LIARS, WIDTH = 13, 2, 6
BOUNDS = StatisticBounds(WIDTH, 1, 1, row=8.0, target=12.0, windows=300.0)


@pytest.fixture(scope="module")
def fleet():
    """Honest devices with like truths; two whose targets are the opposite of the truth, enlarged."""
    draw = np.random.default_rng(0)
    truth = draw.normal(size=WIDTH)
    sent = {}
    for i in range(DEVICES):
        design = np.clip(draw.normal(size=(200, WIDTH)), -3.0, 3.0)
        own = design @ (truth + 0.1 * draw.normal(size=WIDTH)) + draw.normal(size=200)
        targets = -4.0 * own if i < LIARS else own
        sent[f"d{i:02}"] = gather(design, np.clip(targets, -12.0, 12.0)[:, None])
    honest = {name: own for i, (name, own) in enumerate(sorted(sent.items())) if i >= LIARS}
    return sent, fleet_solution(total(honest), 1e-3)[0]


def test_invented_data_pass_admission_and_move_the_sums(fleet):
    sent, truth = fleet
    assert {statistic_fault(own, BOUNDS) for own in sent.values()} == {None}
    moved = fleet_solution(total(sent), 1e-3)[0]
    assert np.linalg.norm(moved - truth) > 0.3 * np.linalg.norm(truth)


def test_a_statistic_with_an_excessive_count_is_refused(fleet):
    sent, _ = fleet
    heavy = replace(sent["d00"].scaled(10.0), count=2000.0)
    assert statistic_fault(heavy, BOUNDS) == "count 2000 is not in (0, 300]"
    assert "trace" in str(statistic_fault(replace(heavy, count=100.0), BOUNDS))


@pytest.mark.parametrize("name", sorted(set(RULES) - {"mean", "fltrust", "monna"}))
def test_every_rule_combines_votes_with_byzantine_devices(fleet, name):
    sent, truth = fleet
    names, rows = votes(sent, 1e-3)
    given = Rows.of(dict(zip(names, rows, strict=True)))
    verdict = bind(name, f=LIARS)(given, np.full(DEVICES, 1.0 / DEVICES))
    assert np.linalg.norm(verdict.value - truth) < 0.2 * np.linalg.norm(truth)
