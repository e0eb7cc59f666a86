"""Rounds of any method on a graph: with a server, or between neighbours.

The halves are the product's own. Bytes are those of the vectors that devices say and hear, four a
number; envelopes, receipts and what a lossy link costs are what the links' counters are for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.papers.bilevel.bigfl import bigfl
from aggregator.extensions.papers.bilevel.bilevel import bilevel as two_levels
from aggregator.extensions.papers.geo_neighbours import paired
from aggregator.methods import METHODS as SERVER
from aggregator.methods import Rounds, Setup
from aggregator.rules import bind
from edge_sdk.extensions.peers.gossip import ADAPT, ALONE, BEGIN, MIX, exchange_parts
from edge_sdk.extensions.peers.mixing_matrix import adjacency, metropolis
from edge_sdk.methods import METHODS as DEVICE
from edge_sdk.methods.local_sgd import LocalSgd
from edge_sdk.methods.training_context import Graph, TrainingContext, Windows
from edge_sdk.protocol.contract.method import Effects, Event, Half, Task, Update
from edge_sdk.protocol.contract.parameter_layout import ParamSpec, Vector
from edge_sdk.shared_math.optim import Rated, sgd
from tools.experiments.joint_loop import key
from tools.experiments.simulated_clock import World, at_once

AMONG: Final = ("dfl_sgd", "dfl_gt")
Links = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """Devices, their data and model, and their neighbourhood."""

    spec: ParamSpec  # layout of the model, with its shared layers
    first: Vector  # everybody's first vector
    graphs: Mapping[str, Graph]  # gradient and curvature, by name
    windows: Mapping[str, Windows]  # what each client learns from
    links: Links  # pairs of neighbours
    batch: int = 32  # windows in a minibatch
    optimiser: Rated = sgd  # of local steps


@dataclass(frozen=True, slots=True)
class Course:
    """One arm."""

    method: str  # a key of ``METHODS``; or ``local``: everybody alone
    rounds: int
    steps: int
    rate: float
    settings: Mapping[str, Any] = field(default_factory=dict)  # more of the method's settings
    fading: bool = False  # whether steps shorten with the square root of their number
    seed: int = 0
    begin: Callable[[Any], Any] = lambda state: state  # what the server's first state is made to be


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """State of an arm after a round."""

    round: int  # its number, from 1
    said: float  # bytes that an average device has sent and received so far
    vectors: Mapping[str, Vector]  # what each device forecasts with
    common: Vector  # what stands for all: the server's model, or the average
    state: Any = None  # the server half's state; None without a server


def course(plan: Course, ground: Field) -> Iterator[Shown]:
    """Yield the state of an arm after each round."""
    if plan.method == "local":
        yield from _alone(plan, ground)
    elif plan.method in AMONG:
        yield from _among(plan, ground)
    else:
        yield from _served(plan, ground)


def _device(plan: Course, ground: Field, name: str, method: str) -> Half[Any]:
    keyed = partial(key, plan.seed, name)
    windows = ground.windows[name]
    lent = TrainingContext(name, ground.spec, ground.graphs, lambda: windows, ground.batch, keyed)
    return DEVICE[method](
        lent, LocalSgd(ground.optimiser, plan.rate, plan.steps, minibatch="fresh")
    )


def _vectors(halves: Mapping[str, Half[Any]], states: Mapping[str, Any]) -> dict[str, Vector]:
    return {x: np.asarray(halves[x].model(states[x])["p"], np.float32) for x in halves}


def _average(vectors: Mapping[str, Vector]) -> Vector:
    return np.asarray(np.mean([vectors[x] for x in sorted(vectors)], axis=0), np.float32)


def _rate(plan: Course, number: int) -> float:
    return plan.rate / np.sqrt((number - 1) * plan.steps + 1) if plan.fading else plan.rate


def _alone(plan: Course, ground: Field) -> Iterator[Shown]:
    halves = {x: _device(plan, ground, x, "fedavg") for x in sorted(ground.windows)}
    states = {x: half.init(ground.first.copy()) for x, half in halves.items()}
    for number in range(1, plan.rounds + 1):
        for name, half in halves.items():
            w = ground.spec.shared(np.asarray(half.model(states[name])["p"], np.float32))
            values = {"steps": float(plan.steps), "rate": _rate(plan, number)}
            task = Task(name, number, "train", values=values, arrays={"w": w})
            states[name], _ = half.apply(states[name], task)
        vectors = _vectors(halves, states)
        yield Shown(number, 0.0, vectors, _average(vectors))


# --- with a server --------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Counter:
    """Counts the numbers that devices send and receive, and shortens their steps if configured."""

    plan: Course
    numbers: int = 0

    def around(self, half: Half[Any]) -> Half[Any]:
        def apply(state: Any, event: Event) -> tuple[Any, Effects]:  # noqa: ANN401
            if isinstance(event, Task):
                self.numbers += sum(array.size for array in event.arrays.values())
                if self.plan.fading and "rate" in event.values:
                    values = {**event.values, "rate": _rate(self.plan, event.base + 1)}
                    event = replace(event, values=values)
            state, effects = half.apply(state, event)
            self.numbers += sum(x.vector.size for x in effects if isinstance(x, Update))
            return state, effects

        return Half(half.init, apply, half.model)


def _served(plan: Course, ground: Field) -> Iterator[Shown]:
    counter = _Counter(plan)
    plain = {x: _device(plan, ground, x, plan.method) for x in sorted(ground.windows)}
    halves = {x: counter.around(half) for x, half in plain.items()}
    server = _server(plan, ground)
    init = server.init
    server = server._replace(init=lambda w: plan.begin(init(w)))
    world = World(server, halves, at_once)
    world.states = {x: half.init(ground.first.copy()) for x, half in halves.items()}
    for moment in world.moments(ground.spec.shared(ground.first)):
        common = np.asarray(server.model(moment.state)["p"], np.float32)
        vectors = _vectors(plain, world.states)
        if CONSENSUS.get(plan.method):
            vectors = {x: ground.spec.place(p, common) for x, p in vectors.items()}
        sent = 4.0 * counter.numbers / len(halves)
        whole = ground.spec.place(_average(vectors), common)
        yield Shown(moment.closed.version, sent, vectors, whole, moment.state)


CONSENSUS: Final[Mapping[str, bool]] = {"fedavg": True, "fedprox": True}
"""Methods whose devices forecast with the common model, around their own personal layers."""


def _server(plan: Course, ground: Field) -> Half[Any]:
    row = SERVER[plan.method]
    settings = row.settings(**{"steps": plan.steps, "rate": plan.rate, **plan.settings})
    every = Rounds(quorum=len(ground.windows), limit=plan.rounds, deadline=1e9)
    setup = Setup(bind("mean"), settings, every, ground.spec, plan.seed)
    if plan.method != "bigfl":
        return row.half(setup)
    bigfl(setup)  # refuses what cannot be
    return two_levels(settings.bound(setup, paired(ground.links).among))


# --- among neighbours -----------------------------------------------------------------------------


def _among(plan: Course, ground: Field) -> Iterator[Shown]:
    names = sorted(ground.windows)
    weights = metropolis(adjacency(names, ground.links))
    halves = {x: _device(plan, ground, x, plan.method) for x in names}
    states = {x: half.init(ground.first.copy()) for x, half in halves.items()}
    street = _Street(plan, ground.spec, names, halves, states, weights)
    street.each(BEGIN, 0)
    size = ground.spec.shared_size
    parts = sum(map(len, exchange_parts(plan.method, street.values)))
    degree = float((weights > 0.0).sum() - len(names)) / len(names)
    for number in range(1, plan.rounds + 1):
        for step in range((number - 1) * plan.steps, number * plan.steps):
            if step % plan.steps:
                street.each(ALONE, step)
            else:
                street.exchange(step)
        vectors = _vectors(halves, street.states)
        yield Shown(number, 8.0 * parts * degree * size * number, vectors, _average(vectors))


@dataclass(slots=True, eq=False)
class _Street:
    """Devices and a mixing matrix, instead of their shells."""

    plan: Course
    spec: ParamSpec
    names: list[str]
    halves: Mapping[str, Half[Any]]
    states: dict[str, Any]
    weights: NDArray[np.float64]

    @property
    def values(self) -> dict[str, float]:
        values = {"rate": self.plan.rate, "fading": float(self.plan.fading)}
        return {**values, "steps": float(self.plan.steps), **self.plan.settings}

    def each(
        self,
        ask: str,
        step: int,
        heard: Mapping[str, Mapping[str, Any]] | None = None,
        turn: int = 0,
    ) -> None:
        """Run one turn of every device."""
        values = {**self.values, "turn": float(turn)}
        for name in self.names:
            arrays = {} if heard is None else heard[name]
            task = Task(name, 1, ask, step=step, values=values, arrays=arrays)
            self.states[name], _ = self.halves[name].apply(self.states[name], task)

    def exchange(self, step: int) -> None:
        """Exchange and mix the models of all devices."""
        for turn, parts in enumerate(exchange_parts(self.plan.method, self.values)):
            self.each(ADAPT, step, turn=turn)
            values = {
                x: {p: self.states[x].offered(self.spec, p) for p in parts} for x in self.names
            }
            heard = {x: self._heard(i, values, parts) for i, x in enumerate(self.names)}
            self.each(MIX, step, heard, turn)

    def _heard(
        self, number: int, said: Mapping[str, Mapping[str, Vector]], parts: tuple[str, ...]
    ) -> dict[str, Any]:
        near = [j for j in np.flatnonzero(self.weights[number]) if j != number]
        values = {p: np.stack([said[self.names[j]][p] for j in near]) for p in parts}
        return {"weights": self.weights[number, near], **values}
