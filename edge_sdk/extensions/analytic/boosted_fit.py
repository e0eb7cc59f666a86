"""Fit a device's own wide model, trees on the residuals of models, and the weights of their blend.

Every fifth week of the record is held back from a first fit of everything. What these models miss
there gives the weights of the blend. The second fit, of all windows, forecasts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.extensions.analytic.blend import blocks_held_back, served_weights
from edge_sdk.extensions.analytic.boosted_model import (
    CLOSED,
    FLEET,
    HURDLE,
    LAST,
    NOTHING,
    BoostedModel,
    blend_members,
    tree_start,
)
from edge_sdk.extensions.analytic.hurdle import POSITIVE, ZERO, Hurdle, HurdleForm, hurdle
from edge_sdk.extensions.analytic.own_features import (
    ClosedForm,
    FeatureRows,
    Single,
    SparseUnits,
    closed_sums,
    predicted_changes,
    stepped,
    with_coefficients,
)
from edge_sdk.extensions.analytic.reweighting import QuantileLoss
from edge_sdk.extensions.analytic.standardise import CONSTANT
from edge_sdk.extensions.analytic.trees import TreeForm, Trees, binned, boosted
from edge_sdk.forecasting.calendar_features import DAY, Floats, Ints
from edge_sdk.forecasting.ridge import ridge_solution
from edge_sdk.forecasting.windows import ChannelFrame
from edge_sdk.methods.training_context import do_nothing

Flags = NDArray[np.bool_]
Fan = Callable[[Ints], Floats]
"""A function from origins to quantiles in the series' unit, ``(n, horizon, levels)``."""

STRENGTHS: Final = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
"""Ridge penalties per window that are tried."""
FEWEST = 336
"""Windows below which nothing is fitted."""
SHORTEST = 21
"""Days of record below which nothing is fitted: each fold would have less than a week."""
OFTEN: Final = 0.1
"""Least share of zero targets for a hurdle model: below it no quantile of interest is 0."""
FEWEST_ON: Final = 100
"""Targets above 0 below which there is no hurdle model."""
LOSS = QuantileLoss()

HURDLE_FORM: Final = HurdleForm(replace(ZERO, trees=100), replace(POSITIVE, most=4000))
"""Form of a device's hurdle model: half as many trees of the probability, and fewer rows, for memory."""


@dataclass(frozen=True, slots=True)
class BoostedForm:
    """Sizes of a fit; with them a year of hourly readings takes seconds."""

    windows: int = 12_000  # most windows times steps; thinned evenly
    fewest: int = 2_000  # windows that are used at least, whatever the number of steps
    # most windows that the fleet's model forecasts to grow trees on its residuals
    of_fleet: int = 4_000
    units: int = 200  # random units of the closed form of one step; of several steps it has none
    trees: TreeForm = field(default_factory=TreeForm)
    hurdle: HurdleForm = HURDLE_FORM


@dataclass(frozen=True, slots=True, eq=False)
class FleetForecasts:
    """The forecasts of a model of the fleet."""

    early: Fan  # those of the model without the windows that ``fit`` holds back, where that exists
    final: Fan


def fit(
    frame: ChannelFrame,
    origins: Ints,
    levels: Sequence[float],
    common: Callable[[Ints, Ints], Mapping[str, FleetForecasts]],
    *,
    form: BoostedForm | None = None,
    turn: Callable[[], None] = do_nothing,
) -> BoostedModel | None:
    """Fit model, trees and blend on windows; None on a short record, or a step that does not divide a day.

    Args:
        origins: Windows with observed targets, oldest first.
        common: From the windows that are not held back, and those that are, to the models of the
            fleet by name; ``fleet`` at least.
        turn: Called every second or so; may raise to stop.
    """
    form = form or BoostedForm()
    horizon, step = frame.window.horizon, frame.window.step_seconds
    most = max(form.fewest, form.windows // horizon)
    thin = 1 + max(len(origins) - 1, 0) // most
    origins = origins[::thin]
    if len(origins) < FEWEST or (origins[-1] - origins[0]) * step < SHORTEST * DAY:
        return None
    seen = frame.last[: origins[-1] + 1]
    unit = float(np.nanstd(seen)) or frame.scale.width
    place = FeatureRows.of(frame, float(np.nanmean(seen)), unit)
    if place is None:
        return None
    late = blocks_held_back(len(origins), max(1, 7 * place.day // thin))
    work = _Work(frame, place, tuple(levels), form, turn, origins, late)
    closed, early_changes, predicted = work.closed_forms()
    fleet = common(origins[~late], origins[late])
    hurdles = work.hurdles()
    bases = work.bases(has_hurdle=hurdles is not None)
    first = {base: work.ensembles(base, early_changes, fleet, is_early=True) for base in bases}
    members, weights = work.weights(first, early_changes, fleet, hurdles and hurdles[0])
    final = [t for b in bases for t in work.ensembles(b, predicted, fleet, is_early=False)]
    return BoostedModel(
        place.shift,
        place.unit,
        np.stack([one.mean for one in closed]),
        np.stack([one.deviation for one in closed]),
        np.stack([one.coefficients for one in closed]),
        np.stack([one.edges for one in final]).astype(np.float32),
        np.stack([one.asked for one in final]),
        np.stack([one.above for one in final]),
        np.stack([one.values for one in final]).astype(np.float32),
        bases,
        members,
        weights,
        len(origins),
        hurdles and hurdles[1],
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """One fit."""

    frame: ChannelFrame
    place: FeatureRows
    levels: tuple[float, ...]
    form: BoostedForm
    turn: Callable[[], None]
    origins: Ints
    late: Flags

    def changes(self) -> Floats:
        """Return the targets' changes in own units, ``(n, horizon)``."""
        last = self.frame.last[self.origins, None]
        return np.asarray((self.frame.truth(self.origins) - last) / self.place.unit)

    def closed_forms(self) -> tuple[list[ClosedForm], Floats, Floats]:
        """Return the models fitted to all windows, and the changes predicted by the early and the final models."""
        changes, late = self.changes(), self.late
        units = SparseUnits.of(
            len(self.place.names), self.form.units if self.frame.window.horizon == 1 else 0
        )
        found, first, final = [], np.empty(changes.shape), np.empty(changes.shape)
        for step in range(self.frame.window.horizon):
            rows, goal = self.place.features(self.origins, step + 1), changes[:, step]
            mean, spread = rows.mean(axis=0, dtype=np.float64), rows.std(axis=0, dtype=np.float64)
            spread = np.where(spread > CONSTANT, spread, np.inf)
            blank = ClosedForm(mean.astype(np.float32), spread.astype(np.float32), units, mean)
            strength, early = self._early(blank, rows, goal)
            first[:, step] = predicted_changes(rows, with_coefficients(blank, early))
            weights = LOSS.weights((goal - first[:, step])[:, None])[:, 0]
            gram, cross = closed_sums(blank, rows, goal, weights)
            model = with_coefficients(blank, ridge_solution(gram, cross, strength * len(rows)))
            final[:, step] = predicted_changes(rows, model)
            found.append(model)
            self.turn()
        assert late.any()
        return found, first, final

    def _early(self, blank: ClosedForm, rows: Single, goal: Floats) -> tuple[float, Floats]:
        """Return the penalty with the least held-back error, and the model fitted without the held-back windows."""
        late, some = self.late, rows[~self.late]
        y, count = goal[~late], int((~late).sum())
        gram, cross = closed_sums(blank, some, y)
        models = np.concatenate([ridge_solution(gram, cross, s * count) for s in STRENGTHS])
        predicted = predicted_changes(rows[late], blank, models.astype(np.float32))
        best = int(np.abs(goal[late, None] - predicted).mean(axis=0).argmin())
        found = models[[best]]
        for _ in range(2):
            missed = y - predicted_changes(some, with_coefficients(blank, found))
            gram, cross = closed_sums(blank, some, y, LOSS.weights(missed[:, None])[:, 0])
            found = ridge_solution(gram, cross, STRENGTHS[best] * count)
            self.turn()
        return STRENGTHS[best], found

    def ensembles(
        self, base: str, predicted: Floats, fleet: Mapping[str, FleetForecasts], *, is_early: bool
    ) -> list[Trees]:
        """Return trees on a model's residuals, one ensemble for each level.

        Args:
            predicted: Changes predicted by the closed form, ``(n, horizon)``.
            is_early: Whether to leave out the windows that are held back.
        """
        most = self.form.of_fleet if base == FLEET else self.form.windows
        which = self._some(most, is_early=is_early)
        left = self._left(base, which, predicted, fleet, is_early=is_early)
        rows = self._rows(which)
        grown = []
        for at, level in enumerate(self.levels):
            grown.append(boosted(rows, left[:, :, at].T.ravel(), self.form.trees, level=level))
            self.turn()
        return grown

    def bases(self, *, has_hurdle: bool) -> tuple[str, ...]:
        """Return the base models on whose residuals trees are grown.

        Quantiles of a load that is often 0 are steps of the load itself; those of any other are around
        the closed form and the last value, which follow the level of the load where trees alone do not.
        """
        if has_hurdle:
            return (FLEET,)
        if len(self.levels) == 1:
            return CLOSED, NOTHING, FLEET
        is_often_off = (self.frame.truth(self.origins) == 0.0).mean() >= OFTEN
        return (NOTHING, FLEET) if is_often_off else (CLOSED, LAST, FLEET)

    def hurdles(self) -> tuple[Hurdle, Hurdle] | None:
        """Return hurdle models of early and of all windows; None unless the load is often 0.

        The second is rounded as a saved one is.
        """
        if len(self.levels) == 1:
            return None
        found = []
        for is_early in (True, False):
            which = self._some(self.form.windows, is_early=is_early)
            goals = self.frame.truth(self.origins[which]).T.ravel() / self.place.unit
            is_off = goals == 0.0
            if not (goals >= 0.0).all() or is_off.mean() < OFTEN or (~is_off).sum() < FEWEST_ON:
                return None
            found.append(hurdle(self._rows(which), goals, self.form.hurdle, turn=self.turn))
        return found[0], Hurdle.from_arrays(found[1].arrays())

    def _some(self, most: int, *, is_early: bool) -> Ints:
        which = np.flatnonzero(~self.late) if is_early else np.arange(len(self.origins))
        return which[:: 1 + (len(which) * self.frame.window.horizon - 1) // most]

    def _rows(self, which: Ints) -> Single:
        origins, steps = self.origins[which], range(1, self.frame.window.horizon + 1)
        rows = [
            stepped(self.place.features(origins, s), s, self.frame.window.horizon) for s in steps
        ]
        return np.concatenate(rows)

    def _left(
        self,
        base: str,
        which: Ints,
        predicted: Floats,
        fleet: Mapping[str, FleetForecasts],
        *,
        is_early: bool,
    ) -> Floats:
        """Return a model's residuals on some windows, in own units, ``(n, horizon, levels)``."""
        truth, wide = self.frame.truth(self.origins[which]), len(self.levels)
        if base == FLEET:
            of = fleet[FLEET].early if is_early else fleet[FLEET].final
            return (truth[:, :, None] - of(self.origins[which])) / self.place.unit
        start = tree_start(self.frame, self.origins[which], wide)
        if base == LAST:
            start = self.frame.last[self.origins[which], None]
        elif base == CLOSED:
            start = self.frame.last[self.origins[which], None] + self.place.unit * predicted[which]
        return np.repeat(((truth - start) / self.place.unit)[:, :, None], wide, axis=2)

    def weights(
        self,
        grown: Mapping[str, Sequence[Trees]],
        predicted: Floats,
        fleet: Mapping[str, FleetForecasts],
        mine: Hurdle | None = None,
    ) -> tuple[tuple[str, ...], Floats]:
        """Return the members of the blend and their weights at each level, by their errors."""
        origins = self.origins[self.late]
        truth = self.frame.truth(origins)
        common = {name: one.early(origins) for name, one in fleet.items()}
        bases = (*grown, *(() if mine is None else (HURDLE,)))
        added = {base: np.zeros(common[FLEET].shape) for base in bases}
        for step in range(self.frame.window.horizon):
            rows = stepped(
                self.place.features(origins, step + 1), step + 1, self.frame.window.horizon
            )
            for base, ensembles in grown.items():
                bins = binned(rows, ensembles[0].edges)
                for at, one in enumerate(ensembles):
                    added[base][:, step, at] = one.of_bins(bins)
            if mine is not None:
                added[HURDLE][:, step] = mine.quantiles(rows, self.levels)
        found = blend_members(
            self.place,
            origins,
            closed=predicted[self.late],
            added=added,
            common=common,
            middle=self.levels.index(0.5),
        )
        known = {
            n: one for n, one in found.items() if np.isfinite(one).all(axis=(1, 2)).mean() > 0.8
        }
        whole = np.all([np.isfinite(one).all(axis=(1, 2)) for one in known.values()], axis=0)
        self.turn()
        weights = [
            served_weights(
                np.stack([one[whole, :, at].ravel() for one in known.values()], axis=1),
                truth[whole].ravel(),
                level=level,
            )
            for at, level in enumerate(self.levels)
        ]
        return tuple(known), np.stack(weights)
