"""Fit the device's trees and blend to its readings and to the fleet's models of the active run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.extensions.analytic.boosted_fit import Fan, FleetForecasts, fit
from edge_sdk.extensions.analytic.boosted_model import BoostedModel
from edge_sdk.forecasting.calendar_features import Floats, Ints
from edge_sdk.forecasting.forecast import COMMON, FLEET, fan
from edge_sdk.forecasting.windows import ChannelFrame
from edge_sdk.protocol.contract.method import Array
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.training.model_runtime import ModelRuntime


@dataclass(frozen=True, slots=True, eq=False)
class FittedTrees:
    """A fitted model and its training data."""

    model: BoostedModel
    row: int  # number of the newest row of readings at the fit
    base: bytes  # digest of the fleet's model at the fit

    def arrays(self) -> dict[str, Array]:
        """Return the trees as named arrays, to be saved; ``from_arrays`` is the inverse."""
        base = np.frombuffer(self.base, np.uint8)
        return {**self.model.arrays(), "row": np.array(self.row), "base": base}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> FittedTrees:
        """Rebuild from the result of ``arrays``."""
        row, base = int(arrays["row"]), arrays["base"].tobytes()
        if abs(row) >= 2**53:
            raise ValueError(f"boosted model: row {row} is not below 2^53")
        return cls(BoostedModel.from_arrays(arrays), row, base)


def fit_trees(learner: ModelRuntime, state: Any, base: bytes) -> FittedTrees | None:  # noqa: ANN401 - the half's own type
    """Fit the models to the windows that are not held back; None on a short record.

    Args:
        learner: Bundle and readings. Its ``between_batches`` may raise: then nothing has changed.
        base: Digest of the fleet's model in that state.
    """
    frame = learner.frame()
    origins = frame.origins((0.0, 1.0 - learner.config.training.holdout_fraction))
    if not len(origins) or frame.window.least_known is not None:
        return None  # trees read whole windows, and fit every step apart
    models = partial(_fleet_models, learner, state, frame)
    model = fit(frame, origins, learner.levels, models, turn=learner.between_batches)
    return None if model is None else FittedTrees(model, learner.series.newest, base)


def _fleet_models(
    learner: ModelRuntime,
    state: Any,  # noqa: ANN401 - as above
    frame: ChannelFrame,
    early: Ints,
    _late: Ints,
) -> dict[str, FleetForecasts]:
    """Return the forecasts of the fleet's models by name.

    A device's own solution in closed form is solved again without the windows that are held back.
    Of any other method the model has learned them as a part of the fleet's readings.
    """
    final, common = _fan(learner, frame, learner.vector(state)), learner.common(state)
    if common is None:
        return {FLEET: FleetForecasts(final, final)}
    others = _fan(learner, frame, common)
    solved = learner.form.solved(frame, common, common, early, is_alone=False)
    own = _fan(learner, frame, solved)
    return {FLEET: FleetForecasts(own, final), COMMON: FleetForecasts(others, others)}


def _fan(learner: ModelRuntime, frame: ChannelFrame, p: Vector) -> Fan:
    def quantiles(origins: Ints) -> Floats:
        found = fan(learner.bundle.graphs["forecast"], p, frame, origins, learner.levels)
        learner.between_batches()
        return found

    return quantiles
