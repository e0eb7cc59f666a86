"""FedAsync and FedBuff: their settings, and the step of a full buffer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from aggregator.methods.asynchronous.buffered import Buffered, Buffering, Fire, Fired, buffered
from aggregator.methods.asynchronous.staleness import Discount, constant, hinge, polynomial
from aggregator.methods.base.parameters import Behind, Factor, Prox, Rate, Steps, task
from aggregator.methods.base.round_machine import Rounds
from aggregator.methods.base.types import Setup, has_no_use
from aggregator.rules import Rows, Rule
from aggregator.rules.weights import uniform
from edge_sdk.wire.contract.method import Half
from edge_sdk.wire.schema import Between, SchemaError

Form = Literal["constant", "polynomial", "hinge"]


@dataclass(frozen=True, slots=True)
class FedAsync:
    """Move the model with every update, by less the staler it is.

    Attributes:
        steps: Local steps of a task.
        rate: Their learning rate.
        prox: Weight of half the squared distance to the received model.
        alpha: Weight of a fresh update in the next model.
        discount: Form of the staleness discount: ``constant``, ``polynomial`` or ``hinge``.
        power: Of ``polynomial``: ``(1 + behind)^-power``.
        slope: Of ``hinge``, beyond its grace.
        grace: Of ``hinge``: number of versions behind at which an update still counts in full.
        max_staleness: Largest staleness in versions; a staler update is refused.
    """

    steps: Steps = 4
    rate: Rate = 1e-3
    prox: Prox = 0.005
    alpha: Annotated[float, Between(1e-6, 1.0)] = 0.6
    discount: Form = "polynomial"
    power: Factor = 0.5
    slope: Factor = 10.0
    grace: Behind = 4
    max_staleness: Behind = 16

    def bound(self, rounds: Rounds) -> Buffering:
        """Return the family's settings for these numbers."""
        discount = discount_of(self.discount, self.power, self.slope, self.grace)
        values = task(self.steps, self.rate, prox=self.prox)
        return Buffering(discount, self.max_staleness, rounds, values)


@dataclass(frozen=True, slots=True)
class FedBuff:
    """Move the model with ``run.quorum`` updates together, each discounted by its staleness.

    A rule other than the mean makes it robust: it receives the discounted differences of a full
    buffer.

    Attributes:
        steps: Local steps of a task.
        rate: Their learning rate.
        server_rate: Step length of the server.
        discount: As in FedAsync.
        power: As in FedAsync.
        slope: As in FedAsync.
        grace: As in FedAsync.
        max_staleness: As in FedAsync.
    """

    steps: Steps = 4
    rate: Rate = 1e-3
    server_rate: Rate = 1.0
    discount: Form = "polynomial"
    power: Factor = 0.5
    slope: Factor = 10.0
    grace: Behind = 4
    max_staleness: Behind = 16

    def bound(self, rounds: Rounds) -> Buffering:
        """Return the family's settings for these numbers."""
        discount = discount_of(self.discount, self.power, self.slope, self.grace)
        return Buffering(discount, self.max_staleness, rounds, task(self.steps, self.rate))


def discount_of(form: Form, power: float, slope: float, grace: int) -> Discount:
    """Return the named discount; parameters of the other forms are ignored."""
    if form == "polynomial":
        return polynomial(power)
    return hinge(slope, grace) if form == "hinge" else constant()


def fedasync(setup: Setup) -> Half[Buffered]:
    """Return FedAsync's server half.

    Raises:
        SchemaError: A quorum other than 1 (every update moves the model), or a setting that the
            method does not use.
    """
    has_no_use(setup, "rule", "weighting", "share")
    if setup.rounds.quorum != 1:
        raise SchemaError("run.quorum", "1: every update moves the model", str(setup.rounds.quorum))
    return buffered(mixing(setup.settings.alpha), setup.settings.bound(setup.rounds))


def fedbuff(setup: Setup) -> Half[Buffered]:
    """Return FedBuff's server half.

    Raises:
        SchemaError: A buffer too small for the rule's Byzantine clients (it must hold
            ``2 f + 3``), or a setting that the method does not use.
    """
    has_no_use(setup, "weighting", "share")
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
