"""Add noise to readings before training: drawn once, stored, and never drawn again; or as in papers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from edge_sdk.extensions.noise_points.classical_noise import classical_sigma, extra_sigma
from edge_sdk.forecasting.series import Series, SeriesRow
from edge_sdk.methods.training_context import Graph
from edge_sdk.privacy import MechanismSection, PrivacySection, noise
from edge_sdk.privacy.ledger import PrivacyCharge
from edge_sdk.privacy.mechanism import Mechanism, SubstitutedGraphs
from edge_sdk.privacy.noise import calibrated_noise, is_range, range_faults
from edge_sdk.privacy.noise_calibration import Complaint, DeviceFacts, Noise, NoisePlan, NoisePoint
from edge_sdk.protocol.contract.manifest import FORECAST
from edge_sdk.protocol.contract.method import Array

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
class InputNoise(Mechanism):
    """Perturb every reading once; train on perturbed readings only."""

    def learnable(self, series: Series) -> Series:
        """Return the perturbed readings, after drawing and storing the noise of new ones.

        A reading that is corrected later keeps its first perturbed value: a second draw would be a
        second release of it.
        """
        shelf: NoisyReadingStore = self.shelf
        known, since = shelf.noised(), shelf.noised_since()
        fresh = [
            row
            for stream, span in self.plan.ranges.items()
            for row in self._drawn(_new(series, stream, known, since), span)
        ]
        if fresh:
            shelf.add_noised(fresh, self.plan.charge(self.clock(), count=len(fresh)))
            known = {**known, **{(row.stream, row.slot): row.value for row in fresh}}
        if self.plan.extra:
            known = self._noisier(known)
        out = Series(series.step, series.streams, capacity=series.capacity)
        out.load(_rows(series, known, frozenset(self.plan.ranges)))
        return out

    def _noisier(self, known: Mapping[tuple[str, int], float]) -> dict[tuple[str, int], float]:
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
        if self.plan.is_on_grid:
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


@dataclass(slots=True)
class PaperInputNoise(Mechanism):
    """Noise of a paper: new noise on every window's inputs, and clean targets."""

    def graphs(self, graphs: Mapping[str, Graph]) -> Mapping[str, Graph]:
        def swap(name: str, graph: Graph) -> Graph:
            return graph if name == FORECAST else self._noisy(graph)

        return SubstitutedGraphs(graphs, swap)

    def _noisy(self, graph: Graph) -> Graph:
        def run(**feeds: Array) -> tuple[Array, ...]:
            if "x" not in feeds:  # values computed from noisy inputs
                return graph(**feeds)
            x = feeds["x"]
            spread = self.plan.noise * noise.normal(x.size, self.entropy).reshape(x.shape)
            return graph(**{**feeds, "x": (x + spread).astype(np.float32)})

        return run


def mechanism(plan: NoisePlan, *inputs: Any) -> Mechanism:  # noqa: ANN401 - those of ``Mechanism``
    return (PaperInputNoise if plan.is_paper else InputNoise)(plan, *inputs)


def _noise(section: PrivacySection, facts: DeviceFacts, unit: str) -> Noise:
    """Return noise over a stream's range, and over the change by one unit in the same units."""
    mechanism, budget = section.mechanism, section.budget
    streams = 1 + len(mechanism.stream_ranges)
    slots_a_day = max(1, round(86_400 / facts.manifest.window.step_seconds))
    days = {"reading": 1, "day": slots_a_day * streams, "device": facts.keep * streams}
    apart = float(days[unit]) if mechanism.name == "laplace" else math.sqrt(days[unit])
    target: Any = mechanism.range[:2]
    ranges = {**mechanism.stream_ranges, facts.streams[0]: target}
    if section.mode == "paper":
        z = mechanism.noise_multiplier or classical_sigma(budget.epsilon or 1.0, budget.delta)
        return Noise(z, 0.0, ranges)
    if mechanism.noise_multiplier is not None:
        noise, cost = mechanism.noise_multiplier, mechanism.noise_multiplier / apart
    else:
        cost = calibrated_noise(mechanism, budget.epsilon or 0.0, budget.delta)
        noise = cost * apart
    extra = 0.0
    if mechanism.epsilon is not None and cost:
        now = calibrated_noise(mechanism, mechanism.epsilon, budget.delta) * noise / cost
        extra = extra_sigma(now, noise)
    return Noise(noise, cost, ranges, extra)


def _faults(section: PrivacySection, facts: DeviceFacts) -> Iterator[Complaint]:
    mechanism = section.mechanism
    if mechanism.noise_multiplier is None and section.budget.epsilon is None:
        yield "budget.epsilon", "missing; the noise of a reading is calibrated from it"
    elif mechanism.epsilon is not None:
        yield from _moving(section, mechanism.epsilon)
    if section.mode != "paper":
        yield from range_faults(mechanism, facts)
        yield from _streams(mechanism, facts)


def _moving(section: PrivacySection, epsilon: float) -> Iterator[Complaint]:
    """Yield complaints about an epsilon that decreases over time: wrong mechanism, or above the budget."""
    if section.mechanism.name != "gaussian" or section.mode == "paper":
        yield (
            "mechanism.epsilon",
            "at point 'input' only gaussian noise in mode 'honest' can decrease over time",
        )
    elif epsilon > (section.budget.epsilon or 0.0):
        yield "mechanism.epsilon", f"{epsilon:g} is above budget.epsilon, the final value"


def _streams(mechanism: MechanismSection, facts: DeviceFacts) -> Iterator[Complaint]:
    target, *others = facts.streams
    for stream, span in mechanism.stream_ranges.items():
        if stream not in others:
            yield (
                f"mechanism.stream_ranges.{stream}",
                "the bundle does not read this stream beside target",
            )
        if not is_range(span):
            yield f"mechanism.stream_ranges.{stream}", "give [low, high] with low below high"
    if target in mechanism.public_streams:
        yield "mechanism.public_streams", f"{target} is the target and cannot be public"
    for stream in others:
        if (stream in mechanism.stream_ranges) == (stream in mechanism.public_streams):
            yield (
                "mechanism.public_streams",
                (
                    f"{stream} is an input of the bundle: list it here if it is public, "
                    "or set its range in mechanism.stream_ranges, not both"
                ),
            )


INPUT = NoisePoint(
    "edge_sdk.extensions.noise_points.input_noise:mechanism",
    names=("gaussian", "laplace"),
    units=("reading", "day", "device"),
    keys=frozenset(
        {
            "range",
            "stream_ranges",
            "public_streams",
            "noise_multiplier",
            "epsilon",
            "calibration",
            "grid",
        }
    ),
    noise=_noise,
    faults=_faults,
    is_on_readings=True,
    has_grid=True,
    text="training, and the newest window where a method sends it, use each reading only "
    "with noise that was drawn once and is stored",
)
