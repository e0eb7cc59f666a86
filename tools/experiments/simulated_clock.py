"""Both halves of any method on a simulated clock, with latencies and Byzantine clients.

The halves are the product's own. Nothing sleeps: an event carries its time, and events are handled
in order of (time, client), so that a run repeats to the bit. Every client does one thing at a time;
a question that comes while it works waits, and a newer one takes its place.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from edge_sdk.protocol.contract.method import (
    ALL,
    Closed,
    Due,
    Effects,
    Event,
    Half,
    Member,
    Task,
    Update,
)
from edge_sdk.protocol.contract.parameter_layout import Vector
from tools.experiments.joint_loop import key

Latency = Callable[[str, int], float]
"""``(client, how many answers before) -> seconds`` from question to answer."""

Tamper = Callable[[Update, Task, Mapping[str, Update]], Update | None]
"""Attack: from the device's own answer, its task and the newest honest answers to the uploaded answer.

None is silence."""

Release = Callable[[Update], Update]
"""Privacy mechanism: from an answer to the released answer."""

Partakes = Callable[[str, Task], bool]
"""Whether a client takes part in a round that all are asked to join."""

OPEN = Due(round=0, ask="open")
GIVEN_UP = 3
"""Consecutive abandoned rounds that end a run; a model with non-finite values does not recover."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A firing: a model has moved."""

    time: float  # simulated seconds since the run began
    closed: Closed  # what the server half says of it
    state: Any  # the server half's state after it
    # for every client in the firing, by how many versions its answer was stale
    late: Mapping[str, int]


@dataclass(slots=True, eq=False)
class World:
    """All halves of a run between two events; ``moments`` drives it."""

    server: Half[Any]  # the server half, bound to its settings
    devices: Mapping[str, Half[Any]]  # the device halves by client
    latency: Latency  # how long each answer takes
    # what is done to the answers of some clients
    liars: Mapping[str, Tamper] = field(default_factory=dict)
    # what stands between an honest client's answer and the link
    release: Mapping[str, Release] = field(default_factory=dict)
    states: dict[str, Any] = field(default_factory=dict)  # the device states, by client
    partakes: Partakes = lambda _client, _task: True  # who joins a round that is open to all
    _queue: list[tuple[float, int, str, int, Event]] = field(default_factory=list)
    _count: Iterator[int] = field(default_factory=itertools.count)
    _waiting: dict[str, Task] = field(default_factory=dict)
    _busy: set[str] = field(default_factory=set)
    _asked_of: dict[str, Task] = field(default_factory=dict)
    _answers: dict[str, int] = field(default_factory=dict)
    _newest: dict[str, Update] = field(default_factory=dict)
    _idle: int = 0

    def moments(self, common: Vector) -> Iterator[Moment]:
        """Start the run from a common vector and yield every firing.

        The states of the devices must be there. The run ends when nothing is left to happen, when
        ``GIVEN_UP`` rounds in a row moved nothing, or when the method says that it is done.
        """
        state = self.server.init(common)
        pooled: dict[str, int] = {}
        now = 0.0
        came: list[Event] = [Member(x, present=True) for x in sorted(self.devices)]
        for start in (*came, OPEN):
            state, effects = self.server.apply(state, start)
            yield from self._told(effects, state, now, pooled)
        while self._queue and self._idle < GIVEN_UP:
            now, _, client, _, event = heapq.heappop(self._queue)
            arrived = self._uploaded(event)
            if isinstance(arrived, Update):
                pooled[client] = arrived.base
            state, effects = self.server.apply(state, arrived) if arrived else (state, ())
            for moment in self._told(effects, state, now, pooled):
                yield moment
                pooled.clear()
                if moment.closed.report.get("stop"):
                    return
            if client:
                self._freed(client, now)

    def _uploaded(self, event: Event) -> Event | None:
        """Apply an attack, then screen as the product's ingress does: finite numbers, float64."""
        if not isinstance(event, Update):
            return event
        lie = self.liars.get(event.sender)
        uploaded = lie(event, self._asked_of[event.sender], self._newest) if lie else event
        if uploaded is None:
            return None
        vector = np.asarray(uploaded.vector, np.float64)
        return replace(uploaded, vector=vector) if np.isfinite(vector).all() else None

    def _told(
        self,
        effects: Effects,
        state: Any,  # noqa: ANN401 - every half has its own
        now: float,
        pooled: Mapping[str, int],
    ) -> Iterable[Moment]:
        moved = []
        for effect in effects:
            match effect:
                case Task():
                    everybody = (x for x in sorted(self.devices) if self.partakes(x, effect))
                    for name in everybody if effect.to == ALL else [effect.to]:
                        self._asked(name, effect, now)
                case Due(after=after):
                    self._push(now + after, 1, "", effect)
                case Closed(moved=False):
                    self._idle += 1
                case Closed():
                    self._idle = 0
                    late = {x: effect.version - 1 - base for x, base in sorted(pooled.items())}
                    moved.append(Moment(now, effect, state, late))
        return moved

    def _asked(self, name: str, task: Task, now: float) -> None:
        if name in self._busy:
            self._waiting[name] = task
        else:
            self._works(name, task, now)

    def _works(self, name: str, task: Task, now: float) -> None:
        self._asked_of[name] = task
        self.states[name], answers = self.devices[name].apply(self.states[name], task)
        number = self._answers.get(name, 0)
        done = now + self.latency(name, number)
        for update in (x for x in answers if isinstance(x, Update)):
            self._answers[name] = number + 1
            self._busy.add(name)
            if name in self.liars:
                sent = update
            else:
                sent = self.release[name](update) if name in self.release else update
                self._newest[name] = sent
            self._push(done, 0, name, sent)

    def _freed(self, name: str, now: float) -> None:
        self._busy.discard(name)
        if (task := self._waiting.pop(name, None)) is not None:
            self._works(name, task, now)

    def _push(self, when: float, rank: int, client: str, event: Event) -> None:
        heapq.heappush(self._queue, (when, rank, client, next(self._count), event))


def drawn(names: Sequence[str], count: int, seed: int) -> Partakes:
    """Select ``count`` clients at random for each round.

    >>> some = drawn(["a", "b", "c"], 2, seed=0)
    >>> sum(some(x, Task("_all", 1, "train")) for x in "abc")
    2
    """

    def partakes(client: str, task: Task) -> bool:
        order = key(seed, "_cohort", "who", task.round).permutation(len(names))
        return client in {names[i] for i in order[:count]}

    return partakes


def log_normal(
    seed: int, *, spread: float = 0.5, slow: Mapping[str, float] | None = None
) -> Latency:
    """Return seeded log-normal latencies with a median of one second.

    Args:
        seed: Of the draw; client and number are part of the key.
        spread: Standard deviation of the logarithm.
        slow: How many times longer some clients take.
    """
    factors = slow or {}

    def latency(client: str, number: int) -> float:
        draw = key(seed, client, "latency", number).standard_normal()
        return factors.get(client, 1.0) * math.exp(spread * draw)

    return latency


def at_once(client: str, number: int) -> float:  # noqa: ARG001 - a Latency
    """Return latencies of one second for all clients."""
    return 1.0
