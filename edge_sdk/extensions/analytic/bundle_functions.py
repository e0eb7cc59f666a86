"""Compute the functions of a bundle in closed form from its manifest.

All is numpy, but for features ``hidden:k``: these are the results of a graph of the bundle.

They have the names and the calling convention of graphs: named arrays in, a tuple of arrays out. In
the vector ``p`` lie the standardiser and the coefficients; see ``AnalyticSection``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.extensions.analytic.bundle_section import BOUNDED_STATISTIC, AnalyticSection
from edge_sdk.extensions.analytic.features import LoadRecord, columns, reach
from edge_sdk.extensions.analytic.personal import fit_personal
from edge_sdk.extensions.analytic.random_units import RandomUnits
from edge_sdk.extensions.analytic.reweighting import QuantileLoss
from edge_sdk.extensions.analytic.standardise import Standardiser
from edge_sdk.extensions.analytic.statistics import Statistic, gather, to_vector
from edge_sdk.protocol.contract.manifest import HIDDEN, Feature, Manifest, ManifestError

Array = NDArray[Any]
Floats = NDArray[np.float64]

HiddenLayer = Callable[..., tuple[Array, ...]]
"""The graph ``hidden``: windows in, the last hidden layer out, shape ``(n, F)``."""

DAY = 86_400
BLOCK = 512
"""Rows that are multiplied at once."""
WINDOWS = 64
"""Windows whose inputs, float64, are in memory at once: a week of lags has far more rows than a design."""
SQUARED = 1e9
"""Floor of the residuals that makes all weights equal: least squares."""


@dataclass(frozen=True, slots=True, eq=False)
class NumpyFunction:
    """One function, with the interface of a loaded graph."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    function: Callable[..., tuple[Array, ...]]

    def __call__(self, **feeds: Array) -> tuple[Array, ...]:
        return self.function(**feeds)


class AnalyticModel:
    """A bundle's model in closed form.

    Args:
        hidden: The bundle's graph ``hidden``, where its features name a network's hidden layer.

    Attributes:
        section: The manifest's section.
        day: Rows of a day.
        reach: Rows from the first input of a window to its last target.
        levels: Quantile levels; the median alone for another loss.

    Raises:
        ManifestError: Features that read further back than the window, that have no channel, or
            that need the graph ``hidden`` where there is none.
    """

    def __init__(self, manifest: Manifest, hidden: HiddenLayer | None = None) -> None:
        if manifest.analytic is None:
            raise ManifestError(f"manifest: {manifest.name} has no analytic section")
        self.section: AnalyticSection = manifest.analytic
        self._hidden = hidden
        if self.section.has_hidden and hidden is None:
            raise ManifestError(
                f"manifest: the features of {manifest.name} need the graph {HIDDEN!r}"
            )
        self._window, self._features = manifest.window, manifest.features
        self.day = DAY // manifest.window.step_seconds
        self._channels = {feature.name: i for i, feature in enumerate(manifest.features)}
        self._leads = [
            (f.name, f.lead_steps) for f in manifest.features if f.lead_steps is not None
        ]
        self._load = next(i for i, one in enumerate(manifest.features) if one.kind == "target")
        self._slot, self._weekday = (
            self._calendar(what) for what in ("slot_of_day", "day_of_week")
        )
        self._check_reach()
        self.reach = manifest.window.lookback + manifest.window.horizon
        self.levels = manifest.loss.levels or (0.5,)
        self._shape = manifest.forecast_shape
        self._floor = SQUARED if manifest.loss.name == "mse" else self.section.floor
        self._is_squared = manifest.loss.name == "mse"
        self._is_summed = manifest.loss.name == "pinball"
        count = len(self.section.features)
        self._units = RandomUnits.draw(manifest.name, self.section.seed, count, self.section.units)

    def functions(self) -> Mapping[str, NumpyFunction]:
        return {
            "forecast": NumpyFunction(("p", "x"), ("yhat",), self.forecast),
            "gradient": NumpyFunction(("p", "x", "y"), ("loss", "g"), self.gradient),
            "design": NumpyFunction(("p", "x"), ("design",), self.design),
            "statistic": NumpyFunction(
                ("p", "design", "y", "weighted"), ("statistic", "loss"), self.statistic
            ),
            BOUNDED_STATISTIC: NumpyFunction(
                ("p", "design", "y", "weighted", "bound"),
                ("statistic", "loss"),
                self.bounded_statistic,
            ),
            "personal": NumpyFunction(
                ("p", "design", "y"), ("p", "strengths", "alone"), self.personal
            ),
        }

    def design(self, p: Array, x: Array) -> tuple[Floats]:
        """Return the design rows of windows, shape ``(n, horizon, P)``.

        Args:
            p: The vector; its means and deviations standardise the features.
            x: Windows, shape ``(n, lookback, channels)``.
        """
        standard, _ = self.parts(p)
        design = np.empty((len(x), self._window.horizon, self.section.width))
        for start in range(0, len(x), WINDOWS):
            block = slice(start, start + WINDOWS)
            record, origins = self._record(np.asarray(x[block], np.float64))
            if self._hidden is not None:
                (hidden,) = self._hidden(x=np.asarray(x[block], np.float32))
                record = replace(record, hidden=np.asarray(hidden, np.float64))
            for step in range(self._window.horizon):
                rows = columns(record, self.section.features, origins, step + 1)
                design[block, step] = self._units.design(standard.apply(rows))
        return (design,)

    def forecast(self, p: Array, x: Array) -> tuple[NDArray[np.float32]]:
        told = self._told(p, self.design(p, x)[0])
        return (told.reshape(len(x), *self._shape).astype(np.float32),)

    def gradient(self, p: Array, x: Array, y: Array) -> tuple[NDArray[np.float32], Array]:
        """Return the mean loss of windows and its gradient; only coefficients have one."""
        (design,) = self.design(p, x)
        missed = self.missed(p, design, y)
        over = len(x) * (1 if self._is_summed else self._window.horizon)
        above = np.tile(self.levels, self._window.horizon)
        if self._is_squared:
            loss, slope = (missed**2).sum(), -2.0 * missed
        else:
            doubled = 1.0 if self._is_summed else 2.0  # an absolute error is twice a pinball loss
            loss = doubled * np.maximum(above * missed, (above - 1.0) * missed).sum()
            slope = doubled * np.where(missed > 0.0, -above, 1.0 - above)
        found = [slope[:, o] @ design[:, o // len(self.levels)] for o in range(slope.shape[1])]
        fixed = np.zeros(2 * len(self.section.features))
        g = np.concatenate([fixed, *found]) / over
        return np.asarray(loss / over, np.float32), g.astype(np.float32)

    def statistic(
        self, p: Array, design: Array, y: Array, weighted: Array
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the statistic of a device's windows as a vector, and their mean loss.

        Args:
            p: The fleet's vector; its residuals weigh the windows.
            design: As ``design`` returns it for ``p``.
            y: Scaled targets, shape ``(n, horizon)``.
        """
        return self._gathered(p, design, y, weighted, is_normalised=True)

    def bounded_statistic(
        self, p: Array, design: Array, y: Array, weighted: Array, bound: Array
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return a statistic in which a window's share is bounded, for noise to hide it.

        Rows are scaled down to a norm of ``bound``, and no weight is above 1 or depends on another
        window.

        Args:
            p: As for ``statistic``.
            design: As for ``statistic``.
            y: As for ``statistic``.
            weighted: As for ``statistic``.
        """
        size = np.linalg.norm(design, axis=2, keepdims=True)
        rows = design * np.minimum(1.0, float(bound) / np.maximum(size, 1e-300))
        return self._gathered(p, rows, y, weighted, is_normalised=False)

    def _gathered(
        self, p: Array, design: Array, y: Array, weighted: Array, *, is_normalised: bool
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        bound = 2.0 * self.section.clip
        missed = np.clip(self.missed(p, design, y), -bound, bound)
        found: list[Statistic] = []
        loss = 0.0
        for o, rows, target, kind in self.outputs(design, y):
            own = missed[:, o : o + 1]
            weights = None
            if bool(weighted):
                weights = kind.weights(own, is_normalised=is_normalised)
            found.append(gather(rows, target, weights, own, is_exact=True))
            loss += float(kind.objective(own)[0]) / missed.shape[1]
        joined = Statistic(
            np.concatenate([one.gram for one in found]),
            np.concatenate([one.cross for one in found]),
            np.concatenate([one.squares for one in found]),
            np.concatenate([one.residuals for one in found]),
            found[0].count,
        )
        factor = min(1.0, self.section.windows / max(joined.count, 1.0))
        return to_vector(joined.scaled(factor)), np.asarray(loss, np.float32)

    def personal(
        self, p: Array, design: Array, y: Array
    ) -> tuple[NDArray[np.float32], Floats, NDArray[np.bool_]]:
        """Return the vector with the device's own coefficients, and the penalty chosen for each output.

        Those are λ and whether it is drawn towards zero, both of shape ``(outputs,)``; otherwise it
        is drawn towards the fleet.

        Args:
            design: As ``design`` returns it for ``p``, oldest window first.
            y: Scaled targets, shape ``(n, horizon)``.
        """
        _, fleet = self.parts(p)
        days = len(y) / self.day
        chosen = [
            fit_personal(rows, target, fleet[o : o + 1], kind, days=days, is_exact=True)
            for o, rows, target, kind in self.outputs(design, y)
        ]
        own = np.concatenate([one.coefficients for one in chosen])
        strengths = np.concatenate([one.strengths for one in chosen])
        alone = np.concatenate([one.is_alone for one in chosen])
        count = 2 * len(self.section.features)
        joined = np.concatenate([np.asarray(p)[:count], own.ravel()]).astype(np.float32)
        return joined, strengths, alone

    def outputs(
        self, design: Array, y: Array
    ) -> Iterator[tuple[int, Floats, Floats, QuantileLoss]]:
        """Yield number, design rows, clipped targets and loss of every output."""
        for o in range(self._window.horizon * len(self.levels)):
            step, level = divmod(o, len(self.levels))
            target = np.asarray(y[:, step : step + 1], np.float64)
            bound = self.section.clip
            kind = QuantileLoss((self.levels[level],), self._floor)
            yield o, np.asarray(design[:, step]), np.clip(target, -bound, bound), kind

    def missed(self, p: Array, design: Array, y: Array) -> Floats:
        """Return clipped target minus forecast of every output, shape ``(n, outputs)``."""
        clipped = np.clip(np.asarray(y, np.float64), -self.section.clip, self.section.clip)
        return np.repeat(clipped, len(self.levels), axis=1) - self._told(p, design)

    def _told(self, p: Array, design: Array) -> Floats:
        """Return the forecasts of all outputs, shape ``(n, outputs)``."""
        _, coefficients = self.parts(p)
        steps = coefficients.reshape(self._window.horizon, len(self.levels), -1)
        told = np.empty((len(design), len(coefficients)))
        for start in range(0, len(design), BLOCK):
            block = design[start : start + BLOCK].astype(np.float64, copy=False)
            parts = [block[:, h] @ steps[h].T for h in range(len(steps))]
            told[start : start + BLOCK] = np.concatenate(parts, axis=1)
        return told

    def parts(self, p: Array) -> tuple[Standardiser, Floats]:
        """Return the standardiser and the coefficients ``(outputs, P)`` of a vector."""
        wide, count = np.asarray(p, np.float64), len(self.section.features)
        coefficients = wide[2 * count :].reshape(-1, self.section.width)
        return Standardiser(wide[:count], np.maximum(wide[count : 2 * count], 0.0)), coefficients

    def _record(self, x: Floats) -> tuple[LoadRecord, NDArray[np.int64]]:
        """Join windows to one record, separated by rows of the horizon that no window reads."""
        count, lookback, ahead = len(x), self._window.lookback, self._window.horizon
        away = np.arange(1 - lookback, ahead + 1)
        slots = self._at_end(x, self._slot)[:, None] + away
        weekdays = (self._at_end(x, self._weekday)[:, None] + slots // self.day) % 7
        joined = np.zeros((x.shape[2], count, lookback + ahead))
        joined[:, :, :lookback] = np.moveaxis(x, 2, 0)
        flat = joined.reshape(x.shape[2], -1)
        exogenous = {name: flat[i] for name, i in self._channels.items()}
        known = {name: np.roll(flat[self._channels[name]], lead) for name, lead in self._leads}
        record = LoadRecord(
            flat[self._load],
            (slots % self.day).ravel(),
            weekdays.ravel(),
            self.day,
            exogenous,
            known,
        )
        origins = np.arange(count, dtype=np.int64) * (lookback + ahead) + lookback - 1
        return record, origins

    def _at_end(self, x: Floats, channel: int) -> NDArray[np.int64]:
        feature: Feature = self._features[channel]
        value = x[:, -1, channel] * (feature.high - feature.low) + feature.low
        return np.rint(value).astype(np.int64)

    def _calendar(self, what: str) -> int:
        for i, feature in enumerate(self._features):
            if feature.kind == "calendar" and feature.what == what:
                return i
        raise ManifestError(f"manifest: an analytic bundle needs the calendar feature {what!r}")

    def _check_reach(self) -> None:
        needed, known = reach(self.section.features, self.day), self._window.lookback
        ahead = self._window.horizon
        needed = max([needed, *(lead for _, lead in self._leads)])
        if needed > known:
            raise ManifestError(f"manifest: features read {needed} rows back, lookback is {known}")
        for name in self.section.features:
            kind, *rest = name.split(":")
            if kind.startswith("exog") and rest[:1] and rest[0] not in self._channels:
                raise ManifestError(f"manifest: feature {name!r} has no channel among the inputs")
            if kind == "known" and dict(self._leads).get(rest[0] if rest else "") != ahead:
                raise ManifestError(
                    f"manifest: feature {name!r} has no channel with lead_steps = {ahead}, the horizon"
                )
