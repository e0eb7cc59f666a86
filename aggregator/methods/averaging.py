"""The averaging family on the server: FedAvg, FedSGD, FedProx, FedAvgM and FedAdam.

``edge_sdk.shared_math.fedavg`` is the arithmetic of FedAvg, with an example; these are the rounds
around it. A round opens with the model, as a task for all. Updates wait until a quorum has answered,
or enough of it by the deadline; then the rule combines them and the server's optimiser takes a step.
A round with too few updates at its deadline is abandoned: its updates are never carried over.

A difference is received minus trained (or a gradient), so every optimiser here *subtracts* it.
Everything is float64. The model is kept in float64 as well and rounded to float32 only where it is
published, so that a saved state continues exactly where it stopped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from aggregator.methods.base import round_machine
from aggregator.methods.base.types import AddRow, Prox, Rate, Setup, Share, Steps, task, with_row
from aggregator.methods.base.wrappers import Announce, exact, with_steps
from aggregator.rules import Memory, Rows, Rule, TooFewRows
from edge_sdk.app.schema import Between
from edge_sdk.protocol.contract.method import ALL, Array, Effects, Half, ParentModel, Task, Update
from edge_sdk.protocol.contract.parameter_layout import Vector
from edge_sdk.shared_math.fedavg import server_sgd
from edge_sdk.shared_math.optim import State, Transform, chain, optimiser_step, scale


@dataclass(frozen=True, slots=True)
class FedAvg:
    """Average the models of clients that take several local steps a round."""

    steps: Steps = 4  # local steps a round
    rate: Rate = 1e-3  # their learning rate
    server_rate: Rate = 1.0  # fraction of the average difference that the server applies

    def bound(self, rounds: round_machine.Rounds) -> round_machine.Averaging:
        """Return the family's settings for these numbers."""
        return round_machine.Averaging(
            server_sgd(self.server_rate), rounds, task(self.steps, self.rate)
        )


@dataclass(frozen=True, slots=True, eq=False)
class Averaged(round_machine.RoundState):
    """State of the server: the model and its optimiser, and the updates that wait."""

    moments: Mapping[str, NDArray[np.float64]]  # of the optimiser
    memory: Memory = field(default_factory=dict)  # of the rule
    kept: Mapping[str, Any] = field(default_factory=dict)  # of the scheme
    pending: Mapping[str, Array] = field(default_factory=dict)  # first update of each client
    counts: Mapping[str, float] = field(default_factory=dict)  # claimed samples of the updates
    losses: Mapping[str, float] = field(default_factory=dict)  # of the updates that report one

    @property
    def senders(self) -> Collection[str]:
        return self.pending.keys()


def fedavg(setup: Setup) -> Half[Any]:
    """Return the server half of FedAvg, and of the methods that differ in their settings alone."""
    return averaging(setup.rule, setup.settings.bound(setup.rounds), setup.add_row)


def averaging(
    rule: Rule, settings: round_machine.Averaging, add_row: AddRow = with_row
) -> Half[Any]:
    """Return the half of a rule and settings; ``add_row`` may keep waiting updates in a file."""
    make = partial(_half, rule, settings, add_row)
    return with_steps(make) if settings.rounds.downlink == "q8" else make()


def _half(
    rule: Rule, settings: round_machine.Averaging, add_row: AddRow, announce: Announce = exact
) -> Half[Averaged]:
    def init(w: Vector) -> Averaged:
        start = np.asarray(w, np.float64).copy()
        moments = {**settings.optimiser.init(start), **settings.after.init(start)}
        return (settings.state or Averaged)(0, 0, False, start, moments)

    def model(state: Averaged) -> Mapping[str, Array]:
        is_over = state.round > 0 and not state.is_open
        return {"p": round_machine.published(settings.manner.final(state) if is_over else state.w)}

    def tasks(state: Averaged, _clients: Iterable[str]) -> Effects:
        at = settings.values_at
        values = settings.values if at is None else at(state.version)
        arrays = {"w": round_machine.published(state.w)}
        return (
            Task(
                ALL,
                state.round,
                round_machine.ASK,
                base=state.version,
                values=values,
                arrays=arrays,
            ),
        )

    def counts(state: Averaged, update: Update) -> bool:
        is_current = update.round == state.round and update.base == state.version
        is_first = update.sender not in state.pending
        return is_current and is_first and update.vector.shape == state.w.shape

    def accept(state: Averaged, update: Update) -> Averaged:
        difference = state.w - update.vector if settings.weights else update.vector
        loss = {update.sender: float(update.values["loss"])} if "loss" in update.values else {}
        return replace(
            state,
            pending=add_row(state.pending, update.sender, difference),
            counts={**state.counts, update.sender: float(update.values.get("n", 1.0))},
            losses={**state.losses, **loss},
            kept=state.kept if settings.record is None else settings.record(state, update),
        )

    def combine(state: Averaged) -> round_machine.RoundOutcome[Averaged]:
        rows, scheme = Rows.of(state.pending), settings.manner
        decide = rule if settings.rule_at is None else settings.rule_at(state)
        try:
            verdict = decide(rows, scheme.shares(state, rows.ids), state.memory)
        except TooFewRows as error:
            return _discarded(state, str(error))
        w, moments = optimiser_step(
            settings.optimiser, state.w, verdict.value, state.moments, settings.after
        )
        w = announce(state.w, w)
        if not np.isfinite(round_machine.published(w)).all():
            return _discarded(state, round_machine.NOT_FINITE)
        kept = scheme.keep(state, w)
        moved = replace(_emptied(state), w=w, moments=moments, memory=verdict.memory, kept=kept)
        is_last = scheme.is_over(state.version + 1, kept)
        return round_machine.RoundOutcome(
            moved, round_machine.round_report(state, rows, verdict), is_last=is_last
        )

    hooks = round_machine.RoundHooks(
        settings.rounds, counts, accept, combine, _discarded, tasks, adopt=_adopted
    )
    return Half(init, partial(round_machine.apply, hooks), model)


def _adopted(state: Averaged, event: ParentModel) -> round_machine.RoundOutcome[Averaged]:
    """Replace the model by one from outside of the run, plus the progress that is carried over."""
    w = np.asarray(event.vector, np.float64)
    w = w + event.carry if event.carry.size else w.copy()
    if w.shape != state.w.shape or not np.isfinite(round_machine.published(w)).all():
        return _discarded(state, round_machine.NOT_FINITE)
    report = {"cohort": [], "parent_round": event.number, "parent_version": event.version}
    return round_machine.RoundOutcome(replace(_emptied(state), w=w), report, is_last=event.is_last)


def _discarded(state: Averaged, why: str) -> round_machine.RoundOutcome[Averaged]:
    return round_machine.RoundOutcome(_emptied(state), {"cohort": sorted(state.pending)}, why=why)


def _emptied(state: Averaged) -> Averaged:
    return replace(state, pending={}, counts={}, losses={})


@dataclass(frozen=True, slots=True)
class FedSgd:
    """Average one gradient of every client a round."""

    # step length of the server for shared layers and of every device for local layers
    rate: Rate = 0.01

    def bound(self, rounds: round_machine.Rounds) -> round_machine.Averaging:
        return round_machine.Averaging(server_sgd(self.rate), rounds, {"rate": self.rate})


@dataclass(frozen=True, slots=True)
class FedProx:
    """FedAvg with a proximal term that pulls every device towards the received model."""

    steps: Steps = 4  # local steps a round
    rate: Rate = 1e-3  # their learning rate
    prox: Prox = 0.01  # weight of half the squared distance to the received model
    server_rate: Rate = 1.0  # fraction of the average difference that the server applies

    def bound(self, rounds: round_machine.Rounds) -> round_machine.Averaging:
        values = task(self.steps, self.rate, prox=self.prox)
        return round_machine.Averaging(server_sgd(self.server_rate), rounds, values)


def trace(decay: float, gain: float = 1.0) -> Transform:
    """Return ``m = decay * m + gain * g``: momentum, or with ``gain = 1 - decay`` its average."""

    def update(g: Array, state: State, _p: Array) -> tuple[Array, State]:
        m = decay * state["m"] + gain * g
        return m, {"m": m}

    return Transform(lambda p: {"m": np.zeros_like(p)}, update)


def momentum(
    rate: float = 1.0, beta: float = 0.99, form: Literal["average", "heavy_ball"] = "average"
) -> Transform:
    """Return steps with server momentum.

    ``average`` keeps a moving average, ``m = beta m + (1 - beta) delta``: it starts slowly (63 % of
    the way after 1 / (1 - beta) rounds). ``heavy_ball`` keeps the sum ``m = beta m + delta``: its
    steps are up to 1 / (1 - beta) times as long.

    >>> from edge_sdk.shared_math.optim import optimiser_step
    >>> w, m = optimiser_step(momentum(beta=0.9), np.zeros(1), np.array([-2.75]), {"m": np.zeros(1)})
    >>> round(float(w[0]), 3)
    0.275
    >>> ball = momentum(beta=0.9, form="heavy_ball")
    >>> float(optimiser_step(ball, np.zeros(1), np.array([-2.75]), {"m": np.zeros(1)})[0][0])
    2.75
    """
    return chain(trace(beta, 1.0 - beta if form == "average" else 1.0), scale(-rate))


def adam(
    rate: float = 0.01, beta1: float = 0.99, beta2: float = 0.999, eps: float = 1e-3
) -> Transform:
    """Return adaptive steps: no bias correction, ``v`` starts at ``eps²``, denominator √v + ε.

    Differs from other libraries on purpose: some correct the bias, which multiplies the first
    step by (1 - beta1)⁻¹ √(1 - beta2).

    >>> from edge_sdk.shared_math.optim import optimiser_step
    >>> opt = adam(rate=0.01, beta1=0.99, beta2=0.999, eps=1e-3)
    >>> w, state = optimiser_step(opt, np.zeros(1), np.array([-2.75]), opt.init(np.zeros(1)))
    >>> round(float(w[0]), 8), round(float(state["v"][0]), 9)
    (0.00312612, 0.007563499)

    Reference:
        Reddi et al., Adaptive Federated Optimization, ICLR 2021.
    """

    def update(delta: Array, state: State, _w: Array) -> tuple[Array, State]:
        m = beta1 * state["m"] + (1.0 - beta1) * delta
        v = beta2 * state["v"] + (1.0 - beta2) * delta * delta
        return -rate * m / (np.sqrt(v) + eps), {"m": m, "v": v}

    return Transform(lambda w: {"m": np.zeros_like(w), "v": np.full_like(w, eps * eps)}, update)


@dataclass(frozen=True, slots=True)
class FedAvgM:
    """FedAvg with momentum at the server."""

    steps: Steps = 4  # local steps a round
    rate: Rate = 1e-3  # their learning rate
    server_rate: Rate = 1.0  # step length of the server
    beta: Share = 0.99  # fraction of the old momentum that is kept
    # ``average`` is a moving average; ``heavy_ball`` moves 1 / (1 - beta) as far
    momentum_form: Literal["average", "heavy_ball"] = "average"

    def bound(self, rounds: round_machine.Rounds) -> round_machine.Averaging:
        optimiser = momentum(self.server_rate, self.beta, self.momentum_form)
        return round_machine.Averaging(optimiser, rounds, task(self.steps, self.rate))


@dataclass(frozen=True, slots=True)
class FedAdam:
    """FedAvg with adaptive steps at the server."""

    steps: Steps = 4  # local steps a round
    rate: Rate = 1e-3  # their learning rate
    server_rate: Rate = 0.01  # step length of the server
    beta1: Share = 0.99  # fraction of the old first moment that is kept
    beta2: Share = 0.999  # fraction of the old second moment that is kept
    # term added to the denominator; its square is the initial second moment
    eps: Annotated[float, Between(1e-12, 1.0)] = 1e-3

    def bound(self, rounds: round_machine.Rounds) -> round_machine.Averaging:
        optimiser = adam(self.server_rate, self.beta1, self.beta2, self.eps)
        return round_machine.Averaging(optimiser, rounds, task(self.steps, self.rate))
