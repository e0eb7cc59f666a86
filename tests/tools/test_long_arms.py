"""The table of long runs at the paper's rates states what the stored arms scored."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETS = {
    "ev_boulder": "Boulder",
    "ev_palo_alto_2011_2013": "Palo Alto 2011-2013",
    "ev_perth_kinross": "Perth & Kinross",
}


def test_the_table_has_the_means_of_the_stored_arms():
    means: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for one in json.loads((ROOT / "tools/papers/pfgl-long.json").read_text("utf-8")):
        stations = one["stations"].values()
        scores = {k: sum(x[k] for x in stations) / len(stations) for k in ("QS", "MIL", "ICP")}
        means[SETS[one["arm"]["dataset"]], one["arm"]["name"]].append(scores)
    page = (ROOT / "docs/experiments.md").read_text("utf-8")
    section = page.partition("#### At the paper's rates, with the tuning at the end")[2]
    table = section.partition("| set, p=6 |")[2].partition("\n\n")[0]
    rows = [[x.strip() for x in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert {(row[0], row[1]) for row in rows} == set(means)
    for label, name, seeds, *stated in rows:
        found = means[label, name]
        assert int(seeds) == len(found)
        for key, value in zip(("QS", "MIL", "ICP"), stated, strict=True):
            assert float(value) == pytest.approx(sum(x[key] for x in found) / len(found), abs=6e-4)
