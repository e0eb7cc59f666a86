"""Personalised rounds: all rows are mixed, and row i goes back to client i.

A round mixes the newest weights of all known clients; each client with an update gets its own
mixture with the next task. There is no common model; the model that is announced, and given to new
clients, is the plain average of the clients that at least half of the others admit; without any of
these, it stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.extensions.papers.personalised.credit import Mixed
from aggregator.methods.base import round_machine
from aggregator.methods.base.quorum import (
    LatestUpdates,
    accepted,
    latest_update_hooks,
    outcome,
    reported,
    without_silent,
)
from aggregator.methods.base.round_machine import ASK, RoundOutcome, Rounds, published
from aggregator.rules import Rows
from edge_sdk.protocol.contract.method import Array, Effects, Half, Task, Update
from edge_sdk.protocol.contract.parameter_layout import Vector

Matrix = NDArray[np.float64]
Mixing = Callable[[Rows], Mixed]  # map from rows to each client's own mixture
# clients up to which a round's report has the whole matrix; the kept history has it always
SHOWN = 64
CELLS = 1_000_000  # largest number of weights in the kept history, except the newest round


@dataclass(frozen=True, slots=True)
class Personalising:
    """Settings of a run: mixture, rounds, task numbers and history."""

    mixing: Mixing  # returns each client's mixture
    rounds: Rounds
    # returns the numbers of a client's task, as the contract names them
    values: Callable[[str], Mapping[str, float]]
    stale_after: int = 5  # number of rounds that a silent client's weights count
    history: int = 100  # number of rounds of which the weights are kept
    # true if devices keep the models of the round with the least mean held-back loss
    by_fleet: bool = False
    is_last_alone: bool = False  # true if the last round has no pull, which tunes the models

    def alone(self, version: int) -> dict[str, float]:
        """Return the task's numbers without the proximal term if the next round is the last; else none."""
        is_last = self.rounds.limit is not None and version + 1 >= self.rounds.limit
        return {"prox": 0.0} if self.is_last_alone and is_last else {}


@dataclass(frozen=True, slots=True, eq=False)
class Personalised(LatestUpdates):
    """The server's state; ``history`` is by version."""

    best: float = 0.0  # least mean held-back loss of a round so far
    kept: int = 0  # that round; 0 while there is none
    # mixture that each client received for its weights, float32
    mixed: Mapping[str, Array] = field(default_factory=dict)
    # held-back losses, reported with the waiting updates
    judged: Mapping[str, float] = field(default_factory=dict)
    # weights of the last rounds, with the names of their rows, one a line
    history: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def credit(self) -> dict[str, dict[str, float]]:
        """Return the last weight for each client of each other; empty if none is kept."""
        newest = self.history.get(str(self.version))
        return _rows_of(newest) if newest is not None and len(self.held) <= SHOWN else {}

    @property
    def credits(self) -> dict[int, dict[str, dict[str, float]]]:
        """Return the kept weights by version and client. Zeros are left out."""
        return {
            int(version): _rows_of(one)
            for version, one in sorted(self.history.items(), key=lambda pair: int(pair[0]))
        }


def personal(settings: Personalising) -> Half[Personalised]:
    """Return the server half; ``round_machine.apply`` over the latest updates."""

    def combined(state: Personalised) -> RoundOutcome[Personalised]:
        known, silent = without_silent(state, settings.stale_after)
        made = settings.mixing(Rows.of(known.held))
        moved, report = _moved(known, settings, made)
        if not all(np.isfinite(vector).all() for vector in moved.mixed.values()):
            known = replace(known, judged={})
            return outcome(known, {}, "a mixture contains non-finite values")
        return outcome(moved, report | {"silent": silent})

    def init(w: Vector) -> Personalised:
        return Personalised(0, 0, is_open=False, w=np.asarray(w, np.float64).copy())

    def model(state: Personalised) -> Mapping[str, Array]:
        losses = _choice(state, settings)
        return {
            "p": published(state.w),
            **{name: np.array(value) for name, value in losses.items()},
        }

    tasks = partial(_tasks, settings)
    hooks = latest_update_hooks(settings.rounds, tasks, combined, _accepted)
    return Half(init, partial(round_machine.apply, hooks), model)


def _choice(state: Personalised, settings: Personalising) -> dict[str, float]:
    return {"kept": float(state.kept)} if settings.by_fleet and state.kept else {}


def _tasks(settings: Personalising, state: Personalised, clients: Iterable[str]) -> Effects:
    """Return each client's task with its own mixture; the common model where it has none."""
    common = published(state.w)
    more = _choice(state, settings) | settings.alone(state.version)
    return tuple(
        Task(
            name,
            state.round,
            ASK,
            base=state.version,
            values={**settings.values(name), **more},
            arrays={"w": state.mixed.get(name, common)},
        )
        for name in sorted(clients)
    )


def _accepted(state: Personalised, update: Update) -> Personalised:
    judged = reported(state.judged, update, "validation")
    return replace(accepted(state, update), judged=judged)


# --- a round --------------------------------------------------------------------------------------


def _moved(
    state: Personalised, settings: Personalising, made: Mixed
) -> tuple[Personalised, dict[str, Any]]:
    """Return the state after a mixing, and its part of the report."""
    rows = Rows.of(state.held)
    excluded = excluded_clients(rows.ids, made)
    trusted = [name for name in rows.ids if name not in excluded]
    w = _common(rows, trusted) if trusted else state.w
    chosen, version = _chosen(state, trusted), state.version + 1
    report = _report(chosen, rows.ids, made, excluded) | {
        "step": float(np.linalg.norm(w - state.w))
    }
    report |= {"kept": chosen.kept} if settings.by_fleet else {}
    after = replace(
        chosen,
        w=w,
        mixed={name: published(made.values[name]) for name in rows.ids},
        judged={},
        history=_remembered(state.history, version, rows.ids, made.weights, settings.history),
    )
    return after, report


def _common(rows: Rows, trusted: list[str]) -> Matrix:
    return rows.combine(np.array([(name in trusted) / len(trusted) for name in rows.ids]))


def excluded_clients(ids: tuple[str, ...], made: Mixed) -> tuple[str, ...]:
    """Return the clients that more than half of the others do not admit.

    >>> let_in = np.array([[1, 1, 0], [1, 1, 0], [1, 1, 1]], np.bool_)
    >>> excluded_clients(("a", "b", "c"), Mixed({}, np.eye(3), let_in))
    ('c',)
    """
    refusals = (~made.let_in).sum(axis=0)
    return tuple(name for name, n in zip(ids, refusals, strict=True) if 2 * n > len(ids) - 1)


def _chosen(state: Personalised, trusted: list[str]) -> Personalised:
    losses = [state.judged[name] for name in sorted(trusted) if name in state.judged]
    if not losses:
        return state
    loss = float(np.mean(losses))
    return (
        state if state.kept and state.best <= loss else replace(state, best=loss, kept=state.round)
    )


# --- report and history ---------------------------------------------------------------------------


def _report(
    state: Personalised, ids: tuple[str, ...], made: Mixed, excluded: tuple[str, ...]
) -> dict[str, Any]:
    """Return the report of a round; plain values only, for a page or JSON."""
    n = len(ids)
    from_others = (made.weights.sum(axis=0) - np.diag(made.weights)) / max(n - 1, 1)
    report: dict[str, Any] = {
        "weights": dict(zip(ids, map(float, from_others), strict=True)),
        "dropped": dict.fromkeys(excluded, "unlike"),
    }
    if n <= SHOWN:
        report["credit"] = _named(ids, made.weights)
    if state.judged:
        losses = [state.judged[name] for name in sorted(state.judged)]
        report["validation"] = float(np.mean(losses))
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
    """Return the newest rounds' weights: at most ``rounds``, within ``CELLS`` numbers."""
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
