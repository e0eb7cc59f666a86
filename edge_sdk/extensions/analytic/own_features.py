"""Describe windows of one device by named features and random units, and sum their products in chunks.

Numpy alone and without a BLAS; design rows exist for a few hundred windows at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.extensions.analytic.features import LoadRecord, columns, standard_names
from edge_sdk.extensions.analytic.random_units import RandomUnits
from edge_sdk.extensions.analytic.standardise import CLIP
from edge_sdk.forecasting.calendar_features import DAY, Floats, Ints
from edge_sdk.forecasting.ridge import outputs_of, product
from edge_sdk.forecasting.windows import ChannelFrame, filled

Single = NDArray[np.float32]

CHUNK = 128
"""Windows whose design rows are in memory at once."""
FAN_IN = 2
"""Features that a random unit reads."""


@dataclass(frozen=True, slots=True, eq=False)
class FeatureRows:
    """The features of windows of one device."""

    frame: ChannelFrame
    record: LoadRecord
    names: tuple[str, ...]
    day: int
    shift: float  # load that counts as 0, in the series' unit
    unit: float  # load that counts as 1

    @classmethod
    def of(cls, frame: ChannelFrame, shift: float, unit: float) -> FeatureRows | None:
        """Return the features of a record; None unless the step divides a day into at least four parts."""
        step, horizon = frame.window.step_seconds, frame.window.horizon
        day = DAY // step
        if DAY % step or day < 4 or not len(frame):
            return None
        values = np.nan_to_num((filled(frame.last, len(frame)) - shift) / unit)
        times = np.concatenate([frame.times, frame.times[-1] + step * np.arange(1, horizon + 1)])
        channels = np.nan_to_num(frame.channels.astype(np.float64))
        outside = {f"channel{i}": column for i, column in enumerate(channels.T)}
        lookback = min(max(frame.window.lookback, 12), 24)
        names = (
            *standard_names(day, lookback=lookback),
            *(f"exog:{name}" for name in outside),
            *(f"exog_change:{name}:{day}" for name in outside),
        )
        slots, weekdays = times % DAY // step, (times // DAY + 3) % 7
        record = LoadRecord(values, slots, weekdays, day, outside)
        return cls(frame, record, names, day, shift, unit)

    def features(self, origins: Ints, step: int) -> Single:
        """Return the features of windows for one step, ``(n, k)``."""
        rows = np.empty((len(origins), len(self.names)), np.float32)
        for start in range(0, len(origins), CHUNK):
            some = slice(start, start + CHUNK)
            rows[some] = columns(self.record, self.names, origins[some], step)
        return rows


@dataclass(frozen=True, slots=True, eq=False)
class SparseUnits:
    """Random units by the features that each reads, ``(units, fan_in)``."""

    places: Ints
    weights: Single
    offsets: Single

    @classmethod
    def of(cls, features: int, units: int, fan_in: int = FAN_IN) -> SparseUnits:
        """Draw units over features; every device and version draws the same."""
        drawn = RandomUnits.draw("device", 0, features, units, fan_in)
        order = np.argsort(drawn.weights == 0.0, axis=0, kind="stable")[:fan_in].T
        weights = np.take_along_axis(drawn.weights.T, order, axis=1)
        return cls(order, weights.astype(np.float32), drawn.offsets.astype(np.float32))

    def design(self, standard: Single) -> Single:
        """Return features, units and a constant, ``(n, P)``."""
        count, wide = standard.shape
        design = np.ones((count, wide + len(self.offsets) + 1), np.float32)
        design[:, :wide] = standard
        active = design[:, wide:-1]
        active[:] = self.offsets
        for places, weights in zip(self.places.T, self.weights.T, strict=True):
            active += standard[:, places] * weights
        np.clip(active, 0.0, CLIP, out=active)
        return design


@dataclass(frozen=True, slots=True, eq=False)
class ClosedForm:
    """A linear model of one step."""

    mean: Single  # mean of each feature, ``(k,)``
    deviation: Single  # deviation of each feature, infinity where it is constant
    units: SparseUnits
    coefficients: Single  # of features, units and a constant, ``(P,)``

    def designs(self, rows: Single) -> Iterator[tuple[slice, Single]]:
        """Yield the design rows of windows in chunks."""
        for start in range(0, len(rows), CHUNK):
            some = slice(start, start + CHUNK)
            standard = np.clip((rows[some] - self.mean) / self.deviation, -CLIP, CLIP)
            yield some, self.units.design(standard)


def predicted_changes(
    rows: Single, closed: ClosedForm, coefficients: Single | None = None
) -> Floats:
    """Return the changes that a closed form forecasts, ``(n,)``; of several models ``(n, models)``."""
    models = closed.coefficients[None] if coefficients is None else coefficients
    predicted = np.empty((len(rows), len(models)))
    for some, design in closed.designs(rows):
        predicted[some] = outputs_of(design, models)
    return predicted[:, 0] if coefficients is None else predicted


def closed_sums(
    closed: ClosedForm, rows: Single, targets: Floats, weights: Floats | None = None
) -> tuple[Floats, Floats]:
    """Return Σ w φφᵀ and Σ w φ y, of sums in float64 over chunks."""
    wide = rows.shape[1] + len(closed.units.offsets) + 1
    gram, cross = np.zeros((wide, wide)), np.zeros((1, wide))
    for some, design in closed.designs(rows):
        heavy = design if weights is None else design * weights[some, None].astype(np.float32)
        gram += product(heavy, design)
        cross += product(targets[some, None].astype(np.float32), heavy)
    return gram, cross


def stepped(rows: Single, step: int, horizon: int) -> Single:
    """Append the step as a feature where trees see several."""
    if horizon == 1:
        return rows
    return np.concatenate([rows, np.full((len(rows), 1), step, np.float32)], axis=1)


def with_coefficients(closed: ClosedForm, model: Floats) -> ClosedForm:
    """Return a closed form with other coefficients, ``(1, P)``."""
    return replace(closed, coefficients=model[0].astype(np.float32))
