"""Forecast with intervals that are calibrated on the readings that arrive (conformal prediction)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from edge_sdk.errors import WireError
from edge_sdk.forecasting.calendar_features import Floats, Ints
from edge_sdk.forecasting.forecast import EndsOf, Interval, fan, least
from edge_sdk.forecasting.windows import ChannelFrame
from edge_sdk.methods.training_context import Graph
from edge_sdk.protocol.codec import pack_leaves, unpack_leaves
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.store.store import DeviceStore
from edge_sdk.training.forecaster import Forecaster

if TYPE_CHECKING:
    from edge_sdk.extensions.intervals.conformal import ConformalCalibration, CoverageTarget
    from edge_sdk.extensions.intervals.interval_tracker import IntervalTracker, SavedCalibration

NARROWEST = 0.01
"""Minimum width of an interval, as a share of the series' scale."""
CALIBRATION = "calibration"
"""Name under which the store keeps the calibration of the intervals."""


class CalibratedForecaster(Forecaster):
    """The forecasts of one bundle; ``kept`` is None before the first."""

    kept: SavedCalibration | None

    def recall(self, store: DeviceStore) -> None:
        """Restore the saved calibration; a lost one is recomputed from the readings."""
        self.kept = recalled(store, self.bundle.manifest.digest)

    def save(self, store: DeviceStore) -> None:
        """Save the calibration: one page of flash, at most once per row of the series.

        Raises:
            StoreFull: No space; the old one is kept.
        """
        if self.kept is not None:
            store.file_paper(CALIBRATION, pack_leaves(self.kept.arrays()))

    def forget(self) -> None:
        self.kept = None

    def follow(self, p: Vector, frame: ChannelFrame, trained: Vector | None) -> None:
        """Calibrate on the readings up to the newest, by forecasts with ``p``."""
        if self._is_calibrated:
            model = p if trained is None else trained
            one = self.served
            served = self.fan(p, frame) if one is None else partial(one.quantiles, p, frame)
            self.kept = self._tracker(frame).follow(self.kept, frame, model, served)

    def calibrate(self, p: Vector, frame: ChannelFrame, trained: Vector) -> None:
        """Update the calibration with new readings; nothing happens before the first forecast."""
        if self.kept is None or not self._is_calibrated:
            return
        if self.kept.calibration.upto < int(frame.times[-1]) // frame.window.step_seconds:
            self.follow(p, frame, trained)
            if self.kept.aided is not None:
                self.kept = self._tracker(frame).aid(self.kept, frame, None)

    def ends(self, p: Vector, frame: ChannelFrame, graph: Graph) -> EndsOf | None:
        """Return the calibration of the interval's ends; a forecast aided by a server has one of its own."""
        if self.kept is None or not self._is_calibrated:
            return None
        tracker = self._tracker(frame)
        if graph is self.bundle.graphs["forecast"]:
            return moved_by(self.kept.calibration, tracker.aim)
        newest = np.array([len(frame) - 1], np.int64)
        self.kept = tracker.aid(self.kept, frame, fan(graph, p, frame, newest, self.levels)[0])
        assert self.kept.aided is not None
        return moved_by(self.kept.aided, tracker.aim)

    def intervals(self, p: Vector, frame: ChannelFrame, origins: Ints) -> Floats | None:
        """Return the intervals of forecasts from some origins; each calibrated on earlier readings only."""
        if self._is_calibrated:
            return self._tracker(frame).served(frame, origins, self.fan(p, frame))
        return super().intervals(p, frame, origins)

    @property
    def _is_calibrated(self) -> bool:
        return len(self.levels) > 1

    def _tracker(self, frame: ChannelFrame) -> IntervalTracker:
        # with the first window
        from edge_sdk.extensions.intervals.conformal import CoverageTarget  # noqa: PLC0415
        from edge_sdk.extensions.intervals.interval_tracker import IntervalTracker  # noqa: PLC0415

        settings = self.settings
        aim = CoverageTarget.of(
            self.levels,
            settings.coverage,
            gain=settings.step_size,
            least=least(frame),
            narrowest=NARROWEST * frame.scale.width,
        )
        return IntervalTracker(aim, settings.calibration_windows, self.bundle.manifest.digest)


def moved_by(calibration: ConformalCalibration, aim: CoverageTarget) -> EndsOf:
    """Return the function from quantiles to the interval that a calibration serves."""
    return lambda predicted: Interval(
        calibration.served(predicted, aim), aim.coverage, calibration.tried
    )


def recalled(store: DeviceStore, digest: bytes) -> SavedCalibration | None:
    """Return the saved calibration of a bundle; None if it is missing, damaged or of another."""
    paper = store.paper(CALIBRATION)
    if paper is None:
        return None
    from edge_sdk.extensions.intervals.interval_tracker import SavedCalibration  # noqa: PLC0415 - as above

    try:
        kept = SavedCalibration.from_arrays(unpack_leaves(paper))
    except (WireError, LookupError, ValueError, TypeError, AttributeError, OverflowError):
        return None
    return kept if kept.bundle == digest else None
