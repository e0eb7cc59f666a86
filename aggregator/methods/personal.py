"""A model for each client: everybody's rows are mixed, and row i goes back to client i.

A round is: enough clients have answered, the newest weights of all who are known are mixed, and who
answered gets its own mixture with the next task. A client that is silent counts with its last
weights for some rounds. Nobody is waited for beyond the quorum. There is no model of all; what is
announced as one, and given to who comes later, is the plain average of those clients whom at least
half of the others let in; where there are none of these, it stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.methods.averaging import ASK, Rounds, published
from aggregator.methods.credit import Mixed
from aggregator.methods.gathering import Calling, Gathered
from aggregator.rules import Rows
from edge_sdk.wire.method import Array, Closed, Due, Effects, Event, Half, Member, Task, Update
from edge_sdk.wire.spec import Vector

Matrix = NDArray[np.float64]
Mixing = Callable[[Rows], Mixed]
"""Rows to rows: what each client's own mixture is."""

SHOWN = 64
"""Clients up to which a round's report has the whole matrix; the kept history has it anyway."""

CELLS = 1_000_000
"""Numbers that the kept history may have in all, the newest round apart."""

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Personalising:
    """What a run of this kind is.

    Attributes:
        mixing: What each client gets.
        rounds: When a round ends.
        values: Numbers of a client's task, as the contract names them.
        stale_after: Rounds that a silent client's weights count.
        history: Rounds of which the weights are kept.
        by_fleet: Whether devices keep the models of the round whose mean held-back loss is least.
    """

    mixing: Mixing
    rounds: Rounds
    values: Callable[[str], Mapping[str, float]]
    stale_after: int = 5
    history: int = 100
    by_fleet: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Personalised:
    """The server's state. Mappings are by client, ``history`` is by version.

    Attributes:
        round: The round that is gathered for, from 1; 0 before the first.
        version: How often models have been mixed.
        is_open: Whether answers are wanted.
        w: What stands for all, float64, shape ``(P,)``.
        best: The least mean held-back loss of a round so far.
        kept: That round; 0 while there is none.
        who: Who takes part, and whose answers wait.
        held: Each client's newest weights, float32.
        mixed: What each client was given for them, float32.
        losses: Reported with the waiting answers.
        judged: Held-back losses, likewise.
        history: Weights of the last rounds, with the names of their rows, one a line.
    """

    round: int
    version: int
    is_open: bool
    w: Matrix
    best: float = 0.0
    kept: int = 0
    who: Gathered = field(default_factory=Gathered)
    held: Mapping[str, Array] = field(default_factory=dict)
    mixed: Mapping[str, Array] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)
    judged: Mapping[str, float] = field(default_factory=dict)
    history: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        """How many answers wait for the round to close."""
        return len(self.who.arrived)

    @property
    def credit(self) -> dict[str, dict[str, float]]:
        """What each client made of each other last; empty where no history is kept, or too many."""
        newest = self.history.get(str(self.version))
        return _rows_of(newest) if newest is not None and len(self.held) <= SHOWN else {}

    @property
    def credits(self) -> dict[int, dict[str, dict[str, float]]]:
        """The kept weights: by version, what each client made of each other. Zeros are left out."""
        return {
            int(version): _rows_of(one)
            for version, one in sorted(self.history.items(), key=lambda pair: int(pair[0]))
        }


def personal(settings: Personalising) -> Half[Personalised]:
    """Return the server half.

    Events: ``OPEN`` begins; a ``Member`` who came gets its mixture, unless its answer waits; an
    ``Update`` is a client's answer, of which the newest counts; the ``Due`` of a round is its
    deadline, at which fewer are enough, or all wait as long again.
    """

    def apply(state: Personalised, event: Event) -> tuple[Personalised, Effects]:
        match event:
            case Due(ask="open") if state.round == 0:
                state = replace(state, round=1, is_open=True)
                return state, _asking(state, settings, state.who.present)
            case Member(client=client, present=True):
                return _came(state, settings, client)
            case Member(client=client) if state.who.present.get(client, False):
                return replace(state, who=state.who.went(client)), ()
            case Update() if state.is_open and _is_news(state, event):
                state = _heard(state, event)
                full = state.waiting >= settings.rounds.quorum
                return _closed(state, settings) if full else (state, ())
            case Due(ask="train", round=number) if state.is_open and number == state.round:
                enough = state.waiting >= settings.rounds.enough
                return _closed(state, settings) if enough else (state, (_due(state, settings),))
        return state, ()

    def init(w: Vector) -> Personalised:
        return Personalised(0, 0, is_open=False, w=np.asarray(w, np.float64).copy())

    return Half(init, apply, model=lambda state: {"p": published(state.w)})


# --- what is asked --------------------------------------------------------------------------------


def _came(
    state: Personalised, settings: Personalising, client: str
) -> tuple[Personalised, Effects]:
    who = state.who
    if client not in who.told:
        state = replace(state, who=who.came(client, state.version))
    elif not who.present[client]:
        state = replace(state, who=replace(who, present={**who.present, client: True}))
    if client in who.arrived or not state.is_open:
        return state, ()
    return state, _tasks(state, settings, [client])


def _asking(state: Personalised, settings: Personalising, clients: Iterable[str]) -> Effects:
    return (*_tasks(state, settings, clients), _due(state, settings))


def _tasks(state: Personalised, settings: Personalising, clients: Iterable[str]) -> Effects:
    """Ask each client with its own mixture; who has none gets what stands for all."""
    common = published(state.w)
    chosen = {"kept": float(state.kept)} if settings.by_fleet and state.kept else {}
    return tuple(
        Task(
            name,
            state.round,
            ASK,
            base=state.version,
            values={**settings.values(name), **chosen},
            arrays={"w": state.mixed.get(name, common)},
        )
        for name in sorted(clients)
    )


def _due(state: Personalised, settings: Personalising) -> Due:
    return Due(state.round, ASK, after=settings.rounds.deadline)


# --- what is heard --------------------------------------------------------------------------------


def _is_news(state: Personalised, update: Update) -> bool:
    is_new = state.who.counts(update.sender, update.base, state.version)
    return is_new and update.vector.shape == state.w.shape


def _heard(state: Personalised, update: Update) -> Personalised:
    client = update.sender
    said = np.clip(update.vector, -_LARGEST, _LARGEST).astype(np.float32)
    return replace(
        state,
        held={**state.held, client: said},
        who=state.who.heard(client, update.base),
        losses=_with(state.losses, update, "loss"),
        judged=_with(state.judged, update, "validation"),
    )


def _with(said: Mapping[str, float], update: Update, name: str) -> dict[str, float]:
    """Return the reported numbers with those of a client's newest answer only."""
    others = {client: value for client, value in said.items() if client != update.sender}
    if name in update.values:
        others[update.sender] = float(update.values[name])
    return others


# --- a round --------------------------------------------------------------------------------------


def _closed(state: Personalised, settings: Personalising) -> tuple[Personalised, Effects]:
    state, silent = _forgotten(state, settings)
    rows, cohort = Rows.of(state.held), sorted(state.who.arrived)
    made = settings.mixing(rows)
    mixed = {name: published(made.values[name]) for name in rows.ids}
    if not all(np.isfinite(vector).all() for vector in mixed.values()):
        return _abandoned(state, settings, cohort, "a mixture left the finite numbers")
    outcasts = left_out(rows.ids, made)
    trusted = [name for name in rows.ids if name not in outcasts]
    w = _common(rows, trusted) if trusted else state.w
    limit, version = settings.rounds.limit, state.version + 1
    is_last = limit is not None and version >= limit
    chosen = _chosen(state, trusted)
    report = _report(chosen, rows.ids, made, outcasts, cohort)
    report |= {"silent": silent, "stop": is_last, "step": float(np.linalg.norm(w - state.w))}
    report |= {"kept": chosen.kept} if settings.by_fleet else {}
    note = Closed(state.round, version, moved=True, report=report)
    state = replace(
        chosen,
        version=version,
        w=w,
        who=state.who.counted(version),
        mixed=mixed,
        losses={},
        judged={},
        history=_remembered(state.history, version, rows.ids, made.weights, settings.history),
    )
    if is_last:
        return replace(state, is_open=False), (note,)
    state = replace(state, round=state.round + 1)
    return state, (note, *_asking(state, settings, cohort))


def _common(rows: Rows, trusted: list[str]) -> Matrix:
    return rows.combine(np.array([(name in trusted) / len(trusted) for name in rows.ids]))


def left_out(ids: tuple[str, ...], made: Mixed) -> tuple[str, ...]:
    """Return whom more than half of the others do not let in.

    >>> let_in = np.array([[1, 1, 0], [1, 1, 0], [1, 1, 1]], np.bool_)
    >>> left_out(("a", "b", "c"), Mixed({}, np.eye(3), let_in))
    ('c',)
    """
    refusals = (~made.let_in).sum(axis=0)
    return tuple(name for name, n in zip(ids, refusals, strict=True) if 2 * n > len(ids) - 1)


def _chosen(state: Personalised, trusted: list[str]) -> Personalised:
    """Compare the round's mean held-back loss with the best so far; outcasts have no say."""
    told = [state.judged[name] for name in sorted(trusted) if name in state.judged]
    if not told:
        return state
    loss = float(np.mean(told))
    return (
        state if state.kept and state.best <= loss else replace(state, best=loss, kept=state.round)
    )


def _forgotten(state: Personalised, settings: Personalising) -> tuple[Personalised, list[str]]:
    """Let go of the weights of clients that were silent for too long, and of their mixtures."""
    late = state.who.overdue(state.version + 1, Calling(patience=settings.stale_after))
    gone = frozenset(late) & frozenset(state.held)
    held = {name: vector for name, vector in state.held.items() if name not in gone}
    return replace(state, held=held, who=state.who.without(late)), sorted(gone)


def _abandoned(
    state: Personalised, settings: Personalising, cohort: list[str], why: str
) -> tuple[Personalised, Effects]:
    """Leave mixtures as they are, and ask anew whoever answered."""
    report = {"cohort": cohort, "why": why, "stop": False}
    note = Closed(state.round, state.version, moved=False, report=report)
    who = replace(state.who, arrived={})
    state = replace(state, round=state.round + 1, who=who, losses={}, judged={})
    return state, (note, *_asking(state, settings, cohort))


# --- what is told and remembered ------------------------------------------------------------------


def _report(
    state: Personalised,
    ids: tuple[str, ...],
    made: Mixed,
    outcasts: tuple[str, ...],
    cohort: list[str],
) -> dict[str, Any]:
    """Return what is worth telling about a round; plain values only, for a page or JSON."""
    arrived, n = state.who.arrived, len(ids)
    from_others = (made.weights.sum(axis=0) - np.diag(made.weights)) / max(n - 1, 1)
    report: dict[str, Any] = {
        "cohort": cohort,
        "staleness": {name: state.version - arrived[name] for name in cohort},
        "weights": dict(zip(ids, map(float, from_others), strict=True)),
        "dropped": dict.fromkeys(outcasts, "unlike"),
    }
    if n <= SHOWN:
        report["credit"] = _named(ids, made.weights)
    for name, said in (("loss", state.losses), ("validation", state.judged)):
        if said:
            report[name] = float(np.mean([said[client] for client in sorted(said)]))
    return report


def _rows_of(kept: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    return _named(tuple(kept["clients"].split("\n")), kept["weights"])


def _named(ids: tuple[str, ...], weights: NDArray[Any]) -> dict[str, dict[str, float]]:
    return {
        one: {ids[j]: round(float(row[j]), 6) for j in np.flatnonzero(row)}
        for one, row in zip(ids, weights, strict=True)
    }


def _remembered(
    history: Mapping[str, Mapping[str, Any]],
    version: int,
    ids: tuple[str, ...],
    weights: Matrix,
    rounds: int,
) -> dict[str, Mapping[str, Any]]:
    """Return the newest rounds' weights: so many, and as few as fit into ``CELLS`` numbers."""
    if not rounds:
        return {}
    newest: dict[str, Mapping[str, Any]] = {
        str(version): {"clients": "\n".join(ids), "weights": weights.astype(np.float32)}
    }
    cells = weights.size
    for key in sorted(history, key=int, reverse=True)[: rounds - 1]:
        cells += history[key]["weights"].size
        if cells > CELLS:
            break
        newest[key] = history[key]
    return newest
