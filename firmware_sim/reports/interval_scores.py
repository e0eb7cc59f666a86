"""Coverage of the intervals of simulated devices, and one example of a forecast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from edge_sdk import Client

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class IntervalCoverage:
    """Coverage of the served intervals of one device."""

    below: float  # fraction of readings below their interval; ``above`` above it
    above: float
    length: float  # mean length of the intervals, in the unit of the series
    aim: float  # target fraction of readings outside on one side

    @classmethod
    def of(cls, ends: Floats, truth: Floats, coverage: float) -> IntervalCoverage:
        """Score intervals ``(n, horizon, 2)`` where the truth ``(n, horizon)`` was observed.

        >>> ends = np.array([[[0.0, 2.0]], [[1.0, 4.0]], [[0.0, 1.0]]])
        >>> IntervalCoverage.of(ends, np.array([[3.0], [0.5], [np.nan]]), 0.8)
        IntervalCoverage(below=0.5, above=0.5, length=2.5, aim=0.1)
        """
        known = np.isfinite(truth) & np.isfinite(ends).all(axis=2)
        low, high, seen = ends[known, 0], ends[known, 1], truth[known]
        below, above = float((seen < low).mean()), float((seen > high).mean())
        return cls(below, above, float((high - low).mean()), round((1.0 - coverage) / 2, 6))


@dataclass(frozen=True, slots=True, eq=False)
class ForecastExample:
    """One forecast of one device, beside the readings."""

    device: str
    times: NDArray[np.int64]  # start of each step, Unix seconds, ``(horizon,)``
    # median forecast; ``ends`` the interval, ``(horizon, 2)``; ``truth`` the readings
    median: Floats
    ends: Floats
    truth: Floats

    def text(self, unit: str) -> str:
        """Return the forecast as text, a line a step.

        >>> one = ForecastExample("mall", np.array([0]), *map(np.array, ([1.0], [[0.0, 2.5]], [3.0])))
        >>> print(one.text("kWh"))
        mall, 1970-01-01 00:00 UTC, kWh: median, interval, observed
          00:00      1.00      0.00 to 2.50          3.00  outside
        """
        first = f"{_moment(int(self.times[0])):%Y-%m-%d %H:%M} UTC"
        lines = [f"{self.device}, {first}, {unit}: median, interval, observed"]
        for time, middle, (low, high), seen in zip(
            self.times.tolist(), self.median, self.ends, self.truth, strict=True
        ):
            where = "" if low <= seen <= high or np.isnan(seen) else "  outside"
            numbers = f"{middle:10.2f}{low:10.2f} to {high:<8.2f}{seen:10.2f}{where}"
            lines.append(f"  {_moment(time):%H:%M}{numbers}")
        return "\n".join(lines)


def _moment(time: int) -> datetime:
    return datetime.fromtimestamp(time, UTC)


def score_intervals(
    client: Client, span: tuple[float, float]
) -> tuple[IntervalCoverage, ForecastExample] | None:
    """Score a device's intervals in a span; None where its model has none.

    The example is the forecast of the span with the largest total in its hours.
    """
    learner = client.learner
    ends = learner.intervals(client.state, *span)
    if ends is None or not len(ends):
        return None
    times, predicted, truth = learner.rolling(client.state, *span)
    coverage = learner.config.forecast.coverage or learner.levels[-1] - learner.levels[0]
    at = int(np.argmax(np.nan_to_num(truth).sum(axis=1)))
    horizon = np.arange(truth.shape[1], dtype=np.int64) * learner.series.step
    one = ForecastExample(client.config.id, times[at] + horizon, predicted[at], ends[at], truth[at])
    return IntervalCoverage.of(ends, truth, coverage), one


def table(found: Mapping[str, IntervalCoverage], unit: str) -> str:
    """Return the coverage of every device's intervals as a table.

    >>> print(table({"mall": IntervalCoverage(0.01, 0.098, 4.5, 0.1)}, "kWh"))
    device  below  above  mean length, kWh
    mall    0.010  0.098  4.50
    target: at most 0.10 on either side
    """
    wide = max(map(len, (*found, "device")))
    lines = [f"{'device':{wide}}  below  above  mean length, {unit}"]
    for name, one in found.items():
        lines.append(f"{name:{wide}}  {one.below:.3f}  {one.above:.3f}  {one.length:.2f}")
    aims = {one.aim for one in found.values()}
    return "\n".join([*lines, *(f"target: at most {aim:.2f} on either side" for aim in aims)])
