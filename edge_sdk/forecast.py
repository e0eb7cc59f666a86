"""Forecasts from a device's own vector, and what to say when its window is not complete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edge_sdk.almanac import DAY, Floats, Ints
from edge_sdk.methods.local import Graph
from edge_sdk.windows import Frame
from edge_sdk.wire.spec import Vector

SourceOf = Literal["model", "last day", "none"]


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """What comes next.

    Attributes:
        times: Start of each forecast interval, Unix seconds, shape ``(horizon,)``.
        values: In ``unit``, shape ``(horizon,)``; NaN when the source is ``none``.
        unit: Of the values.
        source: ``model``; ``last day``, the same slots a day (or days) earlier; or ``none``.
        interval: Lower and upper ends, shape ``(horizon, 2)``, where one is known.
    """

    times: Ints
    values: Floats
    unit: str
    source: SourceOf
    interval: Floats | None = None

    @property
    def median(self) -> Floats:
        """The values: the middle of what is to be expected."""
        return self.values


def predict(graph: Graph, p: Vector, frame: Frame) -> Forecast:
    """Forecast what follows the newest row, by the best means there is.

    The model needs a complete window and must answer with finite numbers; otherwise the same slots
    of the last day known stand in, and if these were not measured either, nothing is claimed.
    """
    newest = np.array([len(frame) - 1], np.int64)
    values, source = _last_day(frame)
    if frame.is_ready:
        told = rolling(graph, p, frame, newest)[0]
        if np.isfinite(told).all():
            values, source = told, "model"
    step, horizon = frame.window.step_seconds, frame.window.horizon
    begin = frame.times[-1] + step if len(frame) else 0
    times = begin + np.arange(horizon, dtype=np.int64) * step
    return Forecast(times, values, frame.target.unit, source)


def rolling(graph: Graph, p: Vector, frame: Frame, origins: Ints, *, size: int = 512) -> Floats:
    """Forecast from every origin, in the series' unit, shape ``(len(origins), horizon)``.

    Args:
        graph: The bundle's forecast graph: p, x to yhat.
        p: The whole vector.
        frame: Channels and scale.
        origins: Rows with complete windows before them.
        size: Windows in one call of the graph.
    """
    told = np.empty((len(origins), frame.window.horizon))
    for start in range(0, len(origins), size):
        some = origins[start : start + size]
        yhat: NDArray[np.float32] = graph(p=p, x=frame.inputs(some))[0]
        told[start : start + size] = frame.restore(yhat.reshape(len(some), -1), some)
    return told


def _last_day(frame: Frame) -> tuple[Floats, SourceOf]:
    """Repeat the same slots of the last day that lies wholly before the forecast."""
    horizon, rows = frame.window.horizon, len(frame)
    day = max(1, DAY // frame.window.step_seconds)
    ahead = np.arange(horizon)
    at = rows + ahead - day * (ahead // day + 1)
    if rows and at[0] >= 0:
        values = frame.last[at]
        if np.isfinite(values).all():
            return values, "last day"
    return np.full(horizon, np.nan), "none"
