"""The page stands alone: one file, nothing fetched, every number of the table in it."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest

from firmware_sim.reports.html_page import PageText, Panel, page, picture
from firmware_sim.results import ARMS, DeviceResult, ForecastScore, Traffic

ROWS = [
    DeviceResult(
        f"home-{i}",
        100,
        {arm: ForecastScore(0.5 + 0.1 * j, 0.9 - 0.01 * j) for j, arm in enumerate(ARMS)},
        {"pl-fl": Traffic(1000, 2000)},
    )
    for i in range(3)
]
STORY = PageText("Eight <homes>", "PL-FL won & more.", "kWh", [("licence", "CC BY 4.0")])


def panels():
    times = np.arange(200) * 3600
    truth = np.sin(times / 1e4)
    return [Panel(f"home-{i}", times, truth, dict.fromkeys(ARMS, truth + i)) for i in range(3)]


def test_the_page_loads_no_resource_and_escapes_its_text():
    text = page(STORY, ROWS, b"png")
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    assert "Eight &lt;homes&gt;" in text
    assert "PL-FL won &amp; more." in text
    assert "CC BY 4.0" in text


def test_the_best_forecaster_of_each_row_is_marked():
    text = page(STORY, ROWS, None)
    assert text.count('class="best"') == len(ROWS) + 1
    assert '<td class="best">0.870</td>' in text


def test_the_picture_is_a_png_and_is_optional(monkeypatch):
    pytest.importorskip("matplotlib")
    png = picture(panels(), "kWh")
    assert png is not None
    assert png.startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert picture(panels(), "kWh") is None
    assert "matplotlib is not installed" in page(STORY, ROWS, None)
