"""Asynchronous servers: FedAsync moves with every update, FedBuff with every full buffer.

No round waits for a straggler. Every client works on its own task and receives the current model
when its update has been used, never one older than it has worked on. An update's staleness is the
number of versions that the model moved meanwhile; its weight is discounted by it. One half serves
both: FedAsync is a buffer of one that mixes weights, FedBuff a buffer of ``quorum`` that steps
along the rule's result over differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from aggregator.methods.base import round_machine, types
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
from aggregator.rules import Memory, Rows, Rule, TooFewRows
from aggregator.rules.parameters import uniform
from edge_sdk.app.schema import Between, SchemaError
from edge_sdk.protocol.contract.method import Array, Effects, Half, Task, Update
from edge_sdk.protocol.contract.parameter_layout import Vector

Vector64 = NDArray[np.float64]

# map versions behind (0 is fresh) to a factor in (0, 1]; 1 when fresh
Discount = Callable[[int], float]


def constant() -> Discount:
    """Count every answer in full.

    >>> constant()(16)
    1.0
    """
    return lambda _behind: 1.0


def polynomial(power: float = 0.5) -> Discount:
    """Count ``(1 + behind)^-power``.

    >>> [polynomial(0.5)(behind) for behind in (0, 3)]
    [1.0, 0.5]
    """
    return lambda behind: math.pow(1.0 + behind, -power)


def hinge(slope: float = 10.0, grace: int = 4) -> Discount:
    """Count in full up to ``grace`` versions behind, then ``1 / (slope (behind - grace) + 1)``.

    >>> [round(hinge(10.0, 4)(behind), 8) for behind in (4, 7)]
    [1.0, 0.03225806]
    """
    return lambda behind: 1.0 if behind <= grace else 1.0 / (slope * (behind - grace) + 1.0)


Form = Literal["constant", "polynomial", "hinge"]


@dataclass(frozen=True, slots=True, eq=False)
class Buffered(RoundState):
    """The server's state."""

    memory: Memory = field(default_factory=dict)  # state of the rule
    # updates in the buffer, one a client; the newest counts
    pending: Mapping[str, Array] = field(default_factory=dict)
    # version that each pending update started from
    bases: Mapping[str, int] = field(default_factory=dict)
    # reported losses of the pending updates, where reported
    losses: Mapping[str, float] = field(default_factory=dict)
    # round of each client's newest update; 0 for a client without one
    last_round: Mapping[str, int] = field(default_factory=dict, metadata={"leaf": "heard"})

    @property
    def senders(self) -> Collection[str]:
        return self.pending.keys()


@dataclass(frozen=True, slots=True)
class Fired:
    """Result of a full buffer: the moved model and the rule's memory."""

    w: Vector64
    memory: Memory
    report: Mapping[str, Any]


# map the state and each update's discount by client to the next model, or raise ``TooFewRows``
Fire = Callable[[Buffered, Mapping[str, float]], Fired]


@dataclass(frozen=True, slots=True)
class Buffering:
    """Settings of a run: discount, largest staleness, rounds and task numbers."""

    discount: Discount  # factor of an update by its staleness
    max_staleness: int = 16  # largest staleness at which an update is used
    # ``quorum`` is the buffer's size; ``least`` updates suffice at the deadline
    rounds: Rounds = field(default_factory=Rounds)
    # numbers of every task, as the contract names them
    values: Mapping[str, float] = field(default_factory=dict)


def buffered(fire: Fire, settings: Buffering) -> Half[Buffered]:
    """Return the server half of the asynchronous family: ``round_machine.apply`` with its hooks.

    At a deadline without enough updates the buffer waits as long again; no update is discarded.
    """

    def init(w: Vector) -> Buffered:
        return Buffered(0, 0, False, np.asarray(w, np.float64).copy())

    def tasks(state: Buffered, clients: Iterable[str]) -> Effects:
        arrays = {"w": published(state.w)}
        return tuple(
            Task(
                client, state.round, ASK, base=state.version, values=settings.values, arrays=arrays
            )
            for client in sorted(clients)
        )

    hooks = RoundHooks(
        settings.rounds,
        counts=partial(_counts, settings),
        accept=_with,
        combine=partial(_combined, fire, settings),
        discard=_discarded,
        tasks=tasks,
        clients=lambda state: state.last_round,
        join=_joined,
        extend=lambda due: replace(due, step=due.step + 1, after=settings.rounds.deadline),
    )
    return Half(
        init, partial(round_machine.apply, hooks), model=lambda state: {"p": published(state.w)}
    )


def _joined(state: Buffered, client: str) -> Buffered:
    return state if state.round else replace(state, last_round={**state.last_round, client: 0})


def _counts(settings: Buffering, state: Buffered, update: Update) -> bool:
    return (
        state.last_round.get(update.sender, 0) < update.round <= state.round
        and 0 <= state.version - update.base <= settings.max_staleness
        and update.vector.shape == state.w.shape
    )


def _with(state: Buffered, update: Update) -> Buffered:
    losses = {name: loss for name, loss in state.losses.items() if name != update.sender}
    if "loss" in update.values:
        losses[update.sender] = float(update.values["loss"])
    return replace(
        state,
        pending={**state.pending, update.sender: update.vector},
        bases={**state.bases, update.sender: update.base},
        last_round={**state.last_round, update.sender: update.round},
        losses=losses,
    )


def _combined(fire: Fire, settings: Buffering, state: Buffered) -> RoundOutcome[Buffered]:
    behind = {name: state.version - state.bases[name] for name in sorted(state.bases)}
    report = {"cohort": list(behind), "staleness": behind, **mean_loss(state.losses)}
    emptied = _emptied(state)
    try:
        fired = fire(state, {name: settings.discount(late) for name, late in behind.items()})
    except TooFewRows as error:
        return RoundOutcome(emptied, report, behind, str(error))
    if not np.isfinite(published(fired.w)).all():
        return RoundOutcome(emptied, report, behind, NOT_FINITE)
    moved = replace(emptied, w=fired.w, memory=fired.memory)
    return RoundOutcome(moved, {**report, **fired.report}, behind)


def _discarded(state: Buffered, why: str) -> RoundOutcome[Buffered]:
    return RoundOutcome(_emptied(state), {"cohort": sorted(state.bases)}, state.bases, why)


def _emptied(state: Buffered) -> Buffered:
    return replace(state, pending={}, bases={}, losses={})


@dataclass(frozen=True, slots=True)
class FedAsync:
    """Move the model with every update, by less the staler it is."""

    steps: types.Steps = 4  # local steps of a task
    rate: types.Rate = 1e-3  # their learning rate
    prox: types.Prox = 0.005  # weight of half the squared distance to the received model
    alpha: Annotated[float, Between(1e-6, 1.0)] = 0.6  # weight of a fresh update in the next model
    # form of the staleness discount: ``constant``, ``polynomial`` or ``hinge``
    discount: Form = "polynomial"
    power: types.Factor = 0.5  # of ``polynomial``: ``(1 + behind)^-power``
    slope: types.Factor = 10.0  # of ``hinge``, beyond its grace
    # of ``hinge``: number of versions behind at which an update still counts in full
    grace: types.Behind = 4
    max_staleness: types.Behind = 16  # largest staleness in versions; a staler update is refused

    def bound(self, rounds: Rounds) -> Buffering:
        discount = discount_of(self.discount, self.power, self.slope, self.grace)
        values = types.task(self.steps, self.rate, prox=self.prox)
        return Buffering(discount, self.max_staleness, rounds, values)


@dataclass(frozen=True, slots=True)
class FedBuff:
    """Move the model with ``run.quorum`` updates together, each discounted by its staleness.

    A rule other than the mean makes it robust: it receives the discounted differences of a full
    buffer.
    """

    steps: types.Steps = 4  # local steps of a task
    rate: types.Rate = 1e-3  # their learning rate
    server_rate: types.Rate = 1.0  # step length of the server
    discount: Form = "polynomial"  # as in FedAsync
    power: types.Factor = 0.5  # as in FedAsync
    slope: types.Factor = 10.0  # as in FedAsync
    grace: types.Behind = 4  # as in FedAsync
    max_staleness: types.Behind = 16  # as in FedAsync

    def bound(self, rounds: Rounds) -> Buffering:
        discount = discount_of(self.discount, self.power, self.slope, self.grace)
        return Buffering(discount, self.max_staleness, rounds, types.task(self.steps, self.rate))


def discount_of(form: Form, power: float, slope: float, grace: int) -> Discount:
    """Return the named discount; parameters of the other forms are ignored."""
    if form == "polynomial":
        return polynomial(power)
    return hinge(slope, grace) if form == "hinge" else constant()


def fedasync(setup: types.Setup) -> Half[Buffered]:
    """Return FedAsync's server half.

    Raises:
        SchemaError: A quorum other than 1 (every update moves the model), or a setting that the
            method does not use.
    """
    types.has_no_use(setup, "rule", "weighting", "share")
    if setup.rounds.quorum != 1:
        raise SchemaError("run.quorum", "1: every update moves the model", str(setup.rounds.quorum))
    return buffered(mixing(setup.settings.alpha), setup.settings.bound(setup.rounds))


def fedbuff(setup: types.Setup) -> Half[Buffered]:
    """Return FedBuff's server half.

    Raises:
        SchemaError: A buffer too small for the rule's Byzantine clients (it must hold
            ``2 f + 3``), or a setting that the method does not use.
    """
    types.has_no_use(setup, "weighting", "share")
    byzantine = getattr(setup.rule, "f", 0)
    if byzantine and setup.rounds.enough < 2 * byzantine + 3:
        raise SchemaError(
            "run.quorum",
            f"at least {2 * byzantine + 3} for f = {byzantine}",
            str(setup.rounds.enough),
        )
    settings: FedBuff = setup.settings
    return buffered(stepping(setup.rule, settings.server_rate), settings.bound(setup.rounds))


def mixing(alpha: float) -> Fire:
    """Return the step ``(1 - alpha s) w + alpha s w_i`` for the one update in the buffer.

    Reference:
        Xie, Koyejo and Gupta, Asynchronous Federated Optimization, 2019 (arXiv 1903.03934).
    """

    def fire(state: Buffered, factors: Mapping[str, float]) -> Fired:
        ((name, received),) = state.pending.items()
        share = alpha * factors[name]
        w = (1.0 - share) * state.w + share * np.asarray(received, np.float64)
        lengths = {name: float(np.linalg.norm(received))}
        step = float(np.linalg.norm(w - state.w))
        return Fired(w, state.memory, {"norms": lengths, "weights": {name: share}, "step": step})

    return fire


def stepping(rule: Rule, rate: float) -> Fire:
    """Return the step along the rule's result over the discounted differences, each weighted 1 / K.

    The sum is divided by the number of updates, not by their discounts: a stale buffer moves the
    model less.

    Reference:
        Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022.
    """

    def fire(state: Buffered, factors: Mapping[str, float]) -> Fired:
        rows = Rows.of({name: factors[name] * state.pending[name] for name in factors})
        verdict = rule(rows, uniform(len(rows)), state.memory)
        report = {
            "norms": dict(zip(rows.ids, map(float, rows.norms()), strict=True)),
            "weights": dict(verdict.weights),
            "dropped": dict(verdict.dropped),
            "step": float(np.linalg.norm(verdict.value)),
            **verdict.report,
        }
        return Fired(state.w - rate * verdict.value, verdict.memory, report)

    return fire


FEDASYNC = types.Method(FedAsync, fedasync, own=True)
FEDBUFF = types.Method(FedBuff, fedbuff)
