"""The figures on the page are those that the command gives for the shipped samples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("pandas", reason="reading tables (extra: evaluate)")

import firmware_sim
from firmware_sim.evaluation.comparison import REPEATED, compare
from firmware_sim.evaluation.records import on_grid, span
from firmware_sim.evaluation.tables import read_tables
from firmware_sim.evaluation.tomorrow import (
    ALONE,
    AVERAGE,
    FLEET,
    LAST_WEEK,
    compare_tomorrow,
)

DATA = Path(firmware_sim.__file__).parent / "data"
PAGE = Path(firmware_sim.__file__).parents[1] / "docs" / "evaluate.md"
ROW = re.compile(
    r"^\| (homes|cells|chargers)" + 6 * r" \| ([^|]+?)" + r" \|$",
    re.MULTILINE,
)
DEVIATION = 0.004  # of a figure with three decimals; the kernels of processors differ


@pytest.mark.slow
@pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not installed")
@pytest.mark.parametrize(
    "sample",
    ["homes", *(pytest.param(name, marks=pytest.mark.soak) for name in ("cells", "chargers"))],
)
def test_the_page_shows_what_the_command_finds(sample):
    shown = {row[1]: row[2:] for row in ROW.findall(PAGE.read_text("utf-8")) if row[0] == sample}
    records = on_grid(read_tables(DATA / sample))
    assert len(shown) == 2
    for ahead in (1, records.day):
        *figures, cold = shown[span(ahead * records.step)]
        found = compare(records, ahead, is_quick=True, cold=(7,))
        naive = min(found.relative(way) for way in REPEATED)
        wanted = [naive, *(found.relative(way) for way in ("alone", "fleet", "personal"))]
        assert [float(text.strip("* ")) for text in figures] == pytest.approx(wanted, abs=DEVIATION)
        alone, helped = found.cold[7]
        change = float(cold.split()[0]) / 100 * (-1 if "smaller" in cold else 1)
        assert change == pytest.approx(helped / alone - 1, abs=DEVIATION)


@pytest.mark.slow
@pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not installed")
@pytest.mark.parametrize(("sample", "column"), [("homes", 1), ("chargers", 2)])
def test_the_page_shows_what_the_command_finds_of_tomorrow(sample, column):
    text = PAGE.read_text("utf-8").replace("*", "")
    found = compare_tomorrow(on_grid(read_tables(DATA / sample)))
    for way in (LAST_WEEK, ALONE, FLEET):
        (row,) = re.findall(rf"^\| tomorrow, {way} (.*)\|$", text, re.MULTILINE)
        shown = float(row.split("|")[column])
        assert shown == pytest.approx(found.relative(way, AVERAGE), abs=DEVIATION)
    for days in (1, 3, 7, 28):
        (row,) = re.findall(rf"^\| new device, {days} days?\b(.*)\|$", text, re.MULTILINE)
        shown = [float(one) for one in row.split("|")[column].split("/")]
        assert shown == pytest.approx(found.after(days), abs=DEVIATION)
