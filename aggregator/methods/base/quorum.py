"""Rounds over the latest update of every client, and their quorum, S of M.

A client works on one task at a time: it receives its own, and another one when its update has been used.
The server fires as soon as enough different clients have sent an update since the last firing, whichever
version each started from; later updates count at a later firing. Of a client's updates the newest counts.
A silent client counts with its last vector for a bounded number of versions. The server waits for no
client beyond the quorum, unless its staleness is bounded, or its engine says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np

from aggregator.methods.base.round_machine import (
    RoundHooks,
    RoundOutcome,
    Rounds,
    RoundState,
    Step,
    mean_loss,
)
from edge_sdk.protocol.contract.method import Array, Due, Effects, Update


@dataclass(frozen=True, slots=True)
class QuorumSettings:
    """Settings of the quorum."""

    enough: int = 1  # S, number of different clients that suffices
    # true waits for all present clients as well (the synchronous variant)
    waits_for_all: bool = False
    # number of versions that a client may fall behind (the papers' bound on staleness). The firing
    # at which it reaches the bound may happen without it, the next may not.
    staleness_bound: int = 20
    # action on such a client. ``drop``: its part in the consensus ends until its next update.
    # ``wait``: nothing fires before its update, as in the convergence theorem; a client that has
    # left is dropped in either case
    overdue: Literal["drop", "wait"] = "drop"


@dataclass(frozen=True, slots=True)
class QuorumState:
    """Participating clients and waiting updates. Every mapping is by client."""

    # true for a linked client; the keys are all known clients, R of them
    present: Mapping[str, bool] = field(default_factory=dict)
    # version of the consensus that the client works on
    task_version: Mapping[str, int] = field(default_factory=dict, metadata={"leaf": "told"})
    # version at which its last update was counted, or at which it first joined
    since: Mapping[str, int] = field(default_factory=dict)
    # version that its waiting update started from
    arrived: Mapping[str, int] = field(default_factory=dict)

    def joined(self, client: str, version: int) -> QuorumState:
        """Return the state with a client present and at work on a version."""
        since = self.since if client in self.since else {**self.since, client: version}
        present = {**self.present, client: True}
        return replace(
            self, present=present, task_version={**self.task_version, client: version}, since=since
        )

    def left(self, client: str) -> QuorumState:
        """Return the state with a client absent: its updates stay, and no round waits for it."""
        return replace(self, present={**self.present, client: False})

    def counts(self, client: str, base: int, version: int) -> bool:
        """Return True if an update is for a task sent after the client's last counted update.

        An older base is a replay; a newer one than the server's was never announced.
        """
        return self.since.get(client, 0) <= base <= version

    def received(self, client: str, base: int) -> QuorumState:
        """Return the state with an update waiting; a client's newest update counts."""
        known = self if client in self.present else self.joined(client, base)
        return replace(known, arrived={**known.arrived, client: base})

    def overdue(self, version: int, quorum: QuorumSettings) -> tuple[str, ...]:
        """Return the clients beyond the staleness bound without a waiting update.

        >>> seen = QuorumState({"a": True, "b": True}, since={"a": 3, "b": 0})
        >>> [seen.overdue(version, QuorumSettings(staleness_bound=2)) for version in (2, 3)]
        [(), ('b',)]
        """
        return tuple(
            client
            for client in sorted(self.since)
            if version - self.since[client] > quorum.staleness_bound and client not in self.arrived
        )

    def is_ready(self, version: int, quorum: QuorumSettings) -> bool:
        """Return True if enough clients have sent an update, and none must be waited for.

        >>> seen = QuorumState({"a": True, "b": True}, since={"a": 3, "b": 0}, arrived={"a": 3})
        >>> seen.is_ready(3, QuorumSettings(1)), seen.is_ready(3, QuorumSettings(1, waits_for_all=True))
        (True, False)
        >>> seen.is_ready(3, QuorumSettings(1, staleness_bound=2, overdue="wait"))
        False
        """
        if len(self.arrived) < quorum.enough:
            return False
        awaited = self._here(self.present) if quorum.waits_for_all else ()
        if quorum.overdue == "wait":
            awaited = (*awaited, *self._here(self.overdue(version, quorum)))
        return all(client in self.arrived for client in awaited)

    def counted(self, version: int) -> QuorumState:
        """Return the state after a firing: its clients work on the version that it produced."""
        versions = dict.fromkeys(self.arrived, version)
        return replace(
            self,
            task_version={**self.task_version, **versions},
            since={**self.since, **versions},
            arrived={},
        )

    def without(self, clients: Iterable[str]) -> QuorumState:
        """Return the state without the absent ones among some clients."""
        removed = {client for client in clients if not self.present.get(client, False)}
        present = {
            client: is_present
            for client, is_present in self.present.items()
            if client not in removed
        }
        task_version = {
            client: version
            for client, version in self.task_version.items()
            if client not in removed
        }
        since = {client: version for client, version in self.since.items() if client not in removed}
        return QuorumState(present, task_version, since, self.arrived)

    def _here(self, clients: Iterable[str]) -> tuple[str, ...]:
        return tuple(client for client in clients if self.present.get(client, False))


_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True, eq=False)
class LatestUpdates(RoundState):
    """State that every half of this kind has. Mappings are by client."""

    # participating clients and waiting updates
    quorum: QuorumState = field(default_factory=QuorumState, kw_only=True, metadata={"leaf": "who"})
    # each client's newest vector, float32
    held: Mapping[str, Array] = field(default_factory=dict, kw_only=True)
    # losses reported with the waiting updates
    losses: Mapping[str, float] = field(default_factory=dict, kw_only=True)

    @property
    def senders(self) -> Collection[str]:
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
