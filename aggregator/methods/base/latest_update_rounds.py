"""Rounds over the latest update of every client.

Each client receives its own task, and the clients that sent an update receive a new one when it
has been used. Of a client's updates the newest counts. A silent client counts with its last vector
for a bounded number of versions. No round waits for clients beyond the quorum, unless its engine
says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from aggregator.methods.base.quorum import QuorumSettings, QuorumState
from aggregator.methods.base.round_machine import (
    RoundHooks,
    RoundOutcome,
    Rounds,
    RoundState,
    Step,
    mean_loss,
)
from edge_sdk.wire.contract.method import Array, Due, Effects, Update

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True, eq=False)
class LatestUpdates(RoundState):
    """State that every half of this kind has. Mappings are by client.

    Attributes:
        quorum: Participating clients and waiting updates.
        held: Each client's newest vector, float32.
        losses: Losses reported with the waiting updates.
    """

    quorum: QuorumState = field(default_factory=QuorumState, kw_only=True, metadata={"leaf": "who"})
    held: Mapping[str, Array] = field(default_factory=dict, kw_only=True)
    losses: Mapping[str, float] = field(default_factory=dict, kw_only=True)

    @property
    def senders(self) -> Collection[str]:
        """Return the clients whose update waits for the round to close."""
        return self.quorum.arrived.keys()


S = TypeVar("S", bound=LatestUpdates)


def latest_update_hooks(
    rounds: Rounds,
    tasks: Callable[[S, Iterable[str]], Effects],
    combine: Callable[[S], RoundOutcome[S] | Step[S]],
    accept: Callable[[S, Update], S] | None = None,
) -> RoundHooks[S]:
    """Return the hooks of such rounds.

    Args:
        rounds: Settings of the rounds.
        tasks: Returns the tasks of some clients, in order of name.
        combine: Ends a full round; ``outcome`` makes its result.
        accept: Returns the state with an update waiting; None is ``accepted``.
    """
    return RoundHooks(
        rounds,
        counts=counts,
        accept=accepted if accept is None else accept,
        combine=combine,
        discard=lambda state, why: outcome(state, {}, why),
        tasks=tasks,
        clients=lambda state: state.quorum.present,
        join=joined,
        leave=left,
        extend=lambda due: Due(due.round, due.ask, after=rounds.deadline),
    )


def outcome(state: S, report: Mapping[str, Any], why: str = "") -> RoundOutcome[S]:
    """Return the result of a round; the clients of its updates receive new tasks.

    Args:
        state: State with the method's result; the updates still wait.
        report: Report of the round, plain values only.
        why: Reason that nothing moved; empty if the model moved.
    """
    quorum, arrived = state.quorum, state.quorum.arrived
    cohort = sorted(arrived)
    staleness = {name: state.version - arrived[name] for name in cohort}
    common = {"cohort": cohort, "staleness": staleness, **mean_loss(state.losses)}
    quorum = replace(quorum, arrived={}) if why else quorum.counted(state.version + 1)
    return RoundOutcome(replace(state, quorum=quorum, losses={}), {**common, **report}, cohort, why)


def counts(state: LatestUpdates, update: Update) -> bool:
    """Return True if the update is for a task sent after the client's last counted update."""
    is_new = state.quorum.counts(update.sender, update.base, state.version)
    return is_new and update.vector.shape == state.w.shape


def accepted(state: S, update: Update) -> S:
    """Return the state with an update waiting."""
    return replace(
        state,
        held={**state.held, update.sender: clipped(update.vector)},
        quorum=state.quorum.received(update.sender, update.base),
        losses=reported(state.losses, update, "loss"),
    )


def clipped(vector: Array) -> Array:
    """Return a vector as float32, clipped to its finite numbers."""
    return np.clip(vector, -_LARGEST, _LARGEST).astype(np.float32)


def joined(state: S, client: str) -> S:
    """Return the state with a client present."""
    quorum = state.quorum
    if client not in quorum.task_version:
        return replace(state, quorum=quorum.joined(client, state.version))
    if not quorum.present[client]:
        return replace(state, quorum=replace(quorum, present={**quorum.present, client: True}))
    return state


def left(state: S, client: str) -> S:
    """Return the state with a client absent."""
    is_present = state.quorum.present.get(client, False)
    return replace(state, quorum=state.quorum.left(client)) if is_present else state


def without_silent(state: S, staleness_bound: int) -> tuple[S, list[str]]:
    """Remove the weights of clients silent for over ``staleness_bound`` versions; return their ids."""
    late = state.quorum.overdue(state.version + 1, QuorumSettings(staleness_bound=staleness_bound))
    removed = frozenset(late) & frozenset(state.held)
    held = {name: vector for name, vector in state.held.items() if name not in removed}
    return replace(state, held=held, quorum=state.quorum.without(late)), sorted(removed)


def reported(values: Mapping[str, float], update: Update, name: str) -> dict[str, float]:
    """Return reported numbers with only the client's newest value.

    >>> reported({"a": 1.0, "b": 2.0}, Update("a", 1, 0, np.zeros(1)), "loss")
    {'b': 2.0}
    """
    others = {client: value for client, value in values.items() if client != update.sender}
    if name in update.values:
        others[update.sender] = float(update.values[name])
    return others
