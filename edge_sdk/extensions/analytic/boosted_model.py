"""Forecast with a device's own wide model, its trees, and the blend of all that it has.

The forecast of a load is the sum of a model that is linear in named features and random units, in
closed form, and of boosted trees on its residuals; other trees were grown on the residuals of the
fleet's model. The blend is their mean with seasons. ``boosted_fit`` fits all of it. Nothing leaves the
device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.extensions.analytic.hurdle import Hurdle
from edge_sdk.extensions.analytic.own_features import (
    ClosedForm,
    FeatureRows,
    Single,
    SparseUnits,
    predicted_changes,
    stepped,
)
from edge_sdk.extensions.analytic.trees import DEEPEST, Trees
from edge_sdk.forecasting.calendar_features import DAY, Floats, Ints
from edge_sdk.forecasting.forecast import WEEK, rows_of, seasonal_naive
from edge_sdk.forecasting.windows import ChannelFrame
from edge_sdk.protocol.contract.method import Array

FLEET, CLOSED, NOTHING, LAST = "fleet", "closed form", "nothing", "last value"
"""Bases of the trees: two models whose residuals they grow on, no model, and the last value."""
PREFIX = "hurdle_"
"""Prefix of the names of a hurdle model's saved arrays."""
HURDLE = "probability of 0"
"""Base of the trees of a load that is often 0: a hurdle model, in place of ``NOTHING``."""


@dataclass(frozen=True, slots=True, eq=False)
class BoostedModel:
    """The fitted models of a device."""

    shift: float  # load that counts as 0, in the series' unit
    unit: float  # load that counts as 1
    mean: Single  # mean of each feature at each step, ``(horizon, k)``, float32
    deviation: Single  # deviation of each feature, infinity where it is constant; as ``mean``
    coefficients: Single  # of the closed form at each step, ``(horizon, P)``, float32
    edges: Single  # thresholds of the features of each ensemble, ``(ensembles, k', bins)``, float32
    asked: Ints  # feature of each question, ``(ensembles, trees, depth)``
    above: Ints  # threshold of each question, as ``asked``
    values: Single  # value of each leaf, ``(ensembles, trees, leaves)``, float32
    # bases of the ensembles; each has an ensemble for every quantile level
    bases: tuple[str, ...]
    members: tuple[str, ...]
    weights: Floats  # their weights at each level, ``(levels, members)``
    windows: int
    hurdle: Hurdle | None = None  # the hurdle model of a load that is often 0

    def arrays(self) -> dict[str, Array]:
        """Return the model as named arrays, to be saved; ``from_arrays`` is the inverse."""
        numbers: dict[str, Array] = {"numbers": np.array([self.shift, self.unit, self.windows])}
        trees = {"edges": self.edges, "values": self.values}
        asked: dict[str, Array] = {
            "asked": self.asked.astype(np.uint16),
            "above": self.above.astype(np.uint8),
        }
        closed = {"mean": self.mean, "deviation": self.deviation, "coefficients": self.coefficients}
        names: dict[str, Array] = {"bases": _packed(self.bases), "members": _packed(self.members)}
        hurdle = {} if self.hurdle is None else self.hurdle.arrays()
        more: dict[str, Array] = {f"{PREFIX}{name}": one for name, one in hurdle.items()}
        return {**numbers, **closed, **trees, **asked, **names, "weights": self.weights, **more}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> BoostedModel:
        """Rebuild from the result of ``arrays``.

        Raises:
            ValueError: The arrays do not fit each other, or have values that no fit gives.
        """
        shift, unit, windows = arrays["numbers"].tolist()
        asked, above = (arrays[name].astype(np.int64) for name in ("asked", "above"))
        found = cls(
            float(shift),
            float(unit),
            arrays["mean"],
            arrays["deviation"],
            arrays["coefficients"],
            arrays["edges"],
            asked,
            above,
            arrays["values"],
            _unpacked(arrays["bases"]),
            _unpacked(arrays["members"]),
            arrays["weights"],
            int(windows),
            _hurdle_of(arrays),
        )
        found._check()
        return found

    def _check(self) -> None:
        """Refuse arrays that cannot be the result of a fit."""
        mean, edges, asked, levels = self.mean, self.edges, self.asked, len(self.weights)
        count = levels * len(self.bases)
        depth = asked.shape[-1]
        if depth > DEEPEST:  # before 2 to its power: the record must not choose that
            raise ValueError(f"boosted model: trees of depth {depth}, at most {DEEPEST}")
        shapes = (
            mean.ndim == 2 and self.deviation.shape == mean.shape,
            self.coefficients.ndim == 2 and len(self.coefficients) == len(mean),
            edges.ndim == asked.ndim == self.values.ndim == 3 and len(edges) == count,
            asked.shape == self.above.shape and len(asked) == count,
            self.values.shape == (count, asked.shape[1], 2**depth),
            self.weights.shape == (levels, len(self.members)) and levels > 0,
        )
        if not all(shapes):
            raise ValueError("boosted model: the arrays do not fit each other")
        own = {CLOSED, NOTHING} & set(self.bases) or self.hurdle is not None
        if not set(self.bases) <= {FLEET, CLOSED, NOTHING, LAST} or not own:
            raise ValueError(f"boosted model: trees on an unknown model in {self.bases}")
        finite = (mean, self.coefficients, self.values, self.weights, [self.shift, self.unit])
        if not all(np.isfinite(one).all() for one in finite) or not self.unit > 0.0:
            raise ValueError("boosted model: a number is not finite, or the unit is not above 0")
        if not (self.deviation > 0.0).all() or np.isnan(edges).any():
            raise ValueError(
                "boosted model: a deviation is not above 0, or a threshold not a number"
            )
        if asked.size and (asked.max() >= edges.shape[1] or self.above.max() >= edges.shape[2]):
            raise ValueError("boosted model: a question about an unknown feature or threshold")
        if (self.weights < 0.0).any() or (np.abs(self.weights.sum(axis=1) - 1.0) > 1e-6).any():
            raise ValueError("boosted model: weights are below 0, or their sum is not 1")

    def refitted(
        self,
        frame: ChannelFrame,
        before: Ints,
        levels: Sequence[float],
        fleet: Mapping[str, Callable[[Ints], Floats]],
        turn: Callable[[], None],
    ) -> BoostedModel | None:
        """Fit another model to some windows; None if they are too few."""
        from edge_sdk.extensions.analytic.boosted_fit import FleetForecasts, fit  # noqa: PLC0415 - it imports this

        named = {name: FleetForecasts(one, one) for name, one in fleet.items()}
        return fit(frame, before, levels, lambda _early, _late: named, turn=turn)

    def fans(
        self,
        frame: ChannelFrame,
        origins: Ints,
        levels: Sequence[float],
        common: Mapping[str, Floats],
    ) -> BoostedFans:
        """Forecast from origins.

        A model of another bundle, whose features or steps differ, forecasts NaN.

        Args:
            origins: Rows with complete windows.
            common: Quantiles of the fleet's models from these origins, each ``(n, horizon,
                levels)``; ``fleet`` at least.
        """
        fleet = common[FLEET]
        nothing = np.full(fleet.shape, np.nan)
        place = FeatureRows.of(frame, self.shift, self.unit)
        shape = (frame.window.horizon, 0 if place is None else len(place.names))
        if place is None or self.mean.shape != shape or len(self.weights) != len(levels):
            return BoostedFans(nothing, nothing, nothing)
        wide = {len(one) for one in self.edges} | self._hurdle_features()
        if wide - {shape[1] + (shape[0] > 1)}:
            return BoostedFans(nothing, nothing, nothing)
        closed = np.empty(fleet.shape[:2])
        mine = () if self.hurdle is None else (HURDLE,)
        added = {base: np.zeros(fleet.shape) for base in (*self.bases, *mine)}
        units = SparseUnits.of(shape[1], self.coefficients.shape[1] - shape[1] - 1)
        for step in range(shape[0]):
            rows = place.features(origins, step + 1)
            closed[:, step] = predicted_changes(rows, self._closed(step, units))
            rows = stepped(rows, step + 1, shape[0])
            for number, base in enumerate(self.bases):
                for at in range(len(levels)):
                    grown = self._ensemble(number * len(levels) + at)
                    added[base][:, step, at] = grown.predicted(rows)
            if self.hurdle is not None:
                added[HURDLE][:, step] = self.hurdle.quantiles(rows, levels)
        members = blend_members(
            place,
            origins,
            closed=closed,
            added=added,
            common=common,
            middle=list(levels).index(0.5),
        )
        own = next(base for base in (CLOSED, HURDLE, NOTHING) if base in added)
        found = {name: members.get(f"{name} and trees", nothing) for name in (own, FLEET)}
        parts = np.stack([members.get(name, nothing) for name in self.members], axis=-1)
        return BoostedFans(found[own], found[FLEET], _ordered(_mean(parts, self.weights)))

    def _closed(self, step: int, units: SparseUnits) -> ClosedForm:
        return ClosedForm(self.mean[step], self.deviation[step], units, self.coefficients[step])

    def _hurdle_features(self) -> set[int]:
        return set() if self.hurdle is None else {len(self.hurdle.odds.edges)}

    def _ensemble(self, number: int) -> Trees:
        edges = np.asarray(self.edges[number], np.float64)
        values = np.asarray(self.values[number], np.float64)
        return Trees(edges, self.asked[number], self.above[number], values)


class BoostedFans(NamedTuple):
    """Quantiles of a device's own models, each ``(n, horizon, levels)``; NaN for none."""

    trees: Floats  # the own closed form and its trees
    fleet_trees: Floats  # the fleet's model and its trees
    blend: Floats  # the mean of all members


def blend_members(
    place: FeatureRows,
    origins: Ints,
    *,
    closed: Floats,
    added: Mapping[str, Floats],
    common: Mapping[str, Floats],
    middle: int,
) -> dict[str, Floats]:
    """Return the quantiles of the blend's members, each ``(n, horizon, levels)``.

    Args:
        place: The record in own units.
        origins: Rows with complete windows.
        closed: Changes predicted by the closed form, in own units, ``(n, horizon)``.
        added: What trees add to their model, in own units, by the model.
        common: Quantiles of the fleet's models by name.
        middle: Place of the median among the levels.
    """
    frame, around = place.frame, common[FLEET] - common[FLEET][:, :, [middle]]
    last, horizon = frame.last[origins, None], frame.window.horizon
    own = last + place.unit * closed
    middles = {CLOSED: own, LAST: np.repeat(last, horizon, axis=1)}
    for name, period in (("last day", DAY), ("last week", WEEK)):
        rows = rows_of(period, frame.window.step_seconds)
        middles[name] = seasonal_naive(frame.last, origins, horizon, rows)
    found = {**common, **{name: one[:, :, None] + around for name, one in middles.items()}}
    start = tree_start(frame, origins, around.shape[2])[:, :, None]
    below = {FLEET: common[FLEET], CLOSED: own[:, :, None], NOTHING: start, HURDLE: start}
    below[LAST] = last[:, :, None]
    for base, more in added.items():
        found[f"{base} and trees"] = _ordered(below[base] + place.unit * more)
    return found


def tree_start(frame: ChannelFrame, origins: Ints, levels: int) -> Floats:
    """Return the start value of trees without a model, ``(n, 1)``: the last value, or 0 for quantiles.

    Quantiles without a model are of a load that is often exactly 0: steps of the load itself, not of its
    change. Records of older versions have them of any load.
    """
    last = frame.last[origins, None]
    return last if levels == 1 else np.zeros_like(last)


def _mean(parts: Floats, weights: Floats) -> Floats:
    known = np.asarray(np.isfinite(parts).all(axis=(1, 2)))[:, None, :]
    used = weights * known
    total = used.sum(axis=2, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        used = np.where(total > 0.0, used / total, np.nan)
    return np.asarray((used[:, None] * np.where(known[:, None], parts, 0.0)).sum(axis=-1))


def _ordered(fan: Floats) -> Floats:
    return np.sort(fan, axis=2)


def _hurdle_of(arrays: Mapping[str, Array]) -> Hurdle | None:
    """Return a saved hurdle model; None if the record has none, as in older versions.

    Raises:
        KeyError, ValueError: As ``Hurdle.from_arrays``.
    """
    found = {n.removeprefix(PREFIX): one for n, one in arrays.items() if n.startswith(PREFIX)}
    return Hurdle.from_arrays(found) if found else None


def _packed(names: Sequence[str]) -> Array:
    return np.frombuffer("\n".join(names).encode(), np.uint8)


def _unpacked(names: Array) -> tuple[str, ...]:
    return tuple(names.tobytes().decode().split("\n"))
