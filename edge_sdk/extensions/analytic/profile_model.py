"""Compute the functions of a bundle of profiles: windows in, forecasts, sums and errors out.

Everything in between is ``profile_features``, ``profile_form`` and ``residual_paths``: what a device
serves is what these functions give for its record. A window is the last 28 days and an hour of rows
up to its origin, NaN where unknown; wall-clock times come from its calendar channels. Sums over many
windows are taken by blocks, so that no more than ``ROWS`` design rows are in memory at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.extensions.analytic.bundle_functions import Array, NumpyFunction
from edge_sdk.extensions.analytic.profile_features import (
    ProfileRecord,
    ProfileRows,
    profile_rows,
)
from edge_sdk.extensions.analytic.profile_form import (
    LARGEST,
    announced_spread,
    prior_forecast,
    scaled_design,
    spread_columns,
    stage_of,
)
from edge_sdk.extensions.analytic.profile_kinds import home_share, home_signs
from edge_sdk.extensions.analytic.profile_section import SPREADS, WIDTH, ProfileSection
from edge_sdk.extensions.analytic.residual_paths import lead_quantiles, profile_fan, profile_paths
from edge_sdk.forecasting.calendar_features import DAY, Floats, Ints
from edge_sdk.protocol.contract.manifest import Manifest, ManifestError

ROWS = 768
"""Design rows in memory at once."""

AROUND = 1
"""Steps before and after whose residuals count for the quantiles of a step too."""

WEEK = 7
ISSUES = 4
"""Times of the day from whose forecasts a device learns: 00, 06, 12 and 18, local time."""


@dataclass(frozen=True, slots=True, eq=False)
class ProfileVector:
    """The layers of a bundle's vector, in float64; ``ProfileSection.layers`` explains them."""

    scale: Floats
    coefficients: Floats
    expected: Floats
    spread: Floats
    strengths: Floats
    residuals: Floats
    homes: Floats
    home: Floats
    share: Floats
    own: Floats


@dataclass(frozen=True, slots=True, eq=False)
class DayRows:
    """The features of some windows."""

    design: NDArray[np.float32]  # in fleet scales, with hinges, shape ``(n · H, W)``
    # in levels, with what a home's coefficients add, shape ``(n, H)``
    base: Floats
    plain: Floats  # mean profile of the device's known days, in levels, shape ``(n, H)``
    spreads: Floats  # ``profile_form.spread_columns``, shape ``(n, H, 6)``
    naive: Floats  # last week's same slot minus base, in levels, shape ``(n · H,)``
    level: Floats  # shape ``(n,)``
    stages: Ints  # of every row, shape ``(n · H,)``

    def told(self, coefficients: Floats, own: Floats) -> Floats:
        """Return the forecasts of the prior and of the own part, in levels, shape ``(n, H)``.

        Args:
            coefficients: Of every stage.
            own: Own part, the same for all stages, shape ``(W,)``.
        """
        found = prior_forecast(self.design, self.base.ravel(), self.stages, coefficients + own)
        return found.reshape(self.base.shape)

    def goals(self, y: Array) -> Floats:
        """Return scaled targets in levels, minus base; NaN beyond ``LARGEST``, shape ``(n · H,)``."""
        found = np.asarray(y / self.level[:, None] - self.base).ravel()
        return np.where(np.abs(found) <= LARGEST, found, np.nan)


class ProfileModel:
    """A bundle's model of profiles.

    Attributes:
        section: The manifest's section.
        day: Rows of a day.
        lookback: Rows of a window.
        horizon: Steps of the profile, H.
        load: Number of the target's channel.

    Raises:
        ManifestError: A section of another model, or a channel that is missing or unknown.
    """

    def __init__(self, manifest: Manifest) -> None:
        if not isinstance(manifest.analytic, ProfileSection):
            raise ManifestError(f"manifest: {manifest.name} has no section of profiles")
        self.section = manifest.analytic
        self.manifest = manifest
        self.lookback, self.horizon = manifest.window.lookback, manifest.window.horizon
        self._step = manifest.window.step_seconds
        self.day = DAY // self._step
        self.load = next(i for i, one in enumerate(manifest.features) if one.kind == "target")
        self._slot, self._weekday = self._calendar("slot_of_day"), self._calendar("day_of_week")
        self._ahead = self._calendar("slot_of_day", self.horizon)
        if self._slot is None or self._weekday is None:
            raise ManifestError(
                "manifest: profiles need the calendar's slot_of_day and day_of_week"
            )
        self.levels = manifest.loss.levels or (0.5,)

    def functions(self) -> Mapping[str, NumpyFunction]:
        return {
            "forecast": NumpyFunction(("p", "x"), ("yhat",), self.forecast),
            "day": NumpyFunction(("p", "x"), ("expected", "paths"), self.forecast_day),
            "gradient": NumpyFunction(("p", "x", "y"), ("loss", "g"), self.gradient),
            "design": NumpyFunction(("p", "x"), ("design",), self.design),
            "wait": NumpyFunction(("x",), ("wait",), self.wait),
            "stage": NumpyFunction(("p", "x"), ("stage",), self.stage),
        }

    # --- forecasts --------------------------------------------------------------------------------

    def forecast(self, p: Array, x: Array) -> tuple[NDArray[np.float32]]:
        """Return the quantiles of every step, scaled as the target, shape ``(n, H, levels)``."""
        v = self.parts(p)
        ordered = lead_quantiles(v.residuals, self.levels, around=AROUND)
        found = [self._fan(v, rows, ordered) for _, rows in self.blocks(v, x)]
        return (np.concatenate(found).astype(np.float32),)

    def _fan(self, v: ProfileVector, rows: DayRows, ordered: Floats) -> Floats:
        middle = self.levels.index(0.5)
        median = self._blended(v, rows, v.coefficients, v.own[0])
        fan = profile_fan(median, self.spread(v, rows), ordered)
        fan = np.where(np.isfinite(fan), fan, median[:, :, None])
        # the median is the model's own: residuals move the other levels alone
        fan[:, :, :middle] = np.minimum(fan[:, :, :middle], median[:, :, None])
        fan[:, :, middle:] = np.maximum(fan[:, :, middle:], median[:, :, None])
        fan[:, :, middle] = median
        return np.asarray(fan * rows.level[:, None, None])

    def forecast_day(self, p: Array, x: Array) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return expected values ``(n, H)`` and equally likely paths ``(n, paths, H)``, scaled.

        The expected values are the paths' means, so that a sum and its interval are of one
        distribution. On validation parts they miss less than the solution for squared errors does:
        residual days are the device's own.
        """
        v, made = self.parts(p), []
        for _, rows in self.blocks(v, x):
            level = rows.level[:, None]
            median = level * self._blended(v, rows, v.coefficients, v.own[0])
            spread = level * self.spread(v, rows)
            made.append(
                profile_paths(median, spread, v.residuals, self.section.paths, around=AROUND)
            )
        paths = np.concatenate(made)
        return paths.mean(axis=1).astype(np.float32), paths.astype(np.float32)

    @staticmethod
    def _blended(v: ProfileVector, rows: DayRows, coefficients: Floats, own: Floats) -> Floats:
        share = float(v.share[0])
        return share * rows.told(coefficients, own) + (1.0 - share) * rows.plain

    @staticmethod
    def spread(v: ProfileVector, rows: DayRows) -> Floats:
        coefficients = v.spread[rows.stages].reshape(*rows.base.shape, SPREADS)
        return announced_spread(rows.spreads, coefficients)

    def gradient(self, p: Array, x: Array, y: Array) -> tuple[NDArray[np.float32], Array]:
        """Return the mean loss of windows, and a gradient of zero: no step is taken along it."""
        (found,) = self.forecast(p, x)
        missed = np.asarray(y, np.float64)[:, :, None] - found
        levels = np.asarray(self.levels)
        loss = np.maximum(levels * missed, (levels - 1.0) * missed).sum() / len(x)
        return np.asarray(loss, np.float32), np.zeros(len(p), np.float32)

    # --- features ---------------------------------------------------------------------------------

    def design(self, p: Array, x: Array) -> tuple[NDArray[np.float32]]:
        """Return the design rows of windows, shape ``(n, H, W)``."""
        made = [rows.design for _, rows in self.blocks(self.parts(p), x)]
        return (np.concatenate(made).reshape(len(x), self.horizon, WIDTH),)

    def blocks(self, v: ProfileVector, x: Array) -> Iterator[tuple[slice, DayRows]]:
        """Yield the features of windows, some at once."""
        size = max(1, ROWS // self.horizon)
        for start in range(0, len(x), size):
            some = slice(start, start + size)
            record, origins = self.record(x[some])
            made = profile_rows(record, origins, self.horizon)
            mean = made.design[:, :, made.names.index("mall")]
            week = made.design[:, :, made.names.index("w1")].astype(np.float64)
            design, stages = scaled_design(made, v.scale), stage_of(made.known)
            every, share = np.repeat(stages, self.horizon), self.home_share(v, made, stages)
            added = prior_forecast(design, np.zeros(len(design)), every, v.homes)
            added = share[:, None] * added.reshape(made.base.shape)
            yield (
                some,
                DayRows(
                    design,
                    made.base + added,
                    made.base + mean,
                    spread_columns(made),
                    (week - added).ravel(),
                    made.level,
                    every,
                ),
            )

    def home_share(self, v: ProfileVector, rows: ProfileRows, stages: Ints) -> Floats:
        """Return the probability that each window is a home's, shape ``(n,)``."""
        return home_share(home_signs(rows, self.day), v.home[stages])

    def record(self, x: Array) -> tuple[ProfileRecord, Ints]:
        """Join windows to one record; between two lie the rows of the horizon, which none reads.

        Returns:
            The record, and the origins of the windows in it.
        """
        count, whole = len(x), self.lookback + self.horizon
        values = np.full((count, whole), np.nan)
        values[:, : self.lookback] = x[:, :, self.load]
        slots = self._slots(x)
        local = self._local(x, slots)
        # of a holiday: ``profile_holidays`` has raised it by a day
        is_free = slots.ravel() >= self.day
        holidays = is_free if is_free.any() else None
        loads = values.ravel()[: -self.horizon]
        record = ProfileRecord(loads, local.ravel(), self._step, holidays)
        return record, np.arange(count, dtype=np.int64) * whole + self.lookback - 1

    def wait(self, x: Array) -> tuple[Ints]:
        """Return the rows until a device learns again, and the rows of an hour, shape ``(n, 2)``."""
        wait = -(self.slots(x) + 1) % (self.day // ISSUES)
        return (np.stack([wait, np.full(len(wait), self.day // 24)], axis=1),)

    def stage(self, p: Array, x: Array) -> tuple[Ints]:
        """Return the stage of windows, by their known days, shape ``(n,)``."""
        found = [rows.stages[:: self.horizon] for _, rows in self.blocks(self.parts(p), x)]
        return (np.concatenate(found),)

    def slots(self, x: Array) -> Ints:
        """Return the slot of the day of the last row of windows, shape ``(n,)``."""
        assert self._slot is not None
        return self._numbers(x[:, -1:], self._slot)[:, 0].astype(np.int64) % self.day

    def _local(self, x: Array, slots: Floats) -> Ints:
        """Return the wall clock of every row of windows, up to a number of weeks."""
        assert self._weekday is not None
        lookback, horizon = self.lookback, self.horizon
        weekday = self._numbers(x[:, -1:], self._weekday)
        days = (weekday - 3) % WEEK + 10 * WEEK  # 1970-01-01 was a Thursday
        end = days * DAY + self.slots(x)[:, None] * self._step
        plain = end + self._step * np.arange(1.0 - lookback, 1.0 + horizon)
        # where clocks have changed between a row and the last one, the slot says by how much
        moved = (slots * self._step - plain + DAY / 2) % DAY - DAY / 2
        return np.asarray(plain + np.where(np.isfinite(moved), moved, 0.0), np.int64)

    def _slots(self, x: Array) -> Floats:
        """Return the slot of every row of windows, NaN where unknown, ``(n, lookback + horizon)``."""
        assert self._slot is not None
        found = np.full((len(x), self.lookback + self.horizon), np.nan)
        found[:, : self.lookback] = self._numbers(x, self._slot)
        if self._ahead is not None:
            found[:, self.lookback :] = self._numbers(x[:, -self.horizon :], self._ahead)
        return found

    def _numbers(self, x: Array, channel: int) -> Floats:
        feature, column = self.manifest.features[channel], x[:, :, channel].astype(np.float64)
        return np.asarray(np.rint(column * (feature.high - feature.low) + feature.low))

    def _calendar(self, what: str, lead: int | None = None) -> int | None:
        for i, feature in enumerate(self.manifest.features):
            if (feature.kind, feature.what, feature.lead_steps) == ("calendar", what, lead):
                return i
        return None

    def parts(self, p: Array) -> ProfileVector:
        """Return the layers of a vector."""
        wide = np.asarray(p, np.float64)
        return ProfileVector(
            **{name: wide[place].reshape(s) for name, (place, s) in self.places.items()}
        )

    @cached_property
    def places(self) -> Mapping[str, tuple[slice, tuple[int, ...]]]:
        """Place and shape of every layer."""
        layers = self.manifest.spec().layers
        return {x.name: (slice(x.offset, x.offset + x.size), x.shape) for x in layers}
