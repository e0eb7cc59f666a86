"""Prepare a series for the model: channels, scale, windows, minibatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, tzinfo
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from edge_sdk.app.lean_dataclass import dataclass
from edge_sdk.errors import ConfigError
from edge_sdk.forecasting.calendar_features import DAY, Floats, Ints, calendar, local_seconds
from edge_sdk.forecasting.series import Series
from edge_sdk.methods.training_context import Batch
from edge_sdk.protocol.contract.manifest import Feature, Manifest, Target, Window

FILL = 2
"""Number of missing steps over which an input is carried forward; a longer gap masks the window."""

MOST = 2048
"""Most windows that are forecast to compare models on new rows: the newest ones."""

Span = tuple[float, float]
"""Begin and end of a chronological part of a series, as fractions of its length."""

WHOLE: Span = (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Scale:
    """The target's own unit interval: ``low`` becomes 0 and ``high`` becomes 1."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Floats) -> Scale:
        """Return the range of the observed values. A constant (or empty) series gets width 1.

        >>> Scale.of(np.array([2.0, np.nan, 6.0])), Scale.of(np.full(3, 5.0))
        (Scale(low=2.0, high=6.0), Scale(low=5.0, high=6.0))
        """
        seen = values[np.isfinite(values)]
        if not seen.size:
            return cls(0.0, 1.0)
        low, high = float(seen.min()), float(seen.max())
        return cls(low, high if high - low > 1e-9 * max(1.0, abs(high)) else low + 1.0)

    @property
    def width(self) -> float:
        return self.high - self.low

    def shrink(self, values: Floats) -> Floats:
        return (values - self.low) / self.width


def filled(values: Floats, limit: int = FILL) -> Floats:
    """Carry each observed value forward over at most ``limit`` missing ones.

    >>> filled(np.array([np.nan, 1.0, np.nan, np.nan, np.nan, 5.0]))
    array([nan,  1.,  1.,  1., nan,  5.])
    """
    rows = np.arange(len(values))
    last = np.maximum.accumulate(np.where(np.isfinite(values), rows, -1))
    near = (last >= 0) & (rows - last <= limit)
    return np.where(near, values[np.maximum(last, 0)], np.nan)


@dataclass(frozen=True)
class ChannelFrame:
    """All channels of one device, and the positions of complete windows.

    Row ``o`` is an *origin* when rows ``o - lookback + 1 .. o`` are complete, or as many of them as
    ``window.least``; its targets are rows ``o + 1 .. o + horizon``.
    """

    window: Window  # lookback, horizon, step
    target: Target  # series that is forecast, and its form
    times: Ints  # start of each row, Unix seconds, shape ``(T,)``
    # scaled inputs, shape ``(T, C)``, float32, NaN where unknown; an optional channel is 0 there,
    # and its mask as well
    channels: NDArray[np.float32]
    raw: Floats  # the target as observed, shape ``(T,)``, NaN in gaps
    last: Floats  # the target carried forward over short gaps, shape ``(T,)``
    scale: Scale

    @classmethod
    def of(
        cls,
        series: Series,
        manifest: Manifest,
        *,
        site: Mapping[str, float] = MappingProxyType({}),
        zone: tzinfo = UTC,
        scale: Scale | None = None,
        span: Span = WHOLE,
    ) -> ChannelFrame:
        """Build the channels that a manifest asks for.

        Args:
            series: On the manifest's step.
            site: Static features by name.
            zone: Time zone for calendar features.
            scale: Scale that was fixed earlier. A model learns on one scale, so a device keeps the
                first one it trained on.
            span: Part whose minimum and maximum give the device's scale otherwise.

        Raises:
            ConfigError: ``site`` lacks a static feature that is not optional.
            ValueError: Another step than the manifest's, or an unknown calendar feature.
        """
        if series.step != manifest.window.step_seconds:
            wanted = manifest.window.step_seconds
            raise ValueError(f"the series has {series.step} s steps, the bundle {wanted} s")
        _check_site(manifest.features, site)
        times, raw = series.times(), series.values(manifest.target.stream)
        if scale is None:
            scale = _scale_of(manifest.target, raw, span)
        last = filled(raw)
        local = local_seconds(times, zone)
        base = scale.shrink(last)
        columns = {f.name: _column(f, series, site, local, base) for f in manifest.features}
        for f in manifest.features:
            if f.what is not None and f.lead_steps is not None:
                later = local_seconds(times + f.lead_steps * series.step, zone)
                columns[f.name] = _column(f, series, site, later, base)
        for feature in manifest.features:
            if feature.of is not None:
                columns[feature.name] = np.isfinite(columns[feature.of]).astype(np.float64)
        for feature in manifest.features:
            if feature.lead_steps is not None and feature.stream is not None:
                columns[feature.name] = _persisted(columns[feature.name], feature, series)
        for name in [feature.of for feature in manifest.features if feature.of is not None]:
            columns[name] = np.nan_to_num(columns[name], nan=0.0)
        ordered = [columns[feature.name] for feature in manifest.features]
        channels = np.stack(ordered, 1).astype(np.float32)
        return cls(manifest.window, manifest.target, times, channels, raw, last, scale)

    def __len__(self) -> int:
        return len(self.times)

    def without_open_row(self) -> ChannelFrame:
        """Return the frame without its newest row while the target of that row is not observed.

        An instant, such as a temperature, opens a slot when it begins; the energy of the slot is
        known when it ends. Meanwhile the forecast follows the newest energy.
        """
        if len(self) < 2 or np.isfinite(self.raw[-1]):
            return self
        rows = slice(0, -1)
        return replace(
            self,
            times=self.times[rows],
            channels=self.channels[rows],
            raw=self.raw[rows],
            last=self.last[rows],
        )

    def origins(
        self, span: Span = WHOLE, *, observed: bool = True, reach_back: bool = True
    ) -> Ints:
        """List the origins whose targets *all* lie in a part.

        Args:
            observed: Whether to return only windows whose targets were all observed, for training.
            reach_back: Whether inputs may lie before the part (never after it).

        Returns:
            Rows in ascending order, read-only: a frame computes them once for each choice.
        """
        key = (span, observed, reach_back)
        if key not in self._listed:
            self._listed[key] = self._complete(span, observed=observed, reach_back=reach_back)
        return self._listed[key]

    def _complete(self, span: Span, *, observed: bool, reach_back: bool) -> Ints:
        start, stop = (int(len(self) * share) for share in span)
        lookback, horizon = self.window.lookback, self.window.horizon
        first = max(0, start - 1 if reach_back else start + lookback - 1)
        rows = np.arange(first, stop - horizon, dtype=np.int64)
        good = self.complete[rows]
        if observed:
            good &= self._unseen[rows + 1 + horizon] == self._unseen[rows + 1]
        found = np.asarray(rows[good])
        found.setflags(write=False)
        return found

    @property
    def is_ready(self) -> bool:
        """Return whether the newest window is complete, so that the model can forecast from it."""
        return bool(self.complete[-1:].any())

    @property
    def newest(self) -> int | None:
        """Return the number of the newest window, its last row's start over the step, or None."""
        if not self.is_ready:
            return None
        return int(self.times[-1]) // self.window.step_seconds

    def inputs(self, origins: Ints) -> NDArray[np.float32]:
        """Gather input windows in one copy, shape ``(B, lookback, channels)``.

        Rows before the first one are NaN, where a window need not be complete.
        """
        lookback, width = self.window.lookback, self.channels.shape[1]
        first = origins if self.window.least < lookback else origins - lookback + 1
        return np.asarray(self._flat[first].reshape(-1, lookback, width))

    def truth(self, origins: Ints) -> Floats:
        """Gather the targets in the series' unit, NaN where unobserved, ``(B, horizon)``."""
        return np.asarray(self.raw[origins[:, None] + 1 + np.arange(self.window.horizon)])

    def targets(self, origins: Ints) -> NDArray[np.float32]:
        """Gather the targets as the model learns them: scaled, as a level or as a change."""
        base = self.last[origins, None] if self.target.form == "change" else self.scale.low
        return ((self.truth(origins) - base) / self.scale.width).astype(np.float32)

    def restore(self, yhat: NDArray[np.float32], origins: Ints) -> Floats:
        """Invert ``targets``: the model's output in the series' unit, ``(B, horizon)``."""
        base = self.last[origins, None] if self.target.form == "change" else self.scale.low
        return np.asarray(base + self.scale.width * yhat.astype(np.float64))

    @cached_property
    def _listed(self) -> dict[tuple[Span, bool, bool], Ints]:
        """Lists of origins by the arguments of ``origins``."""
        return {}

    @cached_property
    def _flat(self) -> NDArray[np.float32]:
        """View of every window as one row, shape ``(T - lookback + 1, lookback * C)``.

        Where a window need not be complete there is one that ends at every row, ``(T, ...)``.
        """
        lookback, width = self.window.lookback, self.channels.shape[1]
        rows = self.channels
        if self.window.least < lookback:
            before = np.full((lookback - 1, width), np.nan, np.float32)
            rows = np.concatenate([before, rows])
        return sliding_window_view(rows.reshape(-1), lookback * width)[::width]

    @cached_property
    def complete(self) -> NDArray[np.bool_]:
        """Rows that end a window to forecast from, shape ``(T,)``."""
        known = np.concatenate([[0], np.cumsum(np.isfinite(self.channels).all(1))])
        rows = np.arange(len(self))
        found = known[rows + 1] - known[np.maximum(rows + 1 - self.window.lookback, 0)]
        return np.asarray(found >= self.window.least)

    @cached_property
    def _unseen(self) -> Ints:
        return np.concatenate([[0], np.cumsum(~np.isfinite(self.raw))])


@dataclass(frozen=True, slots=True, eq=False)
class Drawable:
    """Windows available for training: a frame and its origins."""

    frame: ChannelFrame
    origins: Ints

    def __len__(self) -> int:
        return len(self.origins)

    def select(self, origins: Ints) -> Batch:
        return Batch(self.frame.inputs(origins), self.frame.targets(origins))

    def draw(self, rng: np.random.Generator, size: int) -> Batch:
        """Draw ``size`` windows without repetition, or all of them when there are fewer."""
        if len(self) <= size:
            return self.select(self.origins)
        return self.select(self.origins[rng.choice(len(self), size, replace=False)])

    def span(self) -> tuple[int, int] | None:
        """Return the numbers of the first and last window; None without any."""
        if not len(self):
            return None
        ends = self.frame.times[self.origins[[0, -1]]] // self.frame.window.step_seconds
        return int(ends[0]), int(ends[1])

    def named(self, ids: Ints) -> tuple[NDArray[np.bool_], Batch]:
        """Return which of these window numbers exist, ``(B,)``, and their windows.

        A window's number is the start of its origin's row over the step.
        """
        first = self.frame.times[0] // self.frame.window.step_seconds if len(self.frame) else 0
        rows = np.asarray(ids, np.int64) - first
        here = np.isin(rows, self.origins)
        return here, self.select(rows[here])


def _scale_of(target: Target, raw: Floats, span: Span) -> Scale:
    if target.scale == "fixed" and target.low is not None and target.high is not None:
        return Scale(target.low, target.high)
    start, stop = (int(len(raw) * share) for share in span)
    return Scale.of(raw[start:stop])


def _check_site(features: Sequence[Feature], site: Mapping[str, float]) -> None:
    optional = {feature.of for feature in features}
    for feature in features:
        if feature.kind == "static" and feature.name not in (*site, *optional):
            raise ConfigError(
                f"the bundle needs the static feature {feature.name!r} ({feature.unit})"
            )


def _column(
    feature: Feature, series: Series, site: Mapping[str, float], local: Ints, target: Floats
) -> Floats:
    """Return one channel, NaN where unknown: target and lags on the device's scale.

    A mask follows from the channel that it names; here it is NaN.
    """
    if feature.kind == "target":
        return target
    if feature.kind == "lag" and feature.lag_steps is not None:
        return _lagged(target, feature.lag_steps - 1)
    if feature.kind == "stream" and feature.stream is not None:
        values = filled(series.values(feature.stream))
        if feature.lead_steps is not None:
            values = _ahead(feature, series, values)
    elif feature.kind == "calendar" and feature.what is not None:
        values = calendar(feature.what, local, series.step)
    elif feature.name in site:
        values = np.full(len(local), float(site[feature.name]))
    else:
        values = np.full(len(local), np.nan)
    return np.asarray((values - feature.low) / (feature.high - feature.low))


def _ahead(feature: Feature, series: Series, recorded: Floats) -> Floats:
    steps, announced = feature.lead_steps or 0, feature.lead_stream
    later = np.concatenate([recorded[steps:], np.full(min(steps, len(recorded)), np.nan)])
    if announced not in series.streams:
        return later
    known = series.values(str(announced))
    return np.where(np.isfinite(known), known, later)


def _persisted(values: Floats, feature: Feature, series: Series) -> Floats:
    recorded = filled(series.values(str(feature.stream)), len(values))
    latest = (recorded - feature.low) / (feature.high - feature.low)
    return np.where(np.isfinite(values), values, latest)


def _lagged(values: Floats, rows: int) -> Floats:
    return np.concatenate([np.full(min(rows, len(values)), np.nan), values])[: len(values)]


def row_numbers(frame: ChannelFrame) -> Ints:
    """Return every row's number, Unix seconds over the step, ``(T,)``."""
    return np.asarray(frame.times // frame.window.step_seconds)


def new_windows(frame: ChannelFrame, upto: int) -> tuple[Ints, Floats]:
    """Return the origins of complete windows with a target after a row number, and the new targets.

    Returns:
        Origins ``(n,)``, at most the newest ``MOST`` rows, and truth ``(n, horizon)``: NaN for what
        is not new, and for what has not come yet.
    """
    count, horizon = len(frame), frame.window.horizon
    first = int(np.searchsorted(row_numbers(frame), upto, side="right"))
    first = max(first, count - MOST, frame.window.least)
    origins = np.arange(max(first - horizon, 0), count - 1, dtype=np.int64)
    origins = origins[frame.complete[origins]]
    rows = origins[:, None] + 1 + np.arange(horizon)
    is_new = (rows >= first) & (rows < count)
    return origins, np.where(is_new, frame.raw[np.minimum(rows, count - 1)], np.nan)


def target_days(frame: ChannelFrame, origins: Ints) -> Ints:
    """Return the day since 1970 of each target of some windows, ``(n, horizon)``."""
    step, horizon = frame.window.step_seconds, frame.window.horizon
    return np.asarray((frame.times[origins, None] + step * (1 + np.arange(horizon))) // DAY)
