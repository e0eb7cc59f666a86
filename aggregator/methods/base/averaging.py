"""Synchronous averaging rounds: one common model, moved by an aggregation rule.

The engine serves FedSGD to FedAdam, and PL-FL. A round with too few updates at its deadline is
abandoned: its updates are discarded and never carried over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from aggregator.methods.base import round_machine
from aggregator.methods.base.downlink_step import adopted, announced
from aggregator.methods.base.pending_rows import AddRow, with_row
from aggregator.methods.base.round_machine import (
    ASK,
    NOT_FINITE,
    RoundHooks,
    RoundOutcome,
    Rounds,
    RoundState,
    mean_loss,
    published,
)
from aggregator.rules import Memory, Rows, Rule, RuleVerdict, TooFewRows
from aggregator.rules.weights import by_samples, uniform
from edge_sdk.shared_math.optim import IDENTITY, Transform, optimiser_step
from edge_sdk.wire.contract.method import ALL, Array, Effects, Half, ParentModel, Task, Update
from edge_sdk.wire.contract.parameter_layout import Vector

Shares = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Averaged(RoundState):
    """Store the server's state.

    Attributes:
        moments: State of the optimiser.
        memory: State of the rule.
        kept: Further state of the method.
        pending: Updates of this round, one a client; the first counts.
        counts: Claimed sample counts of the pending updates.
        losses: Reported losses of the pending updates, where reported.
        parent: The model received last from a parent's aggregator, with its numbers (``run``,
            ``number``, ``attempt``, ``step``, ``version``, ``w``), the ``rounds`` closed since and
            the largest ``count`` of updates in one; empty without a parent.
        downlink: The last step and what it left out (``downlink_step.adopted``); empty while whole
            models are announced, and after a parent's model.
    """

    moments: Mapping[str, NDArray[np.float64]]
    memory: Memory = field(default_factory=dict)
    kept: Mapping[str, Any] = field(default_factory=dict)
    pending: Mapping[str, Array] = field(default_factory=dict)
    counts: Mapping[str, float] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)
    parent: Mapping[str, Any] = field(default_factory=dict)
    downlink: Mapping[str, Any] = field(default_factory=dict)

    @property
    def senders(self) -> Collection[str]:
        """Return the clients whose update waits for the round to close."""
        return self.pending.keys()


class Scheme(Protocol):
    """Hooks that a method of this family adds to a round; ``Claims`` is the default."""

    def shares(self, state: Averaged, ids: tuple[str, ...]) -> Shares:
        """Return the weight of each client, shape ``(len(ids),)``."""

    def keep(self, state: Averaged, w: Shares) -> Mapping[str, Any]:
        """Return the state to keep after a round that moved the model to ``w``."""

    def is_over(self, version: int, kept: Mapping[str, Any]) -> bool:
        """Return True if the run ends with this version before its limit."""

    def final(self, state: Averaged) -> Shares:
        """Return the model to publish when the run ends."""


@dataclass(frozen=True, slots=True)
class Claims:
    """Default scheme: equal weights, or weights by capped sample counts.

    Attributes:
        rounds: Settings of the rounds, with the weighting.
    """

    rounds: Rounds

    def shares(self, state: Averaged, ids: tuple[str, ...]) -> Shares:
        """Return equal weights, or weights by the claimed sample counts."""
        if self.rounds.weighting == "samples":
            return by_samples([state.counts[name] for name in ids], self.rounds.cap)
        return uniform(len(ids))

    def keep(self, state: Averaged, w: Shares) -> Mapping[str, Any]:
        """Return no state."""
        del state, w
        return {}

    def is_over(self, version: int, kept: Mapping[str, Any]) -> bool:
        """Return False: the run continues to its limit."""
        del version, kept
        return False

    def final(self, state: Averaged) -> Shares:
        """Return the last model."""
        return state.w


@dataclass(frozen=True, slots=True)
class Averaging:
    """Settings of a run: the optimiser, the rounds and the numbers of its tasks.

    Attributes:
        optimiser: Step of the server.
        rounds: Settings of the rounds.
        values: Numbers of every task (``steps``, ``rate``, ``prox``), as the contract names them.
        scheme: Hooks of the method; None is ``Claims``.
        weights: True if clients send whole weights. The rule receives received minus trained in
            either case.
        after: Applied to the model after the optimiser's step.
        values_at: Numbers of a task by the model's version; None is ``values`` in every round.
        rule_at: Rule of a round by the state; None is the run's rule.
        record: Returns ``kept`` with an update that counts; None leaves it unchanged.
    """

    optimiser: Transform
    rounds: Rounds = field(default_factory=Rounds)
    values: Mapping[str, float] = field(default_factory=dict)
    scheme: Scheme | None = None
    weights: bool = False
    after: Transform = IDENTITY
    values_at: Callable[[int], Mapping[str, float]] | None = None
    rule_at: Callable[[Averaged], Rule] | None = None
    record: Callable[[Averaged, Update], Mapping[str, Any]] | None = None

    @property
    def manner(self) -> Scheme:
        """Return the scheme, or ``Claims`` if there is none."""
        return Claims(self.rounds) if self.scheme is None else self.scheme


def averaging(rule: Rule, settings: Averaging, add_row: AddRow = with_row) -> Half[Averaged]:
    """Return the server half of the averaging family: ``round_machine.apply`` with its hooks.

    Args:
        rule: Rule of the run.
        settings: Settings of the family.
        add_row: Adds an update to those that wait; it may keep them in a file, of which the rule
            reads blocks.
    """

    def init(w: Vector) -> Averaged:
        start = np.asarray(w, np.float64).copy()
        moments = {**settings.optimiser.init(start), **settings.after.init(start)}
        return Averaged(0, 0, False, start, moments)

    def model(state: Averaged) -> Mapping[str, Array]:
        is_over = state.round > 0 and not state.is_open
        w = settings.manner.final(state) if is_over else state.w
        return {"p": published(w), **(announced(state.downlink) if w is state.w else {})}

    def tasks(state: Averaged, _clients: Iterable[str]) -> Effects:
        arrays: dict[str, Array] = {"w": published(state.w), **announced(state.downlink)}
        at = settings.values_at
        values = settings.values if at is None else at(state.version)
        return (Task(ALL, state.round, ASK, base=state.version, values=values, arrays=arrays),)

    hooks = RoundHooks(
        settings.rounds,
        counts=_counts,
        accept=partial(_with, settings, add_row),
        combine=partial(_combined, rule, settings),
        discard=_discarded,
        tasks=tasks,
        adopt=_adopted,
    )
    return Half(init, partial(round_machine.apply, hooks), model)


def _combined(rule: Rule, settings: Averaging, state: Averaged) -> RoundOutcome[Averaged]:
    """Move the model by the rule's result over the round's updates."""
    rows, scheme = Rows.of(state.pending), settings.manner
    rule = rule if settings.rule_at is None else settings.rule_at(state)
    try:
        verdict = rule(rows, scheme.shares(state, rows.ids), state.memory)
    except TooFewRows as error:
        return _discarded(state, str(error))
    w, moments = optimiser_step(
        settings.optimiser, state.w, verdict.value, state.moments, settings.after
    )
    downlink: Mapping[str, Any] = {}
    if settings.rounds.downlink == "q8" and np.isfinite(published(w)).all():
        w, downlink = adopted(state.w, w, state.downlink)
    if not np.isfinite(published(w)).all():
        return _discarded(state, NOT_FINITE)
    kept = scheme.keep(state, w)
    moved = replace(
        _emptied(state),
        w=w,
        moments=moments,
        memory=verdict.memory,
        kept=kept,
        parent=_counted(state.parent, len(rows.ids)),
        downlink=downlink,
    )
    is_last = scheme.is_over(state.version + 1, kept)
    return RoundOutcome(moved, _report(state, rows, verdict), is_last=is_last)


def _counted(parent: Mapping[str, Any], updates: int) -> Mapping[str, Any]:
    """Return the record of the parent's model after one more round of the site."""
    if not parent:
        return parent
    return {**parent, "rounds": parent["rounds"] + 1, "count": max(parent["count"], updates)}


def _adopted(state: Averaged, event: ParentModel) -> RoundOutcome[Averaged]:
    """Replace the model by the parent's, plus the progress of the site that is kept."""
    w = np.asarray(event.vector, np.float64)
    w = w + event.carry if event.carry.size else w.copy()
    if w.shape != state.w.shape or not np.isfinite(published(w)).all():
        return _discarded(state, NOT_FINITE)
    names = ("run", "number", "attempt", "step", "version")
    parent = {name: getattr(event, name) for name in names}
    parent |= {"w": event.vector, "rounds": 0, "count": 0}
    report = {"cohort": [], "parent_round": event.number, "parent_version": event.version}
    moved = replace(_emptied(state), w=w, parent=parent, downlink={})
    return RoundOutcome(moved, report, is_last=event.is_last)


def _discarded(state: Averaged, why: str) -> RoundOutcome[Averaged]:
    return RoundOutcome(_emptied(state), {"cohort": sorted(state.pending)}, why=why)


def _emptied(state: Averaged) -> Averaged:
    return replace(state, pending={}, counts={}, losses={})


def _counts(state: Averaged, update: Update) -> bool:
    """Return True if the update belongs to the open round and is its sender's first."""
    return (
        update.round == state.round
        and update.base == state.version
        and update.sender not in state.pending
        and update.vector.shape == state.w.shape
    )


def _with(settings: Averaging, add_row: AddRow, state: Averaged, update: Update) -> Averaged:
    difference = state.w - update.vector if settings.weights else update.vector
    losses = dict(state.losses)
    if "loss" in update.values:
        losses[update.sender] = float(update.values["loss"])
    return replace(
        state,
        pending=add_row(state.pending, update.sender, difference),
        counts={**state.counts, update.sender: float(update.values.get("n", 1.0))},
        losses=losses,
        kept=state.kept if settings.record is None else settings.record(state, update),
    )


def _report(state: Averaged, rows: Rows, verdict: RuleVerdict) -> dict[str, Any]:
    """Return the report of a closed round; plain values only, for a page or JSON."""
    return {
        "cohort": list(rows.ids),
        "norms": dict(zip(rows.ids, map(float, rows.norms()), strict=True)),
        "weights": dict(verdict.weights),
        "dropped": dict(verdict.dropped),
        "step": float(np.linalg.norm(verdict.value)),
        **verdict.report,
        **mean_loss(state.losses),
    }
