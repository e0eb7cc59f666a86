"""The measuring tool; and at full size: 100,000 updates stay within their budgets."""

from __future__ import annotations

import pytest

from aggregator.store.types import Retention
from tools import growth

SETTLED = 120  # bytes of a settled number, which no budget counts; a thousand a device here
LOG = 10_000_000  # the write-ahead log of the largest transaction


def test_the_tool_prints_both_tables(capsys):
    said = ["--days", "20", "--keep-days", "8", "--updates", "2000", "--scalars", "20"]
    assert growth.main([*said, "--vectors", "100000", "--journal", "300000"]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line]
    assert [row[0] for row in rows if not row[0].startswith("| ---")] == [
        "| a device's file, bytes after",
        "| without bounds",
        "| history_days = 8",
        "| an aggregator's file, bytes after",
        "| without bounds",
        "| with bounds",
    ]
    assert "audit rounds 1 to 20" in rows[-2][-1]
    assert "audit rounds 1 to" not in rows[-1][-1]


@pytest.mark.soak
def test_a_hundred_thousand_updates_stay_within_their_budgets(tmp_path):
    keep = Retention(vectors=20_000_000, journal=10_000_000)
    sizes, told = growth.aggregator(tmp_path, 100_000, 250, keep)
    settled = growth.DEVICES * 1000 * SETTLED
    assert sizes[-1] <= 1.25 * (keep.vectors + keep.journal) + settled + LOG, told
    assert sizes[-1] - sizes[-2] <= 25_000 * SETTLED, sizes
