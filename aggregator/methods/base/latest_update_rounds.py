"""Rounds over the latest update of every client, as FeSEM, PFL and BiG-FL run them.

Each client receives its own task. A round closes when enough clients have sent an update. It uses
the newest weights of all known clients, and the clients that sent an update receive a new task. A
silent client counts with its last weights for a bounded number of versions. No round waits for
clients beyond the quorum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from aggregator.methods.base.averaging import ABANDON, ASK, DEFECT, Rounds
from aggregator.methods.base.quorum import QuorumSettings, QuorumState
from edge_sdk.wire.contract.method import Array, Closed, Due, Effects, Event, Member, Update

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True, eq=False)
class LatestUpdates:
    """State that every half of this kind has. Mappings are by client.

    Attributes:
        round: The open round, from 1; 0 before the first.
        version: Number of rounds that moved the model.
        is_open: True while the run accepts updates.
        w: Model that is announced, float64, shape ``(P,)``.
        who: Participating clients and waiting updates.
        held: Each client's newest weights, float32.
        losses: Losses reported with the waiting updates.
    """

    round: int
    version: int
    is_open: bool
    w: NDArray[np.float64]
    who: QuorumState = field(default_factory=QuorumState, kw_only=True)
    held: Mapping[str, Array] = field(default_factory=dict, kw_only=True)
    losses: Mapping[str, float] = field(default_factory=dict, kw_only=True)

    @property
    def waiting(self) -> int:
        """Return the number of updates that wait for the round to close."""
        return len(self.who.arrived)


S = TypeVar("S", bound=LatestUpdates)


@dataclass(frozen=True, slots=True)
class RoundHooks(Generic[S]):
    """Hooks that a method adds to such rounds.

    Attributes:
        rounds: Settings of the rounds.
        asked: Returns the tasks of some clients, in order of name.
        closed: Computes the result of a full round; calls ``concluded`` to end it.
        heard: Applies an update to the method's own state.
    """

    rounds: Rounds
    asked: Callable[[S, Iterable[str]], Effects]
    closed: Callable[[S], tuple[S, Effects]]
    heard: Callable[[S, Update], S] = lambda state, _update: state

    def apply(self, state: S, event: Event) -> tuple[S, Effects]:
        """Apply one event.

        ``OPEN`` begins; a ``Member`` gets its task, unless its update waits; of a client's
        updates the newest counts; the ``Due`` of a round is its deadline, at which ``least``
        updates suffice, or the round waits as long again.
        """
        match event:
            case Due(ask="open") if state.round == 0:
                state = replace(state, round=1, is_open=True)
                return state, self.asking(state, state.who.present)
            case Member(client=client, present=True):
                return self._came(state, client)
            case Member(client=client) if state.who.present.get(client, False):
                return replace(state, who=state.who.went(client)), ()
            case Update() if state.is_open and is_news(state, event):
                state = self.took(state, event)
                full = state.waiting >= self.rounds.quorum
                return self.closed(state) if full else (state, ())
            case Due(round, "train" | "abandon" as ask) if state.is_open and round == state.round:
                return self._ended(state, is_given_up=ask == ABANDON)
        return state, ()

    def _ended(self, state: S, *, is_given_up: bool) -> tuple[S, Effects]:
        """Close a round at its deadline with what suffices, wait again, or abandon it."""
        if is_given_up:
            return self.concluded(state, {}, DEFECT)
        enough = state.waiting >= self.rounds.enough
        return self.closed(state) if enough else (state, (self.due(state),))

    def asking(self, state: S, clients: Iterable[str]) -> Effects:
        """Return the tasks of a round that opens, and its deadline."""
        return (*self.asked(state, clients), self.due(state))

    def due(self, state: S) -> Due:
        """Return the timer of a round's deadline."""
        return Due(state.round, ASK, after=self.rounds.deadline)

    def concluded(self, state: S, report: Mapping[str, Any], why: str = "") -> tuple[S, Effects]:
        """End a round and send new tasks to the clients of its updates.

        Args:
            state: State with the method's result; the updates still wait.
            report: Report of the round, plain values only.
            why: Reason that nothing moved; empty if the model moved.
        """
        cohort, version = sorted(state.who.arrived), state.version + (not why)
        is_last = not why and self.rounds.limit is not None and version >= self.rounds.limit
        told = {**told_of(state), **report, "stop": is_last} | ({"why": why} if why else {})
        note = Closed(state.round, version, moved=not why, report=told)
        who = replace(state.who, arrived={}) if why else state.who.counted(version)
        state = replace(state, version=version, who=who, losses={}, is_open=not is_last)
        if is_last:
            return state, (note,)
        state = replace(state, round=state.round + 1)
        return state, (note, *self.asking(state, cohort))

    def _came(self, state: S, client: str) -> tuple[S, Effects]:
        state = came(state, client)
        if client in state.who.arrived or not state.is_open:
            return state, ()
        return state, self.asked(state, [client])

    def took(self, state: S, update: Update) -> S:
        """Return the state with an update waiting."""
        client = update.sender
        said = np.clip(update.vector, -_LARGEST, _LARGEST).astype(np.float32)
        state = replace(
            state,
            held={**state.held, client: said},
            who=state.who.heard(client, update.base),
            losses=reported(state.losses, update, "loss"),
        )
        return self.heard(state, update)


def came(state: S, client: str) -> S:
    """Return the state with a client present."""
    who = state.who
    if client not in who.told:
        return replace(state, who=who.came(client, state.version))
    if not who.present[client]:
        return replace(state, who=replace(who, present={**who.present, client: True}))
    return state


def forgotten(state: S, patience: int) -> tuple[S, list[str]]:
    """Remove the weights of clients silent for over ``patience`` versions; return their ids."""
    late = state.who.overdue(state.version + 1, QuorumSettings(patience=patience))
    gone = frozenset(late) & frozenset(state.held)
    held = {name: vector for name, vector in state.held.items() if name not in gone}
    return replace(state, held=held, who=state.who.without(late)), sorted(gone)


def reported(said: Mapping[str, float], update: Update, name: str) -> dict[str, float]:
    """Return reported numbers with only the client's newest value.

    >>> reported({"a": 1.0, "b": 2.0}, Update("a", 1, 0, np.zeros(1)), "loss")
    {'b': 2.0}
    """
    others = {client: value for client, value in said.items() if client != update.sender}
    if name in update.values:
        others[update.sender] = float(update.values[name])
    return others


def told_of(state: LatestUpdates) -> dict[str, Any]:
    """Return the common part of every report: clients, staleness, mean loss."""
    arrived = state.who.arrived
    told: dict[str, Any] = {
        "cohort": sorted(arrived),
        "staleness": {name: state.version - arrived[name] for name in sorted(arrived)},
    }
    if state.losses:
        told["loss"] = float(np.mean([state.losses[name] for name in sorted(state.losses)]))
    return told


def is_news(state: LatestUpdates, update: Update) -> bool:
    """Return True if the update is for a task sent after the client's last counted update."""
    is_new = state.who.counts(update.sender, update.base, state.version)
    return is_new and update.vector.shape == state.w.shape
