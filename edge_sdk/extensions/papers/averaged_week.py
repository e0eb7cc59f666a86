"""FedDA on a device: train on its averaged week; report a coarse week of its demand if allowed.

A window of the averaged week is the mean over all weeks of the windows that begin at the same time
of the week. Windows are linear in the readings, so these are the windows of the averaged readings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.extensions.papers.contracts import WEEK_PARTS
from edge_sdk.methods.local_sgd import TRAIN, LocalSgd, LocalState, fedavg
from edge_sdk.methods.training_context import Batch, TrainingContext
from edge_sdk.protocol.contract.method import Effects, Event, Half, Task, Update

LEAST_WEEKS = 4
"""Weeks of readings below which no profile is reported: an average over fewer is nearly a reading."""

CHUNK = 1024
"""Windows whose inputs are in memory at once."""


@dataclass(frozen=True, slots=True, eq=False)
class AveragedWeek:
    """Windows of a device, averaged over weeks."""

    windows: Batch  # one window for each time of the week that was observed, in order of time
    # these times, as numbers of the first target modulo the length of a week, shape ``(B,)``
    times: NDArray[np.int64]
    weeks: NDArray[np.int64]  # number of windows behind each, shape ``(B,)``
    length: int

    def profile(self) -> dict[str, float]:
        """Return the mean target in each of ``WEEK_PARTS`` equal parts of a week, by name.

        It is empty unless every part was observed, and every time of the week in it in at least
        ``LEAST_WEEKS`` weeks. Weeks begin on Thursday at 0:00 UTC, as Unix time does.
        """
        part = self.times * len(WEEK_PARTS) // self.length
        counts = np.bincount(part, minlength=len(WEEK_PARTS))
        if not counts.all() or int(self.weeks.min()) < LEAST_WEEKS:
            return {}
        sums = np.bincount(part, np.asarray(self.windows.y[:, 0], np.float64), len(WEEK_PARTS))
        return dict(zip(WEEK_PARTS, map(float, sums / counts), strict=True))


def averaged_week(local: TrainingContext, length: int) -> AveragedWeek | None:
    """Average all windows of a device by their time of the week; None without any.

    Args:
        length: Readings in a week, at least 1.
    """
    ends = local.span()
    if ends is None:
        return None
    times = np.unique(np.arange(ends[0] + 1, min(ends[1] + 2, ends[0] + 1 + length)) % length)
    x: NDArray[np.float64] | None = None
    y: NDArray[np.float64] | None = None
    counts = np.zeros(len(times), np.int64)
    for first in range(ends[0], ends[1] + 1, CHUNK):
        ids = np.arange(first, min(first + CHUNK, ends[1] + 1))
        there, batch = local.named(ids)
        if not len(batch):
            continue
        if x is None or y is None:
            x, y = (np.zeros((len(times), *some.shape[1:])) for some in (batch.x, batch.y))
        places = np.searchsorted(times, (ids[there] + 1) % length)
        np.add.at(x, places, batch.x)
        np.add.at(y, places, batch.y)
        counts += np.bincount(places, minlength=len(times))
    if x is None or y is None:
        return None
    seen = np.flatnonzero(counts)
    weeks = counts[seen]
    means = [_mean(sums[seen], weeks) for sums in (x, y)]
    return AveragedWeek(Batch(*means), times[seen].astype(np.int64), weeks, length)


def _mean(sums: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float32]:
    return (sums / counts.reshape(-1, *[1] * (sums.ndim - 1))).astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class WeekWindows:
    """Windows of which every draw is the whole averaged week."""

    batch: Batch

    def __len__(self) -> int:
        return len(self.batch)

    def draw(self, _rng: np.random.Generator, _size: int) -> Batch:
        return self.batch


def fedda(local: TrainingContext, settings: LocalSgd) -> Half[LocalState]:
    """Answer ``train`` as ``fedavg`` does; with a task's ``week``, train on the averaged week.

    With a task's ``profile`` the answer also has the coarse week, if the device's owner allows it
    (``accept.weekly_profile``) and there are enough weeks.
    """
    plain = fedavg(local, settings)

    def apply(state: LocalState, event: Event) -> tuple[LocalState, Effects]:
        length = int(event.values.get("week", 0)) if isinstance(event, Task) else 0
        if not length or not isinstance(event, Task) or event.ask != TRAIN:
            return plain.apply(state, event)
        week = averaged_week(local, length)
        if week is None:
            return plain.apply(state, event)
        half = plain
        if event.values.get("averaged", 0.0) > 0.0:
            windows = WeekWindows(week.windows)
            half = fedavg(replace(local, windows=lambda: windows), settings)
        after, effects = half.apply(state, event)
        is_asked = event.values.get("profile", 0.0) > 0.0 and settings.weekly_profile
        found = week.profile() if is_asked else {}
        return after, tuple(_with(effect, found) for effect in effects)

    return Half(LocalState, apply, model=lambda state: {"p": state.p})


def _with(effect: Any, profile: dict[str, float]) -> Any:  # noqa: ANN401 - an effect
    if not isinstance(effect, Update) or not profile:
        return effect
    return replace(effect, values={**effect.values, **profile})
