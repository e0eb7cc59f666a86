"""Run the version of a rollout beside the served bundle, on the same readings.

The version has the parameters that it was released with; one with personal layers is tuned on this device
first. A version whose first vector is that of the served bundle brings other graphs, not other
parameters: it forecasts with what the device has learned.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any

import numpy as np

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import EdgeError
from edge_sdk.extensions.rollouts.trial_record import TrialRecord
from edge_sdk.forecasting.calendar_features import Floats, Ints
from edge_sdk.forecasting.forecast import Forecast, rolling
from edge_sdk.forecasting.windows import ChannelFrame, new_windows, row_numbers, target_days
from edge_sdk.methods import METHODS
from edge_sdk.methods.local_sgd import LocalState
from edge_sdk.protocol.contract.manifest import Manifest
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.runtime import GraphError
from edge_sdk.training.model_runtime import ModelRuntime
from edge_sdk.training.run_role import RunnableBundle, RunRole


class TrialVersionError(EdgeError):
    """A version that cannot be compared with the served bundle on this device."""


@dataclass(slots=True)
class TrialVersion:
    """The version of a rollout beside the bundle in use."""

    runtime: ModelRuntime  # the version, on the series of the bundle in use
    present: ModelRuntime  # the bundle in use
    # whole vector of the version, as it was tuned on this device or released; None if it forecasts
    # with what the device has learned, or was not compared yet
    own: Vector | None = None
    _frame: ChannelFrame | None = field(init=False, default=None)

    @classmethod
    def of(
        cls, bundle: RunnableBundle, present: ModelRuntime, own: Vector | None = None
    ) -> TrialVersion:
        """Set up a verified version beside the bundle in use.

        Raises:
            TrialVersionError: Its forecasts cannot be compared with those of the bundle in use.
        """
        if why := incomparable(bundle.manifest, present.manifest):
            raise TrialVersionError(f"bundle {bundle.manifest.name}: {why}")
        role = RunRole(0, "fedavg", tuple(bundle.manifest.shared))
        runtime = ModelRuntime(
            present.config,
            bundle,
            role,
            present.series,
            present.mechanism,
            replace(present.shell, methods=METHODS),
        )
        if present.scale is not None:
            runtime.fix_scale(present.scale)
        if own is not None and own.shape != bundle.initial.shape:
            own = None
        return cls(runtime, present, own)

    @property
    def reads_learned(self) -> bool:
        mine, served = self.runtime, self.present
        return mine.spec.whole_digest == served.spec.whole_digest and np.array_equal(
            mine.bundle.initial, served.bundle.initial
        )

    @property
    def is_personal(self) -> bool:
        return self.runtime.spec.shared_size < self.runtime.spec.size and not self.reads_learned

    def vector(self, learned: Vector) -> Vector:
        """Return the parameters of the version.

        Args:
            learned: Whole vector of the bundle in use.
        """
        if self.own is not None:
            return self.own
        return learned if self.reads_learned else self.runtime.bundle.initial

    def adopt(self, own: Vector) -> None:
        self.own = own

    def follow(self) -> None:
        """Use the readings and the scale that the bundle in use has now."""
        frame = self.present.frame()
        if frame is not self._frame:
            self._frame = frame
            if self.present.scale is not None:
                self.runtime.fix_scale(self.present.scale)
            self.runtime.refresh()

    def release(self) -> None:
        """Free the memory of the channels until they are needed again."""
        self._frame = None
        self.runtime.refresh()

    def compared(self, record: TrialRecord, upto: int, learned: Vector) -> TrialRecord:
        """Add the errors of both on the rows after a row number.

        Args:
            record: Errors so far.
            upto: Number of the newest row that was compared before.
            learned: Whole vector of the bundle in use, which has not learned from these rows.
        """
        self.follow()
        frame, other = self.present.frame(), self.runtime.frame()
        origins, truth = new_windows(frame, upto)
        if not len(origins) or not len(other):
            return record
        rows, theirs = row_numbers(frame)[origins], row_numbers(other)
        at = np.minimum(np.searchsorted(theirs, rows), len(theirs) - 1)
        usable = (theirs[at] == rows) & other.complete[at]
        origins, truth, at = origins[usable], truth[usable], at[usable]
        served = _medians(self.present, learned, frame, origins)
        new = _medians(self.runtime, self.vector(learned), other, at)
        return record.extended(served, new, truth, target_days(frame, origins))

    def forecast(self, learned: Vector) -> Forecast | None:
        """Forecast the values after the newest reading; None where the version cannot."""
        self.follow()
        if not self.runtime.is_ready:
            return None
        try:
            found = self.runtime.forecast(LocalState(self.vector(learned)))
        except GraphError:
            return None
        is_usable = found.source in ("model", "without graph") and np.isfinite(found.values).all()
        return found if is_usable else None


def incomparable(manifest: Manifest, served: Manifest) -> str:
    """Return why a version cannot be compared with the served one; empty if it can be."""
    mine, other = manifest.window, served.window
    if (mine.step_seconds, mine.horizon) != (other.step_seconds, other.horizon):
        return "its step or horizon is another than that of the served version"
    if manifest.target.stream != served.target.stream:
        return f"it forecasts {manifest.target.stream}, the served version {served.target.stream}"
    if tuple(manifest.streams) != tuple(served.streams):
        return "it reads other streams than the served version"
    if manifest.analytic != served.analytic:
        return "a model in closed form is solved in a run, and has no parameters before"
    return ""


def _medians(runtime: ModelRuntime, p: Vector, frame: ChannelFrame, origins: Ints) -> Floats:
    """Forecast medians, ``(n, horizon)``; NaN where the graph fails."""
    graph: Any = runtime.bundle.graphs["forecast"]
    try:
        return rolling(graph, p, frame, origins, runtime.levels)
    except GraphError:
        return np.full((len(origins), frame.window.horizon), np.nan)
