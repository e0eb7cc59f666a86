"""A forecast drawn with characters."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.extensions.evaluation.forecast import drawn
from edge_sdk.forecasting.forecast import Forecast
from tests.edge_sdk.extensions.outputs.conftest import START, issued_forecast, nothing_yet


def test_a_plot_has_readings_a_bar_and_the_interval():
    times = START + 3600 * np.arange(3, dtype=np.int64)
    ends = np.array([[1.0, 3.0]] * 3)
    issued = issued_forecast(
        forecast=Forecast(times, np.array([2.0, 2.0, 2.0]), "kWh", "model", ends, 0.8)
    )
    measured = [(START - 3600 * i, float(i)) for i in range(4, 0, -1)]
    assert drawn(measured, issued, width=40, height=4).splitlines() == [
        "         4 •   │",
        "            •  │░░░",
        "             • │ooo",
        "         1    •│░░░",
        "           from 2023-11-14 19:00, forecast from 2023-11-14 23:00, to 2023-11-15 01:00 UTC",
        "           • measured  o forecast  ░ interval",
    ]


def test_without_a_value_it_says_why():
    assert drawn([], nothing_yet()) == "nothing to draw: 24 h of energy"


@given(
    st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), max_size=300),
    st.integers(1, 200),
    st.integers(1, 40),
)
def test_no_line_is_wider_than_the_terminal(values, width, height):
    measured = [(START - 3600 * (len(values) - i), v) for i, v in enumerate(values)]
    lines = drawn(measured, issued_forecast(), width, height).splitlines()
    assert max(map(len, lines[:-2])) <= max(width, 16)
