"""Add noise to readings before training: drawn once, stored, and never drawn again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from edge_sdk.forecasting.series import Series, SeriesRow
from edge_sdk.privacy import noise
from edge_sdk.privacy.event import PrivacyCharge
from edge_sdk.privacy.mechanism import NoMechanism

_EXTRA = "extra "  # prefix of a stream's name in the store: noise added for now


class NoisyReadingStore(Protocol):
    """Persistent store of perturbed readings."""

    def noised(self) -> Mapping[tuple[str, int], float]:
        """Return every perturbed reading by stream and slot."""

    def add_noised(self, rows: list[SeriesRow], charge: PrivacyCharge) -> None:
        """Store new ones and their charge in one transaction. Existing ones stay unchanged."""

    def noised_since(self) -> int:
        """Return Unix seconds before which no reading is perturbed: a store was lost."""


@dataclass(slots=True)
class InputNoise(NoMechanism):
    """Perturb every reading once; train on perturbed readings only."""

    shelf: NoisyReadingStore = field(kw_only=True)
    clock: Callable[[], int] = field(kw_only=True, default=lambda: 0)

    def learnable(self, series: Series) -> Series:
        """Return the perturbed readings, after drawing and storing the noise of new ones.

        A reading that is corrected later keeps its first perturbed value: a second draw would be a
        second release of it.
        """
        known, since = self.shelf.noised(), self.shelf.noised_since()
        fresh = [
            row
            for stream, span in self.plan.ranges.items()
            for row in self._drawn(_new(series, stream, known, since), span)
        ]
        if fresh:
            self.shelf.add_noised(fresh, self.plan.charge(self.clock(), count=len(fresh)))
            known = {**known, **{(row.stream, row.slot): row.value for row in fresh}}
        if self.plan.extra:
            known = self._noisier(known)
        out = Series(series.step, series.streams, capacity=series.capacity)
        out.load(_rows(series, known, frozenset(self.plan.ranges)))
        return out

    def _noisier(self, known: Mapping[tuple[str, int], float]) -> dict[tuple[str, int], float]:
        """Return noisier versions while epsilon is rising: they cost nothing, and are stored."""
        lacking = [
            (_EXTRA + stream, slot)
            for stream, slot in known
            if stream in self.plan.ranges and (_EXTRA + stream, slot) not in known
        ]
        if lacking:
            drawn = noise.normal(len(lacking), self.entropy).tolist()
            rows = [SeriesRow(*key, value) for key, value in zip(lacking, drawn, strict=True)]
            free = replace(self.plan.release(self.clock()), count=len(rows), releases=0)
            self.shelf.add_noised(rows, free)
            known = {**known, **dict(zip(lacking, drawn, strict=True))}
        return {
            (stream, slot): value + self.plan.extra * (high - low) * known[_EXTRA + stream, slot]
            for stream, (low, high) in self.plan.ranges.items()
            for (name, slot), value in known.items()
            if name == stream
        }

    def _drawn(self, rows: list[SeriesRow], span: tuple[float, float]) -> list[SeriesRow]:
        (low, high), mechanism = span, self.plan.mechanism
        width = high - low
        values = np.clip([row.value for row in rows], low, high)
        draw = noise.laplace if mechanism.name == "laplace" else noise.normal
        spread = self.plan.noise * width * draw(len(rows), self.entropy)
        if mechanism.grid:
            step = noise.GRID * width
            values = low + noise.round_to_grid(
                noise.round_towards_zero(values - low, step) + spread, step
            )
        else:
            values = values + spread
        pairs = zip(rows, values, strict=True)
        return [SeriesRow(row.stream, row.slot, float(value)) for row, value in pairs]


def _new(
    series: Series, stream: str, known: Mapping[tuple[str, int], float], since: int
) -> list[SeriesRow]:
    slots = series.times() // series.step
    pairs = zip(slots.tolist(), series.values(stream).tolist(), strict=True)
    first = -(-since // series.step)
    return [
        SeriesRow(stream, slot, value)
        for slot, value in pairs
        if value == value and slot >= first and (stream, slot) not in known  # noqa: PLR0124 - NaN
    ]


def _rows(
    series: Series, known: Mapping[tuple[str, int], float], hidden: frozenset[str]
) -> Iterator[SeriesRow]:
    """Yield the visible rows of a series: stored perturbed streams, and public streams as read."""
    slots = (series.times() // series.step).tolist()
    kept = frozenset(slots)
    for stream in series.streams:
        if stream not in hidden and stream.partition("+")[0] in hidden:
            continue  # announced values of a perturbed stream have no noise of their own
        if stream in hidden:
            mine = (slot for name, slot in known if name == stream and slot in kept)
            yield from (SeriesRow(stream, slot, known[stream, slot]) for slot in mine)
            continue
        pairs = zip(slots, series.values(stream).tolist(), strict=True)
        yield from (SeriesRow(stream, slot, value) for slot, value in pairs if value == value)  # noqa: PLR0124
