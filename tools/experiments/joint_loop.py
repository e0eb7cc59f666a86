"""Both halves of a method in one loop, without a network or a clock.

What it leaves out (links, restarts, receipts) changes no number: the same halves, fed the same
events, are what devices and daemon drive. Bytes are therefore never taken from here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from aggregator.methods import METHODS as SERVER
from aggregator.methods import OPEN, Rounds, Setup
from aggregator.rules import bind
from edge_sdk.forecasting.windows import Drawable
from edge_sdk.methods import METHODS as DEVICE
from edge_sdk.methods.local_sgd import LocalSgd, LocalState
from edge_sdk.methods.training_context import Batch, Graph, TrainingContext, Windows
from edge_sdk.protocol.contract.method import ALL, Closed, Effects, Half, Task, Update
from edge_sdk.protocol.contract.parameter_layout import ParamSpec, Vector
from edge_sdk.shared_math.optim import adam


@dataclass(frozen=True, slots=True)
class Plan:
    """One arm of an experiment."""

    method: str  # a key of ``METHODS``
    # its server settings by name (``steps``, ``rate``, ``server_rate`` …)
    settings: Mapping[str, float]
    shared: tuple[str, ...]  # name prefixes; ``()`` is configuration 3: everybody alone
    rounds: int
    batch: int  # windows in a minibatch
    minibatch: Literal["fixed", "fresh"]  # ``fixed`` or ``fresh``, see ``LocalSgd``
    seed: int  # of the initial vectors and the minibatches
    own_heads: bool = True  # whether personal layers start differently on every device


@dataclass(frozen=True, slots=True, eq=False)
class Pooled:
    """Pooled windows of all devices, as a centralised baseline."""

    parts: tuple[Drawable, ...]

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def draw(self, rng: np.random.Generator, size: int) -> Batch:
        """Draw ``size`` windows with equal probability, regardless of their devices."""
        ends = np.cumsum([len(part) for part in self.parts])
        picks = rng.choice(int(ends[-1]), size, replace=False)
        owner = np.searchsorted(ends, picks, side="right")
        starts = ends - [len(part) for part in self.parts]
        some = [
            part.select(part.origins[picks[owner == i] - starts[i]])
            for i, part in enumerate(self.parts)
            if (owner == i).any()
        ]
        return Batch(np.concatenate([b.x for b in some]), np.concatenate([b.y for b in some]))


def key(seed: int, client: str, purpose: str, number: int) -> np.random.Generator:
    """Return a counter-based generator: the same words, the same draw."""
    words = f"{seed}\0{client}\0{purpose}\0{number}".encode()
    return np.random.Generator(
        np.random.Philox(key=int.from_bytes(hashlib.sha256(words).digest()[:16], "little"))
    )


def redrawn(spec: ParamSpec, initial: Vector, rng: np.random.Generator) -> Vector:
    """Draw each layer anew, uniformly in the range the exported initial vector shows.

    A layer whose exported values are all alike (the slopes of a PReLU) keeps them.
    """
    out = initial.copy()
    for layer in spec.layers:
        part = slice(layer.offset, layer.offset + layer.size)
        bound = float(np.abs(initial[part]).max())
        if np.ptp(initial[part]) > 0:
            out[part] = rng.uniform(-bound, bound, layer.size)
    return out


_CHANGING = ("states", "common", "done", "server", "task")


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """All devices of a plan, and its server, between two rounds."""

    spec: ParamSpec  # layout of the vector
    halves: Mapping[str, Half[LocalState]]
    states: dict[str, LocalState]
    common: Vector  # the newest common layers
    done: int = 0  # how many rounds are over
    server: Any = None  # the server half's state after them; None before the first
    task: Task | None = None  # what it asks next; None before the first round and after the last

    def saved(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _CHANGING}

    def restored(self, saved: Mapping[str, Any]) -> Fleet:
        """Return the fleet as it was when ``saved`` was called; ``rounds`` continues from there."""
        return replace(self, **saved)

    def vectors(self) -> dict[str, Vector]:
        """Return the model of each device: its own layers and the newest common ones."""
        return {
            name: self.spec.place(np.asarray(half.model(self.states[name])["p"]), self.common)
            for name, half in self.halves.items()
        }


def gather(
    plan: Plan,
    *,
    layout: ParamSpec,
    initial: Vector,
    gradient: Graph,
    windows: Mapping[str, Windows],
    starts: Mapping[str, Vector] | None = None,
    keep_moments: bool = False,
) -> Fleet:
    """Set up every device of a plan.

    Args:
        initial: The bundle's initial vector; redrawn by the plan's seed.
        gradient: The bundle's gradient graph.
        windows: What each device may learn from, by device name.
        starts: Vectors to continue from instead of fresh ones.
        keep_moments: Optimisers remember the rounds before; only sensible where all are alone.
    """
    spec = layout.with_shared(plan.shared)
    first = redrawn(spec, initial, key(plan.seed, "_agg", "initial", 0))
    halves, states = {}, {}
    for name in sorted(windows):
        keyed = partial(key, plan.seed, name)
        lent = TrainingContext(
            name, spec, {"gradient": gradient}, _given(windows[name]), plan.batch, keyed
        )
        how = LocalSgd(adam, minibatch=plan.minibatch, keep_moments=keep_moments)
        halves[name] = DEVICE[plan.method](lent, how)
        own = redrawn(spec, initial, keyed("initial", 0)) if plan.own_heads else first
        own = own if starts is None else starts[name]
        states[name] = halves[name].init(own)
    return Fleet(spec, halves, states, spec.shared(first))


def rounds(plan: Plan, fleet: Fleet) -> Iterator[tuple[int, Fleet]]:
    """Drive both sides and yield the fleet after each round, numbered from 1.

    A fleet that has done some of the plan's rounds continues after them.

    Raises:
        RuntimeError: A round did not close, which only a plan without windows can bring about.
    """
    if fleet.spec.shared_size:
        yield from _with_server(plan, fleet)
    else:
        yield from _alone(plan, fleet)


def _alone(plan: Plan, fleet: Fleet) -> Iterator[tuple[int, Fleet]]:
    """Train every device alone (configuration 3)."""
    values = {k: float(v) for k, v in plan.settings.items() if k in {"steps", "rate", "prox"}}
    for number in range(fleet.done + 1, plan.rounds + 1):
        task = Task(ALL, number, "train", values=values, arrays={"w": fleet.common})
        for name, half in fleet.halves.items():
            fleet.states[name], _ = half.apply(fleet.states[name], task)
        fleet = replace(fleet, done=number)
        yield number, fleet


def _with_server(plan: Plan, fleet: Fleet) -> Iterator[tuple[int, Fleet]]:
    method = SERVER[plan.method]
    every = Rounds(quorum=len(fleet.halves), limit=plan.rounds)
    server = method.half(Setup(bind("mean"), method.settings(**plan.settings), every, fleet.spec))
    state, task = fleet.server, fleet.task
    if not fleet.done:
        state, effects = server.apply(server.init(fleet.common), OPEN)
        task = _next_task(effects)
    while task is not None:
        effects = ()
        for name, half in fleet.halves.items():
            fleet.states[name], answers = half.apply(fleet.states[name], task)
            for update in (x for x in answers if isinstance(x, Update)):
                state, effects = server.apply(state, update)
        if not any(isinstance(x, Closed) and x.moved for x in effects):
            raise RuntimeError(f"round {task.round} did not close: a device gave no answer")
        common, number = np.asarray(server.model(state)["p"], np.float32), task.round
        task = _next_task(effects)
        fleet = replace(fleet, common=common, done=number, server=state, task=task)
        yield number, fleet


def _next_task(effects: Effects) -> Task | None:
    return next((x for x in effects if isinstance(x, Task)), None)


def _given(windows: Windows) -> Callable[[], Windows]:
    return lambda: windows
