"""Bilevel rounds: devices fit models pulled towards their neighbours', the server fits the map.

A round has two tasks. First all devices step on their own loss, pulled towards the map of their
neighbours (the lower level). Then the devices with an update solve a linear system with the
curvature of their loss, which gives the change of their model under another map; one step of the
map follows (the upper level). A device that does not solve in time is left out of that step only.

Every task has a round of its own, so that an update identifies its task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.papers.bilevel.bilevel_math import (
    Upper,
    coupled,
    crossed,
    draws,
    hypergradient,
    normalised,
    sampled,
    upper,
)
from aggregator.methods.base import round_machine
from aggregator.methods.base.quorum import (
    LatestUpdates,
    accepted,
    counts,
    joined,
    latest_update_hooks,
    outcome,
    without_silent,
)
from aggregator.methods.base.round_machine import (
    ASK,
    RoundHooks,
    RoundOutcome,
    Rounds,
    Step,
    concluded,
    published,
)
from edge_sdk.extensions.papers.bilevel_map import Basis, gradient_step, pack_map
from edge_sdk.protocol.contract.method import Array, Due, Effects, Event, Half, Member, Task, Update
from edge_sdk.protocol.contract.parameter_layout import Vector

Matrix = NDArray[np.float64]
SOLVE = "solve"  # the second task of a round


@dataclass(frozen=True, slots=True)
class Levels:
    """Settings of a run: rounds, graph, task numbers and the steps of the map."""

    rounds: Rounds
    # returns the adjacency matrix of some clients, ``(n, n)``, in the order given
    near: Callable[[tuple[str, ...]], NDArray[np.bool_]]
    values: Mapping[str, float]  # numbers of the tasks of the lower level
    solving: Mapping[str, float]  # numbers of the solving tasks
    # returns the initial map: the identity, in the form that is learned
    first: Callable[[int], Basis]
    smooth: float = 0.1  # weight of a device's distance from the map of its neighbours (s)
    ridge: float = 1e-3  # weight of a model's own length (kappa)
    damping: float = 1e-3  # number added to the curvature when solving (delta)
    map_rate: float = 1e-2  # step of the map; 0 leaves it the identity, and nothing is solved
    map_pull: float = 1.0  # weight of the map's distance from the identity (u)
    non_neighbours: int = 10  # number of non-neighbours drawn for each client
    # ``device``, or ``server``, which uses the gradient as the solution
    solve: Literal["device", "server"] = "device"
    curvature: float = 1.0  # Divisor of the server's gradient, and of a device that cannot solve
    outer: int = 0  # number of further solving tasks with neighbours' solutions (the coupled game)
    stale_after: int = 5  # number of rounds that a silent client's weights count
    seed: int = 0  # seed of the draws of non-neighbours


@dataclass(frozen=True, slots=True, eq=False)
class Bilevel(LatestUpdates):
    """The server's state; ``w`` is the average of the clients' weights. Mappings by client."""

    phi: Mapping[str, Matrix]  # numbers of the map, by name
    moved: int = 0  # number of times the map has moved
    # seed of the draws of non-neighbours; kept, because the configured one may change
    seed: int = 0
    turn: int = 0  # 0 during the lower level, then the number of the solving task
    # right-hand side of each present solving task, float32; else empty
    right: Mapping[str, Array] = field(default_factory=dict)
    # solution of each in this turn, float32
    solved: Mapping[str, Array] = field(default_factory=dict)
    # round of each client's last solving task
    questions: Mapping[str, int] = field(default_factory=dict)
    # round of the task of each client's newest weights
    trained: Mapping[str, int] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        return len(self.solved) if self.turn else len(self.quorum.arrived)


def bilevel(settings: Levels) -> Half[Bilevel]:
    """Return the server half: ``round_machine.apply``, and the solving task."""
    shell = _Shell(settings)

    def init(w: Vector) -> Bilevel:
        first = np.asarray(w, np.float64).copy()
        phi = settings.first(len(first)).leaves()
        return Bilevel(0, 0, False, first, phi, seed=settings.seed)

    return Half(init, shell.apply, model=lambda state: {"p": published(state.w)})


@dataclass(frozen=True, slots=True)
class _Shell:
    """Transitions of both tasks."""

    settings: Levels

    @property
    def hooks(self) -> RoundHooks[Bilevel]:
        hooks = latest_update_hooks(self.settings.rounds, self._asked, self._closed, _accepted)
        return replace(
            hooks, discard=lambda state, why: hooks.discard(_without_solving_task(state), why)
        )

    def apply(self, state: Bilevel, event: Event) -> tuple[Bilevel, Effects]:
        match event:
            case Update(sender=client, round=number) if number == state.questions.get(client):
                return self._solution(state, event)
            case Update() if state.turn and counts(state, event):
                return _accepted(state, event), ()  # of the lower level, for the next round
            case Member(client=client, present=True) if client in state.right:
                state = joined(state, client)
                waits = client in state.solved
                return state, () if waits else _questions(state, self.settings, [client])
            case Due(ask="solve", round=number) if state.turn and number == state.round:
                return self._solved(state)
        return round_machine.apply(self.hooks, state, event)

    def _asked(self, state: Bilevel, clients: Iterable[str]) -> Effects:
        return _tasks(state, self.settings, sorted(clients))

    def _closed(self, state: Bilevel) -> RoundOutcome[Bilevel] | Step[Bilevel]:
        state, _ = without_silent(state, self.settings.stale_after)
        state = replace(state, w=_average(state))
        if self.settings.map_rate == 0.0:
            return outcome(state, _report(state, self.settings))
        ids, gradients = _upper(state, self.settings)
        cohort = [name for name in ids if name in state.quorum.arrived]
        if self.settings.solve == "server":
            at = {name: i for i, name in enumerate(ids)}
            found = {x: published(gradients.p[at[x]] / self.settings.curvature) for x in cohort}
            return self._stepped(replace(state, solved=found))
        return self._asking(state, dict(zip(ids, gradients.p, strict=True)), cohort, turn=1)

    def _asking(
        self, state: Bilevel, right: Mapping[str, Matrix], cohort: list[str], *, turn: int
    ) -> tuple[Bilevel, Effects]:
        number = state.round + 1
        state = replace(
            state,
            round=number,
            turn=turn,
            solved={},
            right={name: published(right[name]) for name in cohort},
            questions={**state.questions, **dict.fromkeys(cohort, number)},
        )
        due = Due(number, SOLVE, after=self.settings.rounds.deadline)
        return state, (*_questions(state, self.settings, cohort), due)

    def _solution(self, state: Bilevel, update: Update) -> tuple[Bilevel, Effects]:
        client = update.sender
        is_wanted = state.turn and update.round == state.round and client not in state.solved
        if not is_wanted or update.vector.shape != state.w.shape:
            return state, ()
        found = _believable(update.vector, state.right[client], self.settings)
        state = replace(state, solved={**state.solved, client: found})
        is_full = len(state.solved) == len(state.right)
        return self._solved(state) if is_full else (state, ())

    def _solved(self, state: Bilevel) -> tuple[Bilevel, Effects]:
        if state.turn > self.settings.outer or not state.solved:
            return self._stepped(state)
        ids, gradients = _upper(state, self.settings)
        graph, basis = _graph(ids, self.settings), self.basis(state)
        right = coupled(gradients.p, _stacked(state, ids), graph, basis, self.settings.smooth)
        named, cohort = dict(zip(ids, right, strict=True)), sorted(state.solved)
        return self._asking(state, named, cohort, turn=state.turn + 1)

    def _stepped(self, state: Bilevel) -> tuple[Bilevel, Effects]:
        ids, gradients = _upper(state, self.settings)
        report = _report(state, self.settings, gradients)
        report |= {"solved": sorted(state.solved), "unsolved": sorted(_unsolved(state))}
        if state.solved:
            after = gradient_step(
                self.basis(state), self._slopes(state, ids, gradients), self.settings.map_rate
            )
            if all(np.isfinite(published(leaf)).all() for leaf in after.leaves().values()):
                state = replace(state, phi=after.leaves(), moved=state.moved + 1)
        report |= {"map": float(np.sqrt(self.basis(state).excess()))}
        return concluded(self.hooks, outcome(_without_solving_task(state), report))

    def _slopes(
        self, state: Bilevel, ids: tuple[str, ...], gradients: Upper
    ) -> Mapping[str, Matrix]:
        graph, theta = _graph(ids, self.settings), _theta(state, ids)
        cross = crossed(
            graph @ theta,
            theta,
            np.diag(graph),
            self.basis(state),
            q=_stacked(state, ids),
            weight=self.settings.smooth,
        )
        return hypergradient(gradients.slopes, cross)

    def basis(self, state: Bilevel) -> Basis:
        return self.settings.first(len(state.w)).with_leaves(state.phi)


def _without_solving_task(state: Bilevel) -> Bilevel:
    return replace(state, turn=0, right={}, solved={})


def _accepted(state: Bilevel, update: Update) -> Bilevel:
    trained = {**state.trained, update.sender: update.round}
    return replace(accepted(state, update), trained=trained)


# --- tasks ----------------------------------------------------------------------------------------


def _tasks(state: Bilevel, settings: Levels, clients: list[str]) -> Effects:
    """Return tasks to step on the clients' own loss, each with its neighbours' present models.

    In the first round there are no neighbours' models: each client takes its steps alone.
    """
    ids = tuple(sorted({*state.held, *clients}))
    if not ids:
        return ()
    graph, theta = _graph(ids, settings), _theta(state, ids)
    own, at = np.diag(graph), {name: i for i, name in enumerate(ids)}
    around = graph @ theta - own[:, None] * theta
    numbers, arrays = _mapped(state, settings)
    alone = {} if state.version else {"smooth": 0.0}
    return tuple(
        Task(
            name,
            state.round,
            ASK,
            base=state.version,
            values={**settings.values, **alone, **numbers, "own": float(own[at[name]])},
            arrays={"c": published(around[at[name]]), **arrays},
        )
        for name in clients
    )


def _mapped(state: Bilevel, settings: Levels) -> tuple[dict[str, float], dict[str, Array]]:
    if not state.moved:
        return {}, {}
    basis = settings.first(len(state.w)).with_leaves(state.phi)
    numbers, rows = pack_map(basis, len(state.w))
    return numbers, {"phi": rows}


def _questions(state: Bilevel, settings: Levels, clients: Iterable[str]) -> Effects:
    ids = tuple(sorted(state.held))
    own = dict(zip(ids, np.diag(_graph(ids, settings)), strict=True))
    return tuple(
        Task(
            name,
            state.round,
            SOLVE,
            base=state.version,
            values={**settings.solving, "of": float(state.trained[name]), "own": float(own[name])},
            arrays={"p": state.right[name]},
        )
        for name in sorted(clients)
    )


# --- a round --------------------------------------------------------------------------------------


def _graph(ids: tuple[str, ...], settings: Levels) -> Matrix:
    return normalised(settings.near(ids))


def _theta(state: Bilevel, ids: tuple[str, ...]) -> Matrix:
    return np.stack([np.asarray(state.held.get(name, state.w), np.float64) for name in ids])


def _stacked(state: Bilevel, ids: tuple[str, ...]) -> Matrix:
    nothing = np.zeros_like(state.w)
    return np.stack([np.asarray(state.solved.get(name, nothing), np.float64) for name in ids])


def _average(state: Bilevel) -> Matrix:
    total = np.zeros_like(state.w)
    for name in sorted(state.held):
        total = total + state.held[name]
    return total / len(state.held)


def _upper(state: Bilevel, settings: Levels) -> tuple[tuple[str, ...], Upper]:
    ids = tuple(sorted(state.held))
    near = settings.near(ids)
    unlike = sampled(near, settings.non_neighbours, draws(state.seed, state.version))
    basis = settings.first(len(state.w)).with_leaves(state.phi)
    theta = _theta(state, ids)
    gradients = upper(theta, normalised(near), basis, near, strange=unlike, pull=settings.map_pull)
    return ids, gradients


def _believable(q: Array, right: Array, settings: Levels) -> Array:
    length, most = float(np.linalg.norm(q)), float(np.linalg.norm(right))
    most /= max(settings.ridge + settings.damping, 1e-12)
    wide = np.asarray(q, np.float64)
    return published(wide * (most / length) if length > most else wide)


def _unsolved(state: Bilevel) -> frozenset[str]:
    return frozenset(state.right) - frozenset(state.solved)


def _report(state: Bilevel, settings: Levels, gradients: Upper | None = None) -> dict[str, Any]:
    gradients = _upper(state, settings)[1] if gradients is None else gradients
    return {
        "upper": gradients.value,
        "apart": gradients.likeness.neighbours,
        "alike": gradients.likeness.non_neighbours,
    }
