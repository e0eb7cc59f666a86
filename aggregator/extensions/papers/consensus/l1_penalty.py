"""The l1 pull of RSA and BAFDP: every client has the weight of a sign, at any size of its values.

No client moves a coordinate of z by more than ``rate (l1 + bound of its dual) / R`` a firing where
pulls are averaged over R clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from aggregator.extensions.papers.consensus.consensus_engine import ConsensusServerState, without
from edge_sdk.extensions.papers.consensus_dual import damping
from edge_sdk.protocol.contract.method import Array, Scalars, Update


@dataclass(frozen=True, slots=True)
class Budget:
    """The dual of BAFDP's constraint that a client's budget stays below its cap."""

    lowest: float  # lower bound of a claimed budget
    cap: float  # upper bound of a claimed budget (the paper's a)
    rate: float  # step of the dual (alpha_lambda)
    least: float = 0.0  # floor of its damping

    def claimed(self, eps: float) -> float:
        return min(max(eps, self.lowest), self.cap)

    def next_dual(self, dual: float, eps: float, fired: int) -> float:
        """Return the dual after a firing; it stays 0 while the budget is below its cap.

        Source:
            BAFDP (21).

        >>> Budget(lowest=0.01, cap=10.0, rate=0.1).next_dual(0.5, 10.0, 15)
        0.25
        """
        if self.rate == 0.0:
            return dual
        kappa = damping(self.rate, fired, self.least)
        return max(0.0, dual + self.rate * ((eps - self.cap) - kappa * dual))


@dataclass(frozen=True, slots=True)
class Budgets:
    """State of the clients' budgets; mappings are by client."""

    eps: Mapping[str, float] = field(default_factory=dict)  # claimed budgets within their bounds
    # duals of the constraint that each stays below the cap
    dual: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class L1:
    """Family of BAFDP and RSA."""

    weight: float  # weight of the l1 term
    numbers_at: Callable[[int], Scalars]  # returns the numbers of a task for its version
    budget: Budget | None = None  # constraint on the budgets; None has none (RSA)
    votes: bool = False  # true if updates are signs of ``z - w``; they count in one firing only
    gain: float = 1.0  # factor of a sign, which corrects the bias of noisy ones

    def start(self) -> Budgets:
        """Return a state without budgets."""
        return Budgets()

    def numbers(self, own: Budgets, client: str, version: int) -> Scalars:
        """Return the version's numbers, and the client's own dual of its budget."""
        values = self.numbers_at(version)
        if self.budget is None:
            return values
        return {**values, "eps_dual": own.dual.get(client, 0.0)}

    def kept(self, vector: Array) -> Array:
        """Return a vote clamped to -1, 0 or 1; weights unchanged."""
        return np.sign(vector) if self.votes else vector

    def accepted(self, own: Budgets, update: Update) -> Budgets:
        """Keep the claimed budget within its bounds."""
        if self.budget is None:
            return own
        eps = self.budget.claimed(update.values.get("eps", self.budget.lowest))
        return replace(own, eps={**own.eps, update.sender: eps})

    def pull(self, state: ConsensusServerState, z: Array) -> Array:
        """Return ``weight gain sum_j sign(z - w_j)``."""
        total = np.zeros_like(state.w)
        for client in sorted(state.held):
            total += state.held[client] if self.votes else np.sign(z - state.held[client])
        return total * (self.weight * self.gain)

    def closed(self, state: ConsensusServerState, cohort: list[str]) -> ConsensusServerState:
        """Remove votes; take the steps of the budgets' duals."""
        if self.votes:
            state = replace(state, held={})
        if self.budget is None:
            return state
        own: Budgets = state.own
        risen = {
            name: self.budget.next_dual(own.dual.get(name, 0.0), own.eps[name], state.version)
            for name in cohort
        }
        return replace(state, own=replace(own, dual={**own.dual, **risen}))

    def without(self, own: Budgets, clients: Iterable[str]) -> Budgets:
        removed = frozenset(clients)
        return Budgets(without(own.eps, removed), without(own.dual, removed))

    def report(self, own: Budgets) -> Mapping[str, Any]:
        eps = [own.eps[name] for name in sorted(own.eps)]
        return {"eps": float(np.mean(eps))} if eps else {}


def debias(eps: float) -> float:
    """Return the factor by which a flipped sign is unbiased.

    A sign is kept with probability ``p = e^eps / (1 + e^eps)``; the factor is 1 / (2 p - 1). More
    privacy needs a larger factor, which also multiplies the sign of a Byzantine client.

    Raises:
        ValueError: A budget of 0: the sign is independent of the value.

    >>> round(debias(1.0), 8)
    2.16395341
    """
    if not eps > 0.0:
        raise ValueError(f"expected a budget above 0, got {eps}")
    return 1.0 / math.tanh(eps / 2.0)
