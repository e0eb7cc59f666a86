"""Draw readings and a forecast with its interval as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from edge_sdk.forecasting.issued_forecast import IssuedForecast

MEASURED, EXPECTED, BETWEEN, NEWEST = "•", "o", "░", "│"
_LABEL = 10  # columns of the axis
_LEAST = 4  # rows and columns of the smallest plot


def drawn(
    measured: Sequence[tuple[int, float]], issued: IssuedForecast, width: int = 80, height: int = 14
) -> str:
    """Return the plot as lines: measured values, a bar at the newest one, then the forecast.

    One column is one slot; the oldest values that do not fit are left out. Without any finite value
    there is nothing to draw, and the text says so.

    Args:
        measured: Start and value of the newest readings, rising; NaN in gaps.
        issued: The forecast.
        width: Columns of the terminal.
        height: Rows of the plot, without its axis.
    """
    room = max(width - _LABEL - 2, _LEAST)
    ahead = issued.rows()[: room - 2]
    before = measured[max(0, len(measured) - (room - len(ahead) - 1)) :]
    values = [value for _, value in before] + [x for row in ahead for x in row[1:] if x is not None]
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return f"nothing to draw: {issued.forecast.missing or 'no value is known'}"
    low, high = min(finite), max(finite)
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5, high + 0.5
    count = max(height, _LEAST)
    columns = [*(_column(count, low, high, value) for _, value in before), NEWEST * count]
    columns += [_column(count, low, high, *row[1:]) for row in ahead]
    lines = []
    for i, marks in enumerate(zip(*columns, strict=True)):
        value = high - (high - low) * i / (count - 1)
        label = f"{value:.4g}" if i % 4 == 0 or i == count - 1 else ""
        lines.append(f"{label:>{_LABEL}} {''.join(marks)}".rstrip())
    return "\n".join((*lines, *_axis([at for at, _ in before], [at for at, *_ in ahead])))


def _column(count: int, low: float, high: float, value: float | None, *ends: float | None) -> str:
    """Return one column from top to bottom: a measured value, or a forecast with its ends."""

    def row(number: float) -> int:
        return round((high - number) / (high - low) * (count - 1))

    marks = [" "] * count
    known = [end for end in ends if end is not None]
    if len(known) == 2:
        top, bottom = row(max(known)), row(min(known))
        marks[top : bottom + 1] = BETWEEN * (bottom + 1 - top)
    if value is not None and math.isfinite(value):
        marks[row(value)] = EXPECTED if ends else MEASURED
    return "".join(marks)


def _axis(before: list[int], ahead: list[int]) -> list[str]:
    """Return the first, the newest and the last time, and the marks' meaning."""
    known = [("from", before[:1]), ("forecast from", ahead[:1]), ("to", ahead[-1:])]
    times = ", ".join(f"{word} {_minute(at[0])}" for word, at in known if at)
    pad = " " * _LABEL
    return [
        f"{pad} {times} UTC",
        f"{pad} {MEASURED} measured  {EXPECTED} forecast  {BETWEEN} interval",
    ]


def _minute(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")
