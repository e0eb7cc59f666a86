"""How what leaves is perturbed: one seam, and a mechanism for each point it can be attached at.

A mechanism is asked four times. Before a round: what may be learned from, and with which graphs.
After it: what may leave of an answer, and what that costs. Noise is drawn once a release, from the
operating system, and stored with it; a resend is the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from edge_sdk.charge import Charge
from edge_sdk.methods.local import Graph
from edge_sdk.privacy import noise
from edge_sdk.privacy.noise import Entropy, Floats
from edge_sdk.privacy.plan import Plan
from edge_sdk.privacy.pure import kept_share
from edge_sdk.privacy.words import promise
from edge_sdk.series import Row, Series
from edge_sdk.wire.manifest import CLIPPED_GRADIENT, FORECAST, GRADIENT
from edge_sdk.wire.method import Array, Update

_MARGIN = 1.0 - 2.0**-10  # a graph clips in float32, and its norm may come out too small by as much

_EXTRA = "extra "  # before a stream's name on the shelf: what makes its readings noisier for now


class Mechanism(Protocol):
    """What stands between a device's readings and the outbox."""

    @property
    def plan(self) -> Plan:
        """Its calibrated numbers."""

    @property
    def origin(self) -> str:
        """What learned layers were computed from: those of another origin are not taken over."""

    @property
    def says(self) -> str:
        """What this mechanism promises, in plain words."""

    @property
    def scale(self) -> tuple[float, float] | None:
        """A public scale to learn on, where the device's own would tell something."""

    def learnable(self, series: Series) -> Series:
        """Return the readings that may be learned from: perhaps perturbed, and then kept so."""

    def graphs(self, graphs: Mapping[str, Graph]) -> Mapping[str, Graph]:
        """Return the graphs that a half may run."""

    def begin(self) -> None:
        """Count anew: what was drawn for a round that was given up is never saved."""

    def release(self, update: Update) -> Update:
        """Return what may leave. Called once a release; the result is stored before it is sent."""

    def cost(self, time: int, releases: int) -> tuple[Charge, ...]:
        """Return the charges of the round since ``begin``, with so many numbered messages."""


class Shelf(Protocol):
    """Where perturbed readings are kept, once and for all."""

    def noised(self) -> Mapping[tuple[str, int], float]:
        """Return every perturbed reading by stream and slot."""

    def add_noised(self, rows: list[Row], charge: Charge) -> None:
        """Keep new ones and their charge, in one transaction. One that is there stays."""

    def noised_since(self) -> int:
        """Unix seconds before which nothing is perturbed: its noise was lost with a store."""


@dataclass(slots=True)
class Plain:
    """What all mechanisms do unless they do more: nothing to readings and graphs; and the gate.

    Attributes:
        plan: The calibrated numbers.
        measured: Names of an answer's numbers that come from readings; withheld unless told.
        entropy: Where randomness comes from; only a test passes another source.
    """

    plan: Plan
    measured: frozenset[str] = frozenset({"n", "loss"})
    entropy: Entropy = os.urandom

    @property
    def origin(self) -> str:
        """The readings as they are, unless noise is put in before anything is learned."""
        point = self.plan.mechanism.point
        is_before = point in {"input", "gradient"} and not self.plan.is_paper
        return point if is_before else "none"

    @property
    def says(self) -> str:
        """Say it, as ``words.promise`` does."""
        return promise(self.plan)

    @property
    def scale(self) -> tuple[float, float] | None:
        """No public scale."""
        return None

    def learnable(self, series: Series) -> Series:
        """Return the readings as they are."""
        return series

    def graphs(self, graphs: Mapping[str, Graph]) -> Mapping[str, Graph]:
        """Return the graphs as they are."""
        return graphs

    def begin(self) -> None:
        """Count nothing."""

    def release(self, update: Update) -> Update:
        """Return the update, its measured numbers taken off unless they may be told."""
        if self.plan.tells:
            return update
        values = {k: v for k, v in update.values.items() if k not in self.measured}
        return replace(update, values=values)

    def cost(self, time: int, releases: int) -> tuple[Charge, ...]:
        """Charge each numbered message."""
        return tuple(self.plan.release(time) for _ in range(releases))


@dataclass(slots=True)
class AtUpdate(Plain):
    """Clip a whole answer, then add noise to every coordinate of it."""

    def release(self, update: Update) -> Update:
        """Return the update clipped and noisy."""
        mechanism, kept = self.plan.mechanism, Plain.release(self, update)
        reach = mechanism.clip or 0.0
        is_laplace = mechanism.name == "laplace"
        order: float = 1 if is_laplace else 2
        vector = _clipped(np.asarray(update.vector, np.float64), reach, order)
        draw = noise.laplace if is_laplace else noise.normal
        step = noise.GRID * reach
        vector = noise.floored(vector, step) if mechanism.grid else vector
        vector = vector + self.plan.noise * reach * draw(vector.size, self.entropy)
        return replace(kept, vector=noise.rounded(vector, step) if mechanism.grid else vector)


@dataclass(slots=True)
class AtSign(Plain):
    """Tell only the sign of every coordinate, and that not always truly (DP-RSA)."""

    def release(self, update: Update) -> Update:
        """Return 1 or -1 for every coordinate; the sign of 0 is drawn."""
        mechanism, kept = self.plan.mechanism, Plain.release(self, update)
        vector = np.asarray(update.vector, np.float64)
        if mechanism.name == "sign_gaussian":
            return replace(kept, vector=self._signs(self._blurred(vector)))
        true = noise.uniform(vector.size, self.entropy) <= kept_share(self.plan.noise)
        return replace(kept, vector=self._signs(vector) * np.where(true, 1.0, -1.0))

    def _blurred(self, vector: Floats) -> Floats:
        clip, bound = self.plan.mechanism.clip, self.plan.mechanism.bound
        reach = clip or bound or 0.0
        kept = _clipped(vector, reach, 2) if clip else np.clip(np.nan_to_num(vector), -reach, reach)
        return kept + self.plan.noise * reach * noise.normal(vector.size, self.entropy)

    def _signs(self, vector: Floats) -> Floats:
        coin = noise.uniform(vector.size, self.entropy) <= 0.5
        return np.where(vector == 0.0, np.where(coin, 1.0, -1.0), np.sign(np.nan_to_num(vector)))


@dataclass(slots=True)
class AtGradient(Plain):
    """Clip the gradient of each window inside the graph, and add noise to their sum, every step."""

    drawn: int = 0

    @property
    def scale(self) -> tuple[float, float] | None:
        """The configured range: a scale from readings would let one reading move every window."""
        low_high = self.plan.mechanism.range
        return (low_high[0], low_high[1]) if low_high else None

    def graphs(self, graphs: Mapping[str, Graph]) -> Mapping[str, Graph]:
        """Put the clipped and noisy gradient where a half asks for the gradient."""

        def gradient(**feeds: Array) -> tuple[Array, ...]:
            return self._step(graphs[CLIPPED_GRADIENT], feeds)

        return Swapped(graphs, lambda name, graph: gradient if name == GRADIENT else graph)

    def begin(self) -> None:
        """Count the steps of a round from 0."""
        self.drawn = 0

    def cost(self, time: int, releases: int) -> tuple[Charge, ...]:
        """Charge every step, whether or not its result is sent now: it lives on in the state."""
        if not (self.drawn or releases):
            return ()
        return (replace(self.plan.charge(time, count=self.drawn), releases=releases),)

    def _step(self, graph: Graph, feeds: Mapping[str, Array]) -> tuple[Array, ...]:
        reach = self.plan.mechanism.clip or 0.0
        loss, total = graph(**feeds, bound=np.asarray(reach * _MARGIN, np.float32))
        self.drawn += 1
        noisy = total + self.plan.noise * reach * noise.normal(total.size, self.entropy)
        is_swap = self.plan.mechanism.neighbours == "replace"
        count = len(feeds["x"]) if is_swap else self.plan.facts.manifest.training.batch
        return loss, (noisy / count).astype(np.float32)


@dataclass(slots=True)
class AtInput(Plain):
    """Perturb every reading once, for ever; learn from nothing else."""

    shelf: Shelf = field(kw_only=True)
    clock: Callable[[], int] = field(kw_only=True, default=lambda: 0)

    def learnable(self, series: Series) -> Series:
        """Return the perturbed readings, those that came since drawn and stored first.

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
            known = self._looser(known)
        out = Series(series.step, series.streams, capacity=series.capacity)
        out.load(_rows(series, known, frozenset(self.plan.ranges)))
        return out

    def _looser(self, known: Mapping[tuple[str, int], float]) -> dict[tuple[str, int], float]:
        """Return noisier versions while epsilon is on its way up: free, and kept like the rest."""
        lacking = [
            (_EXTRA + stream, slot)
            for stream, slot in known
            if stream in self.plan.ranges and (_EXTRA + stream, slot) not in known
        ]
        if lacking:
            drawn = noise.normal(len(lacking), self.entropy).tolist()
            rows = [Row(*key, value) for key, value in zip(lacking, drawn, strict=True)]
            free = replace(self.plan.release(self.clock()), count=len(rows), releases=0)
            self.shelf.add_noised(rows, free)
            known = {**known, **dict(zip(lacking, drawn, strict=True))}
        return {
            (stream, slot): value + self.plan.extra * (high - low) * known[_EXTRA + stream, slot]
            for stream, (low, high) in self.plan.ranges.items()
            for (name, slot), value in known.items()
            if name == stream
        }

    def _drawn(self, rows: list[Row], span: tuple[float, float]) -> list[Row]:
        (low, high), mechanism = span, self.plan.mechanism
        width = high - low
        values = np.clip([row.value for row in rows], low, high)
        draw = noise.laplace if mechanism.name == "laplace" else noise.normal
        spread = self.plan.noise * width * draw(len(rows), self.entropy)
        if mechanism.grid:
            step = noise.GRID * width
            values = low + noise.rounded(noise.floored(values - low, step) + spread, step)
        else:
            values = values + spread
        pairs = zip(rows, values, strict=True)
        return [Row(row.stream, row.slot, float(value)) for row, value in pairs]


@dataclass(slots=True)
class OnPaper(Plain):
    """A paper's way at the input: new noise on every window's inputs, and clean targets."""

    def graphs(self, graphs: Mapping[str, Graph]) -> Mapping[str, Graph]:
        """Perturb the inputs of every training graph, anew at every call."""

        def swap(name: str, graph: Graph) -> Graph:
            return graph if name == FORECAST else self._noisy(graph)

        return Swapped(graphs, swap)

    def _noisy(self, graph: Graph) -> Graph:
        def run(**feeds: Array) -> tuple[Array, ...]:
            x = feeds["x"]
            spread = self.plan.noise * noise.normal(x.size, self.entropy).reshape(x.shape)
            return graph(**{**feeds, "x": (x + spread).astype(np.float32)})

        return run


class Swapped(Mapping[str, Graph]):
    """Graphs by name, each looked at again by ``swap`` when it is asked for."""

    def __init__(self, graphs: Mapping[str, Graph], swap: Callable[[str, Graph], Graph]) -> None:
        self._graphs, self._swap = graphs, swap

    def __getitem__(self, name: str) -> Graph:
        """Return one graph, perhaps another one."""
        return self._swap(name, self._graphs[name])

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(self._graphs)

    def __len__(self) -> int:
        """Count the graphs."""
        return len(self._graphs)


def mechanism_of(
    plan: Plan,
    shelf: Shelf,
    clock: Callable[[], int],
    *,
    measured: frozenset[str],
    entropy: Entropy = os.urandom,
) -> Mechanism:
    """Return the mechanism of a plan, to be attached where it belongs.

    Args:
        plan: From ``terms.plan_of``.
        shelf: Where perturbed readings are kept.
        clock: Milliseconds since 1970, for the ledger.
        measured: Names of an answer's numbers that come from readings.
        entropy: Random bytes; only a test passes another source.
    """
    point = plan.mechanism.point
    if point == "input" and not plan.is_paper:
        return AtInput(plan, measured, entropy, shelf=shelf, clock=clock)
    kinds = {"update": AtUpdate, "sign": AtSign, "gradient": AtGradient, "input": OnPaper}
    return kinds.get(point, Plain)(plan, measured, entropy)


def _clipped(vector: Floats, reach: float, order: float) -> Floats:
    """Shrink a vector to a norm; one that is not finite becomes 0 and is hidden like any other."""
    size = float(np.linalg.norm(vector, order))
    if not np.isfinite(size):
        return np.zeros_like(vector)
    return vector * (reach / size) if size > reach else vector


def _new(
    series: Series, stream: str, known: Mapping[tuple[str, int], float], since: int
) -> list[Row]:
    slots = series.times() // series.step
    pairs = zip(slots.tolist(), series.values(stream).tolist(), strict=True)
    first = -(-since // series.step)
    return [
        Row(stream, slot, value)
        for slot, value in pairs
        if value == value and slot >= first and (stream, slot) not in known  # noqa: PLR0124 - NaN
    ]


def _rows(
    series: Series, known: Mapping[tuple[str, int], float], hidden: frozenset[str]
) -> Iterator[Row]:
    """Yield what may be seen of a series: perturbed streams from the shelf, public ones as read."""
    slots = (series.times() // series.step).tolist()
    kept = frozenset(slots)
    for stream in series.streams:
        if stream in hidden:
            mine = (slot for name, slot in known if name == stream and slot in kept)
            yield from (Row(stream, slot, known[stream, slot]) for slot in mine)
            continue
        pairs = zip(slots, series.values(stream).tolist(), strict=True)
        yield from (Row(stream, slot, value) for slot, value in pairs if value == value)  # noqa: PLR0124
