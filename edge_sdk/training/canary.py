"""Compare candidate parameters on this device's newest windows before use (the canary).

Legal numbers can still ruin a model: a learning rate too high for this device's readings, or a
damaged common model. Such a model is finite but does not forecast. So a candidate is compared with
the parameters in use on the same windows before it replaces them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.forecasting.calendar_features import Floats, Ints
from edge_sdk.forecasting.windows import ChannelFrame
from edge_sdk.methods.training_context import Graph
from edge_sdk.protocol.contract.parameter_layout import Vector

WINDOWS: Final = 16
"""Number of newest complete windows that are forecast."""
WIDENED: Final = 5.0
"""Largest accepted distance of a forecast beyond the readings' range, in widths of that range."""
WORSE: Final = 10.0
"""Largest accepted ratio of a candidate's error to that of the parameters in use.

It applies once the candidate's error exceeds the range's width.
"""
_USUAL: Final = 1.0  # error, in widths, up to which a candidate is accepted without a comparison
_FLAT: Final = 1e-6  # spread over windows, in widths, below which forecasts count as equal
_ALIVE: Final = 1e-3  # spread that the forecasts in use need for a comparison


@dataclass(frozen=True, slots=True)
class Measured:
    """The forecasts of the canary windows; lengths are in widths of the readings' range."""

    windows: int  # number of windows; 0 if there are none and nothing is known
    finite: bool = True  # true if parameters and forecasts are finite
    beyond: float = 0.0  # distance of the forecasts beyond the readings' range; 0 within it
    error: float = 0.0  # mean absolute error; infinite where a forecast is not finite
    spread: float = 1.0  # difference of the forecasts between windows
    # true if the model forecasts a change, so that a constant one repeats the reading
    is_change: bool = False


UNMEASURED: Final = Measured(0)


@dataclass(frozen=True, slots=True, eq=False)
class CanaryWindows:
    """The newest complete windows of a series, and the readings of their horizons."""

    frame: ChannelFrame  # channels, targets and scale
    origins: Ints  # rows of the windows, at most ``WINDOWS``
    inputs: NDArray[np.float32]  # shape ``(n, lookback, channels)``
    truth: Floats  # readings that are forecast, shape ``(n, horizon)``
    low: float  # smallest reading; ``high`` the largest
    high: float

    @classmethod
    def of(cls, frame: ChannelFrame) -> CanaryWindows:
        """Return the windows of a frame; none where none is complete."""
        origins = frame.origins()[-WINDOWS:] if len(frame) else np.zeros(0, np.int64)
        if not len(origins):
            return cls(frame, origins, np.zeros((0, 0, 0), np.float32), np.zeros((0, 0)), 0.0, 0.0)
        low, high = float(np.nanmin(frame.raw)), float(np.nanmax(frame.raw))
        return cls(frame, origins, frame.inputs(origins), frame.truth(origins), low, high)


def measure(graph: Graph, p: Vector, windows: CanaryWindows) -> Measured:
    """Forecast the newest complete windows with the raw graph: nothing is clipped at zero."""
    if not np.isfinite(p).all():
        return Measured(1, finite=False, error=np.inf)
    frame, origins = windows.frame, windows.origins
    if not len(origins):
        return UNMEASURED
    yhat = np.asarray(graph(p=p, x=windows.inputs)[0], np.float32)
    forecasts = yhat.reshape(len(origins), frame.window.horizon, -1)
    if not np.isfinite(forecasts).all():
        return Measured(len(origins), finite=False, error=np.inf)
    low, high = windows.low, windows.high
    width = max(high - low, frame.scale.width)
    levels = forecasts.reshape(len(origins), -1)  # of all slots: restored elementwise
    values = frame.restore(levels, origins).reshape(forecasts.shape)
    beyond = max(low - float(values.min()), float(values.max()) - high, 0.0) / width
    middle: Floats = values[:, :, values.shape[2] // 2]
    error = float(np.abs(middle - windows.truth).mean()) / width
    spread = float(np.ptp(forecasts, axis=0).max()) * frame.scale.width / width
    is_change = frame.target.form == "change"
    return Measured(len(origins), True, beyond, error, spread, is_change)


class CanaryTest:
    """The canary of one model: each vector is measured once on a series."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._measured: tuple[tuple[Vector, ChannelFrame, Measured], ...] = ()
        self._windows: CanaryWindows | None = None

    def fault_of(self, pairs: Iterable[tuple[Vector, Vector]], frame: ChannelFrame) -> str:
        """Return why some candidate must not replace its present vector; empty if all may."""
        for candidate, present in pairs:
            if candidate is present:
                continue
            measured = self._measure(candidate, frame)
            if may_replace_any(measured):
                continue  # the present parameters need no forecast
            if found := fault(measured, self._measure(present, frame)):
                return found
        return ""

    def mends(self, received: Vector, own: Vector, trained: Vector, frame: ChannelFrame) -> bool:
        """Return whether a received vector was at fault, and training made it no worse."""
        before, after = self._measure(received, frame), self._measure(trained, frame)
        return bool(fault(before, self._measure(own, frame))) and after.error <= before.error

    def _measure(self, p: Vector, frame: ChannelFrame) -> Measured:
        for vector, of, known in self._measured:
            if vector is p and of is frame:
                return known
        if self._windows is None or self._windows.frame is not frame:
            self._windows = CanaryWindows.of(frame)
        found = measure(self._graph, p, self._windows)
        self._measured = (*self._measured[-3:], (p, frame, found))
        return found


def may_replace_any(candidate: Measured) -> bool:
    """Return whether a candidate passes ``fault`` for all possible parameters in use.

    >>> may_replace_any(Measured(16, error=0.4)), may_replace_any(Measured(16, error=1.4))
    (True, False)
    """
    is_close = candidate.beyond <= WIDENED and candidate.error <= _USUAL
    return candidate.finite and is_close and candidate.spread >= _FLAT


def fault(candidate: Measured, present: Measured) -> str:
    """Return why a candidate must not replace the parameters in use; empty if it may.

    A faulty candidate is accepted where the parameters in use are no better: otherwise a device
    with a poor initial vector could never learn.

    >>> fault(Measured(16, beyond=7.5, error=8.0), Measured(16, error=0.1))
    "forecast 7.5 widths beyond the readings' range, at most 5 are accepted"
    >>> fault(Measured(16, beyond=7.5, error=8.0), Measured(16, beyond=9.0, error=9.0))
    ''
    >>> fault(Measured(16, error=0.4, spread=0.0), Measured(16, error=0.3))
    'forecast is the same for every window'
    """
    if not candidate.finite:
        return "parameters or forecast are not finite"
    is_known = present.finite and present.windows > 0
    if candidate.beyond > WIDENED:
        is_no_worse = present.beyond > WIDENED and candidate.error <= present.error
        return "" if is_known and is_no_worse else _too_far(candidate)
    return _worse(candidate, present) if is_known and candidate.windows else ""


def _too_far(candidate: Measured) -> str:
    return (
        f"forecast {candidate.beyond:.3g} widths beyond the readings' range, "
        f"at most {WIDENED:g} are accepted"
    )


def _worse(candidate: Measured, present: Measured) -> str:
    if candidate.error > max(_USUAL, WORSE * present.error):
        return (
            f"error {candidate.error:.3g} widths of the readings' range, "
            f"{present.error:.3g} with the parameters in use"
        )
    is_flat = candidate.spread < _FLAT and candidate.error > present.error
    if is_flat and not candidate.is_change and present.spread > _ALIVE:
        return "forecast is the same for every window"
    return ""
