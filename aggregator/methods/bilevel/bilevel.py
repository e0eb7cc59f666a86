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

from aggregator.methods.base import round_machine
from aggregator.methods.base.latest_update_rounds import (
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
from aggregator.methods.bilevel.bilevel_math import (
    Upper,
    coupled,
    crossed,
    draws,
    hypergradient,
    normalised,
    sampled,
    upper,
)
from edge_sdk.shared_math.bilevel_map import Basis, gradient_step, pack_map
from edge_sdk.wire.contract.method import Array, Due, Effects, Event, Half, Member, Task, Update
from edge_sdk.wire.contract.parameter_layout import Vector

Matrix = NDArray[np.float64]
SOLVE = "solve"
"""The second task of a round."""


@dataclass(frozen=True, slots=True)
class Levels:
    """Settings of a run: rounds, graph, task numbers and the steps of the map.

    Attributes:
        rounds: Settings of the rounds.
        near: Returns the adjacency matrix of some clients, ``(n, n)``, in the order given.
        values: Numbers of the tasks of the lower level.
        solving: Numbers of the solving tasks.
        first: Returns the initial map: the identity, in the form that is learned.
        smooth: Weight of a device's distance from the map of its neighbours (s).
        ridge: Weight of a model's own length (kappa).
        damping: Number added to the curvature when solving (delta).
        map_rate: Step of the map; 0 leaves it the identity, and nothing is solved.
        map_pull: Weight of the map's distance from the identity (u).
        non_neighbours: Number of non-neighbours drawn for each client.
        solve: ``device``, or ``server``, which uses the gradient as the solution.
        curvature: Divisor of the server's gradient, and of a device that cannot solve.
        outer: Number of further solving tasks with neighbours' solutions (the coupled game).
        stale_after: Number of rounds that a silent client's weights count.
        seed: Seed of the draws of non-neighbours.
    """

    rounds: Rounds
    near: Callable[[tuple[str, ...]], NDArray[np.bool_]]
    values: Mapping[str, float]
    solving: Mapping[str, float]
    first: Callable[[int], Basis]
    smooth: float = 0.1
    ridge: float = 1e-3
    damping: float = 1e-3
    map_rate: float = 1e-2
    map_pull: float = 1.0
    non_neighbours: int = 10
    solve: Literal["device", "server"] = "device"
    curvature: float = 1.0
    outer: int = 0
    stale_after: int = 5
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Bilevel(LatestUpdates):
    """Store the server's state; ``w`` is the average of the clients' weights. Mappings by client.

    Attributes:
        phi: Numbers of the map, by name.
        moved: Number of times the map has moved.
        seed: Seed of the draws of non-neighbours; kept, because the configured one may change.
        turn: 0 during the lower level, then the number of the solving task.
        right: Right-hand side of each present solving task, float32; else empty.
        solved: Solution of each in this turn, float32.
        questions: Round of each client's last solving task.
        trained: Round of the task of each client's newest weights.
    """

    phi: Mapping[str, Matrix]
    moved: int = 0
    seed: int = 0
    turn: int = 0
    right: Mapping[str, Array] = field(default_factory=dict)
    solved: Mapping[str, Array] = field(default_factory=dict)
    questions: Mapping[str, int] = field(default_factory=dict)
    trained: Mapping[str, int] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        """Return the number of updates that wait for the turn to close."""
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
        """Return the hooks of the lower level."""
        hooks = latest_update_hooks(self.settings.rounds, self._asked, self._closed, _accepted)
        return replace(
            hooks, discard=lambda state, why: hooks.discard(_without_solving_task(state), why)
        )

    def apply(self, state: Bilevel, event: Event) -> tuple[Bilevel, Effects]:
        """Apply one event."""
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
        """End the lower level of a round, and send the solving tasks of the upper one."""
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
        """Send solving tasks again if neighbours' solutions count; else take the map's step."""
        if state.turn > self.settings.outer or not state.solved:
            return self._stepped(state)
        ids, gradients = _upper(state, self.settings)
        graph, basis = _graph(ids, self.settings), self.basis(state)
        right = coupled(gradients.p, _stacked(state, ids), graph, basis, self.settings.smooth)
        named, cohort = dict(zip(ids, right, strict=True)), sorted(state.solved)
        return self._asking(state, named, cohort, turn=state.turn + 1)

    def _stepped(self, state: Bilevel) -> tuple[Bilevel, Effects]:
        """Take one step of the map with the solutions, and end the round."""
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
        """Return the present map."""
        return self.settings.first(len(state.w)).with_leaves(state.phi)


def _without_solving_task(state: Bilevel) -> Bilevel:
    """Return the state at the end of a round: no solving task is open."""
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
    """Return the map as tasks carry it; nothing while it is the identity."""
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
            values={
                **settings.solving,
                "of": float(state.trained[name]),
                "own": float(own[name]),
            },
            arrays={"p": state.right[name]},
        )
        for name in sorted(clients)
    )


# --- a round --------------------------------------------------------------------------------------


def _graph(ids: tuple[str, ...], settings: Levels) -> Matrix:
    return normalised(settings.near(ids))


def _theta(state: Bilevel, ids: tuple[str, ...]) -> Matrix:
    """Return all weights; a client without an update has the common model."""
    return np.stack([np.asarray(state.held.get(name, state.w), np.float64) for name in ids])


def _stacked(state: Bilevel, ids: tuple[str, ...]) -> Matrix:
    """Return the solutions; a client without one has zero."""
    nothing = np.zeros_like(state.w)
    return np.stack([np.asarray(state.solved.get(name, nothing), np.float64) for name in ids])


def _average(state: Bilevel) -> Matrix:
    total = np.zeros_like(state.w)
    for name in sorted(state.held):
        total = total + state.held[name]
    return total / len(state.held)


def _upper(state: Bilevel, settings: Levels) -> tuple[tuple[str, ...], Upper]:
    """Return the upper loss of all clients with known weights, and their ids."""
    ids = tuple(sorted(state.held))
    near = settings.near(ids)
    unlike = sampled(near, settings.non_neighbours, draws(state.seed, state.version))
    basis = settings.first(len(state.w)).with_leaves(state.phi)
    theta = _theta(state, ids)
    gradients = upper(theta, normalised(near), basis, near, strange=unlike, pull=settings.map_pull)
    return ids, gradients


def _believable(q: Array, right: Array, settings: Levels) -> Array:
    """Clip a solution to the largest norm that a convex loss with the added damping allows."""
    length, most = float(np.linalg.norm(q)), float(np.linalg.norm(right))
    most /= max(settings.ridge + settings.damping, 1e-12)
    wide = np.asarray(q, np.float64)
    return published(wide * (most / length) if length > most else wide)


def _unsolved(state: Bilevel) -> frozenset[str]:
    return frozenset(state.right) - frozenset(state.solved)


def _report(state: Bilevel, settings: Levels, gradients: Upper | None = None) -> dict[str, Any]:
    """Return the report of a round; plain values only, for a page or JSON."""
    gradients = _upper(state, settings)[1] if gradients is None else gradients
    return {
        "upper": gradients.value,
        "apart": gradients.likeness.neighbours,
        "alike": gradients.likeness.non_neighbours,
    }
