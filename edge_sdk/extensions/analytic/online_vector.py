"""Add every new window of a device to its trained vector, without training and without flash.

The state is a function of what the device keeps anyway: the trained vector, its choice of λ, and the
readings. So nothing is written for it, and a restart computes the same bits again. Once a day it is
computed from all kept windows; each later window of that day is a rank-one update.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.extensions.analytic.bundle_functions import AnalyticModel
from edge_sdk.extensions.analytic.solve import ridge
from edge_sdk.extensions.analytic.statistics import Statistic, gather

Array = NDArray[Any]
Floats = NDArray[np.float64]
Vector = NDArray[np.float32]

CHUNK = 128
"""Windows whose design rows are in memory at once."""

LEAST = 1e-6
"""Penalty per window of an output that chose none: the inverse must exist."""


class NumberedRecord(Protocol):
    """A device's windows by number; a number is Unix seconds of the origin over the step."""

    def span(self) -> tuple[int, int] | None:
        """Return the first and the last number; None without any window."""

    def named(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.bool_], Any]:
        """Return which of these numbers exist, and their windows with ``x`` and ``y``."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainedVector:
    """The result of a device's last training."""

    fleet: Vector  # the fleet's vector: its constants, and the coefficients that λ draws towards
    own: Vector  # the device's vector; its residuals weigh the windows
    strengths: Floats  # λ of every output; infinity keeps the fleet's coefficients
    is_alone: NDArray[np.bool_]  # outputs that are drawn towards zero
    upto: int  # number of the newest window that ``own`` was solved with; -1 if unknown

    @classmethod
    def of(cls, arrays: Mapping[str, Array]) -> TrainedVector | None:
        """Return the vector from the model of a half; None where the half has not solved one."""
        if "strengths" not in arrays:
            return None
        return cls(
            np.asarray(arrays["fleet"], np.float32),
            np.asarray(arrays["p"], np.float32),
            np.asarray(arrays["strengths"], np.float64),
            np.asarray(arrays["alone"], np.bool_),
            int(arrays["upto"]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class OnlineState:
    """Solutions of all outputs up to a window."""

    own: Vector  # the trained vector that it goes on from
    cut: int  # number of the newest window that was taken in one piece
    upto: int  # number of the newest window taken
    # solution of every output; None keeps the fleet's coefficients
    models: tuple[OnlineModel | None, ...]
    scales: Floats  # factor of every output's weights, which gives them mean 1 up to ``cut``


class OnlineVector:
    """A device's vector with all windows up to now.

    Args:
        forgetting: Factor on a window's weight for every step that it is older, at most 1.
        capacity: Slots of readings that the device keeps.
    """

    def __init__(self, model: AnalyticModel, *, forgetting: float, capacity: int) -> None:
        self._model, self._forgetting = model, forgetting
        self._kept = capacity - model.reach - model.day
        self._state: OnlineState | None = None
        self._vector = np.zeros(0, np.float32)

    def reset(self) -> None:
        """Forget the solutions: a reading that they contain has changed."""
        self._state = None

    def latest(self, own: Vector) -> Vector:
        """Return the vector computed last, or ``own`` if none continues from it."""
        state = self._state
        return own if state is None or state.own is not own else self._vector

    def updated(self, trained: TrainedVector, windows: NumberedRecord) -> Vector:
        """Return the vector with all windows, shape as the trained one.

        Coefficients that are not finite are never returned; the trained vector is instead.
        """
        span = windows.span()
        if span is None or trained.upto < 0:
            return trained.own
        cut, state = (
            max(span[1] // self._model.day * self._model.day - 1, trained.upto),
            self._state,
        )
        is_over = state is None or (state.own is not trained.own) or state.cut != cut
        if state is None or is_over or state.upto > span[1]:
            state = self.solved(trained, windows, cut)
        self._state = state = self._advanced(state, trained, windows, span[1])
        found = self._joined(state, trained)
        self._vector = found if np.isfinite(found).all() else trained.own
        return self._vector

    def solved(self, trained: TrainedVector, windows: NumberedRecord, cut: int) -> OnlineState:
        """Return the state with all kept windows up to a number, from their sums.

        Windows are weighed by the residuals of the trained vector, normalised to mean 1, times
        their fading.
        """
        outputs = len(trained.strengths)
        sums: list[Statistic | None] = [None] * outputs
        weighed, count, faded = np.zeros(outputs), 0, 0.0
        first = cut + 1 - self._kept
        for number, parts in self._rows(trained, windows, first, cut):
            fading = self._forgetting ** (cut - number).astype(np.float64)[:, None]
            count, faded = count + len(number), faded + float(fading.sum())
            for o, (rows, target, weight) in enumerate(parts):
                weighed[o] += float(weight.sum())
                one, before = gather(rows, target, weight * fading), sums[o]
                sums[o] = one if before is None else before + one
        scales = count / np.maximum(weighed, 1e-300)
        models: list[OnlineModel | None] = []
        for o, found in enumerate(sums):
            if found is None or math.isinf(trained.strengths[o]):
                models.append(None)
                continue
            penalty = max(float(trained.strengths[o]), LEAST) * faded
            towards = self._model.parts(trained.fleet)[1][o : o + 1]
            towards = np.zeros_like(towards) if trained.is_alone[o] else towards
            models.append(OnlineModel.of(found.scaled(float(scales[o])), penalty, towards))
        return OnlineState(trained.own, cut, cut, tuple(models), scales)

    def _advanced(
        self, state: OnlineState, trained: TrainedVector, windows: NumberedRecord, newest: int
    ) -> OnlineState:
        models, upto = list(state.models), state.upto
        for numbers, parts in self._rows(trained, windows, state.upto + 1, newest):
            for i, number in enumerate(numbers.tolist()):
                fading = self._forgetting ** (number - upto)
                for o, (rows, target, weight) in enumerate(parts):
                    model = models[o]
                    if model is not None:
                        scaled = float(weight[i, 0] * state.scales[o])
                        models[o] = model.updated(
                            rows[i], target[i], weight=scaled, forgetting=fading
                        )
                upto = number
        return replace(state, upto=upto, models=tuple(models))

    def _rows(
        self, trained: TrainedVector, windows: NumberedRecord, first: int, last: int
    ) -> Iterator[tuple[NDArray[np.int64], list[tuple[Floats, Floats, Floats]]]]:
        span = windows.span()
        start = first if span is None else max(first, span[0])
        for at in range(start, last + 1, CHUNK):
            ids = np.arange(at, min(at + CHUNK, last + 1))
            here, batch = windows.named(ids)
            if not here.any():
                continue
            (design,) = self._model.design(trained.fleet, batch.x)
            missed = self._model.missed(trained.own, design, batch.y)
            parts = [
                (rows, target, kind.weights(missed[:, o : o + 1], is_normalised=False))
                for o, rows, target, kind in self._model.outputs(design, batch.y)
            ]
            yield ids[here], parts

    def _joined(self, state: OnlineState, trained: TrainedVector) -> Vector:
        coefficients = self._model.parts(trained.own)[1].copy()
        for o, model in enumerate(state.models):
            if model is not None:
                coefficients[o] = model.coefficients[0]
        fixed = trained.own[: len(trained.own) - coefficients.size]
        return np.concatenate([fixed, coefficients.ravel()]).astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class OnlineModel:
    """A model that takes one window at a time; O(P²) numbers, O(P²) work a window."""

    inverse: Floats  # (Σ w φφᵀ + penalty)⁻¹, shape ``(P, P)``; shared by all outputs
    coefficients: Floats  # shape ``(outputs, P)``
    # trace of ``inverse`` above which nothing is forgotten: directions that no window excites would
    # else lose all memory (wind-up)
    bound: float

    @classmethod
    def of(
        cls, statistic: Statistic, penalty: float | Floats, towards: Floats | None = None
    ) -> OnlineModel:
        """Return the state to which single windows are added.

        Args:
            statistic: The device's own, with one group.
            penalty: As for ``solve.ridge``, above 0.
            towards: As for ``solve.ridge``.

        Raises:
            ValueError: Outputs with weights of their own, or a penalty that is not above 0.
        """
        diagonal = np.broadcast_to(np.asarray(penalty, np.float64), (statistic.width,))
        if len(statistic.gram) != 1 or not (diagonal > 0.0).all():
            raise ValueError(
                f"online updates need 1 group and a penalty above 0, got {len(statistic.gram)} "
                f"groups and {diagonal.min()}"
            )
        inverse = np.asarray(np.linalg.inv(statistic.matrix(0) + np.diag(diagonal)), np.float64)
        bound = float((1.0 / diagonal).sum())
        return cls(inverse, ridge(statistic, diagonal, towards), bound)

    def updated(
        self, row: Floats, target: Floats, *, weight: float = 1.0, forgetting: float = 1.0
    ) -> OnlineModel:
        """Return the state after one more window (Plackett 1950; Haykin, "Adaptive filter theory").

        Args:
            row: φ, shape ``(P,)``.
            target: Shape ``(outputs,)``.
            weight: Weight of the window, above 0.
            forgetting: Factor on everything before, above 0 and at most 1.

        >>> from edge_sdk.extensions.analytic.statistics import gather
        >>> empty = gather(np.zeros((0, 1)), np.zeros((0, 1)))
        >>> state = OnlineModel.of(empty, 1.0)
        >>> state = state.updated(np.array([1.0]), np.array([4.0]))
        >>> state.coefficients.tolist(), state.inverse.tolist()
        ([[2.0]], [[0.5]])
        """
        keep = forgetting if np.trace(self.inverse) <= self.bound * forgetting else 1.0
        image = self.inverse @ row
        gain = image / (keep / weight + row @ image)
        error = target - self.coefficients @ row
        inverse = (self.inverse - np.outer(gain, image)) / keep
        inverse = 0.5 * (inverse + inverse.T)
        return OnlineModel(inverse, self.coefficients + np.outer(error, gain), self.bound)
