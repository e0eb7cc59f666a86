"""Maintain a device's prediction intervals: quantiles along its rows, and their calibration.

A calibration uses readings that its model had not seen: the shell updates it before every round of
training. Only its start is an exception: it uses the newest windows available, with the present
model, and is repeated whenever the model moves, until the calibration has processed as many rows of
its own. Where the newest readings are held back from training, the start is unbiased too.

Where a server's graph aids forecasts, and sometimes does not answer, there are intervals of two
kinds, and each has a calibration of its own: misses of one kind are not informative about the
other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.extensions.intervals.conformal import ConformalCalibration, CoverageTarget, rolled
from edge_sdk.forecasting.calendar_features import Floats, Ints
from edge_sdk.forecasting.windows import ChannelFrame, row_numbers
from edge_sdk.protocol.contract.method import Array
from edge_sdk.protocol.contract.parameter_layout import Vector

Predict = Callable[[Ints], Floats]
"""Function from origins ``(n,)`` to quantiles ``(n, horizon, levels)``, in the series' unit."""


@dataclass(frozen=True, slots=True, eq=False)
class SavedCalibration:
    """A stored calibration, with the model and bundle it belongs to."""

    calibration: ConformalCalibration  # calibration up to its newest row
    bundle: bytes  # digest of the bundle whose quantiles it moves
    model: bytes  # digest of the vector it was started with
    since: int  # number of the newest row when it was started
    # calibration of intervals aided by a server's graph; None before the first
    aided: ConformalCalibration | None = None

    def arrays(self) -> dict[str, Array]:
        """Return the state as named arrays, to be saved; ``from_arrays`` is the inverse."""
        own = {"bundle": self.bundle, "model": self.model}
        marks = {name: np.frombuffer(digest, np.uint8) for name, digest in own.items()}
        aided = {} if self.aided is None else self.aided.arrays()
        more = {f"aided_{name}": array for name, array in aided.items()}
        return {**self.calibration.arrays(), **marks, "since": np.array(self.since), **more}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> SavedCalibration:
        """Rebuild from the result of ``arrays``."""
        bundle, model = (arrays[name].tobytes() for name in ("bundle", "model"))
        more = {n.partition("_")[2]: a for n, a in arrays.items() if n.startswith("aided_")}
        aided = ConformalCalibration.from_arrays(more) if more else None
        return cls(
            ConformalCalibration.from_arrays(arrays), bundle, model, int(arrays["since"]), aided
        )


@dataclass(frozen=True, slots=True)
class IntervalTracker:
    """Tracker of a device's calibration, row by row."""

    aim: CoverageTarget  # intended shares of misses
    warm: int  # number of rows it starts with
    bundle: bytes  # digest of the bundle in use

    def follow(
        self, kept: SavedCalibration | None, frame: ChannelFrame, vector: Vector, predict: Predict
    ) -> SavedCalibration:
        """Bring a calibration up to the newest row, or start one.

        Missed rows are processed with the present model, the newest ``warm`` of them at most.

        Args:
            kept: Stored calibration; None to start.
            frame: Channels and readings; at least one row.
            predict: Function that returns its quantiles.
        """
        numbers = row_numbers(frame)
        model = hashlib.sha256(vector.tobytes()).digest()
        if kept is None or self._is_void(kept, model, int(numbers[-1])):
            fresh, aided = (
                ConformalCalibration.new(frame.window.horizon),
                self._still(kept, numbers),
            )
            kept = SavedCalibration(fresh, self.bundle, model, int(numbers[-1]), aided)
        first = int(np.searchsorted(numbers, kept.calibration.upto, side="right"))
        rows = np.arange(max(first, len(frame) - self.warm), len(frame), dtype=np.int64)
        after, _ = self._walk(kept.calibration, frame, rows, predict)
        return replace(kept, calibration=after)

    def aid(
        self, kept: SavedCalibration, frame: ChannelFrame, predicted: Floats | None
    ) -> SavedCalibration:
        """Bring the calibration of aided intervals up to the newest row.

        Only served intervals count here, for the quantiles of a server that did not answer are
        unknown. It starts with the ends of the other calibration. A model that moves makes it no
        worse: no interval was predicted for a reading that had been learned from.

        Args:
            frame: Channels and readings; at least one row.
            predicted: Quantiles about to be served from the newest row; None if there are none.
        """
        numbers, one = row_numbers(frame), kept.aided
        if one is None:
            one = replace(
                ConformalCalibration.new(frame.window.horizon), moved=kept.calibration.moved
            )
        rows = np.arange(len(frame), dtype=np.int64)[numbers > one.upto][-self.warm :]
        nothing = np.full((len(rows), frame.window.horizon, 1), np.nan)
        one, _ = rolled(one, numbers[rows], frame.raw[rows], nothing, self.aim)
        return replace(kept, aided=one if predicted is None else one.waiting(predicted, self.aim))

    def served(self, frame: ChannelFrame, origins: Ints, predict: Predict) -> Floats:
        """Return the intervals that would have been served from origins, ``(n, horizon, 2)``.

        The calibration starts ``warm`` rows before the first of them and processes every reading in
        order; the model is the same throughout.
        """
        if not len(origins):
            return np.empty((0, frame.window.horizon, 2))
        begin = max(int(origins[0]) - self.warm, 0)
        rows = np.arange(begin, int(origins[-1]) + 1, dtype=np.int64)
        _, ends = self._walk(ConformalCalibration.new(frame.window.horizon), frame, rows, predict)
        return np.asarray(ends[origins - begin])

    def _still(self, kept: SavedCalibration | None, numbers: Ints) -> ConformalCalibration | None:
        if kept is None or kept.aided is None or kept.bundle != self.bundle:
            return None
        return kept.aided if kept.aided.upto <= int(numbers[-1]) else None

    def _is_void(self, kept: SavedCalibration, model: bytes, newest: int) -> bool:
        calibration = kept.calibration
        is_young = calibration.upto - kept.since < self.warm
        return (
            kept.bundle != self.bundle
            or calibration.upto > newest
            or (is_young and kept.model != model)
        )

    def _walk(
        self, calibration: ConformalCalibration, frame: ChannelFrame, rows: Ints, predict: Predict
    ) -> tuple[ConformalCalibration, Floats]:
        whole = rows[frame.complete[rows]]
        quantiles = predict(whole)
        predicted = np.full((len(rows), *quantiles.shape[1:]), np.nan)
        predicted[np.searchsorted(rows, whole)] = quantiles
        return rolled(calibration, row_numbers(frame)[rows], frame.raw[rows], predicted, self.aim)
