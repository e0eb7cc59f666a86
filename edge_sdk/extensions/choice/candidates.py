"""Compute the forecasts of a device's candidates, and the one that is served."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, Protocol

import numpy as np

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.extensions.choice.combination import (
    BLEND,
    BY_STEP,
    CANDIDATES,
    FLEET_TREES,
    LAST_DAY,
    LAST_GOOD,
    LAST_WEEK,
    MEAN,
    OWN,
    TREES,
    HeldBackErrors,
    blended,
    blocks_of,
)
from edge_sdk.extensions.choice.forecast_choice import ForecastChoice
from edge_sdk.extensions.choice.model_monitor import ModelMonitor
from edge_sdk.extensions.choice.own_model import OwnModel, fit
from edge_sdk.forecasting.calendar_features import DAY, Floats, Ints
from edge_sdk.forecasting.forecast import (
    COMMON,
    FLEET,
    TUNED,
    WEEK,
    fan,
    least,
    rows_of,
    seasonal_naive,
)
from edge_sdk.forecasting.windows import (
    MOST,
    ChannelFrame,
    new_windows,
    row_numbers,
    target_days,
)
from edge_sdk.methods.training_context import Graph, do_nothing
from edge_sdk.protocol.contract.parameter_layout import Vector

SOURCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        FLEET: "model",
        COMMON: "common model",
        TUNED: "tuned model",
        LAST_GOOD: "last good model",
        OWN: "own model",
        TREES: "trees",
        FLEET_TREES: "fleet and trees",
        BLEND: "blend",
        LAST_DAY: "last day",
        LAST_WEEK: "last week",
        MEAN: "weighted mean",
        BY_STEP: "by step",
    }
)
"""A forecast's source by the name of the choice."""

_BOOSTED = (TREES, FLEET_TREES, BLEND)

ISSUED: Final = 21_600
"""Seconds between two profiles by which candidates are judged."""

Fan = Callable[[Ints], Floats]
"""Quantiles of a model from origins."""


class BoostedCandidate(Protocol):
    """A wide model of a device with its trees and blend, which an extension fits."""

    def fans(
        self,
        frame: ChannelFrame,
        origins: Ints,
        levels: Sequence[float],
        common: Mapping[str, Floats],
    ) -> Iterable[Floats]:
        """Forecast from origins with the wide model, the fleet's with trees, and the blend."""

    def refitted(
        self,
        frame: ChannelFrame,
        before: Ints,
        levels: Sequence[float],
        fleet: Mapping[str, Fan],
        turn: Callable[[], None],
    ) -> BoostedCandidate | None:
        """Fit another candidate to some windows; None if they are too few."""


@dataclass(frozen=True, slots=True, eq=False)
class CandidateModels:
    """The models of a device beside the fleet's."""

    graph: Graph  # the bundle's forecast graph
    levels: tuple[float, ...]
    tuned: Vector | None = None  # whole vector of the tuned copy; None if there is none
    # whether fine-tuning has run: without a copy it found the fleet's model no worse, which then
    # stands for the tuned one
    is_tuned: bool = False
    own: OwnModel | None = None  # linear model of this device; None if there is none
    # whole vector of the fleet's solution, where ``p`` is this device's; None elsewhere
    common: Vector | None = None
    # wide model of this device with its trees and blend; None if there is none
    boosted: BoostedCandidate | None = None
    # whole vector of the fleet's model when it was last good; None if there is none
    good: Vector | None = None

    @property
    def available(self) -> tuple[str, ...]:
        """Return the names that may be chosen, the weighted mean among them."""
        missing = {TUNED} if self.tuned is None else set()
        missing |= {COMMON} if self.common is None else set()
        missing |= {LAST_GOOD} if self.good is None else set()
        missing |= {OWN} if self.own is None else set()
        missing |= set(_BOOSTED) if self.boosted is None else set()
        return tuple(name for name in (*CANDIDATES, MEAN) if name not in missing)

    def fans(
        self, p: Vector, frame: ChannelFrame, origins: Ints, names: Collection[str] = CANDIDATES
    ) -> Floats:
        """Forecast from origins with every named candidate, ``(candidates, n, horizon, levels)``.

        A candidate without quantiles of its own has those of the fleet's model, moved to its
        median.

        Args:
            origins: Rows with complete windows.
            names: Candidates to compute; the others are NaN.
        """
        shape = (len(CANDIDATES), len(origins), frame.window.horizon, len(self.levels))
        found = np.full(shape, np.nan)
        fleet = fan(self.graph, p, frame, origins, self.levels)
        if FLEET in names:
            found[CANDIDATES.index(FLEET)] = fleet
        if TUNED in names and self.is_tuned:
            found[CANDIDATES.index(TUNED)] = (
                fleet
                if self.tuned is None
                else fan(self.graph, self.tuned, frame, origins, self.levels)
            )
        if self.good is not None and LAST_GOOD in names:
            found[CANDIDATES.index(LAST_GOOD)] = fan(
                self.graph, self.good, frame, origins, self.levels
            )
        has_blend = self.boosted is not None and BLEND in names
        if self.common is not None and (COMMON in names or has_blend):
            found[CANDIDATES.index(COMMON)] = fan(
                self.graph, self.common, frame, origins, self.levels
            )
        if self.boosted is not None and {*_BOOSTED} & {*names}:
            known = {FLEET: fleet, COMMON: found[CANDIDATES.index(COMMON)]}
            boosted = self.boosted.fans(frame, origins, self.levels, known)
            for name, values in zip(_BOOSTED, boosted, strict=True):
                found[CANDIDATES.index(name)] = np.maximum(values, least(frame))
        around = fleet - fleet[:, :, [self.levels.index(0.5)]]
        for name in names:
            if (middle := self._middle(name, frame, origins)) is not None:
                values = np.maximum(middle[:, :, None] + around, least(frame))
                found[CANDIDATES.index(name)] = values
        return found

    def _middle(self, name: str, frame: ChannelFrame, origins: Ints) -> Floats | None:
        if name == OWN and self.own is not None:
            return self.own.forecast(frame, origins)
        period = {LAST_DAY: DAY, LAST_WEEK: WEEK}.get(name)
        if period is None:
            return None
        rows = rows_of(period, frame.window.step_seconds)
        return seasonal_naive(frame.last, origins, frame.window.horizon, rows)

    def refitted(
        self,
        p: Vector,
        frame: ChannelFrame,
        before: Ints,
        turn: Callable[[], None] = do_nothing,
    ) -> CandidateModels:
        """Return the candidates with the device's own models fitted to some windows only.

        Args:
            before: The windows, oldest first.
            turn: Called every second or so; may raise to stop.
        """

        def of(vector: Vector) -> Fan:
            return lambda origins: fan(self.graph, vector, frame, origins, self.levels)

        named = {FLEET: p} if self.common is None else {FLEET: p, COMMON: self.common}
        fleet = {name: of(vector) for name, vector in named.items()}
        boosted = None
        if self.boosted is not None:
            boosted = self.boosted.refitted(frame, before, self.levels, fleet, turn)
        return replace(self, own=fit(frame, before), boosted=boosted)

    def compared_on(self, p: Vector, frame: ChannelFrame, origins: Ints) -> HeldBackErrors:
        """Return the errors of all candidates on windows that none of them has learned."""
        origins = judged(frame, origins)[-MOST:]
        table = HeldBackErrors.empty(len(blocks_of(frame.window.horizon)))
        return self._extended(table, p, frame, origins, frame.truth(origins))

    def compared_since(
        self, table: HeldBackErrors, upto: int, p: Vector, frame: ChannelFrame
    ) -> HeldBackErrors:
        """Add the errors on the rows after a row number, forecast from every step before them.

        Args:
            table: Errors so far.
            p: Whole vector of the fleet's model, which has not learned from these rows.
        """
        return self._extended(table, p, frame, *_new_windows(frame, upto))

    def monitored(
        self,
        monitor: ModelMonitor,
        choice: ForecastChoice,
        upto: int,
        p: Vector,
        frame: ChannelFrame,
    ) -> ModelMonitor:
        """Score a choice, the fleet's model and the naive forecast on the rows after a row number.

        The naive forecast is that of a week before, where it is known, else that of the day before.

        Args:
            monitor: Scores so far.
            choice: What has been served.
            p: Whole vector of the fleet's model, which has not learned from these rows.
        """
        origins, truth = _new_windows(frame, upto)
        if len(origins):
            fans = self.fans(p, frame, origins, {FLEET, LAST_DAY, LAST_WEEK, *choice.used})
            fleet, served = fans[CANDIDATES.index(FLEET)], chosen(choice, fans)
            served = np.where(np.isfinite(served), served, fleet)
            middle = self.levels.index(0.5)
            day, week = (fans[CANDIDATES.index(one), :, :, middle] for one in (LAST_DAY, LAST_WEEK))
            naive = np.where(np.isfinite(week), week, day)
            days = target_days(frame, origins)
            monitor = monitor.extended(served, fleet, naive, truth, days)
        today = int(frame.times[-1]) // DAY
        return monitor.judged(today, int(row_numbers(frame)[-1]))

    def _extended(
        self, table: HeldBackErrors, p: Vector, frame: ChannelFrame, origins: Ints, truth: Floats
    ) -> HeldBackErrors:
        if not len(origins):
            return table
        days = target_days(frame, origins)
        return table.extended(self.fans(p, frame, origins), truth, days, self.levels)


def is_profile(frame: ChannelFrame) -> bool:
    """Return whether a bundle forecasts profiles: one of these takes windows with gaps."""
    return frame.window.least_known is not None


def judged(frame: ChannelFrame, origins: Ints) -> Ints:
    """Return the origins at which candidates are scored: for profiles, the times of issue.

    A profile is issued every six hours. Any other forecast is judged from every row.
    """
    if not is_profile(frame):
        return origins
    next_row = frame.times[origins] + frame.window.step_seconds
    return np.asarray(origins[next_row % ISSUED == 0])


def _new_windows(frame: ChannelFrame, upto: int) -> tuple[Ints, Floats]:
    origins, truth = new_windows(frame, upto)
    some = np.isin(origins, judged(frame, origins))
    return origins[some], truth[some]


@dataclass(frozen=True, slots=True, eq=False)
class ServedCandidate:
    """The forecast that a device serves instead of that of the fleet's model."""

    models: CandidateModels
    choice: ForecastChoice  # the choice between them

    @property
    def source(self) -> str:
        return SOURCES[self.choice.name]

    @property
    def weights(self) -> dict[str, float]:
        """Return the weights of a weighted mean; empty for a single candidate."""
        return dict(self.choice.weights) if self.choice.name == MEAN else {}

    def quantiles(self, p: Vector, frame: ChannelFrame, origins: Ints) -> Floats:
        """Forecast from origins, ``(n, horizon, levels)``; with the fleet's model where no other can.

        Args:
            origins: Rows with complete windows.
        """
        fans = self.models.fans(p, frame, origins, {FLEET, *self.choice.used})
        found = chosen(self.choice, fans)
        return np.where(np.isfinite(found), found, fans[CANDIDATES.index(FLEET)])


def chosen(choice: ForecastChoice, fans: Floats) -> Floats:
    """Return the quantiles of a choice, ``(n, horizon, levels)``; NaN where it has no forecast.

    Args:
        choice: The choice, perhaps one for each block of steps.
        fans: Quantiles of every candidate, ``(candidates, n, horizon, levels)``.
    """
    spans = blocks_of(fans.shape[2]) if choice.parts else (slice(None),)
    pairs = zip(choice.by_block, spans, strict=True)
    return np.concatenate([blended(one.weights, fans[:, :, span]) for one, span in pairs], axis=1)
