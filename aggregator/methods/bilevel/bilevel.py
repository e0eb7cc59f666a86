"""Two levels: devices fit models that lean on their neighbours' through a map, the server the map.

A round asks twice. First everybody steps on its own loss, drawn to what the map makes of its
neighbours (the lower level). Then who answered solves a system with the curvature of its loss,
which tells what its model would do under another map; one step of the map follows (the upper
level). A device that does not solve in time is left out of that step, and of nothing else.

Every question has a round of its own, so that an answer says which one it is to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from aggregator.methods.base.averaging import ASK, Rounds, published
from aggregator.methods.base.latest_update_rounds import (
    LatestUpdates,
    RoundHooks,
    came,
    forgotten,
    is_news,
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
from edge_sdk.shared_math.bilevel_map import Basis, packed, stepped
from edge_sdk.wire.contract.method import Array, Due, Effects, Event, Half, Member, Task, Update
from edge_sdk.wire.contract.parameter_layout import Vector

Matrix = NDArray[np.float64]
SOLVE = "solve"
"""The second question of a round."""


@dataclass(frozen=True, slots=True)
class Levels:
    """What a run of this kind is.

    Attributes:
        rounds: When a round ends.
        near: Who of some clients is whose neighbour, ``(n, n)``, in the order given.
        values: Numbers of the tasks of the lower level.
        solving: Numbers of the tasks that ask to solve.
        first: The map at first: the identity, in the form that is learned.
        smooth: Weight of a device's distance from what its neighbours are mapped to (s).
        ridge: Weight of a model's own length (kappa).
        damping: Added to the curvature when solving (delta).
        map_rate: Step of the map; 0 leaves it the identity, and nothing is solved.
        map_pull: Weight of the map's distance from the identity (u).
        strangers: How many devices that are no neighbours count for each.
        solve: By whom: the ``device``, or the ``server``, which takes the slope for the solution.
        curvature: What the server divides by then, and a device that cannot solve.
        outer: Further questions to solve, in which neighbours' answers count (the coupled game).
        stale_after: Rounds that a silent client's weights count.
        seed: Of the draws of strangers.
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
    strangers: int = 10
    solve: Literal["device", "server"] = "device"
    curvature: float = 1.0
    outer: int = 0
    stale_after: int = 5
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Bilevel(LatestUpdates):
    """The server's state; ``w`` is the average over clients of their weights. Mappings by client.

    Attributes:
        phi: The map's numbers, under their names.
        moved: How often the map has moved.
        seed: Of the draws of strangers; kept, because the configured one may change.
        turn: 0 while answers of the lower level are gathered, then the how manieth solving it is.
        right: What each is asked to solve for now, float32; empty but in such a turn.
        solved: What each has found in this turn, float32.
        questions: The round in which each was asked to solve last.
        trained: The round that each one's newest weights answer.
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
        """How many answers wait for the turn to close."""
        return len(self.solved) if self.turn else len(self.who.arrived)


def bilevel(settings: Levels) -> Half[Bilevel]:
    """Return the server half: the events of ``RoundHooks``, and what a second question needs."""
    shell = _Shell(settings)

    def init(w: Vector) -> Bilevel:
        first = np.asarray(w, np.float64).copy()
        phi = settings.first(len(first)).leaves()
        return Bilevel(0, 0, False, first, phi, seed=settings.seed)

    return Half(init, shell.apply, model=lambda state: {"p": published(state.w)})


@dataclass(frozen=True, slots=True)
class _Shell:
    """The events of both questions."""

    settings: Levels

    @property
    def turns(self) -> RoundHooks[Bilevel]:
        """The lower level's rounds."""
        return RoundHooks(self.settings.rounds, self._asked, self._closed, _trained)

    def apply(self, state: Bilevel, event: Event) -> tuple[Bilevel, Effects]:
        """Take one event."""
        match event:
            case Update(sender=client, round=number) if number == state.questions.get(client):
                return self._solution(state, event)
            case Update() if state.turn and is_news(state, event):
                return self.turns.took(state, event), ()  # of the lower level, for the next round
            case Member(client=client, present=True) if client in state.right:
                state = came(state, client)
                waits = client in state.solved
                return state, () if waits else _questions(state, self.settings, [client])
            case Due(ask="solve", round=number) if state.turn and number == state.round:
                return self._solved(state)
        return self.turns.apply(state, event)

    def _asked(self, state: Bilevel, clients: Iterable[str]) -> Effects:
        return _tasks(state, self.settings, sorted(clients))

    def _closed(self, state: Bilevel) -> tuple[Bilevel, Effects]:
        """End the lower level of a round, and ask for the solutions that the upper one needs."""
        state, _ = forgotten(state, self.settings.stale_after)
        state = replace(state, w=_average(state))
        if self.settings.map_rate == 0.0:
            return self.turns.concluded(state, _report(state, self.settings))
        ids, told = _upper(state, self.settings)
        cohort = [name for name in ids if name in state.who.arrived]
        if self.settings.solve == "server":
            at = {name: i for i, name in enumerate(ids)}
            found = {x: published(told.p[at[x]] / self.settings.curvature) for x in cohort}
            return self._stepped(replace(state, solved=found))
        return self._asking(state, dict(zip(ids, told.p, strict=True)), cohort, turn=1)

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
        """Ask again where neighbours' solutions count; else take the step of the map."""
        if state.turn > self.settings.outer or not state.solved:
            return self._stepped(state)
        ids, told = _upper(state, self.settings)
        graph, basis = _graph(ids, self.settings), self.basis(state)
        right = coupled(told.p, _stacked(state, ids), graph, basis, self.settings.smooth)
        named, cohort = dict(zip(ids, right, strict=True)), sorted(state.solved)
        return self._asking(state, named, cohort, turn=state.turn + 1)

    def _stepped(self, state: Bilevel) -> tuple[Bilevel, Effects]:
        """Take one step of the map with what was solved, and end the round."""
        ids, told = _upper(state, self.settings)
        report = _report(state, self.settings, told)
        report |= {"solved": sorted(state.solved), "unsolved": sorted(_unsolved(state))}
        if state.solved:
            after = stepped(
                self.basis(state), self._slopes(state, ids, told), self.settings.map_rate
            )
            if all(np.isfinite(published(leaf)).all() for leaf in after.leaves().values()):
                state = replace(state, phi=after.leaves(), moved=state.moved + 1)
        report |= {"map": float(np.sqrt(self.basis(state).excess()))}
        state = replace(state, turn=0, right={}, solved={})
        return self.turns.concluded(state, report)

    def _slopes(self, state: Bilevel, ids: tuple[str, ...], told: Upper) -> Mapping[str, Matrix]:
        graph, theta = _graph(ids, self.settings), _theta(state, ids)
        cross = crossed(
            graph @ theta,
            theta,
            np.diag(graph),
            self.basis(state),
            q=_stacked(state, ids),
            weight=self.settings.smooth,
        )
        return hypergradient(told.slopes, cross)

    def basis(self, state: Bilevel) -> Basis:
        """Return the map as it is now."""
        return self.settings.first(len(state.w)).with_leaves(state.phi)


def _trained(state: Bilevel, update: Update) -> Bilevel:
    return replace(state, trained={**state.trained, update.sender: update.round})


# --- what is asked --------------------------------------------------------------------------------


def _tasks(state: Bilevel, settings: Levels, clients: list[str]) -> Effects:
    """Ask clients to step on their own loss, each with what its neighbours are now.

    In the first round there is nothing to lean on: its steps are taken alone, by whoever comes.
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
    """Return the map as tasks bring it; while it is the identity, nothing."""
    if not state.moved:
        return {}, {}
    basis = settings.first(len(state.w)).with_leaves(state.phi)
    numbers, rows = packed(basis, len(state.w))
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
    """Return everybody's weights; who has sent none yet counts as what stands for all."""
    return np.stack([np.asarray(state.held.get(name, state.w), np.float64) for name in ids])


def _stacked(state: Bilevel, ids: tuple[str, ...]) -> Matrix:
    """Return what was solved; who has not solved counts with nothing."""
    nothing = np.zeros_like(state.w)
    return np.stack([np.asarray(state.solved.get(name, nothing), np.float64) for name in ids])


def _average(state: Bilevel) -> Matrix:
    total = np.zeros_like(state.w)
    for name in sorted(state.held):
        total = total + state.held[name]
    return total / len(state.held)


def _upper(state: Bilevel, settings: Levels) -> tuple[tuple[str, ...], Upper]:
    """Return the upper loss of all whose weights are known, and who these are."""
    ids = tuple(sorted(state.held))
    near = settings.near(ids)
    strange = sampled(near, settings.strangers, draws(state.seed, state.version))
    basis = settings.first(len(state.w)).with_leaves(state.phi)
    theta = _theta(state, ids)
    told = upper(theta, normalised(near), basis, near, strange=strange, pull=settings.map_pull)
    return ids, told


def _believable(q: Array, right: Array, settings: Levels) -> Array:
    """Shorten a solution that no loss curving upwards can have, with the curvature we add to it."""
    length, most = float(np.linalg.norm(q)), float(np.linalg.norm(right))
    most /= max(settings.ridge + settings.damping, 1e-12)
    wide = np.asarray(q, np.float64)
    return published(wide * (most / length) if length > most else wide)


def _unsolved(state: Bilevel) -> frozenset[str]:
    return frozenset(state.right) - frozenset(state.solved)


def _report(state: Bilevel, settings: Levels, told: Upper | None = None) -> dict[str, Any]:
    """Return what is worth telling about a round; plain values only, for a page or JSON."""
    told = _upper(state, settings)[1] if told is None else told
    return {
        "upper": told.value,
        "apart": told.likeness.neighbours,
        "alike": told.likeness.strangers,
    }
