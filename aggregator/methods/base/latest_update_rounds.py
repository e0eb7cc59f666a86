"""Rounds over everybody's newest answer: what FeSEM, PFL and BiG-FL do in the same way.

Each client is asked alone. A round closes when enough clients have answered; what then counts is
the newest weights of all who are known, and who answered is asked anew. A client that is silent
counts with its last weights for some rounds. Nobody is waited for beyond the quorum.
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
    """What the state of every such half has. Mappings are by client.

    Attributes:
        round: The round that is gathered for, from 1; 0 before the first.
        version: How often a round has moved something.
        is_open: Whether answers are wanted.
        w: What stands for all and is announced, float64, shape ``(P,)``.
        who: Who takes part, and whose answers wait.
        held: Each client's newest weights, float32.
        losses: Reported with the waiting answers.
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
        """How many answers wait for the round to close."""
        return len(self.who.arrived)


S = TypeVar("S", bound=LatestUpdates)


@dataclass(frozen=True, slots=True)
class RoundHooks(Generic[S]):
    """What a method adds to such rounds.

    Attributes:
        rounds: When a round ends.
        asked: The tasks of some clients, in order of name.
        closed: What a full round brings about; ``concluded`` ends it.
        heard: What an answer changes besides what all keep of it.
    """

    rounds: Rounds
    asked: Callable[[S, Iterable[str]], Effects]
    closed: Callable[[S], tuple[S, Effects]]
    heard: Callable[[S, Update], S] = lambda state, _update: state

    def apply(self, state: S, event: Event) -> tuple[S, Effects]:
        """Take one event.

        ``OPEN`` begins; a ``Member`` who came gets its task, unless its answer waits; an ``Update``
        is a client's answer, of which the newest counts; the ``Due`` of a round is its deadline, at
        which fewer are enough, or all wait as long again.
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
        """Close a round at its deadline with what suffices, or wait; or move nothing."""
        if is_given_up:
            return self.concluded(state, {}, DEFECT)
        enough = state.waiting >= self.rounds.enough
        return self.closed(state) if enough else (state, (self.due(state),))

    def asking(self, state: S, clients: Iterable[str]) -> Effects:
        """Return the tasks of a round that opens, and its deadline."""
        return (*self.asked(state, clients), self.due(state))

    def due(self, state: S) -> Due:
        """Return the wake-up at a round's deadline."""
        return Due(state.round, ASK, after=self.rounds.deadline)

    def concluded(self, state: S, report: Mapping[str, Any], why: str = "") -> tuple[S, Effects]:
        """End a round, whose answers still wait, and ask anew whoever gave them.

        Args:
            state: With all that the method made of the answers.
            report: What is worth telling, plain values only.
            why: Why nothing moved; empty if it did.
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
        """Return the state with an answer waiting."""
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
    """Let go of the weights of clients that were silent for more versions than that; and who."""
    late = state.who.overdue(state.version + 1, QuorumSettings(patience=patience))
    gone = frozenset(late) & frozenset(state.held)
    held = {name: vector for name, vector in state.held.items() if name not in gone}
    return replace(state, held=held, who=state.who.without(late)), sorted(gone)


def reported(said: Mapping[str, float], update: Update, name: str) -> dict[str, float]:
    """Return reported numbers with those of a client's newest answer only.

    >>> reported({"a": 1.0, "b": 2.0}, Update("a", 1, 0, np.zeros(1)), "loss")
    {'b': 2.0}
    """
    others = {client: value for client, value in said.items() if client != update.sender}
    if name in update.values:
        others[update.sender] = float(update.values[name])
    return others


def told_of(state: LatestUpdates) -> dict[str, Any]:
    """Return what every round tells: who answered, how far behind they were, their mean loss."""
    arrived = state.who.arrived
    told: dict[str, Any] = {
        "cohort": sorted(arrived),
        "staleness": {name: state.version - arrived[name] for name in sorted(arrived)},
    }
    if state.losses:
        told["loss"] = float(np.mean([state.losses[name] for name in sorted(state.losses)]))
    return told


def is_news(state: LatestUpdates, update: Update) -> bool:
    """Whether an answer is to a task that its client was given after its last one was counted."""
    is_new = state.who.counts(update.sender, update.base, state.version)
    return is_new and update.vector.shape == state.w.shape
